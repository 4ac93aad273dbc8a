//! What goes into a guest of the vm lab and comes out of it; what must hold is in quell-vm.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quell_vm::fuzzing::guest_messages(bytes));
