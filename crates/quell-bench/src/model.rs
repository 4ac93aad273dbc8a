//! Runs the bench on the simulated model instead of a lab. Every trial of the plan is one run in virtual time. The
//! result file has the same format, so the same table and findings follow from it. Every trial has its own seed: the
//! difference between `base` and `base` is the model's random variation.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use quell_linux::proc::ProcRoot;
use quell_linux::sched::SchedError;
use quell_load::LoadReport;
use quell_mode::DeliveryMode;
use quell_sim::sweep::{Point, Setup, in_parallel};
use quell_sim::{Load, RunError, RunResult};

use crate::disturbance::disturbances;
use crate::offered_load::OfferedLoad;
use crate::plan::{Plan, TrialId};
use crate::result::{
    BaseReach, BenchResult, CpuUse, HostFacts, Lab, SCHEMA, SettingsReadBack, SimFacts, Trial, TrialCounters,
};

/// What to simulate.
#[derive(Debug, Clone)]
pub struct Request {
    /// Modes and loads. All times are virtual.
    pub plan: Plan,
    /// Modelled host and server.
    pub setup: Setup,
    /// Number of CPUs of this machine that simulation runs may use.
    pub threads: usize,
}

/// Why the simulation has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A simulation run was aborted.
    #[error("{label} could not be simulated: {source}")]
    Run {
        /// Label of the mode in the table.
        label: String,
        /// Cause.
        source: RunError,
    },
    /// The modelled server supports no mode of the plan.
    #[error("none of the modes can be simulated: {0}")]
    NoModeLeft(String),
    /// The machine does not report its own description.
    #[error(transparent)]
    Host(#[from] SchedError),
}

/// Default measured time of a trial, in milliseconds of virtual time.
#[must_use]
pub fn measure_ms(setup: &Setup) -> u32 {
    u32::try_from(setup.measured_ns / 1_000_000).unwrap_or(u32::MAX)
}

/// Warm-up time of a trial, in milliseconds of virtual time.
#[must_use]
pub fn warm_up_ms(setup: &Setup) -> u32 {
    u32::try_from(setup.warm_up_ns / 1_000_000).unwrap_or(u32::MAX)
}

/// Simulates the whole plan. `progress` is called with the number of finished runs and the total, from any thread.
///
/// # Errors
/// See [`ModelError`].
pub fn run(request: &Request, progress: impl Fn(usize, usize) + Sync) -> Result<BenchResult, ModelError> {
    let Request { plan, setup, threads } = request;
    let setup = &timed(setup, plan);
    let repeats = if needs_reach(plan) { plan.repeats as usize } else { 0 };
    let order = plan.order();
    let total = repeats + order.len();
    let reaches =
        in_parallel(repeats, *threads, |repeat| reach(setup, plan, repeat as u32), |done| progress(done, total));
    let reaches: Vec<f64> = reaches.into_iter().collect::<Result<_, _>>()?;
    let simulate = |index: usize| {
        let id = order[index];
        let offered_per_s = plan.loads[id.load].rate_per_s(reaches.get(id.repeat as usize).copied().unwrap_or(0.0));
        (id, simulate(setup, plan, id, offered_per_s))
    };
    let outcomes = in_parallel(order.len(), *threads, simulate, |done| progress(repeats + done, total));
    let (trials, refused) = sorted(plan, outcomes)?;
    Ok(BenchResult {
        schema: SCHEMA.to_owned(),
        quell_version: env!("CARGO_PKG_VERSION").to_owned(),
        began_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        host: HostFacts::read(&ProcRoot::default())?,
        lab: Lab::Sim(facts(setup)),
        server: None,
        load: None,
        plan: plan_of_model(plan),
        base_reaches: base_reaches(plan, &reaches),
        trials,
        refused,
        not_a_measurement: Some("the model says so, of another machine than this one".to_owned()),
        interrupted: false,
    })
}

/// Returns the setup with the plan's times.
fn timed(setup: &Setup, plan: &Plan) -> Setup {
    let ns = |ms: u32| u64::from(ms) * 1_000_000;
    Setup { measured_ns: ns(plan.measure_ms), warm_up_ns: ns(plan.warm_up_ms), ..setup.clone() }
}

/// Removes notes about deviations: the modelled server waits as each mode requires.
fn plan_of_model(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    plan.modes.iter_mut().for_each(|entry| entry.note = None);
    plan
}

fn needs_reach(plan: &Plan) -> bool {
    plan.loads.iter().any(|load| matches!(load, OfferedLoad::Percent(_)))
}

/// Seed of the random numbers of a trial. The index after the last mode is the seed for the throughput of `base`.
fn seed(plan: &Plan, repeat: u32, mode: usize) -> u64 {
    let per_repeat = plan.modes.len() as u64 + 1;
    plan.seed.wrapping_add(u64::from(repeat) * per_repeat + mode as u64)
}

fn reach(setup: &Setup, plan: &Plan, repeat: u32) -> Result<f64, ModelError> {
    let seed = seed(plan, repeat, plan.modes.len());
    let base = Point { mode: DeliveryMode::default(), load: Load::Max, seed };
    let result = setup.run(&base).simulate();
    result.map(|result| result.qps).map_err(|source| ModelError::Run { label: "base".to_owned(), source })
}

