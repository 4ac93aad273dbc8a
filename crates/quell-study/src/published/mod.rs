//! Published experiments compared with the model: runs that reproduce the measurements, the error of every cell, and
//! scores.

mod event_busy_loop;
mod experiment;
mod irq_suspension;
mod low_latency_sockets;
mod score;
mod threaded_napi;

pub use event_busy_loop::{EventLoopCell, FormRatio, event_loops, form_ratios};
pub use experiment::{Cell, ErrorKind, ExperimentComparison, ExperimentError, Summary, compare, host_of};
pub use irq_suspension::{SuspensionComparison, figures_as_published, irq_suspension, run_of_cell};
pub use low_latency_sockets::{LowLatencyCell, low_latency_sockets};
pub use score::{
    ColumnScore, ComparedCell, RatioCell, Scored, TRAINING, held_out, ratios_to_base, score, score_ratios,
    wanted_errors, wanted_ratio_errors,
};
pub use threaded_napi::{LatencyQuantiles, ThreadedNapiCell, threaded_napi};
