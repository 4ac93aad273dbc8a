//! Published measurements beside what the model says: the data with its source, the runs that
//! reproduce it, the error of every cell, and the scores.

mod cell;
mod irq_suspension;
mod score;

pub use cell::{Column, Figures};
pub use irq_suspension::{IrqSuspension, Load, PublishedCell, PublishedError, RunScale};
pub use score::{ColumnScore, ComparedCell, Scored, held_out, score};
