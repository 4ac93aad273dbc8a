//! Totals over all reports. A counter of a queue continues when its NAPI instance is replaced, and ends with its device.

use std::collections::BTreeMap;

use quell_linux::NapiId;
use quell_linux::netns::{Namespace, NamespaceName};
use quell_result::top::{IntervalReport, ObservedDevice, ObservedProgram, ObservedQueue};
use quell_sampler::{QueueSample, Unsampled};

use super::journals::JournalState;

/// Identity of a queue that outlives its NAPI instance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueKey {
    /// Inode of the network namespace of the device; absent for the namespace of this program.
    pub(super) namespace: Option<u64>,
    pub(super) device: String,
    /// Numbers of the receive queues, separated by commas. `napi-` and a number without known receive queues: the position
    /// among the instances of the device in ascending order of NAPI ID.
    pub(super) queue: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeviceKey {
    /// Inode of its network namespace; absent for the namespace of this program.
    pub(super) namespace: Option<u64>,
    pub(super) device: String,
}

/// Totals of a device since the start of this program. Absent if they were never read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DeviceTotals {
    pub(super) rx_dropped: Option<u64>,
    /// Packets that a full receive queue lost.
    pub(super) rx_queue_dropped: Option<u64>,
    pub(super) tx_dropped: Option<u64>,
}

/// Totals of a queue since the start of this program, and values of the last interval.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct QueueTotals {
    pub(super) napi: Option<NapiId>,
    /// Sum of all samples, except the quantiles of the wait. Absent if polls were never sampled.
    pub(super) sample: Option<QueueSample>,
    /// Sum of the bounds of the wait of `sample.wait.packets` packets, in nanoseconds.
    pub(super) wait_sum_ns: u64,
    /// 99th percentile of the bound of the wait in the last interval, in nanoseconds.
    pub(super) wait_p99_ns: Option<u64>,
    /// CPU time of polls in softirqs and in the NAPI thread, in nanoseconds. Absent if it was never measured.
    pub(super) cpu_ns: Option<u64>,
    /// Polls that ended a stall. Absent if polls were never sampled.
    pub(super) stalls: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Totals {
    own_namespace: u64,
    pub(super) queues: BTreeMap<QueueKey, QueueTotals>,
    pub(super) devices: BTreeMap<DeviceKey, DeviceTotals>,
    /// Number of queues that are not sampled although others are, by the reason.
    pub(super) unsampled: BTreeMap<Unsampled, u32>,
    pub(super) programs: Vec<ObservedProgram>,
    pub(super) polls_unknown: Option<String>,
    pub(super) hidden_processes: usize,
    pub(super) journals: JournalState,
    /// Names of network namespaces, by inode.
    pub(super) namespaces: NamespaceNames,
}

/// Names in `/run/netns` by the inode of the namespace.
pub(super) type NamespaceNames = BTreeMap<u64, String>;

/// The present names. Those that cannot be read are left out.
pub(super) fn namespace_names() -> NamespaceNames {
    let names = Namespace::list_named().unwrap_or_default();
    let by_inode = |name: NamespaceName| Some((Namespace::open_named(&name).ok()?.inode(), name.to_string()));
    names.into_iter().filter_map(by_inode).collect()
}

impl Totals {
    /// No queues and programs. `own_namespace` is the inode of this program's network namespace.
    pub(super) fn new(own_namespace: u64) -> Self {
        Self {
            own_namespace,
            queues: BTreeMap::new(),
            devices: BTreeMap::new(),
            unsampled: BTreeMap::new(),
            programs: Vec::new(),
            polls_unknown: None,
            hidden_processes: 0,
            journals: JournalState::default(),
            namespaces: NamespaceNames::new(),
        }
    }

    pub(super) fn add(&mut self, report: &IntervalReport) {
        let keys: Vec<QueueKey> = report.queues.iter().map(|queue| self.key(queue, &report.queues)).collect();
        self.queues.retain(|key, _| keys.contains(key));
        for (key, queue) in keys.into_iter().zip(&report.queues) {
            self.queues.entry(key).or_default().add(queue);
        }
        self.add_devices(&report.devices);
        self.unsampled.clear();
        for why in report.queues.iter().filter_map(|queue| queue.unsampled) {
            *self.unsampled.entry(why).or_default() += 1;
        }
        self.programs.clone_from(&report.programs);
        self.polls_unknown.clone_from(&report.polls_unknown);
        self.hidden_processes = report.hidden_processes;
    }

