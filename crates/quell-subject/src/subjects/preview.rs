//! Finds the queues that programs use before their modes are planned: those of their present clients, and of the commands
//! that measure.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

use quell_host::switching::SwitchError;

use super::Unanswered;
use crate::experiment::Preview;
use crate::experiment::judge::{Judges, RunningJudge};

/// Time limit for the first packets of the load to arrive at the programs.
const TRAFFIC_WITHIN: Duration = Duration::from_secs(10);
/// Interval between two snapshots while packets or connections are awaited.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// Takes a snapshot and plans modes.
pub(super) type Look<'a> = &'a dyn Fn() -> Result<Preview, Unanswered>;

/// Looks until the programs use a queue. With a load, waits for its packets.
pub(super) fn preview(look: Look<'_>, has_load: bool, stopped: &dyn Fn() -> bool) -> Result<Preview, Unanswered> {
    let deadline = Instant::now() + TRAFFIC_WITHIN;
    loop {
        let preview = look()?;
        match preview.plan.check_queues() {
            Ok(()) => return Ok(preview),
            Err(SwitchError::NothingToSwitch(_)) if has_load && Instant::now() < deadline => {}
            Err(error) => return Err(error.into()),
        }
        if stopped() {
            return Err(Unanswered::Interrupted);
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Judges of programs without a load of their own, before any change.
pub(super) struct Judging<'a> {
    pub(super) judges: &'a Judges,
    pub(super) slice_ms: u32,
    pub(super) is_dry_run: bool,
    pub(super) stopped: &'a dyn Fn() -> bool,
}

impl Judging<'_> {
    /// If the programs have no traffic, the judges are their load. Returns whether that is so.
    pub(super) fn preview(&self, look: Look<'_>) -> Result<(Preview, bool), Unanswered> {
        match preview(look, false, self.stopped) {
            Err(Unanswered::Switch(SwitchError::NothingToSwitch(cause))) if self.is_dry_run => {
                Err(Unanswered::JudgesAreTheTraffic(cause))
            }
            Err(Unanswered::Switch(SwitchError::NothingToSwitch(_))) => Ok((self.as_load(look)?, true)),
            previewed => Ok((previewed?, false)),
        }
    }

    fn as_load(&self, look: Look<'_>) -> Result<Preview, Unanswered> {
        let measuring = RefCell::new(self.judges.start(self.slice_ms)?);
        // A run can be over before a snapshot sees its connections.
        let look = || {
            let is_over = measuring.borrow_mut().iter_mut().any(RunningJudge::has_exited);
            if is_over {
                measuring.replace(self.judges.start(self.slice_ms)?);
            }
            look()
        };
        preview(&look, true, self.stopped)
    }
}
