//! Common parts of the tests on a live kernel: a check whether they can run here, and a lab with two namespaces and a
//! veth pair. Dropping the lab deletes it.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use quell_linux::link::{Links, VethEnd};
use quell_linux::netns::{Namespace, NamespaceName};
use quell_linux::{Ifindex, InterfaceName};
use quell_test_support::{Lacks, skip};

/// Whether this process may create namespaces. If not, prints the reason for skipping to stderr.
pub(crate) fn can_make_namespaces() -> bool {
    let name = fresh_name("probe");
    match Namespace::create_named(&name) {
        Ok(_) => {
            Namespace::delete_named(&name).unwrap();
            true
        }
        Err(error) if error.is_denied() => {
            skip(Lacks::Root, &error);
            false
        }
        Err(error) => panic!("{error}"),
    }
}

/// Creates a namespace name that is unique across tests and processes.
pub(crate) fn fresh_name(what: &str) -> NamespaceName {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NamespaceName::new(format!("qt-{}-{number}-{what}", process::id())).unwrap()
}

/// A named namespace that is deleted when this value is dropped.
pub(crate) struct LabNamespace {
    pub(crate) name: NamespaceName,
    pub(crate) namespace: Namespace,
}

impl LabNamespace {
    pub(crate) fn create(what: &str) -> Self {
        let name = fresh_name(what);
        let namespace = Namespace::create_named(&name).unwrap();
        Self { name, namespace }
    }
}

impl Drop for LabNamespace {
    fn drop(&mut self) {
        if let Err(error) = Namespace::delete_named(&self.name) {
            eprintln!("could not delete a test namespace: {error}");
        }
    }
}

/// Two namespaces and a veth pair between them, with both ends up.
pub(crate) struct LabPair {
    pub(crate) server: LabNamespace,
    pub(crate) client: LabNamespace,
    pub(crate) server_index: Ifindex,
    pub(crate) client_index: Ifindex,
}

impl LabPair {
    /// Creates the pair with this number of queues at each end. Returns `None` and prints the reason to stderr if this
    /// process may not create namespaces.
    pub(crate) fn create(queues: u32) -> Option<Self> {
        if !can_make_namespaces() {
            return None;
        }
        let server = LabNamespace::create("server");
        let client = LabNamespace::create("client");
        let name = |name| InterfaceName::new(name).unwrap();
        let left = VethEnd { namespace: &server.namespace, name: name("srv0"), mac: None, queues };
        let right = VethEnd { namespace: &client.namespace, name: name("cli0"), mac: None, queues };
        let pair = Links::open().unwrap().create_veth(&left, &right).unwrap();
        Links::open_in(&server.namespace).unwrap().set_up(pair.left).unwrap();
        Links::open_in(&client.namespace).unwrap().set_up(pair.right).unwrap();
        Some(Self { server, client, server_index: pair.left, client_index: pair.right })
    }
}

/// Drops all capabilities of the calling thread. The thread must end soon.
pub(crate) fn drop_all_capabilities() {
    let none = rustix::thread::CapabilitySets {
        effective: rustix::thread::CapabilitySet::empty(),
        permitted: rustix::thread::CapabilitySet::empty(),
        inheritable: rustix::thread::CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none).unwrap();
}
