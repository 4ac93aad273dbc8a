//! The kernel's types (BTF): no bytes may panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quell_linux::fuzzing::btf(bytes));
