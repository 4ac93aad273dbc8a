//! A program started with a delivery mode: what its file allows, the preload library that it gets, and the queues by
//! which its connections will come. Nothing here prints; whether to start it at all is decided above.

#![forbid(unsafe_code)]

pub mod library;