    fn add_devices(&mut self, devices: &[ObservedDevice]) {
        let key = |device: &ObservedDevice| DeviceKey {
            namespace: self.label(device.namespace),
            device: device.name.clone(),
        };
        let keys: Vec<DeviceKey> = devices.iter().map(key).collect();
        self.devices.retain(|key, _| keys.contains(key));
        for (key, device) in keys.into_iter().zip(devices) {
            let totals = self.devices.entry(key).or_default();
            add(&mut totals.rx_dropped, device.rx_dropped);
            add(&mut totals.rx_queue_dropped, device.rx_queue_dropped);
            add(&mut totals.tx_dropped, device.tx_dropped);
        }
    }

    /// Inode of a namespace, if it is not that of this program.
    fn label(&self, namespace: u64) -> Option<u64> {
        Some(namespace).filter(|namespace| *namespace != self.own_namespace)
    }

    /// Key of one of these queues. It does not contain the NAPI ID, which changes when the device creates its instances
    /// again.
    fn key(&self, queue: &ObservedQueue, all: &[ObservedQueue]) -> QueueKey {
        let numbers: Vec<String> = queue.rx_queues.iter().map(ToString::to_string).collect();
        let precedes = |other: &&ObservedQueue| {
            (other.namespace, &other.device) == (queue.namespace, &queue.device) && other.napi < queue.napi
        };
        let queue_label = match numbers.is_empty() {
            true => format!("napi-{}", all.iter().filter(precedes).count()),
            false => numbers.join(","),
        };
        QueueKey { namespace: self.label(queue.namespace), device: queue.device.clone(), queue: queue_label }
    }
}

fn add(total: &mut Option<u64>, value: Option<u64>) {
    if let Some(value) = value {
        *total.get_or_insert_default() += value;
    }
}

