//! Plays published experiments in a private lab. `quell run` starts the server of each slice, if there is one.

use std::time::Duration;

use quell_linux::CpuList;
use quell_linux::proc::ProcRoot;
use quell_linux::signal::Interruption;
use quell_linux::visible::counted;
use quell_published::Experiment;
use quell_result::ResultDocument;
use quell_result::facts::{CpuLayout, HostFacts};
use quell_subject::question::SubjectStep;
use quell_subject::question::Timing;
use quell_subject::replay::{Replay, ReplayPart, ReplayRequest, XdpReplay, play, play_xdp};
use quell_subject::subjects::{GuestSpec, play_xdp_in_guest};

use super::args::BenchArgs;
use crate::commands::subject::Place;
use crate::commands::subject::asked::{self, Shown};
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;

/// Default maximum time for a part. A part ends earlier when its comparisons are decided.
pub(super) fn budget(experiment: Option<Experiment>, place: Place, is_quick: bool) -> Duration {
    Duration::from_secs(match (experiment, is_quick) {
        (_, true) if place == Place::PublishedGuest => 40,
        (_, false) if place == Place::PublishedGuest => 120,
        (Some(Experiment::C), true) => 11,
        // It has eleven modes.
        (Some(Experiment::A), true) => 70,
        (Some(Experiment::C), false) => 60,
        (_, true) => 40,
        (_, false) => 120,
    })
}

/// A published experiment with what the command line says about it.
pub(super) struct Play {
    experiment: Experiment,
    played: Played,
    /// Path of this program, which starts servers.
    quell: String,
}

enum Played {
    Parts(ReplayRequest),
    Points(XdpReplay),
    PointsInGuest(GuestSpec, XdpReplay),
}

impl Play {
    /// Decides what is played. Changes nothing.
    ///
    /// # Errors
    /// When the published data is malformed.
    pub(super) fn of(args: &BenchArgs, experiment: Experiment, place: Place) -> Result<Self, Failure> {
        let (timing, extent, insist) = (super::timing(args, place), super::extent(args), args.subject.insist);
        let of_part = |parts: usize| of_part(timing, args.subject.budget.is_some(), parts as u64);
        let points = |replay: XdpReplay| XdpReplay { timing: of_part(replay.points.len()), ..replay };
        let played = if place == Place::PublishedGuest {
            let replay = XdpReplay::in_guest(timing, extent).map_err(Failure::usage)?;
            Played::PointsInGuest(args.subject.of_guest(), points(replay))
        } else if let Some(replay) = Replay::of(experiment).map_err(Failure::usage)? {
            let timing = of_part(replay.parts.len());
            Played::Parts(ReplayRequest { replay, timing, insist })
        } else {
            let cpus = HostFacts::read(&ProcRoot::default()).map_err(Failure::refused)?.cpus.len();
            let replay = XdpReplay::published(cpus, timing, extent, insist).map_err(Failure::usage)?;
            Played::Points(points(replay))
        };
        Ok(Self { experiment, played, quell: asked::this_program()? })
    }

    /// Text of what is played, where, and for how long.
    ///
    /// # Errors
    /// When it cannot be played here.
    pub(super) fn plan(&self) -> Result<String, Failure> {
        let (on, details) = match &self.played {
            Played::Parts(request) => {
                let cpus = request.check_possible(&self.quell).map_err(asked::of_lab_run)?;
                (IN_LAB, text_of_parts(request) + &of_lab(&cpus))
            }
            Played::Points(replay) => {
                let cpus = replay.check_possible(&self.quell).map_err(asked::of_lab_run)?;
                (IN_LAB, text_of_points(replay) + &of_lab(&cpus))
            }
            Played::PointsInGuest(guest, replay) => {
                let kernel = guest.machine_for(replay).map_err(asked::failure)?.kernel;
                let guest = format!("the guest: Linux {}, with a NIC for each side\n", kernel.origin.version);
                (IN_GUEST, text_of_points(replay) + &guest)
            }
        };
        let (parts, timing) = match &self.played {
            Played::Parts(request) => (request.replay.parts.len(), request.timing),
            Played::Points(replay) | Played::PointsInGuest(_, replay) => (replay.points.len(), replay.timing),
        };
        let Timing { budget_ms, slice_ms, settle_ms, .. } = timing;
        let each_s = budget_ms / 1_000;
        Ok(format!(
            "({}) {}\nplays {} in {}, for at most {} s, {each_s} s each; {}\n{details}\
             a slice lasts {settle_ms} ms to settle and {slice_ms} ms to measure\n",
            self.experiment,
            self.experiment.title(),
            counted(parts, "part"),
            on[0],
            each_s * parts as u64,
            on[1],
        ))
    }

    /// Plays the experiment. After an interruption or a failure, the result contains the parts so far.
    pub(super) fn run(&self) -> Result<ResultDocument, Failure> {
        output::say(self.plan()?.trim_end());
        let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
        let flag = interruption.flag();
        let stopped = || flag.get().is_some();
        let (journal, mut shown) = (journal(), Shown::new());
        if !matches!(self.played, Played::PointsInGuest(..)) {
            shown.show(SubjectStep::Doing("setting up the lab"));
        }
        let mut follow = |step: SubjectStep<'_>| shown.show(step);
        let document = match &self.played {
            Played::Parts(request) => play(request, &asked::tools(&journal, &self.quell), &mut follow, &stopped)
                .map(|run| ResultDocument::Published(Box::new(run)))
                .map_err(asked::of_lab_run),
            Played::Points(replay) => play_xdp(replay, &self.quell, &journal, &mut follow, &stopped)
                .map(|run| ResultDocument::PublishedXdp(Box::new(run)))
                .map_err(asked::of_lab_run),
            Played::PointsInGuest(guest, replay) => play_xdp_in_guest(guest, replay, &mut follow, &stopped)
                .map(|run| ResultDocument::PublishedXdp(Box::new(run)))
                .map_err(asked::failure),
        };
        shown.finish();
        document
    }
}

