//! The preload library as it travels in this program.

/// The shared object of `quell-preload`, for the kind of machine that this program was built for.
pub const LIBRARY: &[u8] = include_bytes!(env!("QUELL_PRELOAD_LIBRARY"));
