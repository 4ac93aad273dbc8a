//! Experiments on running programs whose mode is switched while they serve: programs of this host, or the server of the
//! lab.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_change::journal::JournalError;
use quell_change::recovery::Reverted;
use quell_experiment::{ExperimentSubject, SetFailure, SliceFlag, SliceObservation};
use quell_host::attach::plan::AttachObstacle;
use quell_host::attach::stall_guard::StallGuard;
use quell_host::switching::{ReportedSettings, SwitchError, SwitchPlan, Switching};
use quell_linux::Pid;
use quell_linux::proc::{ProcError, ProcRoot};
use quell_load::{LoadError, LoadReport, RunObserver, RunProgress, RunningLoad};
use quell_mode::DeliveryMode;
use quell_result::facts::OtherProgramFacts;
use quell_stats::LatencyHistogram;

use super::clients::{ClientsError, RemoteClients, RemoteWindow};
use super::judge::{JudgeError, Judges};
use super::{figures, server_side};
use crate::bench_load::schedule;
use crate::beside::{BesideClient, BesideError};
use crate::counters::{CounterReading, Instruments, TrialCounters, Watched};
use crate::other_programs::ProcessTimes;

/// Maximum number of windows in which the counters of a slice are read, if they are read too late. After that their metrics
/// are absent.
const WINDOWS_MAX: u32 = 3;
/// Maximum time of these windows in ms, because a mode that violates a guard may be set for a second only.
const REPEATED_MAX_MS: u32 = 800;

/// Source of the requests, and the judges that measure latency.
pub enum Traffic {
    /// Quell's generator, which measures latency.
    Generator(GeneratorTraffic),
    /// Clients on other machines, which run Quell's generator.
    Clients(Box<RemoteClients>),
    /// Clients that Quell does not control. Quell measures only the server; judges may measure more.
    Live(Judges),
}

/// Quell's generator on this machine.
pub struct GeneratorTraffic {
    /// The generator under the first load.
    pub running: RunningLoad,
    /// Client of a second server on the same queues.
    pub beside: Option<Arc<BesideClient>>,
    /// Rate of each load, in requests per second. `None` for a closed loop.
    pub rates_per_s: Vec<Option<f64>>,
}

/// Programs whose mode is switched, as the subject of an experiment.
pub struct Programs<'a> {
    /// Active switching of modes. `None` after everything was restored.
    switching: Option<Switching>,
    modes: Vec<DeliveryMode>,
    /// Reason why a mode cannot be set, for each mode in `modes`.
    impossible: Vec<Option<String>>,
    watched: Watched,
    instruments: Instruments,
    /// Source of the requests.
    pub traffic: Traffic,
    /// Settings that were not restored, because another program had changed them. Known after the end.
    pub left_alone: Vec<String>,
    /// Settings as the kernel reported them. Known after the end; absent if no mode was switched.
    pub reported: Option<ReportedSettings>,
    /// Busiest programs besides the server. Known after the end; absent if processes cannot be listed.
    pub other_programs: Option<Vec<OtherProgramFacts>>,
    /// CPU times before the first slice. `None` after the end.
    processes: Option<ProcessTimes>,
    stopped: &'a dyn Fn() -> bool,
    proc: ProcRoot,
    slice_began: Instant,
    /// Watches for stalls. Absent without the permission to count polls.
    stalls: Option<StallGuard>,
}

