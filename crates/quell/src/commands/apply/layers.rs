//! Which files a profile is made of: those that the user names, or those of the vendor and then those of the host, where
//! a file of the host's replaces the vendor's of the same name.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use quell_linux::visible;
use quell_mode::profile::Source;

use crate::exit::Failure;
use crate::file;

/// Lower first.
const DIRECTORIES: [&str; 2] = ["/usr/lib/quell", "/etc/quell"];

/// The layers, the lowest first.
///
/// # Errors
/// When a file cannot be read, or there is none.
pub(super) fn read(named: &[PathBuf]) -> Result<Vec<Source>, Failure> {
    let files = if named.is_empty() { installed(&DIRECTORIES.map(Path::new))? } else { named.to_vec() };
    if files.is_empty() {
        let text = format!("no profile is named, and there is none in {}: name a file", DIRECTORIES.join(" or "));
        return Err(Failure::usage(text));
    }
    files.iter().map(|path| Ok(Source::new(visible::path(path), file::read(path, file::BY_HAND_MAX)?))).collect()
}

/// The `.toml` files of the directories, in the order of their names; of several of one name the last.
fn installed(directories: &[&Path]) -> Result<Vec<PathBuf>, Failure> {
    let mut by_name: BTreeMap<OsString, PathBuf> = BTreeMap::new();
    for directory in directories {
        let refused = |error| Failure::usage(format!("could not list {}: {error}", visible::path(directory)));
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(refused(error)),
        };
        for entry in entries {
            let entry = entry.map_err(refused)?;
            if Path::new(&entry.file_name()).extension().is_some_and(|extension| extension == "toml") {
                by_name.insert(entry.file_name(), entry.path());
            }
        }
    }
    Ok(by_name.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_host_replaces_the_vendors_of_the_same_name() {
        let (vendor, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for file in [vendor.path().join("10-a.toml"), vendor.path().join("20-b.toml"), host.path().join("10-a.toml")] {
            fs::write(file, "").unwrap();
        }
        fs::write(host.path().join("README"), "").unwrap();
        let found = installed(&[vendor.path(), host.path(), Path::new("/nonexistent")]).unwrap();
        assert_eq!(found, [host.path().join("10-a.toml"), vendor.path().join("20-b.toml")]);
    }
}
