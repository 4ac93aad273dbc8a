//! The files of one line in sysfs, /proc/irq and /proc/sys: no bytes may panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quell_linux::fuzzing::one_line_files(bytes));
