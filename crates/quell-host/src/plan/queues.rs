//! Plans the settings of single queues: coalescing, RPS, XPS, affinity of interrupts and kthreads, and NAPI settings.

use std::collections::BTreeMap;

use quell_change::change::QueueInPlan;
use quell_linux::CpuList;
use quell_linux::ethtool::Coalescing;
use quell_linux::sched::{Policy, Scheduling};
use quell_mode::profile::{
    CoalesceKey, CpuPolicy, DeviceProfile, Place, Placed, QueueGroup, QueueSet, ThreadScheduling, XpsPolicy,
};
use quell_mode::{DeliveryMode, PartialNapiSettings};

use super::device::{self, Coalesced, Outlook};
use super::{Current, DeviceId, Diff, Made, PlannedChange, PlannedQueue, ProfilePlan, ProfileStep, cpus};
use crate::snapshot::{Device, Irq, Reading, RxQueue, Snapshot, SnapshotNapi, Thread, TxQueue, UnknownReason};

/// Settings for one queue in a profile. Groups that name the queue override groups for all queues.
#[derive(Debug, Clone, Default)]
struct Wishes<'a> {
    mode: Option<&'a Placed<DeliveryMode>>,
    coalescing: BTreeMap<CoalesceKey, Placed<u32>>,
    irq_cpus: Option<Turn<'a>>,
    xps: Option<&'a Placed<XpsPolicy>>,
    rps_off: Option<&'a Place>,
    thread_cpus: Option<Turn<'a>>,
    thread_scheduling: Option<&'a Placed<ThreadScheduling>>,
}

/// A policy, and the queue's position in its group.
type Turn<'a> = (&'a Placed<CpuPolicy>, usize);

pub(super) struct Queues<'a> {
    snapshot: &'a Snapshot,
    device: &'a Device,
    id: &'a DeviceId,
    outlook: Outlook,
    coalescing: Coalesced,
    wishes: BTreeMap<u32, Wishes<'a>>,
    /// Queues that the profile names and the device does not have.
    missing: Vec<(u32, &'a Place)>,
    /// Places of the groups of queues in the profile.
    group_places: Vec<&'a Place>,
}

/// The kernel lists the queues of a device only while its link is up.
fn is_down_without_queues(device: &Device) -> bool {
    !device.is_up && device.rx_queues.known().is_some_and(Vec::is_empty)
}

impl<'a> Queues<'a> {
    pub(super) fn new(
        snapshot: &'a Snapshot,
        device: &'a Device,
        id: &'a DeviceId,
        wanted: &'a DeviceProfile,
        outlook: Outlook,
        coalescing: Coalesced,
    ) -> Self {
        let count = outlook.rx_queues.max(outlook.tx_queues).unwrap_or(0);
        let mut wishes: BTreeMap<u32, Wishes<'a>> = BTreeMap::new();
        let mut missing = Vec::new();
        let of_all = |group: &&QueueGroup| group.queues == QueueSet::All;
        let groups = wanted.queues.iter().filter(of_all).chain(wanted.queues.iter().filter(|group| !of_all(group)));
        for group in groups {
            for (position, queue) in group.queues.of_device(count).into_iter().enumerate() {
                if queue < count {
                    wishes.entry(queue).or_default().cover_with(group, position);
                } else {
                    missing.push((queue, &group.place));
                }
            }
        }
        let group_places = wanted.queues.iter().map(|group| &group.place).collect();
        Self { snapshot, device, id, outlook, coalescing, wishes, missing, group_places }
    }

    pub(super) fn plan(&self, plan: &mut ProfilePlan) {
        if !self.group_places.is_empty() && is_down_without_queues(self.device) {
            for place in &self.group_places {
                let why = "the link is down, so it has no queues: set it up, or wait for it with --wait-for-link";
                plan.cannot(place, format!("queues of {}", self.id), UnknownReason::Absent, why);
            }
            return plan.awaited.push(self.id.to_string());
        }
        for (queue, place) in &self.missing {
            plan.cannot(
                place,
                format!("queue {queue} of {}", self.id),
                UnknownReason::Absent,
                "the device has no such queue",
            );
        }
        let none = Wishes::default();
        let now = |count: Option<usize>| count.and_then(|count| u32::try_from(count).ok()).unwrap_or(0);
        let rx_now = now(self.device.rx_queues.known().map(Vec::len));
        for queue in 0..self.outlook.rx_queues.unwrap_or(0).max(rx_now) {
            self.receive(plan, queue, self.wishes.get(&queue).unwrap_or(&none));
        }
        let tx_now = now(self.device.tx_queues.known().map(Vec::len));
        for queue in 0..self.outlook.tx_queues.unwrap_or(0).max(tx_now) {
            self.transmit(plan, queue, self.wishes.get(&queue).unwrap_or(&none));
        }
        self.device_threading(plan);
    }