/// Where parts are played, and what to know about it.
const IN_LAB: [&str; 2] = ["a private lab on this machine", "the lab is removed at the end"];
const IN_GUEST: [&str; 2] =
    ["a guest, slowed down", "it counts who polls, because times in a guest mean nothing; this host is not changed"];

/// Timing of a part: a budget on the command line is that of all parts.
fn of_part(timing: Timing, is_of_all: bool, parts: u64) -> Timing {
    let budget_ms = if is_of_all { timing.budget_ms / parts.max(1) } else { timing.budget_ms };
    Timing { budget_ms, ..timing }
}

/// Parts with the same modes have one line.
fn text_of_parts(ReplayRequest { replay, .. }: &ReplayRequest) -> String {
    let parts = replay.parts.chunk_by(|one, other| one.modes == other.modes);
    let line = |parts: &[ReplayPart]| {
        let names: Vec<String> = parts.iter().map(ReplayPart::name).collect();
        let modes: Vec<String> = parts[0].modes.iter().map(ToString::to_string).collect();
        format!("  {}: {}\n", names.join("; "), modes.join(", "))
    };
    let shares = "loads below max are the same share of the maximum of base here as published\n";
    let has_shares = replay.parts.iter().any(|part| part.share_of_max.is_some());
    parts.map(line).collect::<String>()
        + if has_shares { shares } else { "" }
        + "each slice starts the server under a mode with `quell run`, which sets the lab's queue and epolls\n"
}

fn text_of_points(replay: &XdpReplay) -> String {
    let points: Vec<String> = replay.point_names().collect();
    let ways: Vec<String> = replay.ways.iter().map(ToString::to_string).collect();
    let absent = replay.absent.iter().map(|absent| format!("  not played: {}: {}\n", absent.ways, absent.why));
    format!("  {}: {}\n", points.join("; "), ways.join(", "))
        + &absent.collect::<String>()
        + "each slice binds an AF_XDP socket to the client's queue, and sets this queue\n"
}

fn of_lab(cpus: &CpuLayout) -> String {
    let shared = cpus.overcommitted.as_ref().map(|why| format!("not a measurement: {why}\n")).unwrap_or_default();
    format!(
        "the lab: two network namespaces and a veth pair; server on {}, client on {}; nothing else is set\n{shared}",
        named(&cpus.server_cpus()),
        named(&cpus.client_cpus()),
    )
}

/// `CPU 1`, `CPUs 1-3`.
fn named(cpus: &[u32]) -> String {
    let list: CpuList = cpus.iter().copied().collect();
    format!("CPU{} {list}", if cpus.len() == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_subject::extent::Extent;

    const TIMING: Timing = Timing { budget_ms: 60_000, slice_ms: 500, settle_ms: 200, margin: 0.05, seed: 1 };

    #[test]
    fn a_budget_on_the_command_line_is_that_of_all_parts() {
        assert_eq!(of_part(TIMING, true, 6).budget_ms, 10_000);
        assert_eq!(of_part(TIMING, false, 6).budget_ms, 60_000);
    }

    #[test]
    fn the_built_in_budget_of_each_part_has_time_for_enough_slices() {
        for experiment in [Experiment::A, Experiment::B, Experiment::D] {
            for is_quick in [true, false] {
                let budget = budget(Some(experiment), Place::Published, is_quick);
                let timing = Timing { budget_ms: budget.as_millis() as u64, ..TIMING };
                let replay = Replay::of(experiment).unwrap().unwrap();
                let checked = ReplayRequest { replay, timing, insist: false }.check_designs();
                assert!(checked.is_ok(), "{experiment} {is_quick}: {checked:?}");
            }
        }
    }

    #[test]
    fn the_plan_of_an_experiment_has_its_parts_with_their_modes_and_what_is_not_played() {
        let text = |experiment| {
            let replay = Replay::of(experiment).unwrap().unwrap();
            text_of_parts(&ReplayRequest { replay, timing: TIMING, insist: false })
        };
        let suspension = text(Experiment::A);
        assert!(suspension.starts_with("  memcached, max; memcached, 200K;"), "{suspension}");
        assert!(suspension.contains(": base, defer10,") && suspension.contains("the same share"), "{suspension}");
        let sockets = text(Experiment::B);
        assert!(sockets.contains("  TCP recv, 1 B: base, sockpoll50\n"), "{sockets}");
        assert!(!sockets.contains("the same share"), "{sockets}");
        let points = text_of_points(&XdpReplay::published(2, TIMING, Extent::Quick, false).unwrap());
        assert!(points.contains("12 Kpkt/s, 0 µs; ") && points.contains("interrupts-sleeping"), "{points}");
        assert!(points.contains("not played: udp-busy-poll-thread: "), "{points}");
    }
}
