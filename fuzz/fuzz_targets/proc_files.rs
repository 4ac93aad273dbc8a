//! Bytes of a /proc file: no bytes may panic, and a refusal names a line that there is.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quell_linux::fuzzing::proc_files(bytes));
