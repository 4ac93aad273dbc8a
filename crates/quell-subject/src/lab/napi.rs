//! The queues on one side of a lab: NAPI instances, their settings, and the threads that poll them.

use quell_linux::netdev::{self, DeviceThreadingError, Napi, Netdev};
use quell_linux::netlink::NetlinkError;
use quell_linux::netns::Namespace;
use quell_linux::sched::{self, Policy, SchedError, Scheduling};
use quell_linux::visible::counted;
use quell_linux::{CpuList, Ifindex, InterfaceName, NapiId, Pid};
use quell_mode::{NapiSettings, NapiThreading, PartialNapiSettings, Threaded};
use tracing::debug;

/// Scheduling of the threads that replace interrupts. The kernel's threaded interrupt handlers have the same priority,
/// `MAX_RT_PRIO / 2` (`sched_set_fifo` in `kernel/irq/manage.c`).
const INTERRUPT_POLICY: Policy = Policy::Fifo { priority: 50 };

/// The queues on one side of a lab.
#[derive(Debug)]
pub struct Queues {
    netdev: Netdev,
    ids: Vec<NapiId>,
}

/// Reason why the queues could not be configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The kernel refused a netlink request.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// Threaded NAPI could not be enabled for the device.
    #[error(transparent)]
    Threading(#[from] DeviceThreadingError),
    /// A NAPI thread could not be pinned, or its scheduling class could not be set.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// The number of NAPI instances differs from the number of queues.
    #[error(
        "{device} has {} but {}: packets would bypass NAPI, and no mode would \
         have an effect; check that GRO is on and that the link is up",
        counted(*expected, "queue"), counted(*found, "NAPI instance")
    )]
    NapiMissing {
        /// Name of the device.
        device: String,
        /// Number of NAPI instances found.
        found: usize,
        /// Number of queues created.
        expected: u32,
    },
    /// The kernel reports that a thread polls the queue, but reports no thread.
    #[error("NAPI {0} is threaded, but the kernel reports no thread in this PID namespace")]
    NoThread(NapiId),
    /// Threaded NAPI can be set for whole devices only.
    #[error("this kernel has no NAPI threads of single queues (available since Linux 6.17)")]
    NoThreadOfQueue,
    /// The kernel reports different settings than were requested.
    #[error("NAPI {napi}: requested {asked:?}, but the kernel reports {read:?}")]
    ReadBack {
        /// NAPI ID of the queue.
        napi: NapiId,
        /// Requested settings.
        asked: NapiSettings,
        /// Settings that the kernel reports. An absent attribute matches a requested value of zero only.
        read: Box<Napi>,
    },
    /// The kernel does not support per-NAPI settings.
    #[error(
        "NAPI {0}: the kernel does not report defer-hard-irqs, gro-flush-timeout and irq-suspend-timeout (available since Linux 6.13)"
    )]
    Unreported(NapiId),
}

impl Queues {
    /// Finds the queues of a device that has `expected` queues.
    ///
    /// # Errors
    /// Fails if the kernel reports a different number of NAPI instances.
    pub fn of(mut netdev: Netdev, ifindex: Ifindex, device: &str, expected: u32) -> Result<Self, QueueError> {
        let ids: Vec<NapiId> = netdev.napis(ifindex)?.iter().map(|napi| napi.id).collect();
        if ids.len() != expected as usize {
            return Err(QueueError::NapiMissing { device: device.to_owned(), found: ids.len(), expected });
        }
        debug!(device, napis = ?ids.iter().map(|id| id.get()).collect::<Vec<_>>(), "NAPI instances of the lab's device");
        Ok(Self { netdev, ids })
    }

    /// NAPI IDs, in queue order.
    #[must_use]
    pub fn ids(&self) -> &[NapiId] {
        &self.ids
    }

    /// Enables threaded NAPI on each queue and runs the threads under `SCHED_FIFO`. Pins the thread of queue `i` to CPU
    /// `cpus[i % cpus.len()]`. Returns the threads. Before Linux 6.17, threaded NAPI cannot be set per queue, so it is
    /// enabled for the whole device `name` in `namespace`.
    ///
    /// # Errors
    /// Fails if the kernel refuses one of the steps.
    pub fn stand_in_for_interrupts(
        &mut self,
        namespace: &Namespace,
        name: &InterfaceName,
        cpus: &[u32],
    ) -> Result<Vec<Pid>, QueueError> {
        if !self.threading_is_per_queue()? {
            netdev::set_device_threading(namespace, name, true)?;
        }
        let threaded = PartialNapiSettings { threaded: Some(NapiThreading::Enabled), ..PartialNapiSettings::default() };
        let mut threads = Vec::new();
        for (&id, &cpu) in self.ids.iter().zip(cpus.iter().cycle()) {
            if self.netdev.napi(id)?.settings.threaded.is_some() {
                self.netdev.set_napi(id, &threaded)?;
            }
            threads.push(place_thread(&mut self.netdev, id, cpu, INTERRUPT_POLICY)?);
        }
        Ok(threads)
    }

