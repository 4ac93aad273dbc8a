//! Every system call, netlink message, /proc and /sys file that Quell uses, typed: one module an
//! interface. No policy lives here; what a value means and whether to change it is decided above.
//!
//! Bytes from outside are parsed once, by pure functions, into types that cannot hold nonsense. A
//! value that the kernel did not report is `None`, never zero.

mod napi_id;

pub use napi_id::NapiId;
