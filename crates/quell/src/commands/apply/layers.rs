//! Selects the profile files: those named on the command line, or else the vendor's and the host's. A file in the
//! host's directory replaces the vendor's file of the same name.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use quell_linux::visible;
use quell_mode::profile::Source;

use crate::exit::Failure;
use crate::file;

/// Lowest priority first.
const DIRECTORIES: [&str; 2] = ["/usr/lib/quell", "/etc/quell"];

/// Reads the layers, lowest priority first.
pub(super) fn read(named: &[PathBuf]) -> Result<Vec<Source>, Failure> {
    let files = if named.is_empty() { installed(&DIRECTORIES.map(Path::new))? } else { named.to_vec() };
    if files.is_empty() {
        let text = format!("no profile given and none found in {}: name a profile file", DIRECTORIES.join(" or "));
        return Err(Failure::usage(text));
    }
    files.iter().map(|path| Ok(Source::new(visible::path(path), file::read(path, file::BY_HAND_MAX)?))).collect()
}

/// The `.toml` files of the directories, sorted by name; a later directory replaces files of the same name.
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
    fn a_file_of_the_host_replaces_the_vendors_file_of_the_same_name() {
        let (vendor, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for file in [vendor.path().join("10-a.toml"), vendor.path().join("20-b.toml"), host.path().join("10-a.toml")] {
            fs::write(file, "").unwrap();
        }
        fs::write(host.path().join("README"), "").unwrap();
        let found = installed(&[vendor.path(), host.path(), Path::new("/nonexistent")]).unwrap();
        assert_eq!(found, [host.path().join("10-a.toml"), vendor.path().join("20-b.toml")]);
    }
}
