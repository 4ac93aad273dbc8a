//! The guest side of the vm lab. Server and client use one NIC each. The server is `quell respond`; its mode is
//! switched as on a host ([`Programs`]). The setup of the lab is not recorded in the journal, because the guest is
//! discarded afterwards.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_change::journal::{Journal, Purpose};
use quell_experiment::{
    Criterion, ExperimentDesign, ExperimentRecord, ExperimentSubject, SetFailure, SliceFlag, SliceObservation,
    SliceStage, StopReason, Switchback,
};
use quell_host::attach::plan::AttachObstacle;
use quell_host::attach::{Selection, TargetError, Targets};
use quell_host::snapshot::{Device, Linked, Provenance, TakeError};
use quell_host::switching::{SwitchError, SwitchPlan, Switching};
use quell_linux::InterfaceName;
use quell_linux::netdev::Netdev;
use quell_linux::netns::{Namespace, NamespaceError};
use quell_linux::process::{Child, Output, ProcessError, Spawn};
use quell_linux::udp::UdpSocket;
use quell_load::{
    Generator, LoadError, LoadSpec, OfferedLoad, Polling, RequestResponse, RunSpec, Schedule, Transport, Workload,
};
use quell_mode::{DeliveryMode, EpollParams, NapiSettings, Threaded};
use quell_result::experiment::{EndOfExperiment, ExperimentResult, LoadExperiment, SubjectFacts};
use quell_result::facts::GuestFacts;
use quell_result::figures::{IRQS, TIMER_IRQS, Work};
use quell_tune::{TunePlan, TunePlanError, TuneResult, Tuner, tune};
use quell_vm::nic::{End, GuestNic, NicError};

use super::nearest::NearestFinder;
use super::{EMULATED, GuestEvent, SEARCH_EMULATED, design, features, set_modes};
use crate::counters::Watched;
use crate::experiment::program::{GeneratorTraffic, Programs, SubjectError, Traffic};
use crate::experiment::{ComparisonError, Preview, compare as compare_modes, needs_launch};
use crate::lab::napi::{QueueError, Queues};
use crate::question::Question;

const SERVER_CPU: u32 = 0;
const CLIENT_CPU: u32 = 1;
/// CPU for a thread that polls continuously. It exists only if a mode needs it; see [`super::cpus`].
const SPARE_CPU: u32 = 2;
const PORT: u16 = 7_000;
/// CPU work per request, in µs. During this time, the emulated NIC delivers the next requests, as a real NIC does.
const WORK_US: u32 = 300;
/// Size of a request and of its response, in bytes.
const REQUEST_BYTES: u32 = 64;
/// Number of sockets, each with one outstanding request. With many sockets the server is always busy. With a single
/// socket, suspension would end after every request, as designed.
const SOCKETS: u32 = 32;
/// Response timeout, in milliseconds. It is long because emulation is slow.
const PATIENCE_MS: u32 = 20_000;
/// Load that gives the server's socket a NAPI ID before it is inspected.
const LOOK_AROUND: RunSpec = RunSpec { schedule: Schedule::Closed, warm_up_ms: 50, measure_ms: 200 };
/// Time limit for the responder to listen.
const START_BOUND: Duration = Duration::from_secs(20);
const STDERR_KEPT: usize = 4_096;

