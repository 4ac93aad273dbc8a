//! Netlink datagrams and the payloads of every reply that Quell understands: no bytes may panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quell_linux::fuzzing::netlink(bytes));
