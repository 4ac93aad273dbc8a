//! From the text of a scenario file to a [`Scenario`] whose references exist, or an error with the
//! line and a caret below what is wrong.

mod file;
mod resolve;

use crate::place::FileError;
use crate::scenario::Scenario;

/// Reads a scenario. `name` is its file's name without the ending.
///
/// # Errors
/// What is not TOML, not of a scenario's shape, or refers to what does not exist, with its place.
pub fn scenario(name: &str, content: &str) -> Result<Scenario, FileError> {
    let file_name = format!("{name}.toml");
    let error = |span, message| FileError::new(&file_name, content, span, message);
    let file: file::File = toml::from_str(content)
        .map_err(|refused| error(refused.span().unwrap_or(0..0), refused.message().to_owned()))?;
    resolve::scenario(name, file).map_err(|refused| error(refused.span, refused.message))
}