    /// Lets softirqs poll the queues of the device `name`, with default settings.
    ///
    /// # Errors
    /// Fails if the kernel refuses one of the steps.
    pub fn leave_to_softirqs(&mut self, namespace: &Namespace, name: &InterfaceName) -> Result<(), QueueError> {
        if !self.threading_is_per_queue()? {
            netdev::set_device_threading(namespace, name, false)?;
        }
        self.set(&NapiSettings::default()).map(drop)
    }

    /// Applies settings, and gives the threads of the queues this CPU: under `SCHED_FIFO` as an interrupt handler, or
    /// under
    /// `SCHED_OTHER` if they poll without end. Returns the threads.
    ///
    /// # Errors
    /// Fails if the kernel refuses one of the steps, or does not support threads of single queues.
    pub fn set_with_threads(&mut self, asked: &NapiSettings, cpu: u32) -> Result<Vec<Pid>, QueueError> {
        if asked.threaded != Threaded::Off && !self.threading_is_per_queue()? {
            return Err(QueueError::NoThreadOfQueue);
        }
        self.set(asked)?;
        let policy = match asked.threaded {
            Threaded::Off => return Ok(Vec::new()),
            Threaded::Thread => INTERRUPT_POLICY,
            Threaded::BusyPoll => Policy::Other { nice: 0 },
        };
        self.ids.iter().map(|id| place_thread(&mut self.netdev, *id, cpu, policy)).collect()
    }

    /// Pins the existing NAPI threads of the queues as [`Self::stand_in_for_interrupts`] does, and returns them. The
    /// kernel does not pin new threads.
    ///
    /// # Errors
    /// Fails if the kernel refuses to report or to pin a thread.
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
        Ok(napis?.iter().all(|napi| napi.settings.threaded.is_some()))
    }

    /// Applies the same settings to all queues, verifies them, and returns the settings that the kernel reports. Before
    /// Linux
    /// 6.17, whether a thread polls the queue is not set.
    ///
    /// # Errors
    /// Fails if the kernel refuses the settings or reports different ones.
    pub fn set(&mut self, asked: &NapiSettings) -> Result<Vec<NapiSettings>, QueueError> {
        let mut change = PartialNapiSettings::from(*asked);
        let sets_threading = self.threading_is_per_queue()?;
        if !sets_threading {
            change.threaded = None;
        }
        let mut read_back = Vec::new();
        for &napi in &self.ids {
            self.netdev.set_napi(napi, &change)?;
            let read = self.netdev.napi(napi)?;
            let settings = settings_of(&read).ok_or(QueueError::Unreported(napi))?;
            let threaded = if sets_threading { asked.threaded } else { settings.threaded };
            if settings != (NapiSettings { threaded, ..*asked }) {
                return Err(QueueError::ReadBack { napi, asked: *asked, read: Box::new(read) });
            }
            read_back.push(settings);
        }
        Ok(read_back)
    }
}

fn place_thread(netdev: &mut Netdev, id: NapiId, cpu: u32, policy: Policy) -> Result<Pid, QueueError> {
    let thread = netdev.napi(id)?.pid.ok_or(QueueError::NoThread(id))?;
    sched::set_affinity(thread, &[cpu].into_iter().collect::<CpuList>())?;
    sched::set_scheduling(thread, Scheduling { policy, reset_on_fork: false })?;
    Ok(thread)
}

/// Returns the settings of a NAPI instance, or `None` if the kernel does not report them. Older kernels do not report
/// whether an instance is threaded; an instance with a thread then counts as threaded.
fn settings_of(napi: &Napi) -> Option<NapiSettings> {
    let by_thread = if napi.pid.is_some() { NapiThreading::Enabled } else { NapiThreading::Disabled };
    let threaded = napi.settings.threaded.or(Some(by_thread));
    PartialNapiSettings { threaded, ..napi.settings }.complete()
}
