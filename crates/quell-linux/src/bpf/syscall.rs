//! The `bpf(2)` commands that Quell uses, each with the prefix of `union bpf_attr` that it reads (`linux/bpf.h`). A BPF
//! object exists as long as its file descriptor is open.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::assembler::Instruction;
use crate::Ifindex;

const PROG_LOAD: libc::c_int = 5;
const OBJ_PIN: libc::c_int = 6;
const OBJ_GET: libc::c_int = 7;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const LINK_CREATE: libc::c_int = 28;

const PROG_TYPE_SOCKET_FILTER: u32 = 1;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
/// `XDP_FLAGS_DRV_MODE`: runs the program in the driver and rejects the generic fallback.
const XDP_IN_DRIVER: u32 = 1 << 2;
const LOG_BYTES: usize = 64 * 1024;

/// Error from loading a program, with the verifier's log if the verifier rejected the program.
#[derive(Debug)]
pub(super) struct LoadError {
    pub(super) source: io::Error,
    pub(super) log: String,
}

#[derive(Clone)]
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
    prog_ifindex: u32,
    expected_attach_type: u32,
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    line_info_rec_size: u32,
    line_info: u64,
    line_info_cnt: u32,
    attach_btf_id: u32,
    attach_prog_fd: u32,
    core_relo_cnt: u32,
}

/// Loads an XDP program.
pub(super) fn load_xdp_program(name: &str, instructions: &[Instruction]) -> Result<OwnedFd, LoadError> {
    load_program((PROG_TYPE_XDP, ATTACH_TYPE_XDP), name, instructions)
}

/// Loads a socket filter; each number is an instruction (`struct bpf_insn`) in this machine's byte order.
pub(crate) fn load_socket_filter(name: &str, instructions: &[u64]) -> io::Result<OwnedFd> {
    load_program((PROG_TYPE_SOCKET_FILTER, 0), name, instructions).map_err(|error| error.source)
}

/// `T` is an instruction of 8 bytes.
fn load_program<T>(
    (prog_type, expected_attach_type): (u32, u32),
    name: &str,
    instructions: &[T],
) -> Result<OwnedFd, LoadError> {
    const { assert!(size_of::<T>() == 8) };
    let mut prog_name = [0; 16];
    let length = name.len().min(prog_name.len() - 1);
    prog_name[..length].copy_from_slice(&name.as_bytes()[..length]);
    let mut attr = ProgLoadAttr {
        prog_type,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name,
        prog_ifindex: 0,
        expected_attach_type,
        prog_btf_fd: 0,
        func_info_rec_size: 0,
        func_info: 0,
        func_info_cnt: 0,
        line_info_rec_size: 0,
        line_info: 0,
        line_info_cnt: 0,
        attach_btf_id: 0,
        attach_prog_fd: 0,
        core_relo_cnt: 0,
    };
    // SAFETY: the command reads `attr`, and the instructions and license behind its pointers, and returns a new
    // file descriptor.
    let refused = match unsafe { bpf_fd(PROG_LOAD, &attr) } {
        Ok(program) => return Ok(program),
        Err(source) => source,
    };
    // Load again with a log buffer: the verifier writes its log only on request.
    let mut log = vec![0u8; LOG_BYTES];
    attr.log_level = 1;
    attr.log_size = LOG_BYTES as u32;
    attr.log_buf = log.as_mut_ptr() as u64;
    // SAFETY: the command reads `attr`, the instructions and the license, and writes at most `log_size` bytes to `log`.
    match unsafe { bpf_fd(PROG_LOAD, &attr) } {
        Ok(program) => Ok(program),
        Err(_) => Err(LoadError { source: refused, log: text(&log) }),
    }
}

fn text(log: &[u8]) -> String {
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    String::from_utf8_lossy(&log[..end]).trim_end().to_owned()
}

/// Attaches a loaded XDP program to an interface in the calling thread's network namespace, until the result is
/// dropped.
pub(super) fn attach_xdp(program: BorrowedFd<'_>, interface: Ifindex) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        prog_fd: u32,
        target_ifindex: u32,
        attach_type: u32,
        flags: u32,
    }
    let attr = Attr {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        target_ifindex: interface.get(),
        attach_type: ATTACH_TYPE_XDP,
        flags: XDP_IN_DRIVER,
    };
    // SAFETY: the command reads only `attr` and returns a new file descriptor.
    unsafe { bpf_fd(LINK_CREATE, &attr) }
}

#[repr(C)]
struct ObjAttr {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// Opens a loaded program by its ID.
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

/// Opens a pinned program.
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
