//! `quell tune --advise`: ranks modes by the model alone, for the set-up that can be seen of running programs without a change.

use std::fmt;

use quell_experiment::{SliceFlag, SliceObservation};
use quell_host::attach::Targets;
use quell_host::attach::mode_command::placement_options;
use quell_host::attach::placement::{Wanted, decide};
use quell_host::steer::{NothingSteered, can_pin};
use quell_host::switching::SwitchedEpoll;
use quell_linux::signal::Interruption;
use quell_linux::visible::{agree, counted};
use quell_load::OfferedLoad;
use quell_mode::DeliveryMode;
use quell_result::figures;
use quell_subject::counters::Instruments;
use quell_subject::experiment::judge::Judges;
use quell_subject::experiment::{Preview, server_side};
use quell_subject::subjects::programs::preview;
use quell_subject::subjects::refused_here;
use quell_tune::{RankedMode, RefusedMode, TunePlan, TuneSpace};
use schemars::JsonSchema;
use serde::Serialize;

use super::args::TuneArgs;
use crate::commands::attach::refuse_every_process;
use crate::commands::subject::asked;
use crate::commands::subject::{ModelDefault, Place};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::render::advice::advice as rendered;
use crate::render::progress::Progress;

/// Time for which the programs are observed, in ms.
const OBSERVED_MS: u32 = 1_000;

/// Ranks all modes, with the queues, connections and load of programs if there are any.
pub(super) fn advise(args: &TuneArgs, targets: Option<&Targets>) -> Result<(), Failure> {
    let wanted = args.subject.placement.wanted();
    let look = |targets| Progress::during("observing the programs", || see(targets, &wanted));
    let seen = targets.map(look).transpose()?;
    let seen_load = seen.as_ref().and_then(Seen::load).map(|load| vec![load]);
    let default = ModelDefault {
        queues: seen.as_ref().map(|seen| seen.queues),
        connections: seen.as_ref().map(|seen| seen.connections),
        irqs_apart: seen.as_ref().is_some_and(|seen| !seen.refused.iter().any(|one| one.kind == "userbusy")),
        loads: seen_load.unwrap_or_else(|| super::loads(args, Place::Sim)),
    };
    let spec = args.subject.of_model(default)?;
    let mut plan = TunePlan {
        loads: spec.loads.iter().map(ToString::to_string).collect(),
        present: seen.as_ref().and_then(Seen::reference).unwrap_or_default(),
        base_is: seen.as_ref().and_then(|seen| seen.base_is),
        space: Some(TuneSpace { refused: seen.as_ref().map(|seen| seen.refused.clone()).unwrap_or_default() }),
        ..super::plan(args, Place::Sim)?
    };
    spec.complete(&mut plan);
    let ranking = || spec.rank(&plan).map_err(asked::failure);
    let modes = Progress::during_seconds("ranking modes on the model", args.subject.json, ranking)?;
    if args.subject.json {
        let (host, goal) = (spec.setup.host.name.clone(), plan.goal.to_string());
        let (schema, loads, present, base_is) = (AdviceReport::SCHEMA, plan.loads, plan.present, plan.base_is);
        return output::json(&AdviceReport { schema, host, goal, loads, present, base_is, modes });
    }
    let steer = seen.as_ref().map_or("", |seen| seen.helpful_placement);
    let seen = seen.map(|seen| seen.to_string()).unwrap_or_default();
    let programs = args.subject.programs_text() + steer;
    output::prose(&(seen + &rendered(&spec.setup.host.name, &plan, &modes, &programs)))
}

/// Output of `quell tune --advise --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(in crate::commands) struct AdviceReport {
    schema: &'static str,
    /// Host of the model. Nothing was measured.
    host: String,
    goal: String,
    loads: Vec<String>,
    /// Present setting of the programs; `base` without programs.
    present: DeliveryMode,
    /// Mode that `base` leaves set, because it changes no NAPI threads. Absent if it is `base` itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    base_is: Option<DeliveryMode>,
    /// Modes by rank, the best one first.
    modes: Vec<RankedMode>,
}

impl AdviceReport {
    pub(in crate::commands) const SCHEMA: &str = "quell-advice/2";
}

