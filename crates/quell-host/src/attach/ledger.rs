//! Records the objects that an attachment has set, and decides which steps of a plan remain. Pure.

use std::collections::{BTreeMap, BTreeSet};

use quell_change::settings::socket::SocketId;
use quell_linux::{NapiId, Pid};
use quell_mode::EpollParams;

use super::plan::{AttachPlan, AttachStep, EpollStep, Limitation, QueueStep};
use super::pollers::{RingStep, SocketsStep};

#[derive(Debug, Default)]
pub(super) struct Ledger {
    queues: BTreeMap<NapiId, QueueStep>,
    epolls: BTreeMap<FileKey, EpollParams>,
    /// Sockets that were set to busy poll. Later changes by other programs are not reverted; the same holds for rings.
    sockets: BTreeSet<(Pid, u64, SocketId)>,
    /// io_urings that were set to busy poll, or the reason why one was left alone.
    rings: BTreeMap<FileKey, Option<String>>,
    /// NAPI IDs of sockets that belong to no known device. After a link went down, a socket has the old ID until its
    /// next packet.
    unknown_queues: BTreeSet<NapiId>,
    /// Objects that are not set again, because an attempt failed or another program has changed them.
    given_up: BTreeSet<Key>,
}

/// Key of an epoll or io_uring within the lifetime of its process: PID, start time, file descriptor.
type FileKey = (Pid, u64, i32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Queue(NapiId),
    Epoll(FileKey),
    /// PID, start time of the process, and whether these are AF_XDP sockets.
    Sockets(Pid, u64, bool),
    Ring(FileKey),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Yes,
    /// The object already has the values, or it was set once and is not set again.
    Done,
    /// Another program has changed a value that this attachment had set.
    ChangedByOthers,
    /// An earlier attempt failed, or another program had changed the object.
    GivenUp,
}

impl Ledger {
    pub(super) fn due(&self, step: &AttachStep) -> Due {
        if self.given_up.contains(&key(step)) {
            return Due::GivenUp;
        }
        let (was_set, is_reset) = match step {
            AttachStep::Sockets(step) => return Due::unless(self.has_set_sockets(step)),
            AttachStep::Ring(step) => return Due::unless(self.rings.contains_key(&ring_key(step))),
            AttachStep::Queue(step) => {
                let before = self.queues.get(&step.napi).map(|before| before.old);
                (before.is_some(), before == Some(step.old))
            }
            AttachStep::Epoll(step) => {
                let before = self.epolls.get(&epoll_key(step));
                (before.is_some(), before == Some(&step.old))
            }
        };
        match (was_set, step.is_there()) {
            (true, true) => Due::Done,
            // The number belongs to another epoll now, or the driver has recreated the queue.
            (true, false) if is_reset => Due::Yes,
            (true, false) => Due::ChangedByOthers,
            (false, _) => Due::Yes,
        }
    }

    pub(super) fn give_up(&mut self, step: &AttachStep) {
        self.given_up.insert(key(step));
    }

    /// Records the previous values of a queue or an epoll. Skipped for vanished objects, because their numbers may be
    /// reused.
    pub(super) fn record(&mut self, step: &AttachStep) {
        match step {
            AttachStep::Queue(queue) => {
                self.queues.retain(|_, known| !queue.replaces(known));
                self.queues.insert(queue.napi, queue.clone());
            }
            AttachStep::Epoll(epoll) => _ = self.epolls.insert(epoll_key(epoll), epoll.old),
            AttachStep::Sockets(_) | AttachStep::Ring(_) => {}
        }
    }

    /// Records the sockets of a step, and returns those that were not recorded before.
    pub(super) fn record_sockets(&mut self, step: &SocketsStep) -> Vec<SocketId> {
        let key = |socket: &&SocketId| (step.pid, step.start_time_ticks, **socket);
        step.sockets.iter().filter(|socket| self.sockets.insert(key(socket))).copied().collect()
    }

    /// Records that a ring was set, or the reason why it was not. Returns whether it was set.
    pub(super) fn record_ring(&mut self, step: &RingStep, left_alone: Option<String>) -> bool {
        let was_set = left_alone.is_none();
        self.rings.insert(ring_key(step), left_alone);
        was_set
    }

