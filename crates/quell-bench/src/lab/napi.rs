//! The queues of one end of a lab: their NAPI instances, what they are told, and the threads that poll them.

use quell_linux::netdev::{self, DeviceThreadingError, Napi, NapiChange, NapiThreading, Netdev};
use quell_linux::netlink::NetlinkError;
use quell_linux::netns::Namespace;
use quell_linux::sched::{self, Policy, SchedError, Scheduling};
use quell_linux::{CpuList, Ifindex, InterfaceName, NapiId, Pid};
use quell_mode::{NapiSettings, Threaded};

/// The priority of the threads that stand in for interrupts: that of the kernel's own interrupt threads,
/// `MAX_RT_PRIO / 2` (`kernel/irq/manage.c`, `sched_set_fifo`).
const INTERRUPT_THREAD_PRIORITY: u32 = 50;

/// The queues of one end.
#[derive(Debug)]
pub struct Queues {
    netdev: Netdev,
    ids: Vec<NapiId>,
}

/// Why the queues could not be set up as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The kernel refused.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The device could not be made to be polled by threads.
    #[error(transparent)]
    Threading(#[from] DeviceThreadingError),
    /// A NAPI thread could not be pinned or given its class.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// There are not as many NAPI instances as queues.
    #[error(
        "{device} has {found} NAPI instance(s) and {expected} queue(s): packets would bypass NAPI, and no mode would \
         have an effect; is GRO off, or the link down?"
    )]
    NapiMissing {
        /// The device.
        device: String,
        /// NAPI instances found.
        found: usize,
        /// Queues made.
        expected: u32,
    },
    /// The kernel says that the queue is threaded, and names no thread.
    #[error("NAPI {0} is set to be polled by a thread, and the kernel names none that this PID namespace has")]
    NoThread(NapiId),
    /// A setting did not read back as it was set.
    #[error("NAPI {napi}: asked for {asked:?}, and the kernel reads back {read:?}")]
    ReadBack {
        /// The queue.
        napi: NapiId,
        /// What was asked for.
        asked: NapiSettings,
        /// What came back; absent attributes are zero here only if they were asked to be.
        read: Box<Napi>,
    },
    /// The kernel does not report its settings.
    #[error(
        "NAPI {0}: the kernel does not report defer-hard-irqs, gro-flush-timeout and irq-suspend-timeout (they exist from Linux 6.13)"
    )]
    Unreported(NapiId),
}

impl Queues {
    /// The queues of a device that has `expected` of them.
    ///
    /// # Errors
    /// When the kernel lists another number of NAPI instances.
    pub fn of(mut netdev: Netdev, ifindex: Ifindex, device: &str, expected: u32) -> Result<Self, QueueError> {
        let ids: Vec<NapiId> = netdev.napis(ifindex)?.iter().map(|napi| napi.id).collect();
        if ids.len() != expected as usize {
            return Err(QueueError::NapiMissing { device: device.to_owned(), found: ids.len(), expected });
        }
        Ok(Self { netdev, ids })
    }

    /// Their NAPI ids, in the order of the queues.
    #[must_use]
    pub fn ids(&self) -> &[NapiId] {
        &self.ids
    }

    /// Has each queue polled by a thread of its own, pinned to the CPU at the queue's place in `cpus` (taken in turn)
    /// under `SCHED_FIFO`, and returns the threads. Where threads cannot be had per queue (before Linux 6.17), the
    /// device `name` in `namespace` as a whole is told.
    ///
    /// # Errors
    /// When the kernel refuses one of the steps.
    pub fn stand_in_for_interrupts(
        &mut self,
        namespace: &Namespace,
        name: &InterfaceName,
        cpus: &[u32],
    ) -> Result<Vec<Pid>, QueueError> {
        if !self.threading_is_per_queue()? {
            netdev::set_device_threading(namespace, name, true)?;
        }
        let threaded = NapiChange { threading: Some(NapiThreading::Enabled), ..NapiChange::default() };
        let mut threads = Vec::new();
        for (&id, &cpu) in self.ids.iter().zip(cpus.iter().cycle()) {
            if self.netdev.napi(id)?.threading.is_some() {
                self.netdev.set_napi(id, &threaded)?;
            }
            let thread = self.netdev.napi(id)?.pid.ok_or(QueueError::NoThread(id))?;
            sched::set_affinity(thread, &[cpu].into_iter().collect::<CpuList>())?;
            let policy = Policy::Fifo { priority: INTERRUPT_THREAD_PRIORITY };
            sched::set_scheduling(thread, Scheduling { policy, reset_on_fork: false })?;
            threads.push(thread);
        }
        Ok(threads)
    }

    /// The threads that poll the queues, as far as they are polled by threads, each pinned to its queue's CPU as in
    /// [`Self::stand_in_for_interrupts`]; the kernel lets a new one float.
    ///
    /// # Errors
    /// When the kernel refuses to tell or to pin.
    pub fn pinned_threads(&mut self, cpus: &[u32]) -> Result<Vec<Pid>, QueueError> {
        let mut threads = Vec::new();
        for (&id, &cpu) in self.ids.iter().zip(cpus.iter().cycle()) {
            let Some(thread) = self.netdev.napi(id)?.pid else { continue };
            sched::set_affinity(thread, &[cpu].into_iter().collect::<CpuList>())?;
            threads.push(thread);
        }
        Ok(threads)
    }

    fn threading_is_per_queue(&mut self) -> Result<bool, QueueError> {
        let napis: Result<Vec<Napi>, NetlinkError> = self.ids.iter().map(|&id| self.netdev.napi(id)).collect();
        Ok(napis?.iter().all(|napi| napi.threading.is_some()))
    }

    /// Tells every queue the same and returns what the kernel reads back, which is what was asked.
    ///
    /// # Errors
    /// When the kernel refuses or reads something else back.
    pub fn set(&mut self, asked: &NapiSettings) -> Result<Vec<NapiSettings>, QueueError> {
        let threading = NapiThreading::from_kernel(asked.threaded.kernel_value());
        let change = NapiChange {
            defer_hard_irqs: Some(asked.defer_hard_irqs),
            gro_flush_timeout_ns: Some(asked.gro_flush_timeout_ns),
            irq_suspend_timeout_ns: Some(asked.irq_suspend_timeout_ns),
            threading: self.threading_is_per_queue()?.then_some(threading),
        };
        let mut read_back = Vec::new();
        for &napi in &self.ids {
            self.netdev.set_napi(napi, &change)?;
            let read = self.netdev.napi(napi)?;
            let settings = settings_of(&read).ok_or(QueueError::Unreported(napi))?;
            if settings != *asked {
                return Err(QueueError::ReadBack { napi, asked: *asked, read: Box::new(read) });
            }
            read_back.push(settings);
        }
        Ok(read_back)
    }
}

/// What a NAPI instance is told; absent when the kernel does not report it. Where it does not say how the instance is
/// polled, having a thread says it.
fn settings_of(napi: &Napi) -> Option<NapiSettings> {
    Some(NapiSettings {
        defer_hard_irqs: napi.defer_hard_irqs?,
        gro_flush_timeout_ns: napi.gro_flush_timeout_ns?,
        irq_suspend_timeout_ns: napi.irq_suspend_timeout_ns?,
        threaded: match (napi.threading, napi.pid) {
            (Some(threading), _) => Threaded::from_kernel_value(threading.as_kernel())?,
            (None, Some(_)) => Threaded::Thread,
            (None, None) => Threaded::Off,
        },
    })
}
