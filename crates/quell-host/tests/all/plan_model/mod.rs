//! A host with one NIC as a snapshot, and a model of the kernel's reaction to a plan. Recreated queues lose all
//! settings, which is the worst case among drivers.

use std::collections::BTreeMap;

use quell_host::plan::{
    ContextRef, DeniedFiles, PlanInput, PlannedChange, PlannedQueue, ProfilePlan, ProfileStep, RuleAction,
};
use quell_host::snapshot::{
    Cpu, CpuCounters, Cpus, Device, DeviceDefaults, Irq, Linked, Privileges, Provenance, Reading, RxQueue, SCHEMA,
    Snapshot, SnapshotKernel, SnapshotNapi, SnapshotScope, Sysctls, Taken, Thread, TxQueue, UnknownReason,
};
use quell_linux::ethtool::{
    Channels, CoalesceParameter, Coalescing, DriverInfo, Features, FlowAction, FlowRule, InstalledFlowRule, Rings,
    RssContext, RssContextId,
};
use quell_linux::link::OperationalState;
use quell_linux::netdev::{NapiThreading, QueueCounters};
use quell_linux::sched::{Policy, Scheduling};
use quell_linux::{CpuList, Ifindex, NapiId, Pid};
use serde_json::json;

const TABLE_LENGTH: u32 = 8;
/// CPUs 0 and 4, 1 and 5, … share a core; the first two cores are on node 0, with the NIC.
const CPUS: u32 = 8;

fn unread<T>() -> Reading<T> {
    Reading::unknown(UnknownReason::NotAsked, "not asked")
}

pub(crate) fn cpus(list: &str) -> CpuList {
    list.parse().unwrap()
}

fn irq_number(queue: u32) -> u32 {
    100 + queue
}

fn napi_id(queue: u32) -> NapiId {
    NapiId::from_kernel(8_000 + queue).unwrap()
}

fn scheduling(policy: Policy) -> Scheduling {
    Scheduling { policy, reset_on_fork: false }
}

fn default_coalescing() -> Coalescing {
    use CoalesceParameter::{RxMaxFrames, RxUsecs, TxUsecs, UseAdaptiveRx, UseAdaptiveTx};
    [(RxUsecs, 50), (RxMaxFrames, 0), (TxUsecs, 50), (UseAdaptiveRx, 1), (UseAdaptiveTx, 1)].into_iter().collect()
}

fn new_rx_queue(queue: u32, coalescing: &Reading<Coalescing>) -> RxQueue {
    RxQueue {
        id: queue,
        napi: Reading::Known(Some(Linked { to: napi_id(queue), source: Provenance::Kernel })),
        lease: Reading::Known(None),
        xsk: false,
        rps_cpus: Reading::Known(CpuList::default()),
        rps_flow_cnt: Reading::Known(0),
        coalescing: coalescing.clone(),
        counters: Reading::Known(QueueCounters::default()),
    }
}

fn new_tx_queue(queue: u32) -> TxQueue {
    TxQueue {
        id: queue,
        napi: unread(),
        xps_cpus: Reading::Known(Some(CpuList::default())),
        xps_rxqs: Reading::Known(Vec::new()),
        counters: Reading::Known(QueueCounters::default()),
    }
}

fn new_napi(queue: u32) -> SnapshotNapi {
    SnapshotNapi {
        id: napi_id(queue),
        irq: Reading::Known(Some(Linked { to: irq_number(queue), source: Provenance::Kernel })),
        defer_hard_irqs: Reading::Known(0),
        gro_flush_timeout_ns: Reading::Known(0),
        irq_suspend_timeout_ns: Reading::Known(0),
        threading: Reading::Known(NapiThreading::Disabled),
        thread: Reading::Known(None),
    }
}

