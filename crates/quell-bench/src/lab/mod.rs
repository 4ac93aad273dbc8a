//! Labs: a server's and a client's network on this machine, private, journalled, taken down exactly. [`veth`] is two
//! namespaces and a veth pair; [`napi`] sets and reads back what its queues are told.

pub mod napi;
pub mod veth;
