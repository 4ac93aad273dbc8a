//! Plays the published AF_XDP experiment in a lab. The responder answers in the same way throughout; the client's way
//! to poll is switched, as its processing time is what the publication varies.

use std::net::SocketAddr;

use quell_change::journal::Journal;
use quell_experiment::{ContrastSet, Criterion, ExperimentDesign, SliceStage};
use quell_linux::netns::Namespace;
use quell_linux::sched::{self, Policy, SchedError, Scheduling};
use quell_linux::visible::counted;
use quell_linux::{InterfaceName, Pid};
use quell_load::OfferedLoad;
use quell_published::{PublishedError, threaded_napi_rows};
use quell_result::facts::{CpuLayout, HostFacts};
use quell_result::figures::{POLLS, Work};
use quell_result::published::INTERRUPTED;
use quell_result::published_xdp::{AbsentWay, PublishedXdpRun, XdpPlacement, XdpPoint, XdpWay};
use quell_xdp::{PollWay, XdpResponder, XdpResponderSpec, XdpSpec};
use serde::{Deserialize, Serialize};

use super::PORT;
use crate::experiment::xdp::{XdpClient, XdpSide, XdpSubjectError};
use crate::experiment::{ComparisonError, check_part, compare, design};
use crate::extent::Extent;
use crate::lab::veth::{CLIENT_DEVICE, LabError, VethLab};
use crate::question::{Follow, SubjectStep, Timing, report_slice};
use crate::run::{LabRunError, LabSpec, check_possible, in_empty_lab};
use crate::server::ServerCommand;
use crate::vm::SLOWED_BY;

/// Real-time priority of the responder, which must answer at once on the CPU on which the sender spins.
const RESPONDER_PRIORITY: u32 = 50;
/// Real-time priority of the thread that observes. It sleeps nearly always.
const OBSERVER_PRIORITY: u32 = 60;

/// The published AF_XDP experiment as a lab or a guest can play it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct XdpReplay {
    /// Rates in thousands of requests per second, and processing times in µs.
    pub points: Vec<(f64, f64)>,
    /// Ways to poll, the reference first.
    pub ways: Vec<XdpWay>,
    /// Quantiles of the latency by which every pair of ways is compared. Empty: by polls per request.
    pub quantiles: Vec<f64>,
    /// Published ways that are not played, and ways that would need another CPU.
    pub absent: Vec<AbsentWay>,
    /// Durations and limits of each point.
    pub timing: Timing,
    /// Whether to measure although there are too few CPUs.
    pub insist: bool,
}

impl XdpReplay {
    /// The published points, and the ways that a machine with this number of CPUs can play.
    ///
    /// # Errors
    /// When the published data is malformed.
    pub fn published(cpus: usize, timing: Timing, extent: Extent, insist: bool) -> Result<Self, PublishedError> {
        let points = published_points()?;
        let (ways, absent) = ways(cpus, extent, insist);
        // A short run decides more if it asks less.
        let quantiles = if extent == Extent::Quick { vec![0.5] } else { vec![0.5, 0.99] };
        Ok(Self { points, ways, quantiles, absent, timing, insist })
    }

    /// The published points, slowed down, and the ways that a guest can play.
    ///
    /// # Errors
    /// When the published data is malformed.
    pub fn in_guest(timing: Timing, extent: Extent) -> Result<Self, PublishedError> {
        let slowed = |(rate_kpps, delay_us)| (rate_kpps / f64::from(SLOWED_BY), delay_us * f64::from(SLOWED_BY));
        let points = published_points()?.into_iter().map(slowed).collect();
        let mut ways = [PollWay::Interrupts, PollWay::BusyPoll, PollWay::NapiThread].map(shared).to_vec();
        ways.insert(1, sleeping());
        ways.extend([PollWay::BusyPollThread, PollWay::NapiThread, PollWay::ThreadedBusyPoll].map(apart));
        let substitutes = [PollWay::UdpBusyPoll, PollWay::IoUring];
        let mut left_out = Vec::new();
        if extent == Extent::Quick {
            left_out.push(AbsentWay { ways: both(substitutes), why: "left out by --quick".to_owned() });
        } else {
            ways.extend(substitutes.map(shared));
        }
        Ok(Self { points, ways, quantiles: Vec::new(), absent: left_out, timing, insist: false })
    }
}

impl XdpReplay {
    pub(crate) fn check(&self) -> Result<(), ComparisonError> {
        check_part(&xdp_design(self), self.points.len() as u64, false)
    }

