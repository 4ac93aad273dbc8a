//! An application of a scenario on the kernel: one thread that executes its steps with real system calls and records
//! their return times.

use std::time::Duration;

use quell_linux::event::{Epoll, Trigger};
use quell_linux::io_uring::NapiPoller;
use quell_linux::{clock, epoll_params, socket_options};

use super::sockets::Sockets;
use super::start::wait_until;
use super::{PlayError, failed};
use crate::duration::Nanos;
use crate::model::BUSY_POLL_USEC_NS;
use crate::observe::ObservedWait;
use crate::scenario::{ApplicationStep, DescriptorKind, Scenario};

/// Time of one call that polls by NAPI ID.
const POLLED_FOR: Duration = Duration::from_micros(250);

/// Token of the event that ends a scenario.
pub(super) const STOP: u64 = u64::MAX;

/// Token of the first nested epoll.
pub(super) const NESTED: u64 = 1 << 32;

#[derive(Debug, Clone, Copy)]
pub(super) struct Read {
    /// Number of the message, in file order.
    pub(super) number: u32,
    /// Time of the read, in ns since the start of the scenario.
    pub(super) at_ns: u64,
}

pub(super) struct Player<'a> {
    scenario: &'a Scenario,
    index: usize,
    sockets: &'a Sockets,
    /// The application's reference to its epoll; absent once it is closed.
    epoll: Option<Epoll>,
    /// The nested epolls. They live as long as the application.
    _inner: Vec<Epoll>,
    begins_ns: u64,
    waits: Vec<ObservedWait>,
    reads: Vec<Read>,
}

impl<'a> Player<'a> {
    pub(super) fn new(
        scenario: &'a Scenario,
        index: usize,
        sockets: &'a Sockets,
        epoll: Epoll,
        inner: Vec<Epoll>,
    ) -> Self {
        // Allocate now, because nothing may be allocated while a scenario runs.
        let (waits, reads) = (Vec::with_capacity(1 << 16), Vec::with_capacity(scenario.messages()));
        Self { scenario, index, sockets, epoll: Some(epoll), _inner: inner, begins_ns: 0, waits, reads }
    }

    /// Executes the steps from `begins_ns` on the monotonic clock until the steps or the scenario end. Descriptors stay
    /// open until [`Self::observed`] is called, as in a process until it exits: closing an epoll polls its queue.
    pub(super) fn play(mut self, begins_ns: u64) -> Result<Self, PlayError> {
        self.begins_ns = begins_ns;
        let steps = &self.scenario.applications[self.index].steps;
        wait_until(begins_ns);
        let mut at = 0;
        while let Some(&step) = steps.get(at).filter(|_| !self.over()) {
            at = if step == ApplicationStep::Repeat { 0 } else { at + 1 };
            self.take(step)?;
        }
        Ok(self)
    }

    pub(super) fn observed(self) -> (Vec<ObservedWait>, Vec<Read>) {
        (self.waits, self.reads)
    }

    fn now_ns(&self) -> u64 {
        clock::monotonic_ns().saturating_sub(self.begins_ns)
    }

    fn over(&self) -> bool {
        self.now_ns() >= self.scenario.lasts.0
    }

