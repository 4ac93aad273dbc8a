//! Frames of an AF_XDP socket: no bytes may panic, and the answer to a valid frame is valid.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quell_xdp::fuzzing::frames(bytes));
