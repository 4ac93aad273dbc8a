//! Runs commands that switch the modes of running programs, on memcached with live traffic. The tests need root, Linux
//! 6.13 and memcached.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod bench;
mod stage;
mod tune;
