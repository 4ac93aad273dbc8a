//! Recognises workers that pinning would crowd on few CPUs. Pure.

use std::collections::BTreeMap;

use quell_linux::CpuList;

/// Workers by the CPUs to which they are to be pinned.
#[derive(Debug)]
pub(crate) struct Spread {
    workers: BTreeMap<CpuList, usize>,
    /// Workers for each CPU if they used all CPUs that they may use at present.
    even: usize,
}

impl Spread {
    /// Counts workers, each with the CPUs that it may use at present and those of its queue.
    pub(crate) fn of<'a>(places: impl Iterator<Item = (&'a CpuList, &'a CpuList)> + Clone) -> Self {
        let present: CpuList = places.clone().flat_map(|(present, _)| present.iter()).collect();
        let even = places.clone().count().div_ceil(present.len().max(1));
        let mut workers: BTreeMap<CpuList, usize> = BTreeMap::new();
        for (_, queue) in places {
            *workers.entry(queue.clone()).or_default() += 1;
        }
        Self { workers, even }
    }

    /// Number of workers that would share these CPUs, if other CPUs would be idle for it.
    pub(crate) fn crowd(&self, cpus: &CpuList) -> Option<usize> {
        self.workers.get(cpus).copied().filter(|&workers| workers > self.even * cpus.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(places: &[(&str, &str)], cpus: &str) -> Option<usize> {
        let list = |cpus: &str| -> CpuList { cpus.parse().unwrap() };
        let places: Vec<(CpuList, CpuList)> =
            places.iter().map(|(present, queue)| (list(present), list(queue))).collect();
        Spread::of(places.iter().map(|(present, queue)| (present, queue))).crowd(&list(cpus))
    }

    #[test]
    fn the_workers_of_one_queue_crowd_on_its_cpu() {
        assert_eq!(crowd(&[("0-3", "0"); 4], "0"), Some(4));
        assert_eq!(crowd(&[("0-3", "0-1"), ("0-3", "0-1")], "0-1"), None, "the queue has two CPUs");
    }

    #[test]
    fn workers_that_have_no_other_cpu_or_one_each_do_not_crowd() {
        assert_eq!(crowd(&[("0-1", "0"), ("0-1", "1")], "0"), None);
        assert_eq!(crowd(&[("0-1", "0"), ("0-1", "0"), ("0-1", "1"), ("0-1", "1")], "0"), None);
        assert_eq!(crowd(&[("0-7", "0"), ("0-7", "0"), ("0-7", "1"), ("0-7", "1")], "0"), Some(2));
        assert_eq!(crowd(&[("0-3", "0"), ("0-3", "0"), ("0-3", "1")], "1"), None);
    }

    #[test]
    fn a_worker_does_not_join_one_that_is_pinned() {
        assert_eq!(crowd(&[("0", "0"), ("0-3", "0")], "0"), Some(2));
    }
}
