//! Labs: private networks for a server and a client on this machine. Every change is recorded in the journal, so a lab
//! can be removed completely. [`veth`] creates the namespaces and the devices; [`napi`] configures the queues.

pub mod napi;
pub mod veth;
