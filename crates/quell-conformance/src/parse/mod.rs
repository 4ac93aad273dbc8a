//! Parses the text of a scenario file into a [`Scenario`] with valid references. An error shows the line and a caret
//! below the mistake.

mod file;
mod resolve;

use crate::place::FileError;
use crate::scenario::Scenario;

pub fn scenario(name: &str, content: &str) -> Result<Scenario, FileError> {
    let file_name = format!("{name}.toml");
    let error = |span, message| FileError::new(&file_name, content, span, message);
    let file: file::File = toml::from_str(content)
        .map_err(|refused| error(refused.span().unwrap_or(0..0), refused.message().to_owned()))?;
    resolve::scenario(name, file).map_err(|refused| error(refused.span, refused.message))
}
