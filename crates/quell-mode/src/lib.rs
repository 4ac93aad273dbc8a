//! Delivery modes: the NAPI, epoll and socket settings of each mode, their text form, contradictions, and requirements
//! on the kernel. The crate also contains profiles, which configure a whole host, and loads, under which modes are compared. It consists of types and pure
//! functions, and does not access the kernel.
//!
//! ```
//! use quell_mode::DeliveryMode;
//!
//! let mode: DeliveryMode = "suspend20,defer-hard-irqs=10".parse()?;
//! assert_eq!(mode.napi().gro_flush_timeout_ns, 20_000);
//! assert_eq!(mode.napi().defer_hard_irqs, 10);
//! assert_eq!(mode.to_string(), "suspend20,defer-hard-irqs=10");
//! # Ok::<(), quell_mode::ParseModeError>(())
//! ```

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod check;
mod key;
mod kind;
mod load;
mod mode;
mod napi;
mod nearest;
mod parse;
mod poller;
pub mod profile;
mod refusal;
mod requirement;
mod settings;
mod suggestion;
mod timeout;

pub use check::Concern;
pub use key::SettingKey;
pub use kind::{ModeKind, PollUsecs};
pub use load::{InvalidLoad, Load, OfferedLoad};
pub use mode::DeliveryMode;
pub use napi::{DEFER_HARD_IRQS_MAX, NapiAttribute, NapiSettings, NapiThreading, PartialNapiSettings, Threaded};
pub use nearest::{Nearest, Offered};
pub use poller::{PollerClass, PollerSettings};
pub use refusal::{ModeRefusal, ParseModeError};
pub use requirement::Requirement;
pub use settings::{EpollParams, NAPI_POLL_WEIGHT, ProgramWait, USECS_MAX};
pub use suggestion::{did_you_mean, nearest};
pub use timeout::{DurationError, duration_text, parse_duration, parse_timeout_ns};
