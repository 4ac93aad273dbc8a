//! Assigns CPUs to the server and to the generator of a lab. If a server worker and a generator thread share a CPU, the
//! results show the scheduler, not the delivery mode. Such a layout is refused unless the user passes `--insist`; its
//! results are then marked.

use quell_linux::sched::{self, SchedError};
use quell_linux::visible::counted;
use quell_linux::{CpuList, Pid};
use quell_result::facts::CpuLayout;

/// Reason why the CPUs do not suffice for a lab of the requested size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    /// This process may use too few CPUs.
    #[error(
        "{} and {} need {}, but this process may use only \
         {available}. On shared CPUs, the figures would measure the scheduler. Request fewer queues, or pass --insist \
         to measure anyway (the result is then marked as not a measurement)",
        counted(*workers, "server worker"), counted(*generators, "generator thread"), counted(workers + generators, "CPU")
    )]
    TooFew {
        /// Requested number of server workers, one per queue.
        workers: usize,
        /// Requested number of generator threads.
        generators: usize,
        /// Number of available CPUs.
        available: usize,
    },
    /// No queue or no generator thread was requested.
    #[error("a lab needs at least one queue and one generator thread")]
    Nothing,
}

/// Assigns one CPU of `available` to each of the `workers` and `generators`. The server gets the CPUs with the
/// lowest numbers. If there are too few CPUs and `insist` is set, workers and generators share CPUs.
pub fn assign(available: &[u32], workers: usize, generators: usize, insist: bool) -> Result<CpuLayout, CpuError> {
    if workers == 0 || generators == 0 || available.is_empty() {
        return Err(CpuError::Nothing);
    }
    if workers + generators <= available.len() {
        return Ok(CpuLayout {
            server: available[..workers].to_vec(),
            client: available[workers..workers + generators].to_vec(),
            overcommitted: None,
        });
    }
    let too_few = CpuError::TooFew { workers, generators, available: available.len() };
    if !insist {
        return Err(too_few);
    }
    let (server, client) = split_in_proportion(available, workers, generators);
    Ok(CpuLayout {
        server: server.iter().copied().cycle().take(workers).collect(),
        client: client.iter().copied().cycle().take(generators).collect(),
        overcommitted: Some(format!(
            "{} and {} share {}",
            counted(workers, "server worker"),
            counted(generators, "generator thread"),
            counted(available.len(), "CPU")
        )),
    })
}

fn split_in_proportion(available: &[u32], workers: usize, generators: usize) -> (&[u32], &[u32]) {
    if available.len() == 1 {
        return (available, available);
    }
    let share = available.len() * workers / (workers + generators);
    available.split_at(share.clamp(1, available.len() - 1))
}

/// Pins the calling thread to the client's CPUs until the value is dropped. The thread wakes up regularly and must not
/// disturb the server's CPUs.
pub(crate) struct PinnedTo {
    before: CpuList,
}

impl PinnedTo {
    pub(crate) fn new(cpus: &[u32]) -> Result<Self, SchedError> {
        let before = sched::affinity(Pid::of_this_thread())?;
        sched::set_affinity(Pid::of_this_thread(), &cpus.iter().copied().collect())?;
        Ok(Self { before })
    }
}

impl Drop for PinnedTo {
    fn drop(&mut self) {
        // The thread had this affinity before, so restoring it should succeed. If it fails, the thread is restricted to
        // the client's CPUs.
        let _ = sched::set_affinity(Pid::of_this_thread(), &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cpus_suffice_for_one_worker_and_one_generator_thread() {
        let layout = assign(&[0, 1], 1, 1, false).unwrap();
        assert_eq!((layout.server, layout.client, layout.overcommitted), (vec![0], vec![1], None));
    }

    #[test]
    fn too_few_cpus_are_refused() {
        assert_eq!(assign(&[0, 1], 2, 1, false), Err(CpuError::TooFew { workers: 2, generators: 1, available: 2 }));
    }

    #[test]
    fn a_forced_layout_separates_server_and_client_and_is_marked_as_no_measurement() {
        let layout = assign(&[0, 1], 4, 2, true).unwrap();
        assert_eq!((layout.server_cpus(), layout.client_cpus()), (vec![0], vec![1]));
        assert!(layout.overcommitted.is_some());
    }

    #[test]
    fn only_cpus_that_this_process_may_use_are_assigned() {
        let layout = assign(&[3, 5, 9], 1, 2, false).unwrap();
        assert_eq!((layout.server, layout.client), (vec![3], vec![5, 9]));
    }

    #[test]
    fn a_lab_can_be_forced_onto_one_cpu() {
        let layout = assign(&[7], 1, 1, true).unwrap();
        assert_eq!((layout.server, layout.client), (vec![7], vec![7]));
    }
}
