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
/// Interval between two snapshots while no packets have arrived.
const LOOK_AGAIN: Duration = Duration::from_millis(300);
/// Interval between two snapshots while the judges run.
const LOOK_BESIDE_JUDGES: Duration = Duration::from_millis(100);

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
    pub(super) stopped: &'a dyn Fn() -> bool,
}

impl Judging<'_> {
    /// If the programs have no traffic, the judges are their load. Returns whether that is so. Otherwise the queues of the
    /// judges are added to those of the traffic.
    pub(super) fn preview(&self, look: Look<'_>) -> Result<(Preview, bool), Unanswered> {
        match preview(look, false, self.stopped) {
            Err(Unanswered::Switch(SwitchError::NothingToSwitch(_))) => Ok((self.as_load(look)?, true)),
            previewed => Ok((self.with_their_queues(previewed?, look)?, false)),
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

    /// The preview with most queues during a run of the judges, if the devices have other queues than those of the traffic.
    fn with_their_queues(&self, mut preview: Preview, look: Look<'_>) -> Result<Preview, Unanswered> {
        let used = preview.plan.napis();
        let has_others = preview.snapshot.devices.iter().any(|device| {
            let its = || device.napis.known_elements().map(|napi| used.contains(&napi.id));
            its().any(|is_used| is_used) && its().any(|is_used| !is_used)
        });
        if !has_others {
            return Ok(preview);
        }
        let deadline = Instant::now() + self.judges.run_max;
        let mut measuring = self.judges.start(self.slice_ms)?;
        while !measuring.iter_mut().any(RunningJudge::has_exited) && Instant::now() < deadline && !(self.stopped)() {
            thread::sleep(LOOK_BESIDE_JUDGES);
            let seen = look()?;
            if seen.plan.napis().len() > preview.plan.napis().len() {
                preview = seen;
            }
        }
        Ok(preview)
    }
}
