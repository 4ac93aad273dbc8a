//! Programs that have clients of this host only.

use std::collections::BTreeMap;

use quell_host::servers::local_servers;
use serde_json::{Value, json};

use crate::servers::{pid, plain};
use crate::snapshots::{set, snapshot};

#[test]
fn a_program_that_listens_on_loopback_or_unix_sockets_only_is_named_and_no_server() {
    let of = |host: &Value| local_servers(&snapshot(host), &BTreeMap::new());
    let mut host = plain();
    assert_eq!(of(&host), [], "it listens on an address of a device");
    let sockets = host["sockets"].as_array().unwrap().len();
    for socket in 0..sockets {
        set(&mut host, &format!("/sockets/{socket}/local"), json!("127.0.0.1:6379"));
    }
    let [only] = &of(&host)[..] else { panic!("{:?}", of(&host)) };
    assert_eq!((only.pid, only.loopback), (pid(4242), true));
    set(&mut host, "/sockets", json!([]));
    assert_eq!(of(&host), [], "it listens on nothing");
    host["processes"][0]["files"]["other-sockets"] = json!(["unix-listener"]);
    let [only] = &of(&host)[..] else { panic!("{:?}", of(&host)) };
    assert!(!only.loopback);
}
