//! The JSON Schema of snapshots describes every field of a snapshot of this machine. Other tests check the values.

use std::net::TcpListener;

use quell_host::snapshot::{SnapshotScope, take};
use quell_linux::Pid;
use serde_json::Value;

#[test]
fn every_field_of_a_snapshot_of_this_machine_is_in_the_schema() {
    let _listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let scope = SnapshotScope { pids: vec![Pid::of_this_process()], ..SnapshotScope::default() };
    let snapshot = serde_json::to_value(take(&scope).unwrap().0).unwrap();
    let schema: Value =
        serde_json::from_str(include_str!("../../../../docs/schema/quell-snapshot.schema.json")).unwrap();
    for (definition, place) in [
        ("", ""),
        ("Taken", "/taken"),
        ("SnapshotScope", "/scope"),
        ("SnapshotKernel", "/kernel"),
        ("Privileges", "/privileges"),
        ("Sysctls", "/sysctls"),
        ("NetworkNamespace", "/namespaces/0"),
        ("Cpus", "/cpus"),
        ("Cpu", "/cpus/each/0"),
        ("Device", "/devices/0"),
        ("Process", "/processes/0"),
        ("Thread", "/processes/0/threads/0"),
        ("Files", "/processes/0/files"),
        ("SnapshotSocket", "/sockets/0"),
    ] {
        let described = match definition {
            "" => schema.pointer("/properties"),
            definition => schema.pointer(&format!("/$defs/{definition}/properties")),
        };
        let object = snapshot.pointer(place).and_then(Value::as_object);
        for field in object.unwrap_or_else(|| panic!("{place}: no object")).keys() {
            let described = described.unwrap_or_else(|| panic!("no definition {definition}"));
            assert!(described.get(field).is_some(), "{place}/{field} is not in the schema");
        }
    }
}