impl QueueTotals {
    fn add(&mut self, queue: &ObservedQueue) {
        self.napi = Some(queue.napi);
        add(&mut self.cpu_ns, queue.cpu_ns());
        add(&mut self.stalls, queue.sample.map(|sample| sample.wait.stalled_polls));
        self.wait_p99_ns = queue.sample.and_then(|sample| sample.wait.p99_ns);
        let Some(new) = queue.sample else { return };
        self.wait_sum_ns += new.wait.mean_ns.unwrap_or(0) * new.wait.packets;
        let sum = self.sample.get_or_insert_default();
        sum.polls.interrupt += new.polls.interrupt;
        sum.polls.timer += new.polls.timer;
        sum.polls.rescheduled += new.polls.rescheduled;
        sum.polls.ksoftirqd += new.polls.ksoftirqd;
        sum.polls.thread += new.polls.thread;
        sum.polls.program += new.polls.program;
        sum.polls.program_last += new.polls.program_last;
        sum.packets += new.packets;
        sum.empty += new.empty;
        sum.masked_ns += new.masked_ns;
        sum.suspended_ns += new.suspended_ns;
        sum.wait.packets += new.wait.packets;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use quell_result::Document as _;
    use quell_sampler::{PollsByPoller, WaitBounds};

    use super::*;

    pub(in crate::commands::export) fn report(napi: u32, packets: Option<u64>) -> IntervalReport {
        let sample = packets.map(|packets| QueueSample {
            polls: PollsByPoller { timer: packets, ..PollsByPoller::default() },
            packets,
            softirq_ns: Some(2_000_000_000),
            wait: WaitBounds {
                packets,
                mean_ns: Some(1_000),
                p99_ns: Some(2_000_000),
                stalled_polls: packets / 5,
                ..WaitBounds::default()
            },
            ..QueueSample::default()
        });
        let queue = ObservedQueue {
            namespace: 7,
            device: "eth0".to_owned(),
            rx_queues: vec![3],
            napi: NapiId::from_kernel(napi).unwrap(),
            settings: Default::default(),
            interrupts: packets,
            thread_ns: None,
            sample,
            unsampled: None,
            stalled: sample.map(|sample| sample.wait.has_stalled()),
        };
        let device = ObservedDevice {
            namespace: 7,
            name: "eth0".to_owned(),
            rx_dropped: packets.map(|packets| packets / 5),
            rx_queue_dropped: None,
            tx_dropped: None,
        };
        IntervalReport {
            schema: IntervalReport::SCHEMA.to_owned(),
            unix_ns: 0,
            interval_ns: 1_000_000_000,
            polls_unknown: packets.is_none().then(|| "needs CAP_BPF".to_owned()),
            queues: vec![queue],
            devices: vec![device],
            programs: Vec::new(),
            idle_states: Vec::new(),
            hidden_processes: 0,
        }
    }

    #[test]
    fn a_counter_continues_when_the_napi_instance_is_replaced() {
        let mut totals = Totals::new(7);
        totals.add(&report(8_193, Some(10)));
        totals.add(&report(8_200, Some(5)));
        let (key, queue) = totals.queues.first_key_value().unwrap();
        assert_eq!((key.namespace, key.device.as_str(), key.queue.as_str()), (None, "eth0", "3"));
        assert_eq!((queue.napi, queue.cpu_ns), (NapiId::from_kernel(8_200), Some(4_000_000_000)));
        assert_eq!(queue.stalls, Some(3), "2 and 1");
        assert_eq!((queue.sample.unwrap().packets, queue.wait_sum_ns), (15, 15_000));
    }

    #[test]
    fn without_receive_queues_the_label_stays_and_the_counters_continue_when_napi_ids_change() {
        // Not in order of NAPI ID, and with another device and another namespace in between.
        let report = |ids: [u32; 2]| {
            let unlinked = |napi, packets| {
                let [queue] = <[_; 1]>::try_from(report(napi, Some(packets)).queues).unwrap();
                ObservedQueue { rx_queues: Vec::new(), ..queue }
            };
            let device = ObservedQueue { device: "eth1".to_owned(), ..unlinked(8_000, 7) };
            let namespace = ObservedQueue { namespace: 8, ..unlinked(8_001, 9) };
            let queues = vec![unlinked(ids[1], 100), device, namespace, unlinked(ids[0], 10)];
            IntervalReport { queues, ..report(8_193, Some(0)) }
        };
        let mut totals = Totals::new(7);
        totals.add(&report([8_193, 8_194]));
        totals.add(&report([8_300, 8_301]));
        let shown = totals.queues.iter().map(|(key, queue)| {
            (key.namespace, key.device.as_str(), key.queue.as_str(), queue.sample.map_or(0, |sample| sample.packets))
        });
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [
                (None, "eth0", "napi-0", 20),
                (None, "eth0", "napi-1", 200),
                (None, "eth1", "napi-0", 14),
                (Some(8), "eth0", "napi-0", 18),
            ]
        );
    }

    #[test]
    fn a_queue_whose_polls_are_unknown_has_no_sample() {
        let mut totals = Totals::new(1);
        totals.add(&report(8_193, None));
        let (key, queue) = totals.queues.first_key_value().unwrap();
        assert_eq!((key.namespace, queue.sample, queue.stalls, queue.cpu_ns), (Some(7), None, None, None));
        totals.add(&IntervalReport { queues: Vec::new(), devices: Vec::new(), ..report(8_193, None) });
        assert!(totals.queues.is_empty() && totals.devices.is_empty(), "a device that vanished");
    }

    #[test]
    fn drops_that_cannot_be_read_are_absent_and_the_others_add_up() {
        let mut totals = Totals::new(7);
        totals.add(&report(8_193, Some(10)));
        totals.add(&report(8_193, None));
        totals.add(&report(8_193, Some(5)));
        let key = DeviceKey { namespace: None, device: "eth0".to_owned() };
        assert_eq!(totals.devices[&key], DeviceTotals { rx_dropped: Some(3), ..DeviceTotals::default() });
    }

    #[test]
    fn queues_that_are_not_sampled_are_counted_by_reason_until_they_are() {
        let mut totals = Totals::new(7);
        let mut without = report(8_193, None);
        without.queues[0].unsampled = Some(Unsampled::TooMany);
        totals.add(&without);
        assert_eq!(totals.unsampled, [(Unsampled::TooMany, 1)].into());
        totals.add(&report(8_193, Some(1)));
        assert!(totals.unsampled.is_empty());
    }
}
