//! The `bpf(2)` commands that Quell uses, each with the prefix of `union bpf_attr` that it reads (`linux/bpf.h`). A BPF
//! object exists as long as its file descriptor is open.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const PROG_LOAD: libc::c_int = 5;
const OBJ_PIN: libc::c_int = 6;
const OBJ_GET: libc::c_int = 7;
const PROG_GET_FD_BY_ID: libc::c_int = 13;

const PROG_TYPE_SOCKET_FILTER: u32 = 1;

#[repr(C)]
struct ProgLoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

/// Loads a socket filter; each number is an instruction (`struct bpf_insn`) in this machine's byte order.
pub(crate) fn load_socket_filter(name: &str, instructions: &[u64]) -> io::Result<OwnedFd> {
    let mut prog_name = [0; 16];
    let length = name.len().min(prog_name.len() - 1);
    prog_name[..length].copy_from_slice(&name.as_bytes()[..length]);
    let attr = ProgLoadAttr {
        prog_type: PROG_TYPE_SOCKET_FILTER,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name,
    };
    // SAFETY: the command reads `attr`, and the instructions and license behind its pointers, and returns a new
    // file descriptor.
    unsafe { bpf_fd(PROG_LOAD, &attr) }
}

#[repr(C)]
struct ObjAttr {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

pub(crate) fn open_program(id: u32) -> io::Result<OwnedFd> {
    // The kernel requires zeros after the ID, also in the members of other commands.
    let attr: [u32; 3] = [id, 0, 0];
    // SAFETY: the command reads only `attr` and returns a new file descriptor.
    unsafe { bpf_fd(PROG_GET_FD_BY_ID, &attr) }
}

/// Pins a program as a new file of a BPF file system.
pub(crate) fn pin(program: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let bpf_fd = program.as_raw_fd().cast_unsigned();
    let attr = ObjAttr { pathname: path.as_ptr() as u64, bpf_fd, file_flags: 0 };
    // SAFETY: the command reads `attr` and the string behind its pointer, which ends with a zero byte.
    unsafe { bpf(OBJ_PIN, &attr) }.map(drop)
}

pub(crate) fn open_pinned_program(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attr = ObjAttr { pathname: path.as_ptr() as u64, bpf_fd: 0, file_flags: 0 };
    // SAFETY: the command reads `attr` and the string behind its pointer, which ends with a zero byte, and returns a
    // new file descriptor.
    unsafe { bpf_fd(OBJ_GET, &attr) }
}

/// Calls `bpf(2)`.
///
/// # Safety
/// `attr` has the layout of the command's part of `union bpf_attr`, and its pointers are valid for the command.
unsafe fn bpf<T>(command: libc::c_int, attr: &T) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads `size` bytes from `attr`; the caller guarantees the pointers in it.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Calls `bpf(2)` with a command that returns a file descriptor.
///
/// # Safety
/// The requirements of [`bpf`] apply, and the command returns a new file descriptor.
unsafe fn bpf_fd<T>(command: libc::c_int, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller guarantees the requirements of `bpf`.
    let fd = unsafe { bpf(command, attr) }?;
    // SAFETY: the kernel has just created this file descriptor, so this value is its only owner. Every file descriptor
    // fits the type.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}
