//! The published AF_XDP experiment in a guest. Its NIC links queues to NAPI instances, so the sockets of the client can
//! busy poll, and a third CPU is the poller's. Everything is slower by `SLOWED_BY`, because emulation is. Only counts
//! are kept.

use std::net::SocketAddr;

use quell_linux::netdev::Netdev;
use quell_linux::proc::Schedstat;
use quell_result::published::INTERRUPTED;
use quell_result::published_xdp::{PublishedXdpRun, XdpPlacement, XdpPoint};
use quell_vm::machine::{Machine, MachineError};
use quell_vm::nic::{End, GuestNic};
use serde::{Deserialize, Serialize};

use super::collect::waited_share;
use super::guest::GuestLabError;
use super::{GuestTask, VmLabError, outcome, run_task};
use crate::experiment::ComparisonError;
use crate::experiment::xdp::XdpSide;
use crate::lab::napi::{QueueError, Queues};
use crate::question::{Follow, SubjectStep};
use crate::replay::{PORT, XdpReplay, play_points};

/// Reason why a result is not a measurement of time.
const COUNTS: &str = "the machine was emulated: who polled and how often is valid, times are not and are absent";
/// Factor between the published rates, processing times and timeout, and those in a guest.
pub(crate) const SLOWED_BY: u32 = 100;
/// Number of virtual CPUs: those of [`PLACEMENT`].
pub(crate) const CPUS: u32 = 3;
/// The interrupt of the client's queue is on the receiver's CPU.
const PLACEMENT: XdpPlacement = XdpPlacement { receiver: 1, sender: 0, poller: Some(2) };

/// Events that the guest prints as they happen, each as a line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum XdpGuestEvent {
    /// The lab is set up. Contains a result without points.
    Up(Box<PublishedXdpRun>),
    PartBegins {
        /// From 1.
        number: usize,
        of: usize,
        name: String,
    },
    SliceBegins {
        block: u32,
        way: String,
        /// Share of the budget that is used, 0 to 1.
        spent: f64,
    },
    /// A way cannot be set.
    Dropped { way: String, reason: String },
    /// A point was measured.
    PointEnds(Box<XdpPoint>),
    /// The experiment ended, with the reason if it ended early.
    Ended(Option<String>),
}

/// Plays the points in this guest, and reports each event immediately.
///
/// # Errors
/// When the lab cannot be set up, or the first point fails.
pub fn carry_out(replay: &XdpReplay, report: &mut dyn FnMut(&XdpGuestEvent)) -> Result<(), GuestLabError> {
    let server = GuestNic::raise(End::Server, PLACEMENT.sender)?;
    let client = GuestNic::raise(End::Client, PLACEMENT.receiver)?;
    let netdev = Netdev::open_in(&client.namespace).map_err(QueueError::from)?;
    let mut queues = Queues::of(netdev, client.ifindex, End::Client.name(), 1)?;
    let mut run = PublishedXdpRun::begin(PLACEMENT, replay.absent.clone()).map_err(ComparisonError::from)?;
    run.not_a_measurement = Some(COUNTS.to_owned());
    run.slowed_by = Some(SLOWED_BY);
    report(&XdpGuestEvent::Up(Box::new(run.clone())));
    let report = std::cell::RefCell::new(report);
    let mut follow = |step: SubjectStep<'_>| {
        let event = match step {
            SubjectStep::PartBegins { number, of, name } => {
                XdpGuestEvent::PartBegins { number, of, name: name.to_owned() }
            }
            SubjectStep::Slice { spent, block, mode, .. } => {
                XdpGuestEvent::SliceBegins { block, way: mode.to_owned(), spent }
            }
            SubjectStep::NotSettable { mode, reason } => {
                XdpGuestEvent::Dropped { way: mode.to_owned(), reason: reason.to_owned() }
            }
            _ => return,
        };
        (report.borrow_mut())(&event);
    };
    let mut ended = |point: &XdpPoint| (report.borrow_mut())(&XdpGuestEvent::PointEnds(Box::new(point.clone())));
    let address = SocketAddr::new(server.address, PORT);
    let side = XdpSide { namespace: &client.namespace, queues: &mut queues };
    play_points(&mut run, replay, (&server.namespace, address), side, &mut follow, &mut ended, &|| false)?;
    (report.borrow_mut())(&XdpGuestEvent::Ended(run.ended));
    Ok(())
}