fn base_reaches(plan: &Plan, reaches: &[f64]) -> Vec<BaseReach> {
    let shares = plan.loads.iter().enumerate().filter(|(_, load)| matches!(load, OfferedLoad::Percent(_)));
    let shares: Vec<usize> = shares.map(|(load, _)| load).collect();
    let of_repeat = |(repeat, per_s): (usize, &f64)| {
        let (repeat, per_s) = (repeat as u32, *per_s);
        shares.iter().map(|&load| BaseReach { repeat, load, per_s }).collect::<Vec<_>>()
    };
    reaches.iter().enumerate().flat_map(of_repeat).collect()
}

fn simulate(setup: &Setup, plan: &Plan, id: TrialId, offered_per_s: Option<f64>) -> Result<Trial, RunError> {
    let mode = plan.modes[id.mode].mode;
    let load = offered_per_s.map_or(Load::Max, Load::Qps);
    let result = setup.run(&Point { mode, load, seed: seed(plan, id.repeat, id.mode) }).simulate()?;
    let (load, counters) = (load_report(&result, offered_per_s.is_some()), counters(&result));
    let settings = SettingsReadBack {
        napi: vec![mode.napi(); setup.queues],
        epoll: mode.epoll().map_or_else(Vec::new, |epoll| vec![epoll; setup.queues]),
    };
    let disturbances = disturbances(&load, &counters);
    Ok(Trial {
        id,
        attempt: 0,
        began_ms: plan.warm_up_ms.into(),
        settings,
        offered_per_s,
        load,
        counters,
        disturbances,
    })
}

fn load_report(result: &RunResult, open: bool) -> LoadReport {
    let latency = if open { result.latency_from_due.clone() } else { result.latency.clone() };
    LoadReport {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a length of time in ns")]
        duration_ns: (result.measured_s * 1e9).round() as u64,
        sent: result.latency.count(),
        answered_in_window: result.counters.responses,
        qps: result.qps,
        never_sent: result.never_sent,
        latency,
        latency_from_send: result.latency.clone(),
        waited_for_connection: result.waited_for_connection,
        ..LoadReport::default()
    }
}

fn counters(result: &RunResult) -> TrialCounters {
    let (cpu, counted) = (&result.cpu, &result.counters);
    let busy_ns = cpu.thread_ns + cpu.softirq_ns + cpu.hardirq_ns;
    TrialCounters {
        server_run_ns: Some(cpu.thread_ns),
        napi_run_ns: Some(cpu.softirq_ns + cpu.hardirq_ns),
        server_cpus: Some(CpuUse {
            capacity_ns: cpu.total_ns,
            idle_ns: cpu.total_ns.saturating_sub(busy_ns),
            steal_ns: 0,
            lab_ns: busy_ns,
        }),
        irqs: Some(counted.irqs),
        polls: Some(counted.polls),
        empty_polls: Some(counted.empty_polls),
        polled_packets: Some(counted.polled_packets),
        busy_poll_rx_packets: Some(counted.busy_poll_packets),
        epoll_waits: Some(counted.epoll_waits),
        epoll_events: Some(counted.epoll_events),
        drops: Some(counted.drops),
        ..TrialCounters::default()
    }
}

/// Trials in plan order, and the modes that the modelled server does not support.
type Sorted = (Vec<Trial>, BTreeMap<String, String>);

fn sorted(plan: &Plan, outcomes: Vec<(TrialId, Result<Trial, RunError>)>) -> Result<Sorted, ModelError> {
    let (mut trials, mut refused) = (Vec::new(), BTreeMap::new());
    for (id, outcome) in outcomes {
        let label = plan.modes[id.mode].label.clone();
        match outcome {
            Ok(trial) => trials.push(trial),
            Err(RunError::Setting(why)) => drop(refused.insert(label, why.to_owned())),
            Err(source) => return Err(ModelError::Run { label, source }),
        }
    }
    match refused.iter().next() {
        Some((label, why)) if trials.is_empty() => Err(ModelError::NoModeLeft(format!("{label}: {why}"))),
        _ => Ok((trials, refused)),
    }
}

fn facts(setup: &Setup) -> SimFacts {
    let obtained = [
        ("seed", "each trial has its own: the plan's, + repeat × (modes + 1) + mode"),
        ("load/latency", "from the moment on each connection's schedule; in a closed loop from the send"),
        ("load/never-sent", "the schedules' mean rates times how long connections were behind at the end"),
        ("load/hits, load/misses, load/lateness, load/errors", "not modelled"),
        ("counters/server-run-ns", "all threads of the modelled CPUs"),
        ("counters/napi-run-ns", "softirqs and hard interrupts of the modelled CPUs"),
        ("counters/busy-poll-rx-packets", "packets that busy polls took, as the kernel counts them"),
        ("counters/epoll-waits, counters/epoll-events", "in the counted time itself"),
    ];
    SimFacts {
        profile: setup.host.name.clone(),
        description: setup.host.description.clone(),
        queues: u32::try_from(setup.queues).unwrap_or(u32::MAX),
        connections: u32::try_from(setup.connections).unwrap_or(u32::MAX),
        obtained: obtained.map(|(what, how)| (what.to_owned(), how.to_owned())).into(),
    }
}
