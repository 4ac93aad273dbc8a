//! The changes of a plan, and their text.

mod planned;
pub(crate) mod text;

pub(crate) use planned::RANK_OF_QUEUES;
pub use planned::{ChannelCounts, ContextRef, DeviceId, Diff, PlannedChange, PlannedQueue, RingSizes, RuleAction};
pub use text::ChangeText;
