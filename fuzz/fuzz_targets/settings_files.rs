//! Files from which other programs set queues: no bytes may panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quell_linux::fuzzing::settings_files(bytes));