    fn take(&mut self, step: ApplicationStep) -> Result<(), PlayError> {
        match step {
            ApplicationStep::Wait { timeout } => self.wait(timeout)?,
            ApplicationStep::Read => self.read_reported()?,
            ApplicationStep::Receive(descriptor) => self.receive(descriptor)?,
            ApplicationStep::PollQueueOf(descriptor) => self.poll_queue_of(descriptor)?,
            ApplicationStep::Work(time) => self.work(time),
            ApplicationStep::Watch(time) => self.watch(time)?,
            ApplicationStep::SetEpoll(settings) => {
                if let Some(epoll) = &self.epoll {
                    epoll_params::set(epoll, settings)?;
                }
            }
            ApplicationStep::AddWithoutInterest(descriptor) => {
                if let (Some(epoll), Some(receiver)) = (&self.epoll, self.sockets.receiver(descriptor)) {
                    epoll
                        .add(receiver, descriptor as u64, Trigger::Unrequested)
                        .map_err(failed("add a descriptor to an epoll"))?;
                }
            }
            ApplicationStep::CloseEpoll => self.epoll = None,
            ApplicationStep::Repeat => {}
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Nanos>) -> Result<(), PlayError> {
        let Some(mut epoll) = self.epoll.take() else { return Ok(()) };
        let called_ns = self.now_ns();
        let result = epoll.wait(timeout.map(|Nanos(ns)| Duration::from_nanos(ns)));
        let returned_ns = self.now_ns();
        let wait = ObservedWait { application: self.index, called_ns, returned_ns, events: epoll.len() };
        self.epoll = Some(epoll);
        result.map_err(failed("wait for events"))?;
        if returned_ns < self.scenario.lasts.0 && self.waits.len() < self.waits.capacity() {
            self.waits.push(wait);
        }
        Ok(())
    }

    fn read_reported(&mut self) -> Result<(), PlayError> {
        let Some(epoll) = self.epoll.take() else { return Ok(()) };
        let reported = (0..epoll.len()).filter_map(|index| epoll.get(index)).map(|readiness| readiness.token);
        let result = reported.filter(|&token| token != STOP).try_for_each(|token| match token.checked_sub(NESTED) {
            Some(inner) => self.drain_all_of(inner as usize),
            None => self.drain(token as usize),
        });
        self.epoll = Some(epoll);
        result
    }

    /// Reads all data of a socket. An event is not read and stays ready.
    fn drain(&mut self, descriptor: usize) -> Result<(), PlayError> {
        while self.read_one(descriptor)? {}
        Ok(())
    }

    fn receive(&mut self, descriptor: usize) -> Result<(), PlayError> {
        let left_ns = self.scenario.lasts.0.saturating_sub(self.now_ns()).max(1_000_000);
        if let Some(receiver) = self.sockets.receiver(descriptor) {
            let until_the_end = Duration::from_nanos(left_ns);
            receiver.set_receive_timeout(until_the_end).map_err(failed("set a timeout"))?;
        }
        self.read_one(descriptor)?;
        Ok(())
    }

    /// Reads one message. Returns false if there is none.
    fn read_one(&mut self, descriptor: usize) -> Result<bool, PlayError> {
        let Some(receiver) = self.sockets.receiver(descriptor) else { return Ok(false) };
        let mut number = [0; 4];
        match receiver.receive(&mut number) {
            Ok(_) => {
                let at_ns = self.now_ns();
                self.reads.push(Read { number: u32::from_ne_bytes(number), at_ns });
                Ok(true)
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(failed("receive a message")(error)),
        }
    }

    /// In calls that are much shorter than the timers of a scenario.
    fn poll_queue_of(&self, descriptor: usize) -> Result<(), PlayError> {
        let DescriptorKind::Socket(socket) = self.scenario.descriptors[descriptor].kind else { return Ok(()) };
        let id = self.sockets.receiver(descriptor).map(socket_options::incoming_napi_id).transpose()?.flatten();
        let until_ns = self.now_ns() + u64::from(socket.busy_poll_usecs) * BUSY_POLL_USEC_NS;
        let poller = NapiPoller::new(POLLED_FOR)?;
        id.map_or(Ok(()), |id| poller.add(id))?;
        while self.now_ns() < until_ns.min(self.scenario.lasts.0) {
            poller.poll()?;
        }
        Ok(())
    }

    fn work(&self, Nanos(ns): Nanos) {
        let until_ns = (self.now_ns() + ns).min(self.scenario.lasts.0);
        while self.now_ns() < until_ns {
            std::hint::spin_loop();
        }
    }

    fn watch(&mut self, Nanos(ns): Nanos) -> Result<(), PlayError> {
        let until_ns = (self.now_ns() + ns).min(self.scenario.lasts.0);
        let own = self.scenario.applications[self.index].epoll;
        while self.now_ns() < until_ns {
            self.drain_all_of(own)?;
        }
        Ok(())
    }

    fn drain_all_of(&mut self, epoll: usize) -> Result<(), PlayError> {
        for descriptor in 0..self.scenario.descriptors.len() {
            if self.scenario.descriptors[descriptor].epoll == Some(epoll) {
                self.drain(descriptor)?;
            }
        }
        Ok(())
    }
}
