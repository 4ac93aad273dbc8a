//! Result documents; what must hold is in the library beside this, which an ordinary test shares.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quell_fuzz::results(bytes));
