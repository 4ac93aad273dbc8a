//! Results for people: sentences, pictures, and the page that carries a result to those who were not there. Everything
//! follows from documents. This crate prints nothing.

#![forbid(unsafe_code)]

mod draw;
pub mod page;
pub mod palette;
mod part;
pub mod picture;
pub mod words;
