//! Labs: private networks for server and client on this machine, journalled and completely removed afterwards. [`veth`]
//! builds two namespaces and a veth pair; [`napi`] sets the NAPI settings of its queues and verifies them.

pub mod napi;
pub mod veth;
