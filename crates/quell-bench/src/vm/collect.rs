//! Collects the guest's events on the host until every mode has the requested number of undisturbed trials. Only the
//! host knows whether it kept the emulator waiting. [`super::interrupts`] decides whether a trial with a given waiting
//! time is valid.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use quell_linux::proc::Schedstat;

use super::interrupts::{InterruptResult, InterruptTrial};
use super::{Request, Seen, VmLabError};

/// Events received so far.
pub(super) struct Collected<'a> {
    request: &'a Request,
    result: Option<InterruptResult>,
    /// Scheduling statistics of the emulator at the start of the current trial.
    begun: Option<Schedstat>,
    unreadable: Option<serde_json::Error>,
}

impl<'a> Collected<'a> {
    pub(super) fn new(request: &'a Request) -> Self {
        Self { request, result: None, begun: None, unreadable: None }
    }

    /// Processes a line. Breaks when no more trials are needed.
    pub(super) fn hear(
        &mut self,
        line: &str,
        host: Option<Schedstat>,
        watch: &mut dyn FnMut(&Seen),
    ) -> ControlFlow<()> {
        let seen: Seen = match serde_json::from_str(line) {
            Ok(seen) => seen,
            Err(error) => {
                self.unreadable = Some(error);
                return ControlFlow::Break(());
            }
        };
        watch(&seen);
        self.take(seen, host);
        if self.is_enough() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn take(&mut self, seen: Seen, host: Option<Schedstat>) {
        match (seen, &mut self.result) {
            (Seen::Up(result), _) => self.result = Some(*result),
            (Seen::Refused { mode, refusal }, Some(result)) => {
                result.refused.insert(mode, refusal);
            }
            (Seen::Begins { .. }, _) => self.begun = host,
            (Seen::Ends(trial), Some(result)) => {
                let host_wait_share = waited_share(self.begun.take(), host);
                result.trials.push(InterruptTrial { host_wait_share, ..*trial });
            }
            (Seen::Refused { .. } | Seen::Ends(_), None) => {}
        }
    }

    fn is_enough(&self) -> bool {
        let Some(result) = &self.result else { return false };
        let modes: BTreeSet<String> = self.request.modes.iter().map(ToString::to_string).collect();
        modes.iter().filter(|mode| !result.refused.contains_key(*mode)).all(|mode| {
            let sound = result.trials.iter().filter(|trial| trial.mode == *mode && !trial.was_starved());
            sound.count() >= self.request.repeats as usize
        })
    }

    pub(super) fn into_result(self) -> Result<InterruptResult, VmLabError> {
        match (self.unreadable, self.result) {
            (Some(error), _) => Err(error.into()),
            (None, Some(result)) => Ok(result),
            (None, None) => Err(VmLabError::NeverUp),
        }
    }
}

/// Share of the time of the emulator's runnable threads that they waited for a CPU.
fn waited_share(begun: Option<Schedstat>, ended: Option<Schedstat>) -> Option<f64> {
    let (begun, ended) = (begun?, ended?);
    let (ran, waited) = (ended.run_ns.saturating_sub(begun.run_ns), ended.wait_ns.saturating_sub(begun.wait_ns));
    (ran + waited > 0).then(|| waited as f64 / (ran + waited) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::interrupts::tests::{result, trial};

    fn host(run_ns: u64, wait_ns: u64) -> Option<Schedstat> {
        Some(Schedstat { run_ns, wait_ns, timeslices: 0 })
    }

    fn hear(collected: &mut Collected<'_>, seen: &Seen, host: Option<Schedstat>) -> ControlFlow<()> {
        collected.hear(&serde_json::to_string(seen).unwrap(), host, &mut |_| {})
    }

    fn request(retries: u32) -> Request {
        Request { retries, ..Request::new(vec!["base".parse().unwrap()], 1) }
    }

    /// A trial of `base` during which the emulator ran for 100 ns and waited for `waited_ns`.
    fn one_trial(collected: &mut Collected<'_>, waited_ns: u64) -> ControlFlow<()> {
        assert!(hear(collected, &Seen::Begins { mode: "base".to_owned() }, host(50, 5)).is_continue());
        hear(collected, &Seen::Ends(Box::new(trial("base", 0, 1_800, 240))), host(150, 5 + waited_ns))
    }

    #[test]
    fn a_trial_with_a_waiting_emulator_is_repeated() {
        let request = request(3);
        let mut collected = Collected::new(&request);
        assert!(hear(&mut collected, &Seen::Up(Box::new(result(vec![]))), None).is_continue());
        assert!(one_trial(&mut collected, 100).is_continue());
        assert!(one_trial(&mut collected, 5).is_break());
        let shares: Vec<_> =
            collected.into_result().unwrap().trials.iter().map(|trial| trial.host_wait_share.unwrap()).collect();
        assert_eq!(shares, [0.5, 5.0 / 105.0]);
    }

    #[test]
    fn a_host_without_schedstat_does_not_count_as_disturbing() {
        let request = request(0);
        let mut collected = Collected::new(&request);
        hear(&mut collected, &Seen::Up(Box::new(result(vec![]))), None).continue_value().unwrap();
        let ended = Seen::Ends(Box::new(trial("base", 0, 1_800, 240)));
        assert!(hear(&mut collected, &ended, None).is_break());
        assert_eq!(collected.into_result().unwrap().trials[0].host_wait_share, None);
    }

    #[test]
    fn unparsable_guest_output_is_an_error_not_an_empty_result() {
        let request = request(0);
        let mut collected = Collected::new(&request);
        assert!(collected.hear("Killed", None, &mut |_| {}).is_break());
        assert!(matches!(collected.into_result(), Err(VmLabError::Unreadable(_))));
        assert!(matches!(Collected::new(&request).into_result(), Err(VmLabError::NeverUp)));
    }
}