fn new_thread(queue: u32) -> Thread {
    Thread {
        tid: Pid::new(i32::try_from(1_000 + queue).unwrap()).unwrap(),
        name: format!("napi/eth0-{queue}"),
        state: unread(),
        affinity: Reading::Known(cpus("0-7")),
        scheduling: Reading::Known(scheduling(Policy::Other { nice: 0 })),
        last_cpu: unread(),
        run_ns: unread(),
        wait_ns: unread(),
        epoll_wait: Reading::Known(None),
        file_wait: None,
    }
}

fn new_irq(queue: u32) -> Irq {
    Irq {
        number: irq_number(queue),
        description: Reading::Known(format!("eth0-TxRx-{queue}")),
        affinity: Reading::Known(cpus("0-7")),
        effective_affinity: unread(),
        counts: Reading::Known(Vec::new()),
    }
}

fn cpu(number: u32) -> Cpu {
    let core = number % (CPUS / 2);
    Cpu {
        number,
        smt_siblings: Reading::Known(CpuList::from_iter([core, core + CPUS / 2])),
        numa_node: Reading::Known(Some(u32::from(core >= 2))),
        governor: unread(),
        scaling_driver: unread(),
        idle_states: unread(),
        counters: CpuCounters {
            net_rx_softirqs: unread(),
            timer_interrupts: unread(),
            softnet_processed: unread(),
            softnet_dropped: unread(),
            softnet_time_squeeze: unread(),
        },
    }
}

fn features() -> Features {
    let feature = |active, changeable| json!({"active": active, "wanted": active, "changeable": changeable});
    let features = json!({
        "rx-gro": feature(true, true),
        "rx-ntuple-filter": feature(false, true),
        "tx-lockless": feature(false, false),
    });
    serde_json::from_value(features).unwrap()
}

/// A NIC with this many of at most 16 queues, in the initial state of the driver.
pub(crate) fn nic(queues: u32) -> Device {
    let mut driver = DriverInfo::default();
    driver.driver = Some("ice".to_owned());
    let mut channels = Channels::default();
    (channels.combined_count, channels.combined_max) = (Some(queues), Some(16));
    let mut rings = Rings::default();
    (rings.rx, rings.rx_max, rings.tx, rings.tx_max) = (Some(512), Some(4096), Some(512), Some(4096));
    let mut main = RssContext::default();
    main.indirection = Some((0..queues).cycle().take(TABLE_LENGTH as usize).collect());
    let coalescing = Reading::Known(default_coalescing());
    Device {
        namespace: 1,
        ifindex: Ifindex::new(2).unwrap(),
        name: "eth0".to_owned(),
        kind: None,
        driver: Reading::Known(driver),
        is_up: true,
        operational_state: OperationalState::Up,
        speed_mbit: Reading::Known(Some(100_000)),
        mtu: Some(1_500),
        mac: None,
        lower: None,
        master: None,
        addresses: None,
        has_xdp: Reading::Known(false),
        numa_node: Reading::Known(Some(0)),
        irqs: Reading::Known((0..queues).map(irq_number).collect()),
        channels: Reading::Known(channels),
        rings: Reading::Known(rings),
        rss_contexts: Reading::Known(vec![main]),
        flow_rules: Reading::Known(Vec::new()),
        features: Reading::Known(features()),
        defaults: DeviceDefaults { defer_hard_irqs: unread(), gro_flush_timeout_ns: unread(), threaded: unread() },
        counters: unread(),
        rx_queue_dropped: unread(),
        rx_queues: Reading::Known((0..queues).map(|queue| new_rx_queue(queue, &coalescing)).collect()),
        tx_queues: Reading::Known((0..queues).map(new_tx_queue).collect()),
        napis: Reading::Known((0..queues).map(new_napi).collect()),
        coalescing,
    }
}

