//! A CPU list: what is accepted is written and read back as the same.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quell_linux::fuzzing::cpu_list(bytes));