/// Reason why the guest has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestLabError {
    /// A NIC of the lab could not be configured.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The client's queue could not be found or set.
    #[error("the client's queue: {0}")]
    Queue(#[from] QueueError),
    /// The IRQ number of the server's queue is unknown.
    #[error(
        "the interrupt of the server's receive queue is unknown: the kernel does not report it, and no interrupt has a matching name"
    )]
    NoInterrupt,
    /// The snapshot of the guest does not contain the server's device.
    #[error("the snapshot of the guest does not contain the server's NIC")]
    NotInTheSnapshot,
    /// A namespace could not be entered.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The snapshot of the guest could not be taken.
    #[error(transparent)]
    Snapshot(#[from] TakeError),
    /// The responder could not be found.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The responder could not be switched between modes.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// The experiment failed.
    #[error(transparent)]
    Experiment(#[from] ComparisonError),
    /// The plan of the search is invalid.
    #[error(transparent)]
    Plan(#[from] TunePlanError),
    /// The settings could not be restored after the search.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// The path of the quell program is unknown.
    #[error("cannot find the path of the quell program: {0}")]
    Program(io::Error),
    /// The responder could not be started or terminated.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The socket for probing the responder could not be created.
    #[error("cannot create a socket to probe the responder: {0}")]
    Probe(io::Error),
    /// The responder does not listen.
    #[error("the responder does not listen; its stderr: {0}")]
    Deaf(String),
    /// The generator failed.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// Sets up the lab in this guest, answers the question, and reports each event immediately.
///
/// # Errors
/// See [`GuestLabError`]. A mode that cannot be set is not an error; the other modes are still measured.
pub fn answer(
    question: &Question,
    journal: &Journal,
    report: &mut dyn FnMut(&GuestEvent),
) -> Result<(), GuestLabError> {
    let modes = set_modes(question);
    let (lab, facts) = GuestLab::set_up(&modes, journal)?;
    let mut result = ExperimentResult::begin(SubjectFacts::Guest(facts)).map_err(ComparisonError::from)?;
    match question {
        Question::Compare(comparison) => {
            let design = design(comparison);
            result.not_a_measurement = Some(EMULATED.to_owned());
            result.experiments.push(LoadExperiment {
                load: Some(OfferedLoad::Max),
                ..LoadExperiment::new(
                    ExperimentRecord { design: design.clone(), slices: Vec::new(), dropped: BTreeMap::new() },
                    EndOfExperiment::Interrupted,
                )
            });
            report(&GuestEvent::Up(Box::new(result)));
            let end = lab.serve(&modes, false, journal, report, |subject, report| compare(subject, design, report))?;
            report(&GuestEvent::Ended(end));
        }
        Question::Search(plan) => {
            result.not_a_measurement = Some(SEARCH_EMULATED.to_owned());
            report(&GuestEvent::Up(Box::new(result)));
            let found = lab.serve(&modes, true, journal, report, |subject, report| search(subject, plan, report))?;
            report(&GuestEvent::Searched(Box::new(found)));
        }
    }
    Ok(())
}

/// Function that reports an event to the host.
type ReportEvent<'t> = RefCell<&'t mut dyn FnMut(&GuestEvent)>;

/// Server and client, each on its own NIC, before the load begins.
struct GuestLab {
    nic: GuestNic,
    responder: Child,
    generator: Generator,
    targets: Targets,
    plan: SwitchPlan,
    /// Interrupt of the server's receive queue.
    rx_irq: u32,
}

impl GuestLab {
    fn set_up(modes: &[DeliveryMode], journal: &Journal) -> Result<(Self, GuestFacts), GuestLabError> {
        let nic = GuestNic::raise(End::Server, SERVER_CPU)?;
        let client = Arc::new(GuestNic::raise(End::Client, CLIENT_CPU)?.namespace);
        let address = SocketAddr::new(nic.address, PORT);
        let responder = start_responder(&nic.namespace, &client, address)?;
        let mut generator = Generator::connect(load(address), Some(client))?;
        generator.run(&LOOK_AROUND, &mut ())?;
        let targets = Targets::find(Selection::Processes(vec![responder.pid()]))?;
        let preview = Preview::of(&targets, modes)?;
        let mut devices = preview.snapshot.devices.iter();
        let device = devices.find(|device| device.name == End::Server.name());
        let device = device.ok_or(GuestLabError::NotInTheSnapshot)?;
        let rx = rx_interrupt(device, &nic)?.ok_or(GuestLabError::NoInterrupt)?;

        let processes = preview.snapshot.processes.iter().filter(|process| process.pid == responder.pid());
        let epolls: Vec<_> =
            processes.filter_map(|process| process.files.known()).flat_map(|files| &files.epolls).collect();
        let plan = switchable(&preview.plan, modes);
        let finder = NearestFinder {
            nic: &nic,
            device: server_device(),
            server: responder.identity(),
            epolls: epolls.iter().filter(|epoll| epoll.params.known().is_some()).map(|epoll| epoll.fd).collect(),
            journal,
        };
        let refused = modes.iter().zip(&plan.impossible).filter(|(_, impossible)| !impossible.is_empty());
        let nearest = refused.filter_map(|(mode, _)| Some((mode.to_string(), finder.nearest(mode)?))).collect();
        let load =
            format!("UDP, {SOCKETS} sockets with one outstanding request each, {WORK_US} µs of CPU work per request");
        let facts = GuestFacts {
            driver: device.driver.known().and_then(|driver| driver.driver.clone()),
            rx_irq: rx.to,
            rx_irq_source: rx.source,
            features: features::of(device, epolls.first().map(|epoll| &epoll.params)),
            load,
            nearest,
        };
        Ok((Self { nic, responder, generator, targets, plan, rx_irq: rx.to }, facts))
    }

    /// Starts the load, passes the server to `work`, and ends the server.
    fn serve<T>(
        self,
        modes: &[DeliveryMode],
        keeps_latency: bool,
        journal: &Journal,
        report: &mut dyn FnMut(&GuestEvent),
        work: impl FnOnce(&mut GuestServer<'_, '_, Programs<'_>>, &ReportEvent<'_>) -> Result<T, GuestLabError>,
    ) -> Result<T, GuestLabError> {
        let Self { nic, mut responder, generator, targets, plan, rx_irq } = self;
        let running = generator.keep_running(Schedule::Closed)?;
        let watched = Watched {
            server: targets.pids().into_iter().collect(),
            server_napi: Vec::new(),
            pollers: Vec::new(),
            supervisors: Vec::new(),
            generator: running.generator().tids(),
            client_napi: Vec::new(),
            server_cpus: [SERVER_CPU].into_iter().collect(),
            client_cpus: [CLIENT_CPU].into_iter().collect(),
            server_devices: Vec::new(),
            irqs: vec![rx_irq],
        };
        let launch: Vec<Option<String>> = modes.iter().map(why_not_in_a_guest).collect();
        let switching = match plan.queues.is_empty() {
            true => None,
            false => Some(Switching::begin(journal, Purpose::Lab, targets, &plan, None)?),
        };
        let traffic = Traffic::Generator(GeneratorTraffic { running, beside: None, rates_per_s: vec![None] });
        let report = RefCell::new(report);
        let mut subject = GuestServer {
            programs: Programs::new(switching, &plan, &launch, watched, traffic, &|| false),
            queues: Netdev::open_in(&nic.namespace)
                .ok()
                .and_then(|netdev| Queues::of(netdev, nic.ifindex, End::Server.name(), 1).ok()),
            keeps_latency,
            report: &report,
        };
        let done = work(&mut subject, &report)?;
        if let Some(reported) = subject.programs.reported.take() {
            (report.borrow_mut())(&GuestEvent::Restored(Box::new(reported)));
        }
        drop(subject);
        responder.terminate(Duration::from_secs(2))?;
        Ok(done)
    }
}

/// Returns the criteria by which modes are compared.
pub(super) fn criteria() -> Vec<Criterion> {
    [IRQS, TIMER_IRQS].map(|cost| Work::Request.criterion(cost)).to_vec()
}

fn compare<S: Switched>(
    subject: &mut GuestServer<'_, '_, S>,
    design: ExperimentDesign<DeliveryMode>,
    report: &ReportEvent<'_>,
) -> Result<EndOfExperiment, GuestLabError> {
    let mut watch = |experiment: &Switchback<DeliveryMode>, stage: SliceStage<'_>| {
        let Some(slice) = experiment.next_slice() else { return };
        let mode = slice.treatment.name.clone();
        let event = match stage {
            SliceStage::Begins => {
                GuestEvent::SliceBegins { block: slice.block, arm: slice.arm, mode, spent: experiment.spent() }
            }
            SliceStage::NotSettable(reason) => GuestEvent::Dropped { mode, reason: reason.to_owned() },
            SliceStage::Recorded => return,
        };
        (report.borrow_mut())(&event);
    };
    match compare_modes(subject, design, (Some(OfferedLoad::Max), None), &mut watch, &|| false) {
        Ok(experiment) => Ok(experiment.end),
        // It is a valid result that an old kernel supports none of the modes.
        Err(ComparisonError::NoModeLeft(_)) => Ok(EndOfExperiment::Stopped(StopReason::NoTreatmentLeft)),
        Err(error) => Err(error.into()),
    }
}

fn search<S: Switched>(
    subject: &mut GuestServer<'_, '_, S>,
    plan: &TunePlan,
    report: &ReportEvent<'_>,
) -> Result<TuneResult, GuestLabError> {
    let mut watch = |tuner: &Tuner, stage: SliceStage<'_>| {
        if let (SliceStage::Begins, Some(next)) = (stage, tuner.next_slice()) {
            (report.borrow_mut())(&GuestEvent::SearchSliceBegins(next.mode));
        }
        ControlFlow::Continue(())
    };
    // The only load is the closed loop that is running.
    let finished = tune(subject, plan.clone(), &mut watch)?;
    finished.restored?;
    Ok(finished.result)
}

/// Adapts the plan to this kernel. If the kernel cannot set the queue, the queue keeps the values of `base`, and only
/// `base` is possible.
fn switchable(plan: &SwitchPlan, modes: &[DeliveryMode]) -> SwitchPlan {
    let mut plan = plan.clone();
    if !plan.queues.is_empty() {
        return plan;
    }
    for (mode, impossible) in modes.iter().zip(&mut plan.impossible) {
        if is_base(mode) {
            impossible.clear();
        } else if impossible.is_empty() {
            let why = "the server's queue is unknown".to_owned();
            impossible.push(AttachObstacle { what: "set the queue".to_owned(), reason: why });
        }
    }
    plan
}

fn why_not_in_a_guest(mode: &DeliveryMode) -> Option<String> {
    let poller = || mode.poller().map(|_| "no CPU of the guest is left for the poller of the mode".to_owned());
    needs_launch(mode).map(|requirement| requirement.to_string()).or_else(poller)
}

fn is_base(mode: &DeliveryMode) -> bool {
    mode.napi() == NapiSettings::default() && mode.epoll().unwrap_or_default() == EpollParams::default()
}

fn server_device() -> InterfaceName {
    InterfaceName::new(End::Server.name())
        .unwrap_or_else(|error| unreachable!("the device name of quell_vm is invalid: {error}"))
}

/// The server in the guest. Reports each slice.
struct GuestServer<'a, 'b, S> {
    programs: S,
    /// Queues of the server's NIC. Absent if the kernel does not report NAPI instances.
    queues: Option<Queues>,
    /// Whether slices contain latencies, which emulation distorts.
    keeps_latency: bool,
    report: &'a ReportEvent<'b>,
}

/// [`Programs`], or their stand-in in tests.
trait Switched: ExperimentSubject<Setting = DeliveryMode, Error = SubjectError> {}

impl<S: ExperimentSubject<Setting = DeliveryMode, Error = SubjectError>> Switched for S {}

impl<S: Switched> ExperimentSubject for GuestServer<'_, '_, S> {
    type Setting = DeliveryMode;
    type Error = SubjectError;

    fn set(&mut self, mode: &DeliveryMode) -> Result<(), SetFailure<SubjectError>> {
        self.programs.set(mode)?;
        // The kernel does not pin the NAPI thread that the mode created.
        let cpu = if mode.napi().threaded == Threaded::BusyPoll { SPARE_CPU } else { SERVER_CPU };
        let pinned = self.queues.as_mut().map(|queues| queues.pinned_threads(&[cpu]));
        let failed =
            |error| SetFailure::NotSettable(SubjectError::Impossible(format!("cannot pin the NAPI thread: {error}")));
        pinned.transpose().map_err(failed)?;
        Ok(())
    }

    fn settle(&mut self, settle_ms: u32) -> Result<(), SubjectError> {
        self.programs.settle(settle_ms)
    }

    fn observe(&mut self, slice_ms: u32) -> Result<Option<SliceObservation>, SubjectError> {
        let Some(mut observation) = self.programs.observe(slice_ms)? else { return Ok(None) };
        if !self.keeps_latency {
            observation.latency = None;
        }
        // The host measures this share.
        observation.foreign_cpu = None;
        // In a closed loop, all requests are sent. Requests outstanding at the end of the slice are late, not lost.
        observation.flags.retain(|flag| *flag == SliceFlag::RequestsFailed);
        (self.report.borrow_mut())(&GuestEvent::SliceEnds(Box::new(observation.clone())));
        Ok(Some(observation))
    }

    fn leaves_out_setting(&self, error: &SubjectError) -> bool {
        self.programs.leaves_out_setting(error)
    }

    fn restore(&mut self) -> Result<(), SubjectError> {
        self.programs.restore()
    }
}

/// Returns the interrupt of the receive queue. If the kernel does not report NAPI instances, the interrupt is found by
/// its name.
fn rx_interrupt(device: &Device, nic: &GuestNic) -> Result<Option<Linked<u32>>, GuestLabError> {
    let said = device.napis.known_elements().find_map(|napi| napi.irq.known().copied().flatten());
    match said {
        Some(said) => Ok(Some(said)),
        None => Ok(nic.rx_irq()?.map(|to| Linked { to, source: Provenance::Name })),
    }
}

fn load(address: SocketAddr) -> LoadSpec {
    let sizes = RequestResponse { request_bytes: REQUEST_BYTES, response_bytes: REQUEST_BYTES, check_content: true };
    LoadSpec {
        connections: SOCKETS,
        cpus: vec![CLIENT_CPU],
        polling: Polling::Epoll,
        connect_timeout_ms: PATIENCE_MS,
        response_timeout_ms: PATIENCE_MS,
        ..LoadSpec::new(address, Transport::Udp, Workload::RequestResponse(sizes))
    }
}

fn start_responder(server: &Namespace, client: &Namespace, address: SocketAddr) -> Result<Child, GuestLabError> {
    let program = std::env::current_exe().map_err(GuestLabError::Program)?;
    let mut responder = Spawn::new(program)
        .args(["respond", &address.to_string(), "--udp", "--work-us", &WORK_US.to_string()])
        .netns(server)
        .cpus([SERVER_CPU].into_iter().collect())
        .stderr(Output::Tail(STDERR_KEPT))
        .dies_with_this_thread()
        .start()?;
    let deadline = Instant::now() + START_BOUND;
    let probe = client.run(|| UdpSocket::connect(address))?.map_err(GuestLabError::Probe)?;
    while !answers(&probe) {
        // The loop also waits for the process to exit, so the exit of a responder is reported without delay.
        let ended = responder.wait(Duration::from_millis(50))?.is_some();
        if ended || Instant::now() >= deadline {
            let said = responder.stderr_tail().unwrap_or_default();
            return Err(GuestLabError::Deaf(String::from_utf8_lossy(&said).trim().to_owned()));
        }
    }
    Ok(responder)
}

/// Returns whether an earlier request was answered. If not, sends another request. Both calls may fail before the
/// responder listens.
fn answers(probe: &UdpSocket) -> bool {
    let answered = probe.receive(&mut [0; REQUEST_BYTES as usize]).is_ok();
    if !answered {
        let _ = probe.send(&[0; REQUEST_BYTES as usize]);
    }
    answered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::Comparison;
    use crate::question::Timing;

    /// A server whose queue stalls under one mode.
    #[derive(Default)]
    struct Stalling(Option<DeliveryMode>);

    impl ExperimentSubject for Stalling {
        type Setting = DeliveryMode;
        type Error = SubjectError;

        fn set(&mut self, mode: &DeliveryMode) -> Result<(), SetFailure<SubjectError>> {
            self.0 = Some(*mode);
            Ok(())
        }

        fn settle(&mut self, _: u32) -> Result<(), SubjectError> {
            Ok(())
        }

        fn observe(&mut self, slice_ms: u32) -> Result<Option<SliceObservation>, SubjectError> {
            match self.0.is_some_and(|mode| mode.napi().irq_suspend_timeout_ns > 0) {
                true => Err(SubjectError::Stalls("its queues stalled again and again".to_owned())),
                false => Ok(Some(SliceObservation { spent_ms: f64::from(slice_ms), ..SliceObservation::default() })),
            }
        }

        fn leaves_out_setting(&self, error: &SubjectError) -> bool {
            matches!(error, SubjectError::Stalls(_))
        }

        fn restore(&mut self) -> Result<(), SubjectError> {
            Ok(())
        }
    }

    #[test]
    fn a_mode_that_stalls_the_server_is_dropped_and_the_experiment_goes_on() {
        let modes = ["base", "suspend20", "defer20"].map(|mode| mode.parse().unwrap()).to_vec();
        let timing = Timing { budget_ms: 10_000, slice_ms: 100, settle_ms: 0, margin: 0.03, seed: 1 };
        let design =
            super::design(&Comparison { modes, timing, budget_max_ms: timing.budget_ms, leaves_out_stalls: false });
        let (mut dropped, mut slices) = (Vec::new(), 0);
        let mut take = |event: &GuestEvent| match event {
            GuestEvent::Dropped { mode, .. } => dropped.push(mode.clone()),
            GuestEvent::SliceEnds(_) => slices += 1,
            _ => {}
        };
        let report: ReportEvent<'_> = RefCell::new(&mut take);
        let mut server =
            GuestServer { programs: Stalling::default(), queues: None, keeps_latency: false, report: &report };
        let end = compare(&mut server, design, &report).unwrap();
        assert!(!matches!(end, EndOfExperiment::Failed(_)), "{end:?}");
        assert_eq!(dropped, ["suspend20"]);
        assert!(slices > 3, "{slices}");
    }
}