    fn receive(&self, plan: &mut ProfilePlan, queue: u32, wishes: &Wishes<'_>) {
        let now = self.device.rx_queues.known_elements().find(|rx| rx.id == queue);
        let made = self.outlook.of_queue(queue, self.outlook.rx_queues);
        self.rps(plan, queue, now, made, wishes);
        self.queue_coalescing(plan, queue, now, made, wishes);
        let napi = now.and_then(|rx| self.napi_of(rx));
        self.irq(plan, queue, napi, made, wishes);
        let made = if self.outlook.napis_go { Made::Goes } else { made };
        self.napi(plan, queue, now, napi, made, wishes);
        self.thread(plan, queue, napi, made, wishes);
    }

    fn napi_of(&self, rx: &RxQueue) -> Option<&'a SnapshotNapi> {
        let linked = (*rx.napi.known()?)?;
        self.device.napis.known_elements().find(|napi| napi.id == linked.to)
    }

    fn rps(&self, plan: &mut ProfilePlan, queue: u32, now: Option<&RxQueue>, made: Made, wishes: &Wishes<'_>) {
        let off = CpuList::default();
        let current = self.outlook.current(now.map(|rx| &rx.rps_cpus));
        let wish = wishes.rps_off.map(|place| (off.clone(), place));
        let make = |cpus| PlannedChange::RpsCpus { device: self.id.clone(), queue, cpus };
        plan.settle(format!("RPS of queue {queue} of {}", self.id), made, current, wish, Some(&off), make);
    }

    fn queue_coalescing(
        &self,
        plan: &mut ProfilePlan,
        queue: u32,
        now: Option<&RxQueue>,
        made: Made,
        wishes: &Wishes<'_>,
    ) {
        let what = format!("coalescing of queue {queue} of {}", self.id);
        let (now, first) = match (now.map(|rx| &rx.coalescing), wishes.coalescing.values().next()) {
            (Some(Reading::Known(now)), _) => (now, false),
            (Some(Reading::Unknown(reading)), Some(first)) => {
                return plan.cannot_know(&first.place, what, &reading.unknown);
            }
            (None, Some(_)) => (&self.coalescing.values, true),
            (_, None) => return,
        };
        let of_device = self.device.coalescing.known();
        if made == Made::Goes {
            let own: Coalescing = device::unlike(now, of_device).collect();
            if !own.is_empty() {
                let values = Diff { old: Some(own), new: None };
                let change = PlannedChange::QueueCoalescing { device: self.id.clone(), queue, values };
                plan.steps.push(ProfileStep { change, wanted_by: None });
            }
            return;
        }
        let lost = made == Made::Recreated || self.coalescing.is_set;
        let Some((mut values, place)) = device::parameters(plan, &what, now, &wishes.coalescing, of_device, lost)
        else {
            return;
        };
        if first {
            values.old = None;
        }
        let change = PlannedChange::QueueCoalescing { device: self.id.clone(), queue, values };
        plan.steps.push(ProfileStep { change, wanted_by: place });
    }

    /// Returns the CPUs for a position in the group, or records an obstacle.
    fn cpus<'p>(&self, plan: &mut ProfilePlan, what: &str, turn: Option<Turn<'p>>) -> Option<(CpuList, &'p Place)> {
        let (policy, position) = turn?;
        match cpus::choose(&policy.value, position, self.device, self.snapshot) {
            Ok(cpus) => Some((cpus, &policy.place)),
            Err((why, said)) => {
                plan.cannot(&policy.place, what.to_owned(), why, &said);
                None
            }
        }
    }

    fn irq_of(&self, napi: &SnapshotNapi) -> Option<&'a Irq> {
        let number = (*napi.irq.known()?)?.to;
        self.snapshot.irqs.known_elements().find(|irq| irq.number == number)
    }

    fn irq(&self, plan: &mut ProfilePlan, queue: u32, napi: Option<&SnapshotNapi>, made: Made, wishes: &Wishes<'_>) {
        let what = format!("interrupt of queue {queue} of {}", self.id);
        let irq = napi.and_then(|napi| self.irq_of(napi));
        let wish = match (irq, made, wishes.irq_cpus) {
            (None, Made::Stays, Some((policy, _))) => {
                // The default policy requires no change for a queue without an interrupt.
                if policy.value != CpuPolicy::Default {
                    plan.cannot(
                        &policy.place,
                        what,
                        UnknownReason::Absent,
                        "the kernel shows no interrupt of this queue",
                    );
                }
                return;
            }
            (None, Made::Goes, _) => return,
            (_, _, turn) => self.cpus(plan, &what, turn),
        };
        let current = self.outlook.current(irq.map(|irq| &irq.affinity));
        let number = irq.map(|irq| irq.number);
        let default = cpus::default(self.snapshot).ok();
        let make = |cpus| PlannedChange::IrqAffinity { device: self.id.clone(), queue, irq: number, cpus };
        plan.settle(what, made, current, wish, default.as_ref(), make);
    }

    fn napi(
        &self,
        plan: &mut ProfilePlan,
        queue: u32,
        now: Option<&RxQueue>,
        napi: Option<&SnapshotNapi>,
        made: Made,
        wishes: &Wishes<'_>,
    ) {
        let what = format!("NAPI of queue {queue} of {}", self.id);
        if let Some((mode, said)) = self.refused_threading(wishes) {
            return plan.cannot(&mode.place, what, UnknownReason::UnsupportedByKernel, said);
        }
        if let (true, Some(mode)) = (self.outlook.napis_go, wishes.mode)
            && mode.value != DeliveryMode::default()
        {
            let said = "the profile turns GRO off, which removes the NAPI instances of a veth";
            return plan.cannot(&mode.place, what, UnknownReason::Absent, said);
        }
        let readings = napi.map(values);
        let current = match (&readings, now) {
            (Some(values), _) => values.clone(),
            (None, Some(_)) if made == Made::Stays && !self.outlook.napis_come => {
                // Mode `base` needs no change for a queue without NAPI.
                if let Some(mode) = wishes.mode.filter(|mode| mode.value != DeliveryMode::default()) {
                    let said = "the queue has no NAPI instance: the device must be up, and a veth must have GRO on";
                    plan.cannot(&mode.place, what, UnknownReason::Absent, said);
                }
                return;
            }
            (None, _) => Current::NotYetCreated,
        };
        let has_threading = match &current {
            Current::Known(values) => values.threaded.is_some(),
            _ => self.knows_threading(),
        };
        let wish = wishes.mode.map(|mode| (wanted_values(&mode.value, has_threading), &mode.place));
        let default = wanted_values(&DeliveryMode::default(), has_threading);
        let napi = napi.map(|napi| napi.id);
        let in_plan = match (made, &current) {
            (_, Current::NotYetCreated) => QueueInPlan::IsCreated,
            (Made::Stays, _) => QueueInPlan::Stays,
            (Made::Recreated, _) => QueueInPlan::IsRecreated,
            (Made::Goes, _) => QueueInPlan::IsRemoved,
        };
        let planned = |values| PlannedQueue { device: self.id.clone(), queue, napi, values, in_plan };
        if let (QueueInPlan::Stays, Current::Known(now), Some((wanted, _))) = (in_plan, &current, &wish)
            && now == wanted
        {
            plan.matching.push(planned(Diff { old: Some(*now), new: Some(*wanted) }));
        }
        plan.settle(what, made, current, wish, Some(&default), |values| PlannedChange::Napi(planned(values)));
    }

    /// Returns the mode of a queue that needs threading, with the reason why this kernel refuses it.
    fn refused_threading<'w>(&self, wishes: &Wishes<'w>) -> Option<(&'w Placed<DeliveryMode>, &'static str)> {
        let mode = wishes.mode?;
        Some((mode, self.snapshot.refuses_threading(mode.value.napi().threaded)?))
    }

    /// Whether this kernel supports threaded NAPI per instance, judged by the other instances.
    fn knows_threading(&self) -> bool {
        let mut napis = self.snapshot.devices.iter().flat_map(|device| device.napis.known_elements());
        napis.next().is_none_or(|napi| napi.threading.known().is_some())
    }

    /// Plans threaded NAPI through sysfs, for kernels that support it per device only. All queues must want the same
    /// value.
    fn device_threading(&self, plan: &mut ProfilePlan) {
        if self.knows_threading() {
            return;
        }
        let modes: Vec<_> = self
            .wishes
            .values()
            .filter(|wishes| self.refused_threading(wishes).is_none())
            .filter_map(|wishes| wishes.mode)
            .collect();
        let Some(first) = modes.first() else { return };
        let is_threaded = |mode: &Placed<DeliveryMode>| mode.value.napi().threaded.kernel_value() > 0;
        let what = format!("threaded NAPI of {}", self.id);
        if let Some(other) = modes.iter().find(|mode| is_threaded(mode) != is_threaded(first)) {
            let said = "this kernel uses threads for all queues of a device or for none, but the profile mixes both";
            return plan.cannot(&other.place, what, UnknownReason::UnsupportedByKernel, said);
        }
        let current = self.outlook.current(Some(&self.device.defaults.threaded));
        let make = |on| PlannedChange::DeviceThreading { device: self.id.clone(), on };
        plan.settle(what, Made::Stays, current, Some((is_threaded(first), &first.place)), None, make);
    }

    fn thread(&self, plan: &mut ProfilePlan, queue: u32, napi: Option<&SnapshotNapi>, made: Made, wishes: &Wishes<'_>) {
        let what = format!("thread of queue {queue} of {}", self.id);
        let now = napi.and_then(|napi| napi.thread.known()).and_then(Option::as_ref);
        let place = wishes.thread_cpus.map(|(policy, _)| &policy.place);
        let place = place.or(wishes.thread_scheduling.map(|scheduling| &scheduling.place));
        let comes = wishes.mode.is_some_and(|mode| mode.value.napi().threaded.kernel_value() > 0);
        let made = match (now, made, wishes.mode) {
            (Some(_), _, Some(_)) if !comes => Made::Goes,
            (None, _, _) if !comes => {
                if let (Some(place), false) = (place, made == Made::Goes) {
                    plan.cannot(
                        place,
                        what,
                        UnknownReason::Absent,
                        "the queue has no thread: choose a mode with a NAPI thread",
                    );
                }
                return;
            }
            (_, made, _) => made,
        };
        let wish = self.cpus(plan, &what, wishes.thread_cpus);
        let default = self.snapshot.cpus.online.known();
        let thread = now.map(|thread| thread.tid);
        let current = self.outlook.current(now.map(|thread: &Thread| &thread.affinity));
        let make = |cpus| PlannedChange::ThreadCpus { device: self.id.clone(), queue, thread, cpus };
        plan.settle(format!("CPUs of the {what}"), made, current, wish, default, make);
        let wish = wishes.thread_scheduling.map(|wish| (scheduling(wish.value), &wish.place));
        let default = scheduling(ThreadScheduling::Other { nice: 0 });
        let current = self.outlook.current(now.map(|thread| &thread.scheduling));
        let make = |scheduling| PlannedChange::ThreadScheduling { device: self.id.clone(), queue, thread, scheduling };
        plan.settle(format!("scheduling of the {what}"), made, current, wish, Some(&default), make);
    }

    fn transmit(&self, plan: &mut ProfilePlan, queue: u32, wishes: &Wishes<'_>) {
        let now = self.device.tx_queues.known_elements().find(|tx| tx.id == queue);
        let made = self.outlook.of_queue(queue, self.outlook.tx_queues);
        let what = format!("XPS of queue {queue} of {}", self.id);
        let (cpus, rx_queues) = match wishes.xps {
            None => (None, None),
            Some(Placed { value: XpsPolicy::Off, place }) => {
                (Some((CpuList::default(), place)), Some((Vec::new(), place)))
            }
            Some(Placed { value: XpsPolicy::RxQueue, place }) => (None, Some((vec![queue], place))),
            Some(Placed { value: XpsPolicy::IrqCpu, place }) => {
                let cpus = self.irq_cpus(queue, wishes);
                if cpus.is_none() && made != Made::Goes {
                    plan.cannot(
                        place,
                        what.clone(),
                        UnknownReason::Absent,
                        "the kernel shows no interrupt of this queue",
                    );
                }
                // The kernel prefers the queue of `xps_rxqs` (`__netdev_pick_tx` in `net/core/dev.c`).
                let replaces_rxqs = cpus.is_some() && now.is_some_and(|tx| tx.xps_rxqs.known().is_some());
                (cpus.map(|cpus| (cpus, place)), replaces_rxqs.then(|| (Vec::new(), place)))
            }
            Some(Placed { place, .. }) => {
                return plan.cannot(place, what, UnknownReason::Failed, "this version does not know the policy");
            }
        };
        self.xps_cpus(plan, queue, now, made, cpus);
        let current = self.outlook.current(now.map(|tx| &tx.xps_rxqs));
        let make = |rx_queues| PlannedChange::XpsRxqs { device: self.id.clone(), queue, rx_queues };
        plan.settle(what, made, current, rx_queues, Some(&Vec::new()), make);
    }

    fn xps_cpus(
        &self,
        plan: &mut ProfilePlan,
        queue: u32,
        now: Option<&TxQueue>,
        made: Made,
        wish: Option<(CpuList, &Place)>,
    ) {
        let current = match self.outlook.current(now.map(|tx| &tx.xps_cpus)) {
            // A single queue leaves no choice.
            Current::Known(None) => return,
            Current::Known(Some(cpus)) => Current::Known(cpus),
            Current::Unknown(unknown) => Current::Unknown(unknown),
            Current::NotYetCreated => Current::NotYetCreated,
        };
        let off = CpuList::default();
        let make = |cpus| PlannedChange::XpsCpus { device: self.id.clone(), queue, cpus };
        plan.settle(format!("XPS of queue {queue} of {}", self.id), made, current, wish, Some(&off), make);
    }

    /// Affinity of the interrupt of the receive queue with the same number. Uses the planned affinity, or else the
    /// current one.
    fn irq_cpus(&self, queue: u32, wishes: &Wishes<'_>) -> Option<CpuList> {
        let rx = self.device.rx_queues.known_elements().find(|rx| rx.id == queue);
        let irq = rx.and_then(|rx| self.napi_of(rx)).and_then(|napi| self.irq_of(napi));
        if irq.is_none() && !self.outlook.rebuilt {
            return None;
        }
        let wished = wishes.irq_cpus;
        let wished = wished.and_then(|(wish, turn)| cpus::choose(&wish.value, turn, self.device, self.snapshot).ok());
        let as_it_is = || match irq {
            Some(irq) => irq.affinity.known().cloned(),
            None => cpus::default(self.snapshot).ok(),
        };
        wished.or_else(as_it_is)
    }
}

