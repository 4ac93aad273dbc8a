//! Published measurements and the corresponding results of the model: data with sources, runs that reproduce the
//! measurements, the error of every cell, and scores.

mod event_busy_loop;
mod experiment;
mod irq_suspension;
mod low_latency_sockets;
mod score;
mod threaded_napi;

pub use event_busy_loop::{
    EventLoopCell, EventLoopForm, EventLoopRow, FormRatio, event_loop_rows, event_loops, form_ratios,
};
pub use experiment::{
    Cell, ErrorKind, Experiment, ExperimentComparison, ExperimentError, ParseExperimentError, Summary,
};
pub use irq_suspension::{Comparison, IrqSuspension, PublishedCell, PublishedError};
pub use low_latency_sockets::{CellTransport, LowLatencyCell, LowLatencyRow, low_latency_rows, low_latency_sockets};
pub use score::{
    ColumnScore, ComparedCell, RatioCell, Scored, TRAINING, held_out, ratios_to_base, score, score_ratios,
    wanted_errors, wanted_ratio_errors,
};
pub use threaded_napi::{
    LatencyQuantiles, PollMechanism, ThreadedNapiCell, ThreadedNapiRow, threaded_napi, threaded_napi_rows,
};