/// Programs under their present load.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    /// Number of queues from which the programs receive.
    queues: u32,
    /// Number of their sockets that epolls watch, at least one per queue.
    connections: u32,
    /// Present setting of the queues and epolls. `None` if it differs between them.
    present: Option<DeliveryMode>,
    /// Mode that `base` leaves set, as [`TunePlan::base_is`].
    base_is: Option<DeliveryMode>,
    /// Number of epolls with connections of several queues, unless connections are to be steered.
    mixed_epolls: usize,
    /// Options that give each worker the connections of one queue, each after a space. Empty without a filter that can do
    /// so, and if one is requested.
    helpful_placement: &'static str,
    /// Share of time in which the CPUs of the programs were not idle, 0 to 1. `None` if that was mostly other programs.
    busy: Option<f64>,
    /// Packets per second from these queues.
    packets_per_s: Option<f64>,
    /// Kinds of mode that these programs or this kernel cannot have.
    refused: Vec<RefusedMode>,
}

/// Observes programs. Changes nothing.
///
/// # Errors
/// When the programs have no queue, or on a signal.
fn see(targets: &Targets, wanted: &Wanted) -> Result<Seen, Failure> {
    refuse_every_process(targets, "")?;
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag = interruption.flag();
    let stopped = || flag.get().is_some();
    let modes = TuneSpace::default().all();
    let preview = preview(targets, &modes, false, &stopped).map_err(asked::failure)?;
    let refused = refused_here(&preview, &modes, None);
    let base_is = preview.base_is();
    let Preview { snapshot, plan } = preview;
    let request = wanted.steer.clone().unwrap_or_default();
    let groups = decide(&snapshot, &targets.pids(), &request).map_err(|error| asked::failure(error.into()))?;
    let can_steer = !groups.steerings.is_empty();
    if wanted.steer.is_some() && !can_steer {
        return Err(asked::failure(NothingSteered(groups.refused).into()));
    }
    let is_mixed = |epoll: &&SwitchedEpoll| wanted.steer.is_none() && epoll.napis.len() > 1;
    let mixed_epolls = plan.epolls.iter().filter(is_mixed).count();
    let watched = server_side::watched(&snapshot, &targets.pids(), &plan.napis());
    let mut instruments = Instruments::new(plan.napis(), &watched.server_cpus);
    let observed = server_side::observe(&watched, &mut instruments, &Judges::default(), OBSERVED_MS, &stopped);
    let Some((slice, _)) = observed.map_err(Failure::usage)? else {
        return Err(Failure::new(Exit::Interrupted, "interrupted; nothing was changed"));
    };
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let queues = number(plan.queues.len());
    let sockets = number(plan.epolls.iter().map(|epoll| epoll.sockets).sum());
    let helps = wanted.steer.is_none() && can_steer && queues > 1;
    Ok(Seen {
        queues,
        connections: sockets.max(queues),
        present: plan.present_setting(),
        base_is,
        mixed_epolls,
        helpful_placement: placement_options(helps, helps && can_pin(&snapshot, &plan.napis())),
        busy: busy_of_programs(&slice),
        packets_per_s: slice.metric(figures::PACKETS),
        refused,
    })
}

/// Share of time in which the CPUs were not idle. `None` if that was mostly other programs. Without NAPI threads, the
/// share of other programs is not known, but the slice has a flag.
fn busy_of_programs(slice: &SliceObservation) -> Option<f64> {
    let busy = slice.metric(figures::BUSY)?;
    let is_foreign = slice.flags.contains(&SliceFlag::ForeignCpu) || slice.flags.contains(&SliceFlag::NoIdleCpu);
    (!is_foreign && slice.foreign_cpu.is_none_or(|share| share <= busy / 2.0)).then_some(busy)
}

impl Seen {
    /// The present setting by its name among the ranked modes: what `base` leaves set is `base`.
    fn reference(&self) -> Option<DeliveryMode> {
        self.present.map(|present| if self.base_is == Some(present) { DeliveryMode::default() } else { present })
    }

