//! Collects the guest's events on the host. Adds to each slice the share of time in which the emulator waited for host
//! CPUs, which only the host can measure.

use std::ops::ControlFlow;

use quell_experiment::{SliceObservation, SliceRecord};
use quell_linux::proc::Schedstat;
use quell_result::experiment::{ExperimentResult, LoadExperiment};
use serde::de::DeserializeOwned;

use super::GuestEvent;

/// Parses a line of the guest's output and passes the event to `take`. Breaks if the line cannot be parsed.
pub(super) fn take_line<E: DeserializeOwned>(
    line: &str,
    host: Option<Schedstat>,
    unreadable: &mut Option<serde_json::Error>,
    take: &mut dyn FnMut(E, Option<Schedstat>),
) -> ControlFlow<()> {
    match serde_json::from_str(line) {
        Ok(event) => {
            take(event, host);
            ControlFlow::Continue(())
        }
        Err(error) => {
            *unreadable = Some(error);
            ControlFlow::Break(())
        }
    }
}

/// Events of a comparison received so far, as a result.
#[derive(Default)]
pub(super) struct Collected {
    result: Option<ExperimentResult>,
    /// Block and arm of the current slice, and the emulator's scheduling statistics at its start.
    current: Option<(u32, usize, Option<Schedstat>)>,
}

impl Collected {
    pub(super) fn take(&mut self, event: GuestEvent, host: Option<Schedstat>) {
        let experiment = self.result.as_mut().and_then(|result| result.experiments.first_mut());
        match (event, experiment) {
            (GuestEvent::Up(result), _) => self.result = Some(*result),
            (GuestEvent::SliceBegins { block, arm, .. }, _) => self.current = Some((block, arm, host)),
            (GuestEvent::SliceEnds(observation), Some(experiment)) => {
                let Some((block, arm, begun)) = self.current.take() else { return };
                let observation = SliceObservation { foreign_cpu: waited_share(begun, host), ..*observation };
                experiment.record.slices.push(SliceRecord { block, arm, observation });
            }
            (GuestEvent::Dropped { mode, reason }, Some(experiment)) => drop_mode(experiment, &mode, reason),
            (GuestEvent::Restored(settings), Some(experiment)) => experiment.settings = Some(*settings),
            (GuestEvent::Ended(end), Some(experiment)) => experiment.end = end,
            (
                GuestEvent::SliceEnds(_) | GuestEvent::Dropped { .. } | GuestEvent::Restored(_) | GuestEvent::Ended(_),
                None,
            ) => {}
            (GuestEvent::SearchSliceBegins(_) | GuestEvent::Searched(_), _) => {}
        }
    }

    /// The result so far. `None` if the lab was not set up.
    pub(super) fn into_result(self) -> Option<ExperimentResult> {
        self.result
    }
}

fn drop_mode(experiment: &mut LoadExperiment, mode: &str, reason: String) {
    let design = &experiment.record.design;
    let is_mode = |arm: &usize| design.treatment(*arm).is_some_and(|treatment| treatment.name == mode);
    if let Some(arm) = (0..design.arms()).find(is_mode) {
        experiment.record.dropped.insert(arm, reason);
    }
}

/// Returns the share of time in which the emulator's runnable threads waited for a CPU.
pub(super) fn waited_share(begun: Option<Schedstat>, ended: Option<Schedstat>) -> Option<f64> {
    let (begun, ended) = (begun?, ended?);
    let (ran, waited) = (ended.run_ns.saturating_sub(begun.run_ns), ended.wait_ns.saturating_sub(begun.wait_ns));
    (ran + waited > 0).then(|| waited as f64 / (ran + waited) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::tests::recorded;
    use quell_experiment::StopReason;
    use quell_result::experiment::EndOfExperiment;

    fn host(run_ns: u64, wait_ns: u64) -> Option<Schedstat> {
        Some(Schedstat { run_ns, wait_ns, timeslices: 0 })
    }

    /// Passes an event to the receiver as the guest does, as a line.
    fn send(collected: &mut Collected, event: &GuestEvent, host: Option<Schedstat>) {
        let line = serde_json::to_string(event).unwrap();
        let taken = take_line(&line, host, &mut None, &mut |event, host| collected.take(event, host));
        assert!(taken.is_continue());
    }

    fn up() -> Collected {
        let mut result = recorded();
        result.experiments[0].record.slices.clear();
        result.experiments[0].end = EndOfExperiment::Interrupted;
        let mut collected = Collected::default();
        send(&mut collected, &GuestEvent::Up(Box::new(result)), None);
        collected
    }

    fn begins(arm: usize) -> GuestEvent {
        GuestEvent::SliceBegins { block: 3, arm, mode: String::new(), spent: 0.0 }
    }

    fn experiment(collected: Collected) -> LoadExperiment {
        collected.into_result().unwrap().experiments.remove(0)
    }

    #[test]
    fn waiting_time_of_the_emulator_counts_as_cpu_share_of_other_programs() {
        let mut collected = up();
        send(&mut collected, &begins(2), host(50, 5));
        send(&mut collected, &GuestEvent::SliceEnds(Box::default()), host(150, 105));
        send(&mut collected, &begins(0), None);
        send(&mut collected, &GuestEvent::SliceEnds(Box::default()), None);
        send(&mut collected, &GuestEvent::Ended(EndOfExperiment::Stopped(StopReason::AllDecided)), None);
        let experiment = experiment(collected);
        let slices = experiment.record.slices.iter();
        let seen: Vec<_> = slices.map(|slice| (slice.block, slice.arm, slice.observation.foreign_cpu)).collect();
        assert_eq!(seen, [(3, 2, Some(0.5)), (3, 0, None)]);
        assert_eq!(experiment.end, EndOfExperiment::Stopped(StopReason::AllDecided));
    }

    #[test]
    fn a_refused_mode_is_left_out_with_its_reason() {
        let mut collected = up();
        send(&mut collected, &begins(3), None);
        let dropped = GuestEvent::Dropped { mode: "suspend20".to_owned(), reason: "no napi-set".to_owned() };
        send(&mut collected, &dropped, None);
        let dropped = experiment(collected).record.dropped;
        assert_eq!(dropped.into_iter().collect::<Vec<_>>(), [(3, "no napi-set".to_owned())]);
    }

    #[test]
    fn slices_of_a_stopped_guest_are_kept() {
        let mut collected = up();
        send(&mut collected, &begins(0), None);
        send(&mut collected, &GuestEvent::SliceEnds(Box::default()), None);
        send(&mut collected, &begins(2), None);
        let experiment = experiment(collected);
        assert_eq!((experiment.record.slices.len(), experiment.end), (1, EndOfExperiment::Interrupted));
    }

    #[test]
    fn unparsable_guest_output_is_an_error_and_ends_the_guest() {
        let mut unreadable = None;
        let mut take = |event: GuestEvent, _| panic!("{event:?}");
        assert!(take_line("Killed", None, &mut unreadable, &mut take).is_break());
        assert!(unreadable.is_some() && Collected::default().into_result().is_none());
    }
}
