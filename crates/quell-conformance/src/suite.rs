//! The scenarios that ship with the project, as they are in `conformance/`.

use crate::parse;
use crate::place::FileError;
use crate::scenario::Scenario;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        /// Name and content of every scenario file, in alphabetical order.
        pub const FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../conformance/", $name, ".toml")))),*];
    };
}

files!["deferral-counts-down",];

/// Why a scenario that was asked for is not to be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    /// None is called that.
    #[error("no scenario is called `{name}`; there are: {known}")]
    Unknown {
        /// As it was asked for.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// The file is none.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The scenario of that name.
///
/// # Errors
/// [`SuiteError::Unknown`] with the names that there are.
pub fn scenario(name: &str) -> Result<Scenario, SuiteError> {
    let Some((name, content)) = FILES.iter().find(|(known, _)| *known == name) else {
        let known = FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        return Err(SuiteError::Unknown { name: name.to_owned(), known });
    };
    Ok(parse::scenario(name, content)?)
}

/// All of them.
///
/// # Errors
/// The first file that is none.
pub fn all() -> Result<Vec<Scenario>, FileError> {
    FILES.iter().map(|(name, content)| parse::scenario(name, content)).collect()
}
