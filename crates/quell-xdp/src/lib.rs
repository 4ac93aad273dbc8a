//! Requests and responses through AF_XDP sockets: UDP datagrams as whole Ethernet frames, the ways to poll for them, the
//! load, and the responder. This crate changes no setting of a device: a way to poll that needs one refuses if it is
//! absent. Everything is opened in the network namespace of the calling thread.

#![forbid(unsafe_code)]

mod endpoint;
mod error;
mod frame;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod load;
mod outstanding;
mod polling;
mod report;
mod request;
mod respond;
mod spec;

pub use error::XdpError;
pub use frame::{FrameError, UdpChecksum, UdpFrame};
pub use load::{XdpMoment, XdpProgress, XdpSampler, run, run_sampled};
pub use quell_linux::af_xdp::CopyMode;
pub use report::{XdpCpu, XdpLoadReport, XdpQueue};
pub use respond::{XdpResponder, XdpResponderSpec, XdpResponderStats};
pub use spec::{PollWay, XdpLoadSpec, XdpSchedule, XdpSpec};
