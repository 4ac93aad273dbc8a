//! Writes an initramfs archive (`Documentation/driver-api/early-userspace/buffer-format.rst`) with the entries that a guest
//! needs: directories, files, symbolic links and a console, all owned by root.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Cursor};
use std::path::{Component, Path};

use cpio::newc::Builder;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;
const SYMBOLIC_LINK: u32 = 0o120_777;
const CHARACTER_DEVICE: u32 = 0o020_600;

pub(crate) struct Initramfs {
    entries: Vec<(Builder, Cursor<Vec<u8>>)>,
    directories: BTreeSet<String>,
}

impl Initramfs {
    /// Creates an archive that contains `/dev/console`, which the kernel opens as init's standard files.
    pub(crate) fn new() -> Self {
        let mut initramfs = Self { entries: Vec::new(), directories: BTreeSet::new() };
        initramfs.parents("dev/console");
        let console = Builder::new("dev/console").mode(CHARACTER_DEVICE).rdev_major(5).rdev_minor(1);
        initramfs.entries.push((console, Cursor::default()));
        initramfs
    }

    pub(crate) fn file(&mut self, path: &Path, content: Vec<u8>) {
        self.entry(path, FILE, content);
    }

    pub(crate) fn link(&mut self, path: &Path, target: &str) {
        self.entry(path, SYMBOLIC_LINK, target.into());
    }

    pub(crate) fn write(self, path: &Path) -> io::Result<()> {
        cpio::write_cpio(self.entries.into_iter(), BufWriter::new(File::create(path)?))?.into_inner()?;
        Ok(())
    }

    fn entry(&mut self, path: &Path, mode: u32, content: Vec<u8>) {
        let path = relative(path);
        self.parents(&path);
        self.entries.push((Builder::new(&path).mode(mode), Cursor::new(content)));
    }

    fn parents(&mut self, path: &str) {
        for (end, _) in path.match_indices('/') {
            if self.directories.insert(path[..end].to_owned()) {
                self.entries.push((Builder::new(&path[..end]).mode(DIRECTORY), Cursor::default()));
            }
        }
    }
}

/// Converts to a relative path without `..` components.
fn relative(path: &Path) -> String {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_string_lossy()),
        _ => None,
    });
    names.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_test_support::{Lacks, skip};
    use std::process::{Command, Stdio};

    #[test]
    fn paths_cannot_leave_the_root() {
        assert_eq!(relative(Path::new("/../etc/./x")), "etc/x");
    }

    #[test]
    fn each_directory_occurs_once_and_before_its_content() {
        let mut initramfs = Initramfs::new();
        initramfs.file(Path::new("/lib/a/one"), b"1".into());
        initramfs.file(Path::new("/lib/a/two"), b"22".into());
        initramfs.link(Path::new("/lib64/ld.so"), "/lib/ld.so");
        let archive = tempfile::NamedTempFile::new().unwrap();
        initramfs.write(archive.path()).unwrap();
        let listed = Command::new("cpio")
            .args(["--list", "--quiet"])
            .stdin(std::fs::File::open(archive.path()).unwrap())
            .stderr(Stdio::inherit())
            .output();
        let Ok(listed) = listed else {
            skip(Lacks::Tool("cpio"), "cpio is not installed");
            return;
        };
        let names = String::from_utf8(listed.stdout).unwrap();
        assert_eq!(names, "dev\ndev/console\nlib\nlib/a\nlib/a/one\nlib/a/two\nlib64\nlib64/ld.so\n");
    }
}