    /// NAPI IDs in the plan that belong to no known device and were not recorded before.
    pub(super) fn new_unknown_queues(&self, plan: &AttachPlan) -> BTreeSet<NapiId> {
        &unknown_queues(plan) - &self.unknown_queues
    }

    pub(super) fn record_unknown_queues(&mut self, plan: &AttachPlan) {
        self.unknown_queues = unknown_queues(plan);
    }

    pub(super) fn queues(&self) -> impl Iterator<Item = &QueueStep> {
        self.queues.values()
    }

    pub(super) fn epolls(&self) -> usize {
        self.epolls.len()
    }

    /// Rings that were left alone: process, file descriptor and reason.
    pub(super) fn rings_left_alone(&self) -> impl Iterator<Item = (Pid, i32, &str)> {
        self.rings.iter().filter_map(|(&(pid, _, fd), why)| Some((pid, fd, why.as_deref()?)))
    }

    fn has_set_sockets(&self, step: &SocketsStep) -> bool {
        step.sockets.iter().all(|socket| self.sockets.contains(&(step.pid, step.start_time_ticks, *socket)))
    }
}

impl Due {
    fn unless(is_done: bool) -> Self {
        if is_done { Self::Done } else { Self::Yes }
    }
}

fn unknown_queues(plan: &AttachPlan) -> BTreeSet<NapiId> {
    let unknown = |limitation: &Limitation| match limitation {
        Limitation::UnknownQueue { napi } => Some(*napi),
        _ => None,
    };
    plan.limitations.iter().filter_map(unknown).collect()
}

fn key(step: &AttachStep) -> Key {
    match step {
        AttachStep::Queue(step) => Key::Queue(step.napi),
        AttachStep::Epoll(step) => Key::Epoll(epoll_key(step)),
        AttachStep::Sockets(step) => Key::Sockets(step.pid, step.start_time_ticks, step.xdp),
        AttachStep::Ring(step) => Key::Ring(ring_key(step)),
    }
}

fn epoll_key(step: &EpollStep) -> FileKey {
    (step.pid, step.start_time_ticks, step.fd)
}

fn ring_key(step: &RingStep) -> FileKey {
    (step.pid, step.start_time_ticks, step.fd)
}

#[cfg(test)]
mod tests {
    use quell_linux::io_uring_polling::RingPolling;
    use quell_mode::PartialNapiSettings;

    use super::*;
    use quell_change::settings::values::SocketPolling;

    const PREFERS: EpollParams = EpollParams { busy_poll_usecs: 0, busy_poll_budget: 8, prefer_busy_poll: true };

    fn pid() -> Pid {
        Pid::from_kernel(7_u32).unwrap()
    }

    fn suspend(timeout_ns: u64) -> PartialNapiSettings {
        PartialNapiSettings { irq_suspend_timeout_ns: Some(timeout_ns), ..PartialNapiSettings::NONE }
    }

    fn queue(old_ns: u64) -> AttachStep {
        AttachStep::Queue(QueueStep {
            namespace_cookie: 1,
            device: "eth0".to_owned(),
            queues: vec![0],
            napi: NapiId::from_kernel(8193).unwrap(),
            irq: None,
            old: suspend(old_ns),
            new: suspend(20),
        })
    }

    fn epoll(start_time_ticks: u64, old: EpollParams) -> AttachStep {
        let (process, watched, duplicates, napis) = ("server".to_owned(), Vec::new(), Vec::new(), Vec::new());
        AttachStep::Epoll(EpollStep {
            pid: pid(),
            start_time_ticks,
            process,
            fd: 5,
            sockets: 1,
            watched,
            duplicates,
            napis,
            old,
            new: PREFERS,
        })
    }

    fn sockets(fds: &[i32]) -> SocketsStep {
        let sockets = fds.iter().map(|&fd| SocketId { fd, inode: Some(fd.unsigned_abs().into()) }).collect();
        let new = SocketPolling::default();
        SocketsStep { pid: pid(), start_time_ticks: 1, process: "server".to_owned(), xdp: false, sockets, new }
    }

