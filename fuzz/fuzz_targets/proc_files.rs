//! Bytes of a /proc file; what must hold is in the parsers module, which the ordinary tests share.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/quell-linux/tests/parsers/mod.rs"]
mod parsers;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| parsers::proc_files(bytes));
