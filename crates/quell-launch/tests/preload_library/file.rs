//! Tests of the preload library's file: the functions that it intercepts, and its compatibility with any C library on
//! Linux.

use object::elf::{DT_NEEDED, DT_VERNEED, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSymbol as _};
use quell_launch::library::LIBRARY;

fn symbols(is_defined: bool) -> Vec<String> {
    let file = object::File::parse(LIBRARY).unwrap();
    let wanted = file.dynamic_symbols().filter(|symbol| symbol.is_definition() == is_defined && !symbol.is_weak());
    let mut names: Vec<String> = wanted.map(|symbol| symbol.name().unwrap().to_owned()).collect();
    names.sort();
    names.retain(|name| !name.is_empty());
    names
}

#[test]
fn it_exports_six_functions_and_its_report() {
    let expected =
        ["epoll_create", "epoll_create1", "epoll_pwait", "epoll_pwait2", "epoll_wait", "quell_report", "socket"];
    assert_eq!(symbols(true), expected);
}

/// The library allocates no memory, prints nothing and takes no locks. A function that it does not import is not
/// called. The weak imports are the C library's cleanup list for `pthread_cancel(3)`.
#[test]
fn it_calls_only_async_signal_safe_functions_and_at_load_dlsym_getenv_and_madvise() {
    let known = [
        "__errno_location",
        "clock_gettime",
        "dlsym",
        "getenv",
        "ioctl",
        "madvise",
        "memcpy",
        "memset",
        "setsockopt",
        "sigaction",
        "sigaddset",
        "sigemptyset",
        "sigfillset",
        "sigismember",
        "sigpending",
        "sigprocmask",
        "sigtimedwait",
        "strlen",
        "strncmp",
        "syscall",
    ];
    let unknown: Vec<String> = symbols(false).into_iter().filter(|name| !known.contains(&name.as_str())).collect();
    assert_eq!(unknown, Vec::<String>::new());
}

#[test]
fn it_needs_no_other_library_and_no_symbol_version() {
    let header = FileHeader64::<Endianness>::parse(LIBRARY).unwrap();
    let endian = header.endian().unwrap();
    let segments = header.program_headers(endian, LIBRARY).unwrap();
    let entries = segments.iter().find_map(|segment| segment.dynamic(endian, LIBRARY).unwrap()).unwrap();
    let tied = entries.iter().any(|entry| matches!(entry.d_tag(endian), DT_NEEDED | DT_VERNEED));
    assert!(!tied, "the library depends on another library or on a symbol version");
}

#[test]
fn it_is_small() {
    assert!(LIBRARY.len() < 32 << 10, "{} bytes", LIBRARY.len());
}
