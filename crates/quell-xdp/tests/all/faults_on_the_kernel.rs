//! Faults: one clear sentence each, and nothing stays attached.