    /// Checks whether this machine can play the experiment in a lab, and returns the lab's CPUs. Changes nothing.
    ///
    /// # Errors
    /// When the design is invalid, or something is missing.
    pub fn check_possible(&self, quell: &str) -> Result<CpuLayout, LabRunError> {
        self.check()?;
        Ok(check_possible(&lab_spec(quell, self.insist))?.1)
    }

    /// Names of the points, in the order in which they are played.
    pub fn point_names(&self) -> impl Iterator<Item = String> {
        self.points.iter().map(|&point| point_name(point))
    }

    fn counts_only(&self) -> bool {
        self.quantiles.is_empty()
    }
}

fn published_points() -> Result<Vec<(f64, f64)>, PublishedError> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for row in threaded_napi_rows()? {
        if !points.contains(&(row.rate_kpps, row.delay_us)) {
            points.push((row.rate_kpps, row.delay_us));
        }
    }
    Ok(points)
}

fn point_name((rate_kpps, delay_us): (f64, f64)) -> String {
    format!("{rate_kpps} Kpkt/s, {delay_us} µs")
}

fn shared(poller: PollWay) -> XdpWay {
    XdpWay { poller, sleeps: false, own_cpu: false }
}

fn apart(poller: PollWay) -> XdpWay {
    XdpWay { own_cpu: true, ..shared(poller) }
}

fn sleeping() -> XdpWay {
    XdpWay { sleeps: true, ..shared(PollWay::Interrupts) }
}

fn both([one, other]: [PollWay; 2]) -> String {
    format!("{}, {}", one.name(), other.name())
}

/// Ways to poll on a machine with this number of CPUs, and the absent ones.
fn ways(cpus: usize, extent: Extent, insist: bool) -> (Vec<XdpWay>, Vec<AbsentWay>) {
    let absent = |ways: String, why: &str| AbsentWay { ways, why: why.to_owned() };
    let mut not_here = vec![absent(
        both([PollWay::BusyPoll, PollWay::BusyPollThread]),
        "an AF_XDP socket of a veth has no NAPI ID, so SO_BUSY_POLL polls nothing; the ways udp-busy-poll poll the same queue by \
         the same kind of call, of a UDP socket",
    )];
    let mut ways =
        vec![shared(PollWay::Interrupts), sleeping(), shared(PollWay::UdpBusyPoll), shared(PollWay::NapiThread)];
    let mut with_cpu = [PollWay::UdpBusyPollThread, PollWay::NapiThread, PollWay::ThreadedBusyPoll].map(apart).to_vec();
    if extent == Extent::Quick {
        not_here.push(absent(both([PollWay::IoUring, PollWay::IoUringThread]), "left out by --quick"));
    } else {
        ways.push(shared(PollWay::IoUring));
        with_cpu.push(apart(PollWay::IoUringThread));
    }
    if cpus > CPUS_SHARED || insist {
        ways.extend(with_cpu);
        return (ways, not_here);
    }
    let why = format!(
        "the receiver, the sender and the thread that polls need a CPU each, and this process may use {}",
        counted(cpus, "CPU")
    );
    for way in with_cpu {
        let kernel = if way.poller == PollWay::ThreadedBusyPoll { "; it also needs Linux 6.19" } else { "" };
        not_here.push(absent(way.to_string(), &format!("{why}{kernel}")));
    }
    (ways, not_here)
}

/// CPUs of an experiment in which the thread that polls is the receiver, or shares its CPU.
const CPUS_SHARED: usize = 2;

