//! The program's half of a profile: what `quell run` gives the program that it launches. `quell apply` has nothing to do
//! with it.

use std::num::NonZeroU32;

use super::device::read_mode;
use super::error::ProfileError;
use super::place::Placed;
use super::section::{Section, wrong};
use super::tree::Table;
use crate::mode::DeliveryMode;

/// The most events that `epoll_wait` takes: `EP_MAX_EVENTS` in `fs/eventpoll.c`, with 12 bytes an event.
const EVENTS_MAX: u32 = i32::MAX as u32 / 12;

/// What a launched program is given; what is `None` it has from elsewhere, or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramProfile {
    /// Its delivery mode.
    pub mode: Option<Placed<DeliveryMode>>,
    /// The most events that one wait of it returns: while it works on them its queue is not polled.
    pub max_events: Option<Placed<NonZeroU32>>,
}

pub(super) fn read(table: &Table) -> Result<ProgramProfile, ProfileError> {
    let section = Section::new(table, &["mode", "max-events"])?;
    Ok(ProgramProfile {
        mode: section.text("mode")?.map(read_mode).transpose()?,
        max_events: section.number("max-events")?.map(events).transpose()?,
    })
}

fn events(number: Placed<u32>) -> Result<Placed<NonZeroU32>, ProfileError> {
    match NonZeroU32::new(number.value).filter(|events| events.get() <= EVENTS_MAX) {
        Some(value) => Ok(Placed { value, place: number.place }),
        None => Err(wrong("max-events", "a number of events from 1 to 178956970", &number.place)),
    }
}
