//! Tests of quell-linux from outside, in one binary: each binary costs seconds of linking and tens of megabytes.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail by panicking")]

mod common;
mod ethtool_devices;
mod memcached_epoll;
mod napi_thread;
mod netlink_link;
mod netlink_netdev;
mod netlink_netns;
mod process;
mod queue_files;
mod recorded_proc_files;
mod without_capabilities;
