//! `quell tune --advise`: ranks all modes by the model alone.

use quell_host::attach::Targets;
use quell_tune::TunePlan;

use super::args::TuneArgs;
use super::seen::{self, Seen};
use crate::commands::subject::asked;
use crate::commands::subject::{ModelDefault, Place};
use crate::exit::Failure;
use crate::output;
use crate::render::tune as render;

/// Ranks all modes, with the queues, connections and load of programs if there are any.
pub(super) fn advise(args: &TuneArgs, targets: Option<&Targets>) -> Result<(), Failure> {
    let seen = targets.map(seen::see).transpose()?;
    let seen_load = seen.as_ref().and_then(Seen::load).map(|load| vec![load]);
    let default = ModelDefault {
        queues: seen.as_ref().map(|seen| seen.queues),
        connections: seen.as_ref().map(|seen| seen.connections),
        loads: seen_load.unwrap_or_else(|| super::loads(args, Place::Sim)),
    };
    let spec = args.subject.of_model(default)?;
    let plan = TunePlan {
        loads: spec.loads.iter().map(ToString::to_string).collect(),
        present: seen.as_ref().and_then(|seen| seen.present).unwrap_or_default(),
        ..super::plan(args, Place::Sim)?
    };
    let ranked = spec.rank(&plan).map_err(asked::failure)?;
    if args.subject.json {
        return output::json(&ranked);
    }
    let seen = seen.map(|seen| seen.to_string()).unwrap_or_default();
    output::data(&(seen + &render::advice(&spec.setup.host.name, &plan, &ranked, &args.subject.programs_text())))
}