/// Plays the points in a guest. Calls `stopped` and ends early when it returns true; the result then contains the points
/// so far.
///
/// # Errors
/// See [`VmLabError`].
pub(crate) fn play_in_guest(
    machine: &Machine,
    replay: &XdpReplay,
    follow: &mut Follow<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<PublishedXdpRun, VmLabError> {
    let mut collected = CollectedPoints::default();
    let mut take = |event: XdpGuestEvent, host| {
        match &event {
            XdpGuestEvent::PartBegins { number, of, name } => {
                follow(SubjectStep::PartBegins { number: *number, of: *of, name });
            }
            XdpGuestEvent::SliceBegins { block, way, spent } => {
                follow(SubjectStep::Slice { load: None, spent: *spent, block: *block, mode: way });
            }
            XdpGuestEvent::Dropped { way, reason } => follow(SubjectStep::NotSettable { mode: way, reason }),
            _ => {}
        }
        collected.take(event, host);
    };
    let ended = run_task(machine, &GuestTask::Play(Box::new(replay.clone())), &mut take, stopped);
    let interrupted = matches!(ended, Err(VmLabError::Machine(MachineError::Interrupted)));
    let mut run = outcome(ended, collected.run)?;
    if interrupted {
        run.ended = Some(INTERRUPTED.to_owned());
    }
    Ok(run)
}

/// Points received so far, as a result.
#[derive(Default)]
struct CollectedPoints {
    run: Option<PublishedXdpRun>,
    /// The emulator's scheduling statistics at the start of each slice of the current point.
    begun: Vec<Option<Schedstat>>,
}

impl CollectedPoints {
    fn take(&mut self, event: XdpGuestEvent, host: Option<Schedstat>) {
        match (event, &mut self.run) {
            (XdpGuestEvent::Up(run), _) => self.run = Some(*run),
            (XdpGuestEvent::SliceBegins { .. }, _) => self.begun.push(host),
            // This slice is not recorded.
            (XdpGuestEvent::Dropped { .. }, _) => drop(self.begun.pop()),
            (XdpGuestEvent::PointEnds(mut point), Some(run)) => {
                let mut begun = std::mem::take(&mut self.begun);
                begun.push(host);
                let slices = point.result.iter_mut().flat_map(|result| &mut result.record.slices);
                for (slice, times) in slices.zip(begun.windows(2)) {
                    slice.observation.foreign_cpu = waited_share(times[0], times[1]);
                }
                run.points.push(*point);
            }
            (XdpGuestEvent::Ended(why), Some(run)) => run.ended = why,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_experiment::{Criterion, ExperimentDesign, SliceObservation, SliceRecord, Switchback, Treatment};
    use quell_result::experiment::{EndOfExperiment, LoadExperiment};
    use quell_result::published_xdp::XdpWay;
    use quell_xdp::PollWay;

    use super::*;

    #[test]
    fn waiting_time_of_the_emulator_is_that_of_the_slice_which_was_recorded() {
        let way = |poller| {
            let setting = XdpWay { poller, ..XdpWay::default() };
            Treatment { name: setting.to_string(), setting }
        };
        let criteria = vec![Criterion::Latency { quantile: 0.5 }];
        let ways = vec![way(PollWay::BusyPoll), way(PollWay::NapiThread)];
        let design = ExperimentDesign::new(way(PollWay::Interrupts), ways, criteria, 1);
        let (mut record, _) = Switchback::new(design).unwrap().finish();
        let slice = |arm| SliceRecord { block: 0, arm, observation: SliceObservation::default() };
        record.slices = [0, 3].map(slice).to_vec();
        let end = EndOfExperiment::Interrupted;
        let result = LoadExperiment::new(record, end);
        let point = XdpPoint { result: Some(result), ..XdpPoint::new(0.12, 0.0) };

        let mut collected = CollectedPoints::default();
        let up = XdpGuestEvent::Up(Box::new(PublishedXdpRun::begin(PLACEMENT, Vec::new()).unwrap()));
        let begins = || XdpGuestEvent::SliceBegins { block: 0, way: String::new(), spent: 0.0 };
        let dropped = XdpGuestEvent::Dropped { way: String::new(), reason: String::new() };
        let host = |run_ns, wait_ns| Some(Schedstat { run_ns, wait_ns, timeslices: 0 });
        collected.take(up, None);
        collected.take(begins(), host(50, 5));
        collected.take(begins(), host(150, 105));
        collected.take(dropped, None);
        collected.take(begins(), host(250, 105));
        collected.take(XdpGuestEvent::PointEnds(Box::new(point)), host(280, 175));
        let run = collected.run.unwrap();
        let slices = run.points[0].result.iter().flat_map(|result| &result.record.slices);
        let waited: Vec<_> = slices.map(|slice| slice.observation.foreign_cpu).collect();
        assert_eq!(waited, [Some(1.0 / 3.0), Some(0.7)]);
    }

    #[test]
    fn the_host_has_the_points_that_ended_and_the_reason_for_an_early_end() {
        let run = PublishedXdpRun::begin(PLACEMENT, Vec::new()).unwrap();
        let point = XdpPoint::new(0.12, 0.0);
        let mut collected = CollectedPoints::default();
        collected.take(XdpGuestEvent::PointEnds(Box::new(point.clone())), None);
        assert_eq!(collected.run, None, "before the lab was set up");
        let events = [
            XdpGuestEvent::Up(Box::new(run.clone())),
            XdpGuestEvent::PartBegins { number: 1, of: 2, name: "0.12 Kpkt/s".to_owned() },
            XdpGuestEvent::PointEnds(Box::new(point.clone())),
            XdpGuestEvent::Ended(Some("the responder failed".to_owned())),
        ];
        for event in events {
            // As the guest sends it.
            let line = serde_json::to_string(&event).unwrap();
            collected.take(serde_json::from_str(&line).unwrap(), None);
        }
        let ended = Some("the responder failed".to_owned());
        assert_eq!(collected.run, Some(PublishedXdpRun { points: vec![point], ended, ..run }));
    }
}
