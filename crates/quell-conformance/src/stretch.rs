//! Scales all times of a scenario by a factor, for machines on which everything is slow, such as emulation on a busy
//! host. The outcome depends on the order of events, which scaling preserves. The tolerance is scaled too.

use quell_mode::{EpollParams, NapiSettings};

use crate::duration::Nanos;
use crate::expect::{Expectations, Subject};
use crate::scenario::{ApplicationStep, ChangeKind, DescriptorKind, Scenario};

impl Scenario {
    /// Returns the scenario with all times multiplied by `factor`: event times, durations, timeouts, busy-poll times
    /// and the tolerance. Counts do not change.
    #[must_use]
    pub fn stretched(mut self, factor: u32) -> Self {
        let by = Stretch(factor);
        by.time(&mut self.lasts);
        by.time(&mut self.kernel.tolerance);
        self.queues.iter_mut().for_each(|queue| by.napi(queue));
        self.epolls.iter_mut().for_each(|epoll| by.epoll(&mut epoll.settings));
        for descriptor in &mut self.descriptors {
            if let DescriptorKind::Socket(socket) = &mut descriptor.kind {
                by.usecs(&mut socket.busy_poll_usecs);
            }
        }
        self.applications.iter_mut().flat_map(|application| &mut application.steps).for_each(|step| by.step(step));
        self.packets.iter_mut().for_each(|packet| by.time(&mut packet.at));
        for change in &mut self.changes {
            by.time(&mut change.at);
            match &mut change.what {
                ChangeKind::Napi { settings, .. } => by.napi(settings),
                ChangeKind::Epoll { settings, .. } => by.epoll(settings),
                ChangeKind::Raise(_) => {}
            }
        }
        let Expectations(expectations) = &mut self.expect;
        expectations.iter_mut().for_each(|expectation| by.subject(&mut expectation.what));
        self
    }
}

#[derive(Clone, Copy)]
struct Stretch(u32);

impl Stretch {
    fn ns(self, ns: &mut u64) {
        *ns = ns.saturating_mul(self.0.into());
    }

    fn time(self, Nanos(ns): &mut Nanos) {
        self.ns(ns);
    }

    fn usecs(self, usecs: &mut u32) {
        *usecs = usecs.saturating_mul(self.0);
    }

    fn napi(self, settings: &mut NapiSettings) {
        self.ns(&mut settings.gro_flush_timeout_ns);
        self.ns(&mut settings.irq_suspend_timeout_ns);
    }

    fn epoll(self, settings: &mut EpollParams) {
        self.usecs(&mut settings.busy_poll_usecs);
    }

    fn step(self, step: &mut ApplicationStep) {
        match step {
            ApplicationStep::Wait { timeout: Some(time) }
            | ApplicationStep::Work(time)
            | ApplicationStep::Watch(time) => self.time(time),
            ApplicationStep::SetEpoll(settings) => self.epoll(settings),
            ApplicationStep::Wait { timeout: None }
            | ApplicationStep::Read
            | ApplicationStep::Receive(_)
            | ApplicationStep::PollQueueOf(_)
            | ApplicationStep::AddWithoutInterest(_)
            | ApplicationStep::CloseEpoll
            | ApplicationStep::Repeat => {}
        }
    }

    fn subject(self, subject: &mut Subject) {
        match subject {
            Subject::SeenAfter { after: time, .. } | Subject::WaitTook { took: time, .. } => self.time(time),
            Subject::Unseen { .. }
            | Subject::WaitEvents { .. }
            | Subject::QueueCount { .. }
            | Subject::BusyPollRxPackets(_)
            | Subject::IncomingNapi { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::expect::{Backend, judge};
    use crate::{model, suite};

    #[test]
    fn every_scenario_has_the_same_outcome_when_scaled() {
        for scenario in suite::all().unwrap_or_else(|error| panic!("{error}")) {
            for factor in [2, 4, 8, 16, 32] {
                let stretched = scenario.clone().stretched(factor);
                let wrong: Vec<_> = judge(&stretched, &model::play(&stretched).unwrap(), Backend::Model)
                    .into_iter()
                    .filter(|finding| !finding.holds)
                    .collect();
                assert!(wrong.is_empty(), "{}, {factor} times as long: {wrong:#?}", stretched.name);
            }
        }
    }
}
