//! Whether the lab can be measured now: other programs take CPUs, and the maximum throughput of `base`, to which loads in
//! percent refer, falls when they do.

use std::iter;
use std::time::Duration;

use quell_linux::proc::{ProcError, ProcRoot};
use quell_linux::visible::thousands;
use quell_load::{Generator, LoadError, RunObserver, RunSpec, Schedule};

use crate::counters::use_during;
use crate::disturbance::FOREIGN_ON_CLIENT_MAX;
use crate::other_programs::ProcessTimes;
use quell_result::facts::{CpuLayout, OtherProgramFacts};

/// Time for which other programs are observed.
const OBSERVED: Duration = Duration::from_millis(500);
/// A closed loop that measures the maximum.
const LOOP: RunSpec = RunSpec { schedule: Schedule::Closed, warm_up_ms: 100, measure_ms: 500 };
/// Number of loops after which a maximum that is not stable is used nevertheless.
const LOOPS_MAX: usize = 4;
/// The maximum is stable if the last two loops differ by at most this factor; on a quiet machine, they differ by 3 %.
const APART_MAX: f64 = 1.2;

/// Reason to measure later.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unsuitable {
    /// Other programs take the lab's CPUs.
    #[error(
        "other programs take {:.0} % of the lab's CPUs, and most slices would be disturbed: end these programs ({}), or \
         measure later",
        100.0 * share,
        OtherProgramFacts::which(programs)
    )]
    MachineIsBusy {
        /// Share of the CPUs, 0 to 1.
        share: f64,
        /// The busiest of them.
        programs: Vec<OtherProgramFacts>,
    },
    /// The closed loops do not agree.
    #[error(
        "base's maximum is not stable ({}/s, then {}/s), and loads in percent refer to it: end other programs, or \
         measure later",
        whole(.0.0[0]),
        whole(.0.0[1])
    )]
    MaximumVaries(Maximum),
    /// `base` reaches less after an experiment than the experiment offered.
    #[error(
        "base reaches only {}/s now, and {}/s were offered: these latencies are those of an overloaded server; measure \
         again when no other programs run",
        whole(*reaches_per_s),
        whole(*offered_per_s)
    )]
    NoLongerFits {
        /// Offered rate, in requests per second.
        offered_per_s: f64,
        /// Maximum after the experiment, in requests per second.
        reaches_per_s: f64,
    },
}

fn whole(per_s: f64) -> String {
    thousands(&format!("{per_s:.0}"))
}

/// Observes for half a second how much other programs use of the lab's CPUs. Nothing of the lab may run.
pub(crate) fn other_programs(cpus: &CpuLayout) -> Result<Option<Unsuitable>, ProcError> {
    let lab_cpus = cpus.server_cpus().into_iter().chain(cpus.client_cpus()).collect();
    let proc = ProcRoot::default();
    let processes = ProcessTimes::read(&proc);
    let share = use_during(&lab_cpus, OBSERVED)?.and_then(|used| used.foreign_share());
    let programs = || processes?.others_since(&proc, iter::empty(), &lab_cpus);
    Ok(share.filter(|share| *share > FOREIGN_ON_CLIENT_MAX).map(|share| {
        let programs = programs().unwrap_or_default();
        Unsuitable::MachineIsBusy { share, programs }
    }))
}

/// Requests per second in the last two closed loops.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Maximum(pub [f64; 2]);

impl Maximum {
    /// Repeats a closed loop until two in succession agree.
    pub(crate) fn measure(generator: &mut Generator, observer: &mut dyn RunObserver) -> Result<Self, LoadError> {
        let mut run = || generator.run(&LOOP, observer).map(|report| report.qps);
        let mut last = Self([run()?, run()?]);
        for _ in last.0.len()..LOOPS_MAX {
            if last.is_stable() {
                break;
            }
            last = Self([last.0[1], run()?]);
        }
        Ok(last)
    }

    #[must_use]
    pub fn is_stable(self) -> bool {
        let [one, other] = self.0;
        one.max(other) <= APART_MAX * one.min(other)
    }

    #[must_use]
    pub fn per_s(self) -> f64 {
        let [one, other] = self.0;
        f64::midpoint(one, other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maximum_of_which_half_is_gone_is_not_stable() {
        assert!(Maximum([70_220.0, 68_000.0]).is_stable() && Maximum([35_540.0, 35_540.0]).is_stable());
        assert!(!Maximum([70_220.0, 35_540.0]).is_stable() && !Maximum([0.0, 35_540.0]).is_stable());
    }

    #[test]
    fn each_reason_has_its_figures_and_what_to_do() {
        let no_longer_fits = Unsuitable::NoLongerFits { offered_per_s: 63_198.0, reaches_per_s: 35_540.0 };
        let stress = OtherProgramFacts {
            pid: 812,
            name: "stress".to_owned(),
            cpus: 0.98,
            has_exited: false,
            is_of_measurement: false,
        };
        let busy = Unsuitable::MachineIsBusy { share: 0.63, programs: vec![stress] };
        assert!(busy.to_string().contains("end these programs (stress 812: 98 % of a CPU), or"), "{busy}");
        let texts = [busy, Unsuitable::MaximumVaries(Maximum([70_220.0, 35_540.0])), no_longer_fits];
        for (text, figure) in
            texts.map(|reason| reason.to_string()).iter().zip(["63 %", "(70,220/s, then 35,540/s)", "63,198/s"])
        {
            assert!(text.contains(figure) && text.contains("measure "), "{text}");
        }
    }
}