impl<'a> Wishes<'a> {
    fn cover_with(&mut self, group: &'a QueueGroup, position: usize) {
        let turn = |policy: &'a Option<Placed<CpuPolicy>>| policy.as_ref().map(|policy| (policy, position));
        self.mode = group.mode.as_ref().or(self.mode);
        self.coalescing.extend(group.coalescing.iter().map(|(key, value)| (*key, value.clone())));
        self.irq_cpus = turn(&group.irq_cpus).or(self.irq_cpus);
        self.xps = group.xps.as_ref().or(self.xps);
        self.rps_off = group.rps_off.as_ref().or(self.rps_off);
        self.thread_cpus = turn(&group.thread_cpus).or(self.thread_cpus);
        self.thread_scheduling = group.thread_scheduling.as_ref().or(self.thread_scheduling);
    }
}

/// Settings of an instance as reported by the kernel. A kernel without suspension settings is too old to set any.
fn values(napi: &SnapshotNapi) -> Current<'_, PartialNapiSettings> {
    let unknown = [
        napi.defer_hard_irqs.why_unknown(),
        napi.gro_flush_timeout_ns.why_unknown(),
        napi.irq_suspend_timeout_ns.why_unknown(),
    ];
    if let Some(unknown) = unknown.into_iter().flatten().next() {
        return Current::Unknown(unknown);
    }
    Current::Known(napi.settings())
}

fn wanted_values(mode: &DeliveryMode, has_threading: bool) -> PartialNapiSettings {
    let values = PartialNapiSettings::from(mode.napi());
    PartialNapiSettings { threaded: values.threaded.filter(|_| has_threading), ..values }
}

fn scheduling(wanted: ThreadScheduling) -> Scheduling {
    let policy = match wanted {
        ThreadScheduling::Fifo { priority } => Policy::Fifo { priority },
        ThreadScheduling::Other { nice } => Policy::Other { nice },
        // The enum is non-exhaustive; unknown values count as the default.
        _ => Policy::Other { nice: 0 },
    };
    Scheduling { policy, reset_on_fork: false }
}
