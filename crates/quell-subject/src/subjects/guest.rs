//! A server in a guest as a subject: its kernel and its NIC are chosen, and emulation distorts times. A comparison counts
//! interrupts. A search shows that it works there; its answer holds for no real machine.

use std::time::Duration;

use quell_linux::signal::Interruption;
use quell_result::published_xdp::PublishedXdpRun;
use quell_tune::{ArmState, TuneResult};
use quell_vm::KernelName;
use quell_vm::machine::{Emulator, Machine, Nic};
use quell_vm::store::Store;

use super::{Answer, Operator, Planned, PlannedSubject, Unanswered, metrics};
use crate::experiment::check_part;
use crate::question::{Follow, Question, SubjectStep};
use crate::replay::XdpReplay;
use crate::vm::{VmLabError, cpus, design, run_guest, search_in_guest, set_modes, xdp};

/// Modes that a search in a guest tries: values of each kind that two virtual CPUs can run and that needs no restart of
/// the server. The grid would take too long under emulation.
pub const GUEST_ARMS: [&str; 6] = ["defer20", "defer160", "suspend20", "suspend160", "napibusy", "fullbusy"];
/// Time limit for everything except the slices, such as booting. Emulation on a busy host is slow.
const OVERHEAD: Duration = Duration::from_secs(120);
/// Maximum ratio of host time to guest time, because the guest's clock can be slower than the host's.
const SLOWNESS: u32 = 4;

/// A guest.
#[derive(Debug, Clone)]
pub struct GuestSpec {
    /// A kernel of the user's store. `None` for the newest.
    pub kernel: Option<KernelName>,
    pub nic: Nic,
}

impl GuestSpec {
    fn machine(&self, cpus: u32, budget_ms: u64) -> Result<Machine, Unanswered> {
        let store = Store::of_user()?;
        let kernel = self.kernel.as_ref().map_or_else(|| store.newest(), |name| store.kernel(name))?;
        let emulator = Emulator::find().map_err(VmLabError::from)?;
        let limit = OVERHEAD.saturating_add(Duration::from_millis(budget_ms).saturating_mul(SLOWNESS));
        Ok(Machine { emulator, kernel, nic: self.nic, cpus, limit })
    }

    /// The guest in which the published AF_XDP experiment is played. Starts nothing.
    ///
    /// # Errors
    /// When the design is invalid, or this machine cannot run the guest.
    pub fn machine_for(&self, replay: &XdpReplay) -> Result<Machine, Unanswered> {
        replay.check()?;
        self.machine(xdp::CPUS, replay.timing.budget_ms.saturating_mul(replay.points.len() as u64))
    }
}

/// Plays the published AF_XDP experiment in a guest. After an interruption or a failure, the result has the points so far.
///
/// # Errors
/// When the guest or its lab fails before the first point has ended.
pub fn play_xdp_in_guest(
    spec: &GuestSpec,
    replay: &XdpReplay,
    follow: &mut Follow<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<PublishedXdpRun, Unanswered> {
    let machine = spec.machine_for(replay)?;
    follow(SubjectStep::Doing("the guest boots"));
    Ok(xdp::play_in_guest(&machine, replay, follow, stopped)?)
}

/// Answers a question in a guest. The load is a closed loop.
pub(super) fn answer(spec: &GuestSpec, question: Question, operator: &mut dyn Operator) -> Result<Answer, Unanswered> {
    match &question {
        Question::Compare(comparison) => check_part(&design(comparison), 1, comparison.modes.len() > 2)?,
        Question::Search(plan) => {
            plan.check().map_err(|error| Unanswered::Plan { error, plan: plan.clone() })?;
            metrics::of_generator().check(plan)?;
        }
    }
    let budget_ms = match &question {
        Question::Compare(comparison) => comparison.timing.budget_ms,
        Question::Search(plan) => plan.budget_ms,
    };
    let machine = spec.machine(cpus(&set_modes(&question)), budget_ms)?;
    if !operator.agrees(&Planned { question: &question, subject: PlannedSubject::Guest(&machine.kernel) }) {
        return Err(Unanswered::Declined);
    }
    let interruption = Interruption::listen().map_err(Unanswered::Signals)?;
    let flag = interruption.flag();
    let stopped = || flag.get().is_some();
    operator.follow(SubjectStep::Doing("the guest boots"));
    let mut follow = |step: SubjectStep<'_>| operator.follow(step);
    if let Question::Search(plan) = &question {
        let found = search_in_guest(&machine, plan, &mut follow, &stopped)?;
        if let Some(reason) = nothing_settable(&found.search) {
            let (kernel_release, reason) = (found.host.kernel_release, reason.to_owned());
            return Err(Unanswered::NothingSettable { kernel_release, reason });
        }
        return Ok(Answer::Searched(Box::new(found)));
    }
    Ok(Answer::Compared(Box::new(run_guest(&machine, &question, &mut follow, &stopped)?)))
}

/// Why the first mode cannot be set, if none except the present setting can.
fn nothing_settable(result: &TuneResult) -> Option<&str> {
    let reasons = result.arms.get(1..)?.iter().map(|arm| match &arm.state {
        ArmState::NotSettable { reason } => Some(reason.as_str()),
        _ => None,
    });
    reasons.collect::<Option<Vec<&str>>>()?.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_experiment::SliceObservation;
    use quell_mode::DeliveryMode;
    use quell_tune::{TunePlan, TuneSpace, Tuner};

    #[test]
    fn a_kernel_on_which_no_mode_can_be_set_gives_a_reason_instead_of_an_answer() {
        let plan = TunePlan {
            arms: GUEST_ARMS.map(|mode| mode.parse().unwrap()).to_vec(),
            space: None,
            ..TunePlan::new("least cpu".parse().unwrap(), DeliveryMode::default(), TuneSpace::default(), 1)
        };
        let mut tuner = Tuner::new(plan).unwrap();
        assert_eq!(nothing_settable(&tuner.clone().finish()), None);
        while let Some(next) = tuner.next_slice() {
            match next.mode == DeliveryMode::default() {
                true => tuner.record(SliceObservation::default()).unwrap(),
                false => tuner.not_settable("no napi-set".to_owned()),
            }
        }
        assert_eq!(nothing_settable(&tuner.finish()), Some("no napi-set"));
    }
}
