//! An eBPF program that selects among the sockets of a reuseport group, held so that it can be attached again.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::fs::statfs;

use crate::bpf::{load_socket_filter, open_pinned_program, open_program, pin};

/// `BPF_FS_MAGIC` in `linux/magic.h`.
const BPF_FS_MAGIC: u64 = 0xCAFE_4A11;

/// A loaded program. It exists while this value or a file of the BPF file system refers to it.
#[derive(Debug)]
pub struct EbpfFilter(OwnedFd);

impl AsRawFd for EbpfFilter {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl EbpfFilter {
    /// Loads a program: numbers are instructions (`struct bpf_insn`). It returns the index of a socket.
    pub fn load(name: &str, instructions: &[u64]) -> io::Result<Self> {
        load_socket_filter(name, instructions).map(Self)
    }

    /// Opens the program with this ID (`BPF_PROG_GET_FD_BY_ID`). Fails if it no longer exists, or the caller lacks
    /// `CAP_SYS_ADMIN`.
    pub fn open(id: u32) -> io::Result<Self> {
        open_program(id).map(Self)
    }

    pub fn open_pinned(path: &Path) -> io::Result<Self> {
        open_pinned_program(path).map(Self)
    }

    /// Keeps the program loaded after this process exits, as a new file of the BPF file system.
    pub fn pin_to(&self, path: &Path) -> io::Result<()> {
        pin(self.0.as_fd(), path)
    }

    pub fn pins() -> io::Result<PathBuf> {
        let folder = PathBuf::from("/sys/fs/bpf");
        match statfs(&folder) {
            Ok(mounted) if u64::try_from(mounted.f_type).ok() == Some(BPF_FS_MAGIC) => Ok(folder),
            Ok(_) => Err(io::Error::other("/sys/fs/bpf is not a BPF file system (mount -t bpf bpf /sys/fs/bpf)")),
            Err(errno) => Err(errno.into()),
        }
    }
}
