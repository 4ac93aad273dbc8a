//! Threads of this process that busy poll queues, one per NAPI instance.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quell_linux::io_uring::NapiPoller;
use quell_linux::sched::{self, Policy, Scheduling};
use quell_linux::{CpuList, NapiId, Pid, name_this_thread};
use quell_mode::{PollerClass, PollerSettings};
use tracing::info;

use super::PollerError;

/// Threads that poll until they are removed or this value is dropped.
#[derive(Debug, Default)]
pub struct PollingThreads {
    settings: PollerSettings,
    /// CPUs of threads whose CPU the settings do not select. Empty: those of this process.
    cpus: CpuList,
    threads: BTreeMap<NapiId, PollingThread>,
}

#[derive(Debug)]
struct PollingThread {
    /// Number among the threads, which selects its CPU.
    place: u32,
    tid: Pid,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), PollerError>>,
}

/// Name of the thread that polls an instance. Other processes recognise it by the name: it has it once it polls.
pub(super) fn thread_name(napi: NapiId) -> String {
    format!("poll-{napi}")
}

impl PollingThreads {
    #[must_use]
    pub fn new(settings: PollerSettings) -> Self {
        Self { settings, cpus: CpuList::default(), threads: BTreeMap::new() }
    }

    /// Lets threads run on these CPUs only, unless the settings select a CPU.
    #[must_use]
    pub fn within(mut self, cpus: CpuList) -> Self {
        self.cpus = cpus;
        self
    }

    /// Polls exactly these instances from now on; each has its `gro-flush-timeout`. Returns when all are polled.
    pub fn set(&mut self, queues: &BTreeMap<NapiId, Duration>) -> Result<(), PollerError> {
        let gone: Vec<NapiId> = self.threads.keys().filter(|napi| !queues.contains_key(napi)).copied().collect();
        gone.into_iter().try_for_each(|napi| self.remove(napi))?;
        for (&napi, &timeout) in queues {
            if !self.threads.contains_key(&napi) {
                self.add(napi, timeout)?;
            }
        }
        Ok(())
    }

    /// Error of a thread that stopped polling.
    pub fn failed(&mut self) -> Result<(), PollerError> {
        let ended = self.threads.iter().find(|(_, thread)| thread.thread.is_finished()).map(|(napi, _)| *napi);
        ended.map_or(Ok(()), |napi| self.remove(napi))
    }

    /// Instances that are polled, with the threads that poll them.
    pub fn tids(&self) -> impl Iterator<Item = (NapiId, Pid)> {
        self.threads.iter().map(|(napi, thread)| (*napi, thread.tid))
    }

    fn add(&mut self, napi: NapiId, timeout: Duration) -> Result<(), PollerError> {
        let place = (0..).find(|place| self.threads.values().all(|thread| thread.place != *place)).unwrap_or(0);
        let cpu = |first: u32| std::iter::once(first.saturating_add(place)).collect();
        let cpus = self.settings.cpu.map_or_else(|| self.cpus.clone(), cpu);
        let is_over = Arc::<AtomicBool>::default();
        let (over, class) = (Arc::clone(&is_over), self.settings.class);
        let (begun, begins) = mpsc::sync_channel(1);
        let polling = move || poll_until(napi, timeout, &cpus, class, &over, &begun);
        let thread = thread::Builder::new().spawn(polling).map_err(|source| PollerError::Thread { napi, source })?;
        match begins.recv() {
            Ok(tid) => {
                info!(napi = napi.get(), tid = tid.get(), ?class, "a thread polls the queue");
                self.threads.insert(napi, PollingThread { place, tid, is_over, thread });
                Ok(())
            }
            Err(_) => thread.join().unwrap_or(Err(PollerError::Panicked(napi))),
        }
    }

    fn remove(&mut self, napi: NapiId) -> Result<(), PollerError> {
        let Some(thread) = self.threads.remove(&napi) else { return Ok(()) };
        thread.is_over.store(true, Ordering::Relaxed);
        thread.thread.join().unwrap_or(Err(PollerError::Panicked(napi)))
    }
}

impl Drop for PollingThreads {
    fn drop(&mut self) {
        for (_, thread) in std::mem::take(&mut self.threads) {
            thread.is_over.store(true, Ordering::Relaxed);
            // A panic of the thread was reported when it happened.
            let _ = thread.thread.join();
        }
    }
}

fn poll_until(
    napi: NapiId,
    timeout: Duration,
    cpus: &CpuList,
    class: PollerClass,
    is_over: &AtomicBool,
    begun: &SyncSender<Pid>,
) -> Result<(), PollerError> {
    let tid = Pid::of_this_thread();
    place(tid, cpus, class).map_err(|source| PollerError::Sched { napi, source })?;
    let poller = NapiPoller::new(PollerSettings::call_time(timeout))?;
    poller.add(napi)?;
    poller.poll()?;
    name_this_thread(&thread_name(napi));
    let _ = begun.send(tid);
    while !is_over.load(Ordering::Relaxed) {
        poller.poll()?;
    }
    Ok(())
}

fn place(tid: Pid, cpus: &CpuList, class: PollerClass) -> Result<(), sched::SchedError> {
    if !cpus.is_empty() {
        sched::set_affinity(tid, cpus)?;
    }
    let policy = match class {
        PollerClass::Other => return Ok(()),
        PollerClass::Batch => Policy::Batch { nice: 0 },
        PollerClass::Idle => Policy::Idle { nice: 0 },
        PollerClass::Fifo(priority) => Policy::Fifo { priority: priority.into() },
        PollerClass::RoundRobin(priority) => Policy::RoundRobin { priority: priority.into() },
    };
    sched::set_scheduling(tid, Scheduling { policy, reset_on_fork: false })
}