/// Reason why an experiment on programs failed. All settings were restored, except in the case
/// [`SubjectError::NotRestored`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubjectError {
    /// The modes could not be switched.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// A mode cannot be set.
    #[error("{0}")]
    Impossible(String),
    /// A mode was reverted.
    #[error("reverted: {0}")]
    Stalls(String),
    /// The judge failed or printed no figures.
    #[error(transparent)]
    Judge(#[from] JudgeError),
    /// The generator failed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A client on another machine failed.
    #[error(transparent)]
    Clients(#[from] ClientsError),
    /// The second server failed.
    #[error(transparent)]
    Beside(#[from] BesideError),
    /// A run of the model was aborted.
    #[error(transparent)]
    Model(#[from] quell_sim::RunError),
    /// A measured process has exited.
    #[error("process {0} has exited")]
    ProgramEnded(Pid),
    /// The journal could not be removed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file of /proc could not be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// A setting could not be restored. The change stays in the journal.
    #[error("not all settings were restored (`quell status` lists them, `quell revert` tries again): {0}")]
    NotRestored(String),
}

impl<'a> Programs<'a> {
    /// Creates the subject. Without `switching`, the programs stay under the reference. `impossible` contains the
    /// caller's reasons why modes cannot be set, one entry per mode.
    #[must_use]
    pub fn new(
        switching: impl Into<Option<Switching>>,
        plan: &SwitchPlan,
        impossible: &[Option<String>],
        watched: Watched,
        traffic: Traffic,
        stopped: &'a dyn Fn() -> bool,
    ) -> Self {
        let reason = |index: usize, of_plan: &Vec<AttachObstacle>| {
            let of_plan = of_plan.first().map(|first| format!("{}: {}", first.what, first.reason));
            impossible.get(index).cloned().flatten().or(of_plan)
        };
        let proc = ProcRoot::default();
        let switching: Option<Switching> = switching.into();
        let stalls = switching.as_ref().map_or(Ok(None), Switching::stall_guard);
        let stalls = stalls.inspect_err(|error| tracing::warn!(%error, "not watched for stalls")).ok().flatten();
        Self {
            stalls,
            switching,
            modes: plan.modes.clone(),
            impossible: plan.impossible.iter().enumerate().map(|(index, of_plan)| reason(index, of_plan)).collect(),
            instruments: Instruments::new(plan.napis(), &watched.server_cpus),
            watched,
            traffic,
            left_alone: Vec::new(),
            reported: None,
            other_programs: None,
            processes: ProcessTimes::read(&proc),
            stopped,
            proc,
            slice_began: Instant::now(),
        }
    }

    /// Reason why a mode cannot be set; `None` if it can.
    #[must_use]
    pub fn why_impossible(&self, mode: &DeliveryMode) -> Option<&str> {
        match self.modes.iter().position(|other| other == mode) {
            Some(index) => self.impossible[index].as_deref(),
            None => Some("the mode was not planned"),
        }
    }

    /// Restores all settings. Does nothing if they are already restored.
    ///
    /// # Errors
    /// Fails if a setting could not be restored.
    fn end(&mut self) -> Result<(), SubjectError> {
        self.stalls = None;
        if let Some(processes) = self.processes.take() {
            let (server, cpus) = (self.watched.server_threads(), &self.watched.server_cpus);
            self.other_programs = processes.others_since(&self.proc, server, cpus);
        }
        let Some(switching) = self.switching.take() else { return Ok(()) };
        let (Reverted { failed, waiting, left_alone, partial, .. }, reported) = switching.end()?;
        self.reported = Some(reported);
        self.left_alone = left_alone.into_iter().chain(partial).map(|(_, why)| why).collect();
        let failed = failed.iter().map(|(_, error)| error.to_string());
        let left: Vec<String> = failed.chain(waiting.iter().map(|(_, why)| why.clone())).collect();
        if left.is_empty() { Ok(()) } else { Err(SubjectError::NotRestored(left.join("; "))) }
    }

    /// Takes the present mode back at once if its queues stall again and again, and never sets it again.
    fn revert_if_stalled(&mut self) -> Result<(), SubjectError> {
        let Some(why) = self.stalls.as_ref().and_then(StallGuard::refused) else { return Ok(()) };
        if let Some(switching) = &mut self.switching {
            let mode = switching.current();
            switching.set_none()?;
            self.stalls.iter().for_each(|stalls| stalls.set(None));
            if let Some(reason) = mode.and_then(|mode| self.impossible.get_mut(mode)) {
                *reason = Some(why.clone());
            }
        }
        Err(SubjectError::Stalls(why))
    }

    fn ended_program(&self) -> Option<Pid> {
        self.watched.server.iter().copied().find(|pid| self.proc.process(*pid).stat().is_err())
    }

    fn observe_generator(&mut self, slice_ms: u32) -> Result<Option<ObservedSlice>, SubjectError> {
        let Traffic::Generator(GeneratorTraffic { running, beside, .. }) = &mut self.traffic else { return Ok(None) };
        let stopped = is_over(self.stopped, self.stalls.as_ref());
        let mut observer = Observer {
            beside: beside.as_deref(),
            ..Observer::new(&self.watched, &self.proc, &mut self.instruments, &stopped)
        };
        let report = match running.measure(Duration::from_millis(slice_ms.into()), &mut observer) {
            Ok(report) => report,
            Err(LoadError::Cancelled) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let counters = observer.counters(slice_ms);
        let of_beside = beside.is_some().then_some(observer.of_beside).transpose()?;
        let mut observed = self.observed(slice_ms, &report, counters);
        if let Some(latency) = of_beside {
            observed.slice.metrics.extend(figures::of_beside(&latency));
        }
        Ok(Some(observed))
    }

    fn observe_clients(&mut self, slice_ms: u32) -> Result<Option<ObservedSlice>, SubjectError> {
        let Traffic::Clients(clients) = &mut self.traffic else { return Ok(None) };
        let stopped = is_over(self.stopped, self.stalls.as_ref());
        loop {
            let mut observer = Observer::new(&self.watched, &self.proc, &mut self.instruments, &stopped);
            match clients.measure(Duration::from_millis(slice_ms.into()), &mut observer, &stopped)? {
                RemoteWindow::Measured(report) => {
                    let counters = observer.counters(slice_ms);
                    let flags = counters.as_ref().map(|of| server_side::flags_of_other_programs(&self.watched, of));
                    let mut observed = self.observed(slice_ms, &report, counters);
                    observed.slice.flags.extend(flags.unwrap_or_default());
                    return Ok(Some(observed));
                }
                RemoteWindow::TooLate => {}
                RemoteWindow::Stopped => return Ok(None),
            }
        }
    }

    fn observed(&self, slice_ms: u32, report: &LoadReport, counters: Option<TrialCounters>) -> ObservedSlice {
        let counters_cover_it = counters.is_some();
        ObservedSlice { slice: observation(&self.watched, slice_ms, report, counters), counters_cover_it }
    }

    fn observe_live(&mut self, slice_ms: u32) -> Result<Option<ObservedSlice>, SubjectError> {
        let none = Judges::default();
        let judges = match &self.traffic {
            Traffic::Live(judges) => judges,
            Traffic::Generator(_) | Traffic::Clients(_) => &none,
        };
        let stopped = is_over(self.stopped, self.stalls.as_ref());
        let observed = server_side::observe(&self.watched, &mut self.instruments, judges, slice_ms, &stopped)?;
        Ok(observed.map(|(slice, _)| ObservedSlice { slice, counters_cover_it: true }))
    }

    fn observe_once(&mut self, slice_ms: u32) -> Result<Option<ObservedSlice>, SubjectError> {
        let observed = match &self.traffic {
            Traffic::Generator(_) => self.observe_generator(slice_ms),
            Traffic::Clients(_) => self.observe_clients(slice_ms),
            Traffic::Live(_) => self.observe_live(slice_ms),
        };
        match self.ended_program() {
            Some(pid) => Err(SubjectError::ProgramEnded(pid)),
            None => observed,
        }
    }
}

/// Whether a slice ends early: on request, or because the mode stalls the programs.
fn is_over(stopped: &dyn Fn() -> bool, stalls: Option<&StallGuard>) -> impl Fn() -> bool {
    move || stopped() || stalls.is_some_and(|stalls| stalls.refused().is_some())
}

/// A slice, and whether its counters were read at its start and end. If not, metrics of counters are absent.
struct ObservedSlice {
    slice: SliceObservation,
    counters_cover_it: bool,
}

impl ExperimentSubject for Programs<'_> {
    type Setting = DeliveryMode;
    type Error = SubjectError;

    fn offer(&mut self, load: usize) -> Result<(), SubjectError> {
        self.traffic = match std::mem::replace(&mut self.traffic, Traffic::Live(Judges::default())) {
            // The first load is offered from the beginning.
            Traffic::Generator(generator) if generator.rates_per_s.len() > 1 => {
                let schedule = schedule(generator.rates_per_s.get(load).copied().flatten());
                let running = generator.running.stop()?.keep_running(schedule)?;
                Traffic::Generator(GeneratorTraffic { running, ..generator })
            }
            other => other,
        };
        Ok(())
    }

    fn set(&mut self, mode: &DeliveryMode) -> Result<(), SetFailure<SubjectError>> {
        if let Some(reason) = self.why_impossible(mode) {
            return Err(SetFailure::NotSettable(SubjectError::Impossible(reason.to_owned())));
        }
        let index = self.modes.iter().position(|other| other == mode);
        let (Some(index), Some(switching)) = (index, &mut self.switching) else { return Ok(()) };
        let set = switching.switch_to(index).map_err(|error| SetFailure::SubjectFailed(error.into()));
        self.watched.pollers = switching.polling_tids();
        self.stalls.iter().for_each(|stalls| stalls.set(Some(index)));
        set
    }

    fn settle(&mut self, settle_ms: u32) -> Result<(), SubjectError> {
        server_side::sleep(Duration::from_millis(settle_ms.into()), self.stopped);
        Ok(())
    }

    fn observe(&mut self, slice_ms: u32) -> Result<Option<SliceObservation>, SubjectError> {
        let observed = self.observe_once(slice_ms)?;
        self.revert_if_stalled()?;
        let Some(ObservedSlice { mut slice, counters_cover_it: mut is_covered }) = observed else { return Ok(None) };
        for _ in 1..WINDOWS_MAX.min(REPEATED_MAX_MS / slice_ms.max(1)) {
            if is_covered {
                break;
            }
            tracing::debug!(
                "the counters were not read at the start and end of a slice: they are read in another window"
            );
            let Some(again) = self.observe_once(slice_ms)? else { return Ok(None) };
            is_covered = again.counters_cover_it;
            // The latencies of the first window stay. Otherwise a mode that delays this process could choose.
            slice.flags.extend(again.slice.flags);
            (slice.metrics, slice.foreign_cpu) = (again.slice.metrics, again.slice.foreign_cpu);
        }
        let spent_ms = self.slice_began.elapsed().as_secs_f64() * 1e3;
        // The analysis after this slice, and a load that is offered, take time of the next one.
        self.slice_began = Instant::now();
        Ok(Some(SliceObservation { spent_ms, ..slice }))
    }

    fn leaves_out_setting(&self, error: &SubjectError) -> bool {
        matches!(error, SubjectError::Stalls(_))
    }

    fn repeats_slice(&self, error: &SubjectError) -> bool {
        matches!(error, SubjectError::Judge(error) if error.is_worth_repeating())
    }

    fn is_budget_spent(&self, error: &SubjectError) -> bool {
        matches!(error, SubjectError::Judge(JudgeError::BudgetSpent { .. }))
    }

    fn restore(&mut self) -> Result<(), SubjectError> {
        self.end()
    }
}

/// Combines the report of a slice with its counters. The caller sets `spent_ms`.
pub(super) fn observation(
    watched: &Watched,
    slice_ms: u32,
    report: &LoadReport,
    counters: Option<TrialCounters>,
) -> SliceObservation {
    let counters = counters.unwrap_or_default();
    let seconds = f64::from(slice_ms) / 1e3;
    SliceObservation {
        metrics: figures::of_counters(&counters, Some(report.answered_in_window), seconds),
        latency: Some((&report.latency).into()),
        foreign_cpu: server_side::foreign_cpu(watched, &counters),
        flags: flags(report),
        ..SliceObservation::default()
    }
}

/// Returns the flags of a slice, which limit the verdicts that it supports.
pub(super) fn flags(report: &LoadReport) -> BTreeSet<SliceFlag> {
    let flags = [
        report.fell_behind().then_some(SliceFlag::Saturated),
        (report.errors.failed_requests() > 0).then_some(SliceFlag::RequestsFailed),
        report.generator_was_late.then_some(SliceFlag::LoadWasLate),
    ];
    flags.into_iter().flatten().collect()
}

/// Reads the counters at the start and at the end of the measured time.
pub(super) struct Observer<'a> {
    watched: &'a Watched,
    proc: &'a ProcRoot,
    instruments: &'a mut Instruments,
    stopped: &'a dyn Fn() -> bool,
    /// Counters at the start and at the end.
    readings: Vec<CounterReading>,
    beside: Option<&'a BesideClient>,
    of_beside: Result<LatencyHistogram, BesideError>,
}

impl<'a> Observer<'a> {
    /// Without a second server.
    pub(super) fn new(
        watched: &'a Watched,
        proc: &'a ProcRoot,
        instruments: &'a mut Instruments,
        stopped: &'a dyn Fn() -> bool,
    ) -> Self {
        let (readings, of_beside) = (Vec::with_capacity(2), Ok(LatencyHistogram::new()));
        Self { watched, proc, instruments, stopped, readings, beside: None, of_beside }
    }

    /// Returns the differences of the counters. `None` if a reading was so late that they do not cover the slice.
    pub(super) fn counters(&self, slice_ms: u32) -> Option<TrialCounters> {
        let [first, last] = &*self.readings else { return None };
        first.covers(last, Duration::from_millis(slice_ms.into())).then(|| self.watched.between(first, last))
    }

    /// Stores the latencies that the second server's client recorded since the last call.
    fn take_beside(&mut self) {
        if let Some(beside) = self.beside {
            self.of_beside = beside.take();
        }
    }
}

impl RunObserver for Observer<'_> {
    fn window_started(&mut self) {
        self.take_beside();
        self.readings.push(self.watched.snapshot(self.proc, self.instruments));
    }

    fn window_ended(&mut self) {
        self.take_beside();
        self.readings.push(self.watched.snapshot(self.proc, self.instruments));
    }

    fn progress(&mut self, _: &RunProgress) -> std::ops::ControlFlow<()> {
        if (self.stopped)() { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
    }
}
