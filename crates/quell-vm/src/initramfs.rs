//! Writes an initramfs archive in the cpio format `newc`
//! (`Documentation/driver-api/early-userspace/buffer-format.rst`). It supports only the entries that a guest needs:
//! directories, files, symbolic links and a console, all owned by root.

use std::collections::BTreeSet;
use std::path::{Component, Path};

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;
const SYMBOLIC_LINK: u32 = 0o120_777;
const CHARACTER_DEVICE: u32 = 0o020_600;
/// Device number of `/dev/console`, which the kernel opens as init's standard files.
const CONSOLE: (u32, u32) = (5, 1);

pub(crate) struct Initramfs {
    archive: Vec<u8>,
    directories: BTreeSet<String>,
    inodes: u32,
}

impl Initramfs {
    /// Creates an archive that contains `/dev/console`.
    pub(crate) fn new() -> Self {
        let mut initramfs = Self { archive: Vec::new(), directories: BTreeSet::new(), inodes: 0 };
        initramfs.parents("dev/console");
        initramfs.entry("dev/console", CHARACTER_DEVICE, CONSOLE, &[]);
        initramfs
    }

    pub(crate) fn file(&mut self, path: &Path, content: &[u8]) {
        let path = relative(path);
        self.parents(&path);
        self.entry(&path, FILE, (0, 0), content);
    }

    pub(crate) fn link(&mut self, path: &Path, target: &str) {
        let path = relative(path);
        self.parents(&path);
        self.entry(&path, SYMBOLIC_LINK, (0, 0), target.as_bytes());
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.archive
    }

    fn parents(&mut self, path: &str) {
        for (end, _) in path.match_indices('/') {
            if self.directories.insert(path[..end].to_owned()) {
                self.entry(&path[..end], DIRECTORY, (0, 0), &[]);
            }
        }
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.inodes += 1;
        let links = 1;
        let size = content.len() as u32;
        let name_size = name.len() as u32 + 1;
        let (user, group, time, check) = (0, 0, 0, 0);
        let fields = [self.inodes, mode, user, group, links, time, size, 0, 0, device.0, device.1, name_size, check];
        self.archive.extend_from_slice(b"070701");
        for field in fields {
            self.archive.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.archive.extend_from_slice(name.as_bytes());
        self.archive.push(0);
        self.pad();
        self.archive.extend_from_slice(content);
        self.pad();
    }

    /// Pads the archive to a multiple of four bytes, because names and contents must start there.
    fn pad(&mut self) {
        self.archive.resize(self.archive.len().next_multiple_of(4), 0);
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
    fn each_directory_occurs_once_and_before_its_content() {
        let mut initramfs = Initramfs::new();
        initramfs.file(Path::new("/lib/a/one"), b"1");
        initramfs.file(Path::new("/lib/a/two"), b"22");
        let archive = initramfs.finish();
        let text = String::from_utf8_lossy(&archive);
        let place = |name: &str| text.find(&format!("{name}\0")).unwrap();
        assert!(place("lib") < place("lib/a") && place("lib/a") < place("lib/a/one"));
        assert_eq!(text.matches("lib/a\0").count(), 1);
    }

    #[test]
    fn paths_cannot_leave_the_root() {
        assert_eq!(relative(Path::new("/../etc/./x")), "etc/x");
    }

    #[test]
    fn the_cpio_program_reads_it() {
        let mut initramfs = Initramfs::new();
        initramfs.file(Path::new("/bin/tool"), b"odd");
        initramfs.link(Path::new("/lib64/ld.so"), "/lib/ld.so");
        let archive = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(archive.path(), initramfs.finish()).unwrap();
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
        assert_eq!(names, "dev\ndev/console\nbin\nbin/tool\nlib64\nlib64/ld.so\n");
    }
}
