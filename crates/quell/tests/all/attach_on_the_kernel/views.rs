//! Views of a program in a container whose queues belong to a device of the host.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use crate::command;
use quell_linux::netns::NamespaceName;
use quell_linux::process::Spawn;
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab, id};
use quell_test_support::{Lacks, skip, wait_until};
use serde_json::Value;

use super::stage::MODE;
/// Address of the macvlan in the container.
const CONTAINER: &str = "192.0.2.77";

fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).status().is_ok_and(|status| status.success())
}

#[test]
fn a_program_behind_a_macvlan_is_seen_with_its_mode_inside_and_outside_of_its_namespace() {
    let Some(lab) = TestLab::raise_beside_others("views", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (journals, name) = (dir.path().join("journal"), format!("{}-c", id("views")));
    let mut container = lab.transaction(&dir, "views-c");
    let namespace = container.create_namespace(&NamespaceName::new(name.clone()).unwrap()).unwrap();
    let server = &lab.server_name;
    if !ip(&format!("-n {server} link add mv0 link server0 netns {name} type macvlan mode bridge")) {
        return skip(Lacks::KernelFeature, "no macvlan");
    }
    assert!(ip(&format!("-n {name} address add {CONTAINER}/24 dev mv0")) && ip(&format!("-n {name} link set mv0 up")));
    if Command::new("memcached").arg("-V").output().is_err() {
        return skip(Lacks::Server("memcached"), "memcached is not installed");
    }
    let memcached = Spawn::new("memcached").args(["-u", "root", "-U", "0", "-t", "1", "-l", CONTAINER]);
    let memcached = container.spawn(&["memcached".to_owned()], memcached.netns(&namespace)).unwrap();
    let number = memcached.pid().get();
    let pid = number.to_string();
    let connect = || TcpStream::connect((CONTAINER, 11_211)).map_err(|error| error.to_string());
    let mut client = lab.client.run(|| wait_until(connect)).unwrap();
    client.set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
    let mut ask = || {
        client.write_all(b"version\r\n").unwrap();
        assert!(client.read(&mut [0; 64]).unwrap() > 0);
    };
    ask();
    let says = |words: &[&str]| command::says(0, &mut command::quell(&journals, words));
    let inside = |words: &[&str]| {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net=/run/netns/{name}")).arg(env!("CARGO_BIN_EXE_quell"));
        inside.args(words).env("QUELL_JOURNAL_DIR", &journals);
        serde_json::from_slice::<Value>(&inside.output().unwrap().stdout).unwrap()
    };
    let shown: Value = serde_json::from_str(&says(&["show", "-j", &pid])).unwrap();
    assert!(shown.to_string().contains("server0"), "{shown}");
    for report in [serde_json::from_str(&says(&["doctor", "-j", &pid])).unwrap(), inside(&["doctor", "-j"])] {
        let server: &Value = report["servers"].as_array().unwrap().iter().find(|it| it["pid"] == number).unwrap();
        assert_eq!((&server["queues"], &server["present"]), (&Value::from(1), &Value::from("base")), "{server}");
    }
    let attached = says(&["attach", MODE, &pid, "--yes", "--seconds", "0"]);
    assert!(attached.contains("server0"), "{attached}");
    let profile = says(&["show", "--as-profile"]);
    assert!(!profile.contains(MODE), "a profile is for the devices of this namespace: {profile}");
    ask();

    let status = says(&["status"]);
    assert!(!status.contains("none of its sockets has received"), "{status}");
    let top = inside(&["top", "-i", "0.2", "-n", "1", "-j"]);
    let program = top["programs"].as_array().unwrap().iter().find(|program| program["pid"] == number).unwrap();
    assert_eq!(program["mode"], MODE, "{top}");
    assert!(!program["napis"].as_array().unwrap().is_empty() && !program["effect"].is_null(), "{top}");
    says(&["detach", &pid]);
    drop(memcached);
    container.revert().unwrap();
}