    /// The load as a share of the maximum of `base`: the share of time in which the CPUs were not idle. `None` without
    /// packets.
    fn load(&self) -> Option<OfferedLoad> {
        let percent = (self.busy? * 100.0).round();
        (self.packets_per_s? > 0.0).then(|| OfferedLoad::Percent(percent.clamp(1.0, 100.0)))
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queues, connections, present, busy, packets_per_s, mixed_epolls, helpful_placement, .. } = self;
        let present = present.map_or_else(|| "differs between queues or epolls".to_owned(), |mode| mode.to_string());
        let (queues, sockets) = (counted(*queues, "queue"), counted(*connections, "watched socket"));
        write!(f, "seen here: {queues}, {sockets}, present setting {present}")?;
        match (packets_per_s, busy) {
            (Some(packets), Some(busy)) if *packets > 0.0 => {
                writeln!(f, ", {packets:.0} packets/s\nCPUs of the programs are {:.0} % busy", busy * 100.0)?;
                writeln!(f, "--loads is the share of base's maximum, which is assumed to be this CPU share by default")
            }
            (Some(packets), None) if *packets > 0.0 => writeln!(
                f,
                ", {packets:.0} packets/s\nthe load could not be derived from this busy host: other programs use most of \
                 its CPUs; --loads sets it"
            ),
            _ => writeln!(f, "; no load was seen"),
        }?;
        let (epolls, have) = (counted(*mixed_epolls, "epoll"), agree(mixed_epolls, "has", "have"));
        match (*mixed_epolls > 0, !helpful_placement.is_empty()) {
            (false, false) => Ok(()),
            (false, true) => writeln!(
                f,
                "the ranking is for one queue per worker: keep the connections of each queue with a worker ({})",
                helpful_placement.trim_start()
            ),
            (true, true) => writeln!(
                f,
                "{epolls} {have} connections of several queues; the ranking is for one queue per worker, \
                 which{helpful_placement} gives"
            ),
            (true, false) => writeln!(
                f,
                "{epolls} {have} connections of several queues; the ranking is for one queue per worker, so modes that \
                 poll by epoll gain less here"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Seen = Seen {
        queues: 2,
        connections: 9,
        present: None,
        base_is: None,
        mixed_epolls: 0,
        helpful_placement: "",
        busy: Some(0.304),
        packets_per_s: Some(0.0),
        refused: Vec::new(),
    };

    #[test]
    fn the_load_is_the_share_of_busy_time_if_packets_arrive() {
        assert_eq!(IDLE.load(), None);
        assert_eq!(Seen { packets_per_s: Some(5.0), ..IDLE }.load(), Some(OfferedLoad::Percent(30.0)));
        assert_eq!(Seen { packets_per_s: Some(5.0), busy: Some(0.0), ..IDLE }.load(), Some(OfferedLoad::Percent(1.0)));
        assert_eq!(Seen { busy: None, ..IDLE }.load(), None);
    }

    #[test]
    fn the_time_of_other_programs_is_no_load_of_these_with_napi_threads_too() {
        let busy = |foreign_cpu, flag: Option<SliceFlag>| {
            let slice = SliceObservation { foreign_cpu, flags: flag.into_iter().collect(), ..Default::default() };
            busy_of_programs(&slice.with_metric(figures::BUSY, Some(0.8)))
        };
        assert_eq!(busy(Some(0.1), None), Some(0.8));
        assert_eq!(busy(Some(0.7), None), None, "with NAPI threads");
        assert_eq!(busy(Some(0.0), Some(SliceFlag::ForeignCpu)), None, "without");
    }

    #[test]
    fn the_ranking_names_queues_that_are_mixed_and_a_load_that_is_unknown() {
        let mixed = Seen { mixed_epolls: 2, helpful_placement: " --steer --pin", ..IDLE }.to_string();
        assert!(mixed.contains("2 epolls have connections of several queues"), "{mixed}");
        assert!(mixed.contains("--steer --pin"), "{mixed}");
        let foreign = Seen { busy: None, packets_per_s: Some(5.0), ..IDLE }.to_string();
        assert!(foreign.contains("the load could not be derived from this busy host"), "{foreign}");
        assert!(foreign.ends_with("--loads sets it\n"), "{foreign}");
    }

    #[test]
    fn what_base_leaves_set_is_base() {
        let threaded = "threaded".parse().ok();
        let seen = Seen { present: threaded, base_is: threaded, ..IDLE };
        assert_eq!(seen.reference(), Some(DeliveryMode::default()));
        let suspend = Seen { present: "suspend20".parse().ok(), base_is: threaded, ..IDLE };
        assert_eq!(suspend.reference(), suspend.present);
    }

    #[test]
    fn what_is_unknown_is_not_a_number() {
        let text = Seen { packets_per_s: None, ..IDLE }.to_string();
        assert!(
            text.contains("2 queues") && text.contains("no load was seen") && !text.contains("packets/s"),
            "{text}"
        );
    }
}
