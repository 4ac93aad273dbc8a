//! Runs commands that switch the modes of running programs, on memcached with live traffic. The tests need root, Linux
//! 6.13 and memcached.

mod attached;
mod bench;
mod placement;
pub(crate) mod stage;
mod tune;