    #[test]
    fn a_queue_is_due_until_it_is_set_and_again_when_it_was_reset() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.due(&queue(0)), Due::Yes);
        ledger.record(&queue(0));
        assert_eq!(ledger.due(&queue(20)), Due::Done);
        assert_eq!(ledger.due(&queue(0)), Due::Yes, "the driver has recreated it");
        assert_eq!(ledger.due(&queue(30)), Due::ChangedByOthers);
        assert_eq!(ledger.queues().count(), 1);
    }

    #[test]
    fn an_instance_that_polls_the_queue_of_an_earlier_one_replaces_it() {
        let with = |napi, queues: &[u32]| match queue(0) {
            AttachStep::Queue(step) => AttachStep::Queue(QueueStep {
                napi: NapiId::from_kernel(napi).unwrap(),
                queues: queues.to_vec(),
                ..step
            }),
            _ => unreachable!(),
        };
        let mut ledger = Ledger::default();
        [with(8_193, &[0]), with(8_194, &[1]), with(8_195, &[0])].iter().for_each(|step| ledger.record(step));
        assert_eq!(ledger.queues().map(|step| step.napi.get()).collect::<Vec<_>>(), [8_194, 8_195]);
    }

    #[test]
    fn a_queue_that_already_has_the_values_is_recorded_too() {
        assert_eq!(Ledger::default().due(&queue(20)), Due::Yes);
    }

    #[test]
    fn an_object_that_was_given_up_is_not_due_again() {
        let mut ledger = Ledger::default();
        ledger.record(&queue(0));
        ledger.give_up(&queue(30));
        assert_eq!(ledger.due(&queue(0)), Due::GivenUp);
        assert_eq!(ledger.due(&epoll(1, EpollParams::default())), Due::Yes, "another object");
    }

    #[test]
    fn an_epoll_of_a_later_process_with_the_same_pid_is_another_one() {
        let mut ledger = Ledger::default();
        ledger.record(&epoll(1, EpollParams::default()));
        assert_eq!(ledger.due(&epoll(1, PREFERS)), Due::Done);
        let by_others = EpollParams { busy_poll_usecs: 9, ..PREFERS };
        assert_eq!(ledger.due(&epoll(1, by_others)), Due::ChangedByOthers);
        assert_eq!(ledger.due(&epoll(2, by_others)), Due::Yes);
        assert_eq!(ledger.epolls(), 1);
    }

    #[test]
    fn each_socket_is_set_once() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.record_sockets(&sockets(&[3, 4])).len(), 2);
        assert_eq!(ledger.due(&AttachStep::Sockets(sockets(&[4]))), Due::Done);
        assert_eq!(ledger.due(&AttachStep::Sockets(sockets(&[4, 5]))), Due::Yes);
        assert_eq!(ledger.record_sockets(&sockets(&[4, 5])), sockets(&[5]).sockets);
    }

    #[test]
    fn a_ring_is_tried_once_and_the_reason_of_a_refusal_is_recorded() {
        let new = RingPolling { busy_poll_us: 50, prefer_busy_poll: true };
        let ring = |fd| RingStep { pid: pid(), start_time_ticks: 1, process: "server".to_owned(), fd, new };
        let mut ledger = Ledger::default();
        assert!(ledger.record_ring(&ring(3), None));
        assert!(!ledger.record_ring(&ring(4), Some("locked".to_owned())));
        assert_eq!(ledger.due(&AttachStep::Ring(ring(4))), Due::Done);
        assert_eq!(ledger.due(&AttachStep::Ring(ring(5))), Due::Yes);
        assert_eq!(ledger.rings_left_alone().collect::<Vec<_>>(), [(pid(), 4, "locked")]);
    }

    #[test]
    fn an_unknown_queue_is_new_once() {
        let napi = NapiId::from_kernel(8193).unwrap();
        let plan = AttachPlan { limitations: vec![Limitation::UnknownQueue { napi }], ..AttachPlan::default() };
        let mut ledger = Ledger::default();
        assert_eq!(ledger.new_unknown_queues(&plan), BTreeSet::from([napi]));
        ledger.record_unknown_queues(&plan);
        assert_eq!(ledger.new_unknown_queues(&plan), BTreeSet::new());
        assert_eq!(ledger.new_unknown_queues(&AttachPlan::default()), BTreeSet::new());
    }
}
