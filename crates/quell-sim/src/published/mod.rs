//! Published measurements beside what the model says: the data with its source, the runs that
//! reproduce it, the error of every cell, and the scores.

mod cell;
mod event_busy_loop;
mod experiment;
mod irq_suspension;
mod low_latency_sockets;
mod poll_counter;
mod score;
mod threaded_napi;

pub use cell::{Column, Figures};
pub use event_busy_loop::{
    EventLoopCell, EventLoopForm, EventLoopRow, FormRatio, event_loop_rows, event_loops, form_ratios,
};
pub use experiment::{
    Cell, ErrorKind, Experiment, ExperimentComparison, ExperimentError, ParseExperimentError, Summary,
};
pub use irq_suspension::{Comparison, IrqSuspension, Load, LoadError, PublishedCell, PublishedError, RunScale};
pub use low_latency_sockets::{LowLatencyCell, LowLatencyRow, Transport, low_latency_rows, low_latency_sockets};
pub(crate) use poll_counter::CountedBeside;
pub use score::{ColumnScore, ComparedCell, Scored, TRAINING, held_out, score};
pub use threaded_napi::{
    LatencyQuantiles, PollMechanism, ThreadedNapiCell, ThreadedNapiRow, threaded_napi, threaded_napi_rows,
};
