//! Prepares the launch of a program with a delivery mode. [`choice`] combines the requested settings. [`program`]
//! checks whether the preload library can reach the program. [`told`] and [`preload_settings`] produce the library's
//! settings. [`library`] provides its file. Nothing here prints or starts the program.

#![forbid(unsafe_code)]

pub mod choice;
pub mod library;
pub mod preload_settings;
pub mod program;
pub mod told;
