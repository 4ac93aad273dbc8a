//! The preload library as a file: the functions that it interposes, and its compatibility with any C library of Linux.

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

/// The library neither allocates, prints nor locks: a function that is not imported is not called. The weak imports are
/// the C library's cleanup list, which pthread_cancel uses.
#[test]
fn it_calls_only_what_a_signal_handler_may_call_and_at_load_dlsym_getenv_and_madvise() {
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
    assert!(!tied, "it would not load where that library, or that version of it, is not");
}

#[test]
fn it_is_small() {
    assert!(LIBRARY.len() < 32 << 10, "{} bytes", LIBRARY.len());
}