/// A host with that NIC.
pub(crate) fn host(queues: u32) -> PlanInput {
    let snapshot = Snapshot {
        schema: SCHEMA.to_owned(),
        taken: Taken { unix_s: 0, monotonic_ns: 0, duration_ns: 0, boot_id: unread() },
        scope: SnapshotScope::default(),
        kernel: SnapshotKernel {
            release: "6.18".to_owned(),
            version: String::new(),
            machine: "x86_64".to_owned(),
            threaded_busy_poll: Reading::Known(true),
        },
        privileges: Privileges { capabilities: unread(), in_initial_user_namespace: unread() },
        sysctls: Sysctls {
            busy_poll_us: Reading::Known(50),
            busy_read_us: unread(),
            netdev_budget: unread(),
            netdev_budget_us: unread(),
            dev_weight: unread(),
            netdev_max_backlog: unread(),
            rps_sock_flow_entries: unread(),
        },
        services: unread(),
        configured_files: unread(),
        namespaces: Vec::new(),
        cpus: Cpus {
            online: Reading::Known(cpus("0-7")),
            isolated: Reading::Known(CpuList::default()),
            nohz_full: Reading::Known(CpuList::default()),
            default_irq_affinity: Reading::Known(cpus("0-7")),
            each: (0..CPUS).map(cpu).collect(),
        },
        irqs: Reading::Known((0..queues).map(new_irq).collect()),
        devices: vec![nic(queues)],
        processes: Vec::new(),
        hidden_processes: Vec::new(),
        sockets: Vec::new(),
        management_sockets: unread(),
    };
    let sysctls = [("net.core.busy_poll", "50"), ("net.core.busy_read", "0")];
    let sysctls = sysctls.map(|(name, value)| (name.to_owned(), Reading::Known(value.to_owned())));
    PlanInput {
        snapshot,
        sysctls: sysctls.into_iter().collect(),
        host_wide_sysctls: BTreeMap::new(),
        denied: DeniedFiles::default(),
    }
}

/// Mutable access to a known value.
pub(crate) fn known<T>(reading: &mut Reading<T>) -> &mut T {
    match reading {
        Reading::Known(value) => value,
        Reading::Unknown(unknown) => panic!("{unknown:?}"),
    }
}

/// Applies a plan to the model and returns the resulting state.
pub(crate) fn after(plan: &ProfilePlan, observed: &PlanInput) -> PlanInput {
    let mut world = World { observed: observed.clone(), made: BTreeMap::new() };
    for step in &plan.steps {
        world.make(&step.change);
    }
    world.observed
}

/// Reverses a plan after the whole plan was applied; in the order in which recovery undoes changes.
pub(crate) fn reverse(plan: &ProfilePlan) -> ProfilePlan {
    let inverted = plan.steps.iter().rev();
    let back = inverted.map(|step| ProfileStep { change: step.change.inverse(), wanted_by: step.wanted_by.clone() });
    let mut steps: Vec<ProfileStep> = back.collect();
    steps.sort_by_key(|step| step.change.rank());
    ProfilePlan { steps, ..ProfilePlan::default() }
}

/// Whether an earlier change has removed the object, so that this change does nothing.
pub(crate) fn is_done_by_others(change: &PlannedChange) -> bool {
    match change {
        PlannedChange::RssTable { table, .. } => table.new.is_none(),
        PlannedChange::Feature { on, .. } | PlannedChange::DeviceThreading { on, .. } => on.new.is_none(),
        PlannedChange::Channels { counts, .. } => counts.new.is_none(),
        PlannedChange::Rings { sizes, .. } => sizes.new.is_none(),
        PlannedChange::Coalescing { values, .. } | PlannedChange::QueueCoalescing { values, .. } => {
            values.new.is_none()
        }
        PlannedChange::RpsCpus { cpus, .. }
        | PlannedChange::IrqAffinity { cpus, .. }
        | PlannedChange::XpsCpus { cpus, .. }
        | PlannedChange::ThreadCpus { cpus, .. } => cpus.new.is_none(),
        PlannedChange::XpsRxqs { rx_queues, .. } => rx_queues.new.is_none(),
        PlannedChange::Napi(PlannedQueue { values, .. }) => values.new.is_none(),
        PlannedChange::ThreadScheduling { scheduling, .. } => scheduling.new.is_none(),
        PlannedChange::Sysctl { value, .. } => value.new.is_none(),
        // Rules and contexts are deleted explicitly.
        _ => false,
    }
}

