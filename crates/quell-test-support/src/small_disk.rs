//! A file system that a test can fill.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use crate::{Lacks, skip};

/// A tmpfs of 192 kB. Dropping it unmounts it.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Creates the directory `at` and mounts the file system there. `None`, and the test recorded as skipped, without root.
    pub fn mount(at: PathBuf) -> Option<Self> {
        std::fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        match mount.args(["-t", "tmpfs", "-o", "size=192k,mode=0700", "tmpfs"]).arg(&at).output() {
            Ok(said) if said.status.success() => Some(Self(at)),
            said => {
                skip(Lacks::Root, format_args!("no tmpfs can be mounted: {said:?}"));
                None
            }
        }
    }

    pub fn fill(&self) {
        let mut filler = std::fs::File::create(self.0.join("filler")).unwrap();
        while filler.write_all(&[0; 4096]).is_ok() {}
    }

    pub fn clear(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
