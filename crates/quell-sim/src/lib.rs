//! The kernel's packet delivery as a deterministic model in virtual time.

#![forbid(unsafe_code)]

pub mod ablation;
mod engine;
pub mod explain;
pub mod fit;
mod host;
mod mechanism;
pub mod published;
mod run;
pub mod scenario;
pub mod sweep;
mod trace;
mod world;

pub use engine::Ns;
pub use host::{CONSTANTS, Constant, Constants, HostProfile, IdleState, ProfileError, Value};
pub use mechanism::{Coalescing, CoalescingPeriod, NapiState, Packet, PacketKind};
pub use run::{Run, RunError, RunResult, Spread};
pub use trace::{Mark, Segment, Trace};
pub use world::{CpuTime, Gaps, KernelRules, Step, TrafficKind};
