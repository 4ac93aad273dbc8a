//! Prepares the launch of a program with a delivery mode. [`choice`] combines the requested settings. [`program`]
//! checks whether the preload library can reach the program. [`library_settings`] and [`preload_settings`] produce the
//! library's settings. [`library`] provides its file. [`reached`] checks the settings of the running program, by a
//! snapshot and by the library's report ([`library_report`]). This crate neither prints nor starts the program.

#![forbid(unsafe_code)]

pub mod choice;
pub mod library;
pub mod library_report;
pub mod library_settings;
pub mod preload_settings;
pub mod program;
pub mod reached;
