//! Searches on the model of a host, in virtual time.

use std::time::Duration;

use quell_linux::signal::Interruption;
use quell_linux::visible::{self, counted};
use quell_load::OfferedLoad;
use quell_result::experiment::SubjectFacts;
use quell_result::facts::ModelFacts;
use quell_sim::Load;
use quell_sim::sweep::Setup;
use quell_subject::experiment::model::{Model, base_reaches};
use quell_subject::question::{Searched, metrics};
use quell_tune::{ModelPrior, TunePlan, TuneResult, TuneSpace, tune};

use super::args::TuneArgs;
use super::seen::Seen;
use super::{check, watch};
use crate::commands::sim;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::render::progress::Progress;
use crate::render::tune as render;

const LOADS: [OfferedLoad; 3] = [OfferedLoad::Percent(25.0), OfferedLoad::Percent(50.0), OfferedLoad::Percent(90.0)];
const BUDGET: Duration = Duration::from_secs(180);
const SLICE_MS: u32 = 100;
/// A simulated run starts idle, so it needs longer than a server that is switched.
const SETTLE_MS: u32 = 150;

/// Ranks all modes by the model, with the queues, connections and load of programs if there are any.
pub(super) fn advise(args: &TuneArgs, seen: Option<&Seen>) -> Result<(), Failure> {
    Request::new(args, seen)?.advise(seen, args.json)
}

/// Searches on the model. Returns `None` after a dry run.
pub(super) fn run(args: &TuneArgs) -> Result<Option<Searched>, Failure> {
    let request = Request::new(args, None)?;
    if args.dry_run {
        return output::data(&request.plan_text()).map(|()| None);
    }
    output::say(request.plan_text().trim_end());
    let subject = SubjectFacts::Model(request.model());
    let not_a_measurement = Some(format!("simulated on the model of {}", request.setup.host.name));
    Ok(Some(Searched { subject, result: request.tune()?, not_a_measurement, left_alone: Vec::new() }))
}

/// A search on the model that was checked.
struct Request {
    setup: Setup,
    loads: Vec<Load>,
    plan: TunePlan,
}

impl Request {
    /// Checks the options, and measures on the model which rate `base` reaches if a load is a percentage of it.
    fn new(args: &TuneArgs, seen: Option<&Seen>) -> Result<Self, Failure> {
        let mut setup = Setup::new(sim::profile(args.host.as_deref().unwrap_or(sim::DEFAULT_HOST))?);
        if let Some(queues) = args.queues.or(seen.map(|seen| seen.queues)) {
            setup = setup.with_queues(sim::queues(queues)?);
        }
        if let Some(connections) = args.connections.or(seen.map(|seen| seen.connections)) {
            setup.connections = connections as usize;
        }
        sim::check_connections(&setup)?;
        let seen_load = || seen.and_then(Seen::load).map(|load| vec![load]);
        let offered = args.loads.clone().or_else(seen_load).unwrap_or_else(|| LOADS.to_vec());
        let present = seen.and_then(|seen| seen.present).unwrap_or_default();
        let names = offered.iter().map(ToString::to_string).collect();
        let plan = TunePlan { present, ..super::plan(args, names, SLICE_MS, SETTLE_MS, BUDGET) };
        metrics::of_model().check(&plan).map_err(Failure::usage)?;
        if !args.advise {
            check(&plan)?;
        }
        let ns = |ms: u32| u64::from(ms) * 1_000_000;
        let setup = Setup { measured_ns: ns(plan.slice_ms), warm_up_ns: ns(plan.settle_ms), ..setup };
        let reaches_per_s = match offered.iter().any(|load| matches!(load, OfferedLoad::Percent(_))) {
            true => base_reaches(&setup, plan.seed).map_err(|error| Failure::new(Exit::NotSupported, error))?,
            false => 0.0,
        };
        let loads = offered.iter().map(|load| load.rate_per_s(reaches_per_s).map_or(Load::Max, Load::Qps)).collect();
        Ok(Self { setup, loads, plan })
    }

    /// Describes the model.
    fn model(&self) -> ModelFacts {
        ModelFacts::of(&self.setup)
    }

    /// Says what the search would do.
    fn plan_text(&self) -> String {
        let host = visible::name(&self.setup.host.name).into_owned();
        let Setup { queues, connections, .. } = self.setup;
        format!(
            "searches on the model of {host}, {}, {}; this host is not changed\n{}",
            counted(queues, "queue"),
            counted(connections, "connection"),
            render::plan(&self.plan, " of virtual time")
        )
    }

    /// Ranks all modes by the model.
    fn advise(self, seen: Option<&Seen>, json: bool) -> Result<(), Failure> {
        let host = self.setup.host.name.clone();
        let (seed, present) = (self.plan.seed, self.plan.present);
        let prior = ModelPrior { setup: self.setup, loads: self.loads, present, seed };
        let mut modes = TuneSpace::default().all();
        if !modes.contains(&present) {
            modes.push(present);
        }
        let ranked = prior.rank(&self.plan.goal, &modes, sim::threads());
        let ranked = ranked.map_err(|error| Failure::new(Exit::NotSupported, error))?;
        let seen = seen.map(ToString::to_string).unwrap_or_default();
        if json { output::json(&ranked) } else { output::data(&(seen + &render::advice(&host, &self.plan, &ranked))) }
    }

    /// Runs the search.
    fn tune(self) -> Result<TuneResult, Failure> {
        let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
        let flag = interruption.flag();
        let mut subject = Model::new(self.setup, self.loads, self.plan.seed);
        let progress = Progress::new();
        let finished = tune(&mut subject, self.plan, &mut watch(&progress, &|| flag.get().is_some()));
        progress.finish();
        let finished = finished.map_err(Failure::usage)?;
        finished.restored.map_err(|error| Failure::new(Exit::KernelRefused, error))?;
        Ok(finished.result)
    }
}
