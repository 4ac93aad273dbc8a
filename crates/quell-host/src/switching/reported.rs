//! Settings as the kernel reported them during an experiment, for its result.

use quell_change::settings::epoll::Program;
use quell_linux::proc::ProcRoot;
use quell_linux::{NapiId, Pid};
use quell_mode::{DeliveryMode, EpollParams, PartialNapiSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{OpenQueue, SwitchPlan, SwitchedEpoll};
use crate::attach::Targets;

/// Settings of the queues and epolls that an experiment switched, as the kernel reported them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReportedSettings {
    pub queues: Vec<ReportedQueue>,
    /// In ascending order of process and descriptor.
    pub epolls: Vec<ReportedEpoll>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReportedQueue {
    pub device: String,
    /// RX queue numbers of the NAPI instance. Empty if they are unknown.
    pub queues: Vec<u32>,
    pub napi: NapiId,
    pub values: ReportedValues<PartialNapiSettings>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReportedEpoll {
    pub pid: Pid,
    /// File descriptor in that process.
    pub fd: i32,
    pub values: ReportedValues<EpollParams>,
}

/// Values of one object over an experiment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ReportedValues<V> {
    pub before: V,
    /// Values under each mode that was set, in the order in which they were first set.
    pub modes: Vec<ModeValues<V>>,
    /// Values after the restore. Absent if the object no longer exists, or cannot be read.
    pub after: Option<V>,
}

/// Values of one object under a mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ModeValues<V> {
    pub mode: DeliveryMode,
    /// Values at the end of the latest slice under this mode.
    pub values: V,
}

impl<V> ReportedValues<V> {
    fn new(before: V) -> Self {
        Self { before, modes: Vec::new(), after: None }
    }

    pub(super) fn set_under(&mut self, mode: DeliveryMode, values: V) {
        match self.modes.iter_mut().find(|other| other.mode == mode) {
            Some(other) => other.values = values,
            None => self.modes.push(ModeValues { mode, values }),
        }
    }
}

impl ReportedSettings {
    /// Values before the experiment.
    pub(super) fn before(plan: &SwitchPlan) -> Self {
        let queues = plan.queues.iter().map(|queue| ReportedQueue {
            device: queue.device.clone(),
            queues: queue.queues.clone(),
            napi: queue.napi,
            values: ReportedValues::new(queue.old),
        });
        let epolls = plan.epolls.iter().map(|epoll| ReportedEpoll {
            pid: epoll.pid,
            fd: epoll.fd,
            values: ReportedValues::new(epoll.old),
        });
        Self { queues: queues.collect(), epolls: epolls.collect() }
    }

    /// Reads all values under a mode. Values that cannot be read are left out.
    pub(super) fn read_under(
        &mut self,
        mode: DeliveryMode,
        queues: &mut [OpenQueue],
        epolls: &[SwitchedEpoll],
        targets: &Targets,
    ) {
        self.read(
            (queues, epolls, targets),
            |queue, now| queue.set_under(mode, now),
            |epoll, now| epoll.set_under(mode, now),
        );
    }

    /// Reads all values after the restore. Values that cannot be read are left out.
    pub(super) fn read_after(&mut self, queues: &mut [OpenQueue], epolls: &[SwitchedEpoll], targets: &Targets) {
        self.read(
            (queues, epolls, targets),
            |queue, now| queue.after = Some(now),
            |epoll, now| epoll.after = Some(now),
        );
    }

    fn read(
        &mut self,
        (queues, epolls, targets): (&mut [OpenQueue], &[SwitchedEpoll], &Targets),
        of_queue: impl Fn(&mut ReportedValues<PartialNapiSettings>, PartialNapiSettings),
        of_epoll: impl Fn(&mut ReportedValues<EpollParams>, EpollParams),
    ) {
        for ((_, netdev, queue), reported) in queues.iter_mut().zip(&mut self.queues) {
            if let Ok(napi) = netdev.napi(queue.napi) {
                of_queue(&mut reported.values, napi.settings.where_present_in(&queue.old));
            }
        }
        let proc = ProcRoot::default();
        for of_process in epolls.chunk_by(|one, other| one.pid == other.pid) {
            let process = targets.identity(of_process[0].pid, of_process[0].start_time_ticks);
            let Ok(program) = Program::open(&proc, process, false) else { continue };
            for epoll in of_process {
                if let Ok(now) = program.get(epoll.fd, &epoll.watched)
                    && let Some(reported) = self.epoll(epoll.pid, epoll.fd)
                {
                    of_epoll(reported, now);
                }
            }
        }
    }

    pub(super) fn epoll(&mut self, pid: Pid, fd: i32) -> Option<&mut ReportedValues<EpollParams>> {
        let at = self.epolls.binary_search_by_key(&(pid, fd), |epoll| (epoll.pid, epoll.fd)).ok()?;
        Some(&mut self.epolls[at].values)
    }
}
