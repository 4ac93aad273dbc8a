//! Tests of guests that do not finish their command: the error for the user, and that no process remains.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking and print the reason for a skip"
)]

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use quell_test_support::{Lacks, skip};
use quell_vm::machine::{Emulator, Machine, MachineError, Nic};
use quell_vm::store::Store;

/// Creates a machine whose kernel, in a private store, is not a valid kernel. Returns `None` if QEMU is not installed.
fn machine(dir: &Path) -> Option<Machine> {
    let emulator = Emulator::find().inspect_err(|error| skip(Lacks::Guest, error)).ok()?;
    let kernel = dir.join("6.1");
    fs::create_dir_all(kernel.join("modules")).unwrap();
    fs::write(kernel.join("vmlinuz"), b"no kernel").unwrap();
    fs::write(kernel.join("kernel.json"), r#"{"name":"6.1","version":"6.1-1","suite":"none"}"#).unwrap();
    let kernel = Store::in_dir(dir).newest().unwrap();
    Some(Machine { emulator, kernel, nic: Nic::Virtio, cpus: 1, limit: Duration::from_secs(60) })
}

#[test]
fn a_kernel_that_does_not_boot_is_reported_with_qemus_message() {
    let dir = tempfile::tempdir().unwrap();
    let Some(machine) = machine(dir.path()) else { return };
    match machine.run(&["lab".to_owned()], &mut |_, _| ControlFlow::Continue(()), &|| false) {
        Err(MachineError::Lost { qemu, .. }) => assert!(qemu.starts_with("qemu"), "{qemu}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_user_interrupt_ends_the_guest_before_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let Some(machine) = machine(dir.path()) else { return };
    let ended = machine.run(&[], &mut |_, _| ControlFlow::Continue(()), &|| true);
    assert!(matches!(ended, Err(MachineError::Interrupted | MachineError::Lost { .. })));
}
