//! `quell bench`: reads the options into a plan, runs it on the lab or on the model, writes the result file, prints the
//! table and what follows from it.

mod args;
mod on_sim;
mod on_veth;
mod on_vm;

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quell_bench::plan::{Extent, Plan};
use quell_bench::result::{BenchResult, SCHEMA};
use quell_bench::run::BenchError;
use quell_bench::vm::interrupts::{self, InterruptResult};
use quell_linux::visible;
use quell_mode::DeliveryMode;

use args::Where;
use on_veth::NotRun;

pub(crate) use args::BenchArgs;

use crate::exit::{Exit, Failure};
use crate::file::{self, Destination};
use crate::output;
use crate::render::{bench_chart, bench_table, findings};

/// Runs the command.
///
/// # Errors
/// With the exit code of what went wrong.
pub(crate) fn bench(args: &BenchArgs) -> Result<(), Failure> {
    if args.schema {
        let in_a_guest = args.on == Some(Where::Vm);
        let schema = if in_a_guest { InterruptResult::json_schema() } else { BenchResult::json_schema() };
        return output::json(&schema);
    }
    if let Some(file) = &args.show {
        return show_file(file, if args.svg { Form::Svg } else { Form::of(args.json) });
    }
    if args.on == Some(Where::Vm) {
        return on_vm::run(args);
    }
    let plan = plan(args)?;
    let destination = match &args.output {
        Some(file) => Destination::named(file.clone(), "the result"),
        None => Destination::by_default(format!("quell-bench-{}.json", unix_time().as_secs()).into(), "the result"),
    };
    destination.check_writable()?;
    let result = match args.on {
        Some(Where::Sim) => on_sim::run(args, plan)?,
        Some(Where::Veth) => on_veth::run(args, plan).map_err(on_veth::failure)?,
        None | Some(Where::Vm) => wherever_possible(args, plan)?,
    };
    // Whichever of the two fails, the other still has what took minutes to measure.
    let written = destination.write_json(&result);
    show(&result, Form::of(args.json))?;
    written?;
    let file = destination.path();
    let again = shell_words::quote(&file.to_string_lossy()).into_owned();
    output::say(&format!("\nresult file: {} (print it again: quell bench --show {again})", visible::path(file)));
    if result.interrupted {
        return Err(Failure::new(Exit::Interrupted, "interrupted: the table holds what was measured until then"));
    }
    Ok(())
}

/// On the lab, or, where this machine cannot run it and nothing asks for it, on the model. A guest is offered and not
/// started: it counts interrupts, and the question was which mode wins.
fn wherever_possible(args: &BenchArgs, plan: Plan) -> Result<BenchResult, Failure> {
    let why = match on_veth::run(args, plan.clone()) {
        Ok(result) => return Ok(result),
        Err(NotRun::Bench(BenchError::NotPossibleHere(missing))) if !args.asks_for_a_lab() => {
            on_veth::not_possible(&missing)
        }
        Err(NotRun::Bench(BenchError::Cpus(error))) if !args.asks_for_a_lab() => error.to_string(),
        Err(error) => return Err(on_veth::failure(error)),
    };
    output::say(&format!(
        "{why}\n\n{}\n\nThe model answers now, for another machine than this one (quell bench --on veth insists on the \
         lab):\n",
        on_vm::offer()
    ));
    on_sim::run(args, plan)
}

fn plan(args: &BenchArgs) -> Result<Plan, Failure> {
    let extent = extent(args);
    let modes = args.modes.clone().unwrap_or_else(|| extent.modes().join(","));
    let modes =
        DeliveryMode::parse_list(&modes).map_err(|error| Failure::usage(format!("{error}\n\n{}", error.caret())))?;
    let loads = args.loads.clone().unwrap_or_else(|| extent.loads());
    let seed = args.seed.unwrap_or_else(seed_from_the_clock);
    let mut plan = Plan::new(modes, loads, args.repeats, seed).map_err(Failure::usage)?;
    plan.measure_ms = measure_ms(args.seconds, extent)?;
    plan.retries = args.retries;
    Ok(plan)
}

fn extent(args: &BenchArgs) -> Extent {
    match (args.quick, args.full) {
        (true, _) => Extent::Quick,
        (_, true) => Extent::Full,
        _ => Extent::Standard,
    }
}

fn measure_ms(seconds: Option<f64>, extent: Extent) -> Result<u32, Failure> {
    let Some(seconds) = seconds else { return Ok(extent.measure_ms()) };
    if !(0.05..=3_600.0).contains(&seconds) {
        return Err(Failure::usage(format!("--seconds {seconds}: a trial is measured for 0.05 to 3600 seconds")));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok((seconds * 1e3) as u32)
}

fn seed_from_the_clock() -> u64 {
    // Short enough to be typed again.
    unix_time().as_millis() as u64 % 1_000_000
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Prints what a file holds: a result of a lab or the model, or of the vm lab.
fn show_file(file: &Path, form: Form) -> Result<(), Failure> {
    let place = visible::path(file);
    let text = file::read_json(file)?;
    let schema: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| Failure::usage(format!("{place} is no JSON: {error}")))?;
    let no_result = |error| Failure::usage(format!("{place} is no result of a bench run: {error}"));
    match schema.get("schema").and_then(|schema| schema.as_str()) {
        Some(SCHEMA) => show(&serde_json::from_str(&text).map_err(no_result)?, form),
        Some(interrupts::SCHEMA) if form == Form::Svg => Err(Failure::usage(format!(
            "{place} is a result of the vm lab, which times nothing: there is no latency to draw"
        ))),
        Some(interrupts::SCHEMA) => on_vm::show(&serde_json::from_str(&text).map_err(no_result)?, form == Form::Json),
        other => {
            let found = other.map_or_else(|| "no schema".to_owned(), |other| format!("the schema {other:?}"));
            let known = format!("{SCHEMA:?} and {:?}", interrupts::SCHEMA);
            Err(Failure::usage(format!("{place} has {found}, and this version reads {known}")))
        }
    }
}

fn show(result: &BenchResult, form: Form) -> Result<(), Failure> {
    match form {
        Form::Json => output::json(result),
        Form::Svg => {
            let no_latency =
                || Failure::usage("the result has no latency under an open load, so there is nothing to draw");
            output::data(&bench_chart::render(result).ok_or_else(no_latency)?)
        }
        Form::Table => {
            output::data(&format!("{}\n{}", bench_table::render(result), findings::render(&result.findings())))
        }
    }
}

/// The form in which a result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Table,
    Json,
    Svg,
}

impl Form {
    fn of(json: bool) -> Self {
        if json { Self::Json } else { Self::Table }
    }
}