struct World {
    observed: PlanInput,
    /// IDs of created contexts.
    made: BTreeMap<String, RssContextId>,
}

impl World {
    fn make(&mut self, change: &PlannedChange) {
        if is_done_by_others(change) {
            return;
        }
        match change {
            PlannedChange::Sysctl { name, value } => {
                self.observed.sysctls.insert(name.clone(), Reading::Known(value.new.clone().unwrap()));
            }
            PlannedChange::Channels { counts, .. } => self.rebuild(counts.new.unwrap().combined),
            PlannedChange::Rings { sizes, .. } => {
                let new = sizes.new.unwrap();
                let rings = known(&mut self.nic().rings);
                (rings.rx, rings.tx) = (new.rx.or(rings.rx), new.tx.or(rings.tx));
                self.rebuild(None);
            }
            PlannedChange::RssContext { context, table, .. } => self.context(context, table.new.clone()),
            PlannedChange::RssTable { table, .. } => {
                let table = table.new.clone().unwrap();
                assert!(table.iter().all(|queue| *queue < self.queues()), "a table names a missing queue");
                known(&mut self.nic().rss_contexts)[0].indirection = Some(table);
            }
            PlannedChange::FlowRule { matches, action, .. } => {
                let action = action.new.as_ref().map(|action| self.action(action));
                let rules = known(&mut self.nic().flow_rules);
                rules.retain(|installed| installed.rule.is_none_or(|rule| rule.matches != *matches));
                let rule = action.map(|action| FlowRule { matches: *matches, action });
                let location = rules.iter().map(|rule| rule.location + 1).max().unwrap_or(0);
                rules.extend(rule.map(|rule| InstalledFlowRule { location, rule: Some(rule) }));
            }
            PlannedChange::Feature { name, on, .. } => {
                let mut all = serde_json::to_value(&*known(&mut self.nic().features)).unwrap();
                all[name]["active"] = json!(on.new.unwrap());
                all[name]["wanted"] = json!(on.new.unwrap());
                *known(&mut self.nic().features) = serde_json::from_value(all).unwrap();
            }
            other => self.set(other),
        }
    }

    fn set(&mut self, change: &PlannedChange) {
        let queue = change.queue().unwrap_or(0) as usize;
        if let PlannedChange::IrqAffinity { cpus, .. } = change {
            known(&mut self.observed.snapshot.irqs)[queue].affinity = Reading::Known(cpus.new.clone().unwrap());
            return;
        }
        let nic = self.nic();
        let cover = |now: &mut Reading<Coalescing>, new: &Coalescing| {
            *now = Reading::Known(known(now).iter().chain(new.iter()).collect());
        };
        match change {
            PlannedChange::Coalescing { values, .. } => {
                // Setting the value for all queues overwrites the value of each queue.
                cover(&mut nic.coalescing, values.new.as_ref().unwrap());
                for rx in known(&mut nic.rx_queues) {
                    cover(&mut rx.coalescing, values.new.as_ref().unwrap());
                }
            }
            PlannedChange::QueueCoalescing { values, .. } => {
                cover(&mut known(&mut nic.rx_queues)[queue].coalescing, values.new.as_ref().unwrap());
            }
            PlannedChange::RpsCpus { cpus, .. } => {
                known(&mut nic.rx_queues)[queue].rps_cpus = Reading::Known(cpus.new.clone().unwrap());
            }
            PlannedChange::XpsCpus { cpus, .. } => {
                known(&mut nic.tx_queues)[queue].xps_cpus = Reading::Known(cpus.new.clone())
            }
            PlannedChange::XpsRxqs { rx_queues, .. } => {
                known(&mut nic.tx_queues)[queue].xps_rxqs = Reading::Known(rx_queues.new.clone().unwrap());
            }
            PlannedChange::Napi(PlannedQueue { values, .. }) => {
                let new = values.new.unwrap();
                let napi = &mut known(&mut nic.napis)[queue];
                napi.set(&new);
                let thread = known(&mut napi.thread);
                *thread = match new.threaded {
                    Some(NapiThreading::Disabled) => None,
                    _ => Some(thread.take().unwrap_or_else(|| new_thread(queue as u32))),
                };
            }
            PlannedChange::ThreadCpus { cpus, .. } => {
                let thread = known(&mut known(&mut nic.napis)[queue].thread).as_mut().unwrap();
                thread.affinity = Reading::Known(cpus.new.clone().unwrap());
            }
            PlannedChange::ThreadScheduling { scheduling, .. } => {
                let thread = known(&mut known(&mut nic.napis)[queue].thread).as_mut().unwrap();
                thread.scheduling = Reading::Known(scheduling.new.unwrap());
            }
            other => panic!("{other:?}"),
        }
    }

