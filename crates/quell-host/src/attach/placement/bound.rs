//! Records the threads that an attachment has bound, and the reasons that it has reported for unbound threads.

use std::collections::BTreeMap;

use quell_linux::{CpuList, Pid};

use crate::steer::{NotPinned, Pin};

/// Threads, keyed by TID and start time of the process.
#[derive(Debug, Default)]
pub(super) struct Bound {
    to: BTreeMap<(Pid, u64), CpuList>,
    said: Vec<NotPinned>,
}

impl Bound {
    /// Whether the thread may be bound. A thread whose affinity another program has changed since may not.
    pub(super) fn may_be(&self, pin: &Pin) -> bool {
        self.to.get(&key(pin)).is_none_or(|cpus| *cpus == pin.old)
    }

    /// Records that the thread was bound, or that binding it failed and is not retried.
    pub(super) fn is(&mut self, pin: &Pin) {
        self.to.insert(key(pin), pin.new.clone());
    }

    /// Returns the permanent reasons that were not reported before.
    pub(super) fn news(&mut self, not_pinned: Vec<NotPinned>) -> Vec<NotPinned> {
        let is_news = |one: &NotPinned| !one.why.may_change() && !self.said.contains(one);
        let news: Vec<NotPinned> = not_pinned.into_iter().filter(is_news).collect();
        self.said.extend(news.iter().cloned());
        news
    }
}

fn key(pin: &Pin) -> (Pid, u64) {
    (pin.tid, pin.start_time_ticks)
}

#[cfg(test)]
mod tests {
    use quell_linux::NapiId;

    use super::*;
    use crate::steer::WhyNotPinned;

    fn pin(old: u32, new: u32) -> Pin {
        let number = Pid::new(10).unwrap();
        let (napi, thread) = (NapiId::from_kernel(9_000).unwrap(), "worker".to_owned());
        let [old, new] = [old, new].map(|cpu| CpuList::from_iter([cpu]));
        Pin { pid: number, start_time_ticks: 1, tid: number, thread, napi, old, new }
    }

    #[test]
    fn a_thread_that_another_program_has_bound_since_is_left_alone() {
        let mut bound = Bound::default();
        assert!(bound.may_be(&pin(0, 1)));
        bound.is(&pin(0, 1));
        assert!(!bound.may_be(&pin(2, 1)));
    }

    #[test]
    fn a_thread_whose_queue_moves_to_another_cpu_follows_it() {
        let mut bound = Bound::default();
        bound.is(&pin(0, 1));
        assert!(bound.may_be(&pin(1, 3)));
    }

    #[test]
    fn a_reason_is_reported_once_and_only_if_it_lasts() {
        let worker =
            crate::steer::SteerWorker { pid: Pid::new(10).unwrap(), epoll_fd: 3, process: "server".to_owned() };
        let not = |why| NotPinned { worker: worker.clone(), why };
        let several = not(WhyNotPinned::SeveralThreads(vec![]));
        let mut bound = Bound::default();
        assert!(bound.news(vec![not(WhyNotPinned::NoConnection)]).is_empty());
        assert_eq!(bound.news(vec![several.clone()]), std::slice::from_ref(&several));
        assert!(bound.news(vec![several]).is_empty());
    }
}
