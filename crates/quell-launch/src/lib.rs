//! A program started with a delivery mode: what is wanted of it ([`choice`]), whether its file lets the preload library
//! reach it ([`program`]), what the library is asked to do ([`told`], [`preload_settings`]), and where it is ([`library`]). Nothing here prints, and
//! nothing starts the program: what it is started with, and whether at all, is decided above.

#![forbid(unsafe_code)]

pub mod choice;
pub mod library;
pub mod preload_settings;
pub mod program;
pub mod told;