    fn nic(&mut self) -> &mut Device {
        &mut self.observed.snapshot.devices[0]
    }

    fn queues(&self) -> u32 {
        self.observed.snapshot.devices[0].channels.known().unwrap().combined_count.unwrap()
    }

    fn rebuild(&mut self, combined: Option<u32>) {
        let count = combined.unwrap_or(self.queues());
        let tables = self.observed.snapshot.devices[0].rss_contexts.known().unwrap().iter();
        let highest = tables.filter_map(|context| context.indirection.iter().flatten().max().copied()).max();
        assert!(highest.is_none_or(|queue| queue < count), "a table names a queue that is being removed");
        let nic = self.nic();
        known(&mut nic.channels).combined_count = Some(count);
        nic.rx_queues = Reading::Known((0..count).map(|queue| new_rx_queue(queue, &nic.coalescing)).collect());
        nic.tx_queues = Reading::Known((0..count).map(new_tx_queue).collect());
        nic.napis = Reading::Known((0..count).map(new_napi).collect());
        nic.irqs = Reading::Known((0..count).map(irq_number).collect());
        self.observed.snapshot.irqs = Reading::Known((0..count).map(new_irq).collect());
    }

    fn number(&self, context: &ContextRef) -> Option<RssContextId> {
        match context {
            ContextRef::Existing(number) => Some(*number),
            ContextRef::Planned(label) => self.made.get(label).copied(),
        }
    }

    fn context(&mut self, context: &ContextRef, table: Option<Vec<u32>>) {
        let number = self.number(context);
        let contexts = known(&mut self.nic().rss_contexts);
        let Some(table) = table else {
            // The reverse of a plan knows its contexts only by label, so the newest one is removed.
            let number = number.or(contexts.last().map(|context| context.id));
            assert!(number != Some(RssContextId::MAIN));
            contexts.retain(|one| Some(one.id) != number);
            return;
        };
        let next = contexts.iter().map(|one| one.id.get()).max().unwrap_or(0) + 1;
        let mut made = RssContext::default();
        made.id = number.unwrap_or(RssContextId::new(next).unwrap());
        made.indirection = Some(table);
        let id = made.id;
        contexts.push(made);
        contexts.sort_by_key(|one| one.id);
        if let ContextRef::Planned(label) = context {
            self.made.insert(label.clone(), id);
        }
    }

    fn action(&self, action: &RuleAction) -> FlowAction {
        match action {
            RuleAction::Queue(queue) => FlowAction::Queue(*queue),
            RuleAction::Discard => FlowAction::Discard,
            RuleAction::Context(context) => {
                FlowAction::Context(self.number(context).expect("the context exists before its rules"))
            }
        }
    }
}
