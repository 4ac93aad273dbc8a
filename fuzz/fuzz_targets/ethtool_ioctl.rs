//! Answers of the ioctl of ethtool: no bytes may panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quell_linux::fuzzing::ethtool_ioctl(bytes));
