//! Follows a search in a guest on the host. The state of a search follows from its plan and the observations, so the
//! host derives it from the guest's events. It shows progress, and it is the result if the user interrupts the search.

use quell_host::switching::ReportedSettings;
use quell_mode::DeliveryMode;
use quell_result::experiment::ExperimentResult;
use quell_result::tune::TuneFile;
use quell_tune::{TuneEnd, TunePlan, TuneResult, Tuner};

use super::GuestEvent;

/// Events of a search received so far.
pub(super) struct FollowedSearch {
    lab: Option<ExperimentResult>,
    /// State of the search. Absent if the guest's slices are not those that follow from the observations.
    tuner: Option<Tuner>,
    result: Option<TuneResult>,
    settings: Option<ReportedSettings>,
}

impl FollowedSearch {
    pub(super) fn new(plan: &TunePlan) -> Self {
        Self { lab: None, tuner: Tuner::new(plan.clone()).ok(), result: None, settings: None }
    }

    /// Stores an event. Passes the state of the search to `watch` when it has changed.
    pub(super) fn take(&mut self, event: GuestEvent, watch: &mut dyn FnMut(&Tuner)) {
        match event {
            GuestEvent::Up(lab) => self.lab = Some(*lab),
            GuestEvent::SearchSliceBegins(mode) => self.tuner = self.tuner.take().filter(|tuner| is_next(tuner, mode)),
            GuestEvent::SliceEnds(observation) => {
                self.tuner = self.tuner.take().and_then(|mut tuner| tuner.record(*observation).ok().map(|()| tuner));
            }
            GuestEvent::Dropped { reason, .. } => {
                if let Some(tuner) = &mut self.tuner {
                    tuner.not_settable(reason);
                }
            }
            GuestEvent::Restored(settings) => self.settings = Some(*settings),
            GuestEvent::Searched(result) => self.result = Some(*result),
            GuestEvent::SliceBegins { .. } | GuestEvent::Ended(_) => return,
        }
        if let (Some(_), Some(tuner)) = (&self.lab, &self.tuner) {
            watch(tuner);
        }
    }

    /// The guest's result, or the slices so far. `None` if the lab was not set up, or the search could not be followed.
    pub(super) fn into_result(self) -> Option<TuneFile> {
        let so_far = self.tuner.map(|mut tuner| {
            tuner.stop(TuneEnd::Interrupted);
            tuner.finish()
        });
        let file = TuneFile::of(self.lab?, self.result.or(so_far)?, Vec::new());
        Some(TuneFile { settings: self.settings, ..file })
    }
}

fn is_next(tuner: &Tuner, mode: DeliveryMode) -> bool {
    tuner.next_slice().is_some_and(|next| next.mode == mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::tests::recorded;
    use quell_experiment::SliceObservation;
    use quell_tune::{ArmState, TuneAnswer, TuneSpace};

    const REFUSED: &str = "napibusy";

    fn plan() -> TunePlan {
        let space = TuneSpace::default();
        let arms = ["suspend20", "defer20", REFUSED].map(|mode| mode.parse().unwrap()).to_vec();
        TunePlan {
            arms,
            space: None,
            slice_ms: 20,
            budget_ms: 20_000,
            ..TunePlan::new("least irqs-per-request".parse().unwrap(), DeliveryMode::default(), space, 7)
        }
    }

    fn up() -> GuestEvent {
        let mut lab = recorded();
        lab.experiments.clear();
        GuestEvent::Up(Box::new(lab))
    }

    /// The events of a guest in which `suspend20` needs the fewest interrupts, and its result.
    fn guest() -> (Vec<GuestEvent>, TuneResult) {
        let mut tuner = Tuner::new(plan()).unwrap();
        let mut events = vec![up()];
        while let Some(next) = tuner.next_slice() {
            events.push(GuestEvent::SearchSliceBegins(next.mode));
            let name = next.mode.to_string();
            if name == REFUSED {
                events.push(GuestEvent::Dropped { mode: name, reason: "no napi-set".to_owned() });
                tuner.not_settable("no napi-set".to_owned());
                continue;
            }
            let irqs = if name == "suspend20" { 0.1 } else { 0.9 };
            let irqs = irqs * (1.0 + 1e-3 / events.len() as f64);
            let slice = SliceObservation { spent_ms: 100.0 / 3.0, ..SliceObservation::default() }
                .with_metric("irqs-per-request", Some(irqs))
                .with_metric("requests-per-s", Some(2_500.0));
            events.push(GuestEvent::SliceEnds(Box::new(slice.clone())));
            tuner.record(slice).unwrap();
        }
        (events, tuner.finish())
    }

    /// Follows the events as lines, as they arrive from a guest.
    fn followed(events: &[GuestEvent]) -> FollowedSearch {
        let mut search = FollowedSearch::new(&plan());
        for event in events {
            let line = serde_json::to_string(event).unwrap();
            search.take(serde_json::from_str(&line).unwrap(), &mut |_| {});
        }
        search
    }

    #[test]
    fn the_host_derives_the_state_of_the_search_from_the_guests_events() {
        let (events, result) = guest();
        assert!(matches!(result.answer, TuneAnswer::Better { .. }), "{:?}", result.answer);
        let search = followed(&events);
        assert_eq!(search.tuner.clone().map(Tuner::finish), Some(result.clone()));
        assert_eq!(
            followed(&[&events[..], &[GuestEvent::Searched(Box::new(result.clone()))]].concat())
                .into_result()
                .map(|file| file.search),
            Some(result)
        );
    }

    #[test]
    fn an_interrupted_search_keeps_the_slices_so_far() {
        let (events, _) = guest();
        let search = followed(&events[..30]).into_result().unwrap().search;
        assert_eq!((search.answer, search.end), (TuneAnswer::None, TuneEnd::Interrupted));
        assert!(search.slices.len() > 3, "{}", search.slices.len());
        let refused = search.arms.iter().find(|arm| arm.mode.to_string() == REFUSED).unwrap();
        assert_eq!(refused.state, ArmState::NotSettable { reason: "no napi-set".to_owned() });
    }

    #[test]
    fn a_search_that_ended_before_its_lab_was_set_up_has_no_result() {
        assert!(followed(&[]).into_result().is_none());
        assert!(followed(&[up()]).into_result().is_some());
    }

    #[test]
    fn slices_of_another_order_are_not_attributed_to_modes() {
        let next = Tuner::new(plan()).unwrap().next_slice().unwrap().mode;
        let other = plan().arms.into_iter().find(|mode| *mode != next).unwrap();
        assert!(followed(&[up(), GuestEvent::SearchSliceBegins(next)]).into_result().is_some());
        assert!(followed(&[up(), GuestEvent::SearchSliceBegins(other)]).into_result().is_none());
    }
}
