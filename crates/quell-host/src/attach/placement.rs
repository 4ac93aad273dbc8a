//! Where the workers of an attachment get their connections and run, if that is asked for: the filters of their reuseport
//! groups, and the CPUs of their threads. What is decided is [`crate::steer`]'s; here it is looked at, made by the
//! attachment's journal, and looked at again.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use quell_linux::Pid;

use super::attachment::{Attachment, LooksOn};
use super::error::AttachError;
use crate::picture::{Picture, Scope, TakeError, take};
use crate::steer::{
    Baseline, CannotSteer, LookError, NotPinned, Pin, Steering, Verdict, Verification, WhyNotPinned, groups, look,
    pins, plan, verify,
};
use crate::transaction::Moment;

/// How often the workers are looked at while their connections are waited for.
const LOOKED_EVERY: Duration = Duration::from_millis(50);

/// The groups of programs: what filter each gets, or why none.
#[derive(Debug, Default)]
pub struct Groups {
    /// Those that get a filter.
    pub steerings: Vec<Steering>,
    /// Those that get none.
    pub refused: Vec<CannotSteer>,
}

/// What was seen of the filters after they had been put on, and of the workers.
#[derive(Debug, Default)]
pub struct Placed {
    /// Of each filter, in the order in which they were put on.
    pub verifications: Vec<Verification>,
    /// Threads that were bound.
    pub pinned: Vec<Pin>,
    /// Threads that were where they belong.
    pub in_place: BTreeSet<Pid>,
    /// Workers that were left where they are.
    pub not_pinned: Vec<NotPinned>,
}

/// Decides the filters of the groups of these processes. `only` names the devices that are meant; none: all.
///
/// # Errors
/// When what their namespaces list cannot be read.
pub fn decide(picture: &Picture, targets: &BTreeSet<Pid>, only: &[String]) -> Result<Groups, LookError> {
    let pids: Vec<Pid> = targets.iter().copied().collect();
    let surroundings = look(picture, &pids)?;
    let mut decided = Groups::default();
    for group in groups(picture, &surroundings, &pids) {
        match plan(&group, picture, &surroundings, only) {
            Ok(steering) => decided.steerings.push(steering),
            Err(why) => decided.refused.push(why),
        }
    }
    Ok(decided)
}

impl Attachment {
    /// Puts filters on.
    ///
    /// # Errors
    /// With the first that cannot be; [`Self::end`] takes those before it off.
    pub fn steer(&mut self, steerings: &[Steering], looks_on: &mut LooksOn<'_>) -> Result<(), AttachError> {
        for steering in steerings {
            let failed = |source| AttachError::Steer { group: steering.group.key, source: Box::new(source) };
            self.heard(looks_on, |transaction| transaction.steer(steering)).map_err(failed)?;
        }
        Ok(())
    }

    /// Looks at the connections that come for at most `within`, until it can be said of every filter whether it holds;
    /// if asked for, binds the workers to the CPUs of their queues as soon as these are known.
    ///
    /// # Errors
    /// When a filter does not hold, or a thread cannot be bound; [`Self::end`] undoes it all.
    pub fn watch_placement(
        &mut self,
        steerings: &[Steering],
        pin: bool,
        within: Duration,
        looks_on: &mut LooksOn<'_>,
    ) -> Result<Placed, AttachError> {
        let give_up = Instant::now() + within;
        let mut baselines: Vec<Option<Baseline>> = vec![None; steerings.len()];
        let mut placed = Placed::default();
        loop {
            let picture = self.look_at_programs().map_err(AttachError::Look)?;
            placed.verifications = steerings.iter().zip(&mut baselines).map(|(s, b)| look_at(s, b, &picture)).collect();
            if let Some(mixed) = placed.verifications.iter().position(|seen| seen.verdict == Verdict::Mixed) {
                return Err(AttachError::Mixed { group: steerings[mixed].group.key });
            }
            let known: Option<Vec<&Baseline>> = baselines.iter().map(Option::as_ref).collect();
            if let Some(baselines) = known.filter(|_| pin) {
                self.pin_workers(&picture, &Baseline::union(&baselines), &mut placed, looks_on)?;
            }
            if placed.is_settled(steerings) || Instant::now() >= give_up {
                return Ok(placed);
            }
            if looks_on(self.changes(), Moment::Before).is_break() {
                return Err(AttachError::Stopped);
            }
            thread::sleep(LOOKED_EVERY);
        }
    }

    fn look_at_programs(&self) -> Result<Picture, TakeError> {
        let pids = self.targets().pids().into_iter().collect();
        take(&Scope { pids, ..Scope::default() }).map(|(picture, _)| picture)
    }

    fn pin_workers(
        &mut self,
        picture: &Picture,
        baseline: &Baseline,
        placed: &mut Placed,
        looks_on: &mut LooksOn<'_>,
    ) -> Result<(), AttachError> {
        let pids: Vec<Pid> = self.targets().pids().into_iter().collect();
        let decided = pins(picture, &pids, baseline);
        for pin in decided.pins {
            let failed = |source| AttachError::Pin { tid: pin.tid, source: Box::new(source) };
            self.heard(looks_on, |transaction| transaction.pin(&pin)).map_err(failed)?;
            placed.pinned.push(pin);
        }
        let was_bound = |tid: &Pid| placed.pinned.iter().any(|pin| pin.tid == *tid);
        placed.in_place.extend(decided.in_place.into_iter().filter(|tid| !was_bound(tid)));
        placed.not_pinned = decided.not_pinned;
        Ok(())
    }
}

/// What is seen of a filter; before it can be told which connections came by it, nothing.
fn look_at(steering: &Steering, baseline: &mut Option<Baseline>, picture: &Picture) -> Verification {
    if baseline.is_none() {
        *baseline = Baseline::of(steering, picture);
    }
    match baseline {
        Some(baseline) => verify(steering, baseline, picture),
        None => Verification { workers: Vec::new(), verdict: Verdict::NotYet },
    }
}

impl Placed {
    /// Whether a further look can say nothing more: every worker of every filter has been seen, and is where it belongs.
    fn is_settled(&self, steerings: &[Steering]) -> bool {
        let has_all = |(seen, steering): (&Verification, &Steering)| {
            seen.verdict == Verdict::CannotTell || seen.workers.len() >= steering.group.workers().len()
        };
        let may_change = |why: &WhyNotPinned| matches!(why, WhyNotPinned::NoConnection | WhyNotPinned::NoThread);
        self.verifications.iter().zip(steerings).all(has_all) && !self.not_pinned.iter().any(|one| may_change(&one.why))
    }
}