/// Plays all points in one lab. After an interruption or a failure, the result has the points so far.
///
/// # Errors
/// When the lab cannot be set up, the responder cannot be started, or the first point fails.
pub fn play_xdp(
    replay: &XdpReplay,
    quell: &str,
    journal: &Journal,
    follow: &mut Follow<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<PublishedXdpRun, LabRunError> {
    replay.check()?;
    in_empty_lab(&lab_spec(quell, replay.insist), journal, follow, |host, lab, follow| {
        let placement = placement(host, lab, replay.insist);
        let mut run = PublishedXdpRun::begin(placement, replay.absent.clone())?;
        run.not_a_measurement = lab.plan.cpus.overcommitted.clone().or_else(|| {
            placement.is_overcommitted().then(|| "the thread that polls shares the sender's CPU".to_owned())
        });
        unthread(lab)?;
        let _observes = (!placement.is_overcommitted()).then(ObservesInTime::begin).transpose()?;
        let address = SocketAddr::new(lab.server.address, PORT);
        let side = XdpSide { namespace: &lab.client.namespace, queues: &mut lab.client.queues };
        play_points(&mut run, replay, (&lab.server.namespace, address), side, follow, &mut |_| {}, stopped)?;
        Ok(run)
    })
}

/// Plays all points, with a responder at this place, and adds them to the run. Calls `point_ended` after each one.
///
/// # Errors
/// When the responder cannot be started, or the first point fails.
pub(crate) fn play_points(
    run: &mut PublishedXdpRun,
    replay: &XdpReplay,
    (server, address): (&Namespace, SocketAddr),
    client: XdpSide<'_>,
    follow: &mut Follow<'_>,
    point_ended: &mut dyn FnMut(&XdpPoint),
    stopped: &dyn Fn() -> bool,
) -> Result<(), ComparisonError> {
    let responder = start_responder(server, address, run.placement)?;
    let at = (responder.address(), responder.tid());
    let mut client = XdpClient::new(client, run.placement, at, run.slowed_by, stopped);
    for (index, &(rate_kpps, delay_us)) in replay.points.iter().enumerate() {
        let name = point_name((rate_kpps, delay_us));
        follow(SubjectStep::PartBegins { number: index + 1, of: replay.points.len(), name: &name });
        (client.rate_kpps, client.delay_us) = (rate_kpps, delay_us);
        let mut point = XdpPoint::new(rate_kpps, delay_us);
        match measure(&mut client, replay, &mut point, follow) {
            Ok(()) => {}
            Err(error @ ComparisonError::NoModeLeft(_)) => point.not_possible = Some(error.to_string()),
            Err(error) if run.points.is_empty() => return Err(error),
            Err(ComparisonError::Interrupted) => run.ended = Some(INTERRUPTED.to_owned()),
            Err(error) => run.ended = Some(error.to_string()),
        }
        point.queues = client.take_queues();
        if let Some(result) = &point.result {
            run.ended = result.why_incomplete(INTERRUPTED);
        }
        point_ended(&point);
        run.points.push(point);
        if run.ended.is_some() {
            break;
        }
    }
    if let (_, Some(failure)) = responder.stop() {
        run.ended = Some(format!("the responder failed: {failure}"));
    }
    Ok(())
}

fn measure(
    client: &mut XdpClient<'_>,
    replay: &XdpReplay,
    point: &mut XdpPoint,
    follow: &mut Follow<'_>,
) -> Result<(), ComparisonError> {
    let stopped = client.stopped;
    let rate_per_s = point.rate_kpps * 1e3;
    let mut watch = |experiment: &_, stage: SliceStage<'_>| report_slice(follow, None, experiment, stage);
    let load = (Some(OfferedLoad::Rate(rate_per_s)), Some(rate_per_s));
    let design = xdp_design(replay);
    point.result = Some(compare(client, design, load, &mut watch, stopped)?);
    let timed = replay.ways.iter().filter(|way| way.poller.is_inline() && !replay.counts_only());
    for way in timed {
        let calls = client.receive_calls(*way, replay.timing.slice_ms);
        // They are no part of the comparison.
        if let Ok(Some(calls)) = calls {
            point.receive_calls.insert(way.to_string(), calls);
        }
    }
    Ok(())
}

/// Compares every pair of ways, so that their order can be decided.
fn xdp_design(replay: &XdpReplay) -> ExperimentDesign<XdpWay> {
    let latencies = replay.quantiles.iter().map(|quantile| Criterion::Latency { quantile: *quantile });
    let criteria = if replay.counts_only() { vec![Work::Request.criterion(POLLS)] } else { latencies.collect() };
    let design = design(&replay.ways, criteria, replay.timing, 1);
    // Counts of a disturbed block are valid.
    let foreign_cpu_range_max = if replay.counts_only() { 1.0 } else { design.foreign_cpu_range_max };
    ExperimentDesign { contrasts: ContrastSet::AllPairs, foreign_cpu_range_max, ..design }
}

fn placement(host: &HostFacts, lab: &VethLab, insist: bool) -> XdpPlacement {
    let (receiver, sender) = (lab.plan.cpus.client[0], lab.plan.cpus.server[0]);
    let free = host.cpus.iter().copied().find(|cpu| ![receiver, sender].contains(cpu));
    XdpPlacement { receiver, sender, poller: free.or(insist.then_some(sender)) }
}

/// A lab threads the client's queue.
fn unthread(lab: &mut VethLab) -> Result<(), LabRunError> {
    let device = InterfaceName::new(CLIENT_DEVICE).unwrap_or_else(|_| unreachable!("a constant name"));
    lab.client.queues.leave_to_softirqs(&lab.client.namespace, &device).map_err(LabError::from)?;
    lab.client.napi_threads.clear();
    Ok(())
}

/// Gives the calling thread, which reads counters on a CPU on which others spin, a higher priority than theirs until
/// the value is dropped. Threads that it starts inherit it.
struct ObservesInTime {
    before: Scheduling,
}

impl ObservesInTime {
    fn begin() -> Result<Self, SchedError> {
        let before = sched::scheduling(Pid::of_this_thread())?;
        let policy = Policy::Fifo { priority: OBSERVER_PRIORITY };
        sched::set_scheduling(Pid::of_this_thread(), Scheduling { policy, reset_on_fork: false })?;
        Ok(Self { before })
    }
}

impl Drop for ObservesInTime {
    fn drop(&mut self) {
        // It had this class before, so setting it should succeed.
        let _ = sched::set_scheduling(Pid::of_this_thread(), self.before);
    }
}

fn start_responder(
    server: &Namespace,
    address: SocketAddr,
    placement: XdpPlacement,
) -> Result<XdpResponder, ComparisonError> {
    let fifo_priority = Some(RESPONDER_PRIORITY);
    let socket = XdpSpec { cpus: vec![placement.sender], fifo_priority, ..XdpSpec::default() };
    let spec = XdpResponderSpec { address, socket, work_us: 0.0 };
    let started = server.run(|| XdpResponder::start(&spec)).map_err(XdpSubjectError::from);
    Ok(started.and_then(|started| Ok(started?))?)
}

/// A lab with one queue on each side, which softirqs poll.
fn lab_spec(quell: &str, insist: bool) -> LabSpec {
    LabSpec {
        server: ServerCommand::Other(vec![quell.to_owned()]),
        queues: 1,
        generators: 1,
        connections: 1,
        interrupt_stand_in: false,
        insist,
        steer: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(cpus: usize, extent: Extent, insist: bool) -> XdpReplay {
        let timing = Timing { budget_ms: 60_000, slice_ms: 200, settle_ms: 30, margin: 0.05, seed: 1 };
        XdpReplay::published(cpus, timing, extent, insist).unwrap()
    }

    #[test]
    fn two_cpus_play_the_ways_without_a_cpu_for_the_poller_and_name_the_others() {
        let replay = played(2, Extent::Quick, false);
        assert_eq!(replay.points, [(12.0, 0.0), (32.0, 30.0), (125.0, 6.0), (12.0, 78.0), (25.0, 38.0)]);
        let names: Vec<String> = replay.ways.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["interrupts", "interrupts-sleeping", "udp-busy-poll", "napi-thread"]);
        let absent: Vec<&str> = replay.absent.iter().map(|absent| absent.ways.as_str()).collect();
        let expected = [
            "busy-poll, busy-poll-thread",
            "io-uring, io-uring-thread",
            "udp-busy-poll-thread",
            "napi-thread-own-cpu",
            "threaded-busy-poll",
        ];
        assert_eq!(absent, expected);
        assert!(replay.absent[2].why.contains("this process may use 2 CPUs"), "{:?}", replay.absent);
        assert!(replay.absent[4].why.contains("Linux 6.19"), "{:?}", replay.absent);
    }

    #[test]
    fn a_guest_plays_the_true_ways_slowed_down_and_compares_them_by_polls() {
        let timing = Timing { budget_ms: 60_000, slice_ms: 200, settle_ms: 30, margin: 0.05, seed: 1 };
        let replay = XdpReplay::in_guest(timing, Extent::Quick).unwrap();
        assert_eq!(replay.points[..2], [(0.12, 0.0), (0.32, 3_000.0)]);
        let names: Vec<String> = replay.ways.iter().map(ToString::to_string).collect();
        let expected = [
            "interrupts",
            "interrupts-sleeping",
            "busy-poll",
            "napi-thread",
            "busy-poll-thread",
            "napi-thread-own-cpu",
            "threaded-busy-poll",
        ];
        assert_eq!(names, expected);
        assert_eq!(xdp_design(&replay).criteria, [Work::Request.criterion(POLLS)]);
        assert_eq!(XdpReplay::in_guest(timing, Extent::Standard).unwrap().ways.len(), 9);
    }

    #[test]
    fn a_third_cpu_gives_the_poller_a_cpu_and_each_way_has_a_name_of_its_own() {
        for replay in [played(3, Extent::Standard, false), played(2, Extent::Standard, true)] {
            assert_eq!((replay.ways.len(), replay.absent.len()), (9, 1));
            assert!(xdp_design(&replay).check().is_ok());
        }
    }
}
