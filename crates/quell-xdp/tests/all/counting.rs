//! Allocations and system calls in the steady state.
