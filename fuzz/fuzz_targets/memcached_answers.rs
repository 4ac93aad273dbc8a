//! Answers of a memcached: no bytes may panic, and how they are cut into pieces makes no difference.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quell_load::fuzzing::memcached_answers(bytes));
