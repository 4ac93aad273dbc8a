//! `quell bench`: reads the options into a request, runs it with progress, writes the result file, prints the table and
//! what follows from it.

mod args;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quell_bench::plan::{Extent, Plan};
use quell_bench::requirements::Missing;
use quell_bench::result::{BenchResult, SCHEMA};
use quell_bench::run::{BenchError, Event, Request, run};
use quell_bench::server::{ServerCommand, ServerError};
use quell_host::recovery::Found;
use quell_linux::signal::Interruption;
use quell_mode::DeliveryMode;

pub(crate) use args::BenchArgs;

use super::lab::journal;
use crate::exit::{Exit, Failure};
use crate::render::progress::Progress;
use crate::render::{bench_table, findings};
use crate::{file, output};

/// Runs the command.
///
/// # Errors
/// With the exit code of what went wrong.
pub(crate) fn bench(args: &BenchArgs) -> Result<(), Failure> {
    if args.schema {
        return output::json(&BenchResult::json_schema());
    }
    if let Some(file) = &args.show {
        return show(&read(file)?, args.json);
    }
    let request = request(args)?;
    let file =
        args.output.clone().unwrap_or_else(|| PathBuf::from(format!("quell-bench-{}.json", unix_time().as_secs())));
    file::check_writable(&file, "the result")?;
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let stop = interruption.flag();
    let progress = Progress::new();
    progress.doing("setting up the lab");
    let plan = request.plan.clone();
    let outcome = run(&request, &journal(), &mut |event| tell(&progress, &plan, event), &|| stop.get().is_some());
    progress.finish();
    let result = outcome.map_err(failure)?;
    // Whichever of the two fails, the other still has what took minutes to measure.
    let written = file::write_json(&file, "the result", &result);
    show(&result, args.json)?;
    written?;
    output::say(&format!("\nresult file: {} (print it again: quell bench --show {0})", file.display()));
    if result.interrupted {
        return Err(Failure::new(Exit::Interrupted, "interrupted: the table holds what was measured until then"));
    }
    Ok(())
}

fn request(args: &BenchArgs) -> Result<Request, Failure> {
    let extent = match (args.quick, args.full) {
        (true, _) => Extent::Quick,
        (_, true) => Extent::Full,
        _ => Extent::Standard,
    };
    let modes = args.modes.clone().unwrap_or_else(|| extent.modes().join(","));
    let modes =
        DeliveryMode::parse_list(&modes).map_err(|error| Failure::usage(format!("{error}\n\n{}", error.caret())))?;
    let loads = args.loads.clone().unwrap_or_else(|| extent.loads());
    let seed = args.seed.unwrap_or_else(seed_from_the_clock);
    let mut plan = Plan::new(modes, loads, args.repeats, seed).map_err(Failure::usage)?;
    plan.measure_ms = measure_ms(args.seconds, extent)?;
    plan.retries = args.retries;
    Ok(Request {
        plan,
        server: server(args)?,
        queues: args.queues,
        generators: args.generators,
        connections: args.connections,
        interrupt_stand_in: !args.no_interrupt_stand_in,
        insist: args.insist,
    })
}

fn measure_ms(seconds: Option<f64>, extent: Extent) -> Result<u32, Failure> {
    let Some(seconds) = seconds else { return Ok(extent.measure_ms()) };
    if !(0.05..=3_600.0).contains(&seconds) {
        return Err(Failure::usage(format!("--seconds {seconds}: a trial is measured for 0.05 to 3600 seconds")));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok((seconds * 1e3) as u32)
}

fn server(args: &BenchArgs) -> Result<ServerCommand, Failure> {
    let Some(command) = &args.server else { return Ok(ServerCommand::Memcached { program: "memcached".into() }) };
    let words = shell_words::split(command)
        .map_err(|error| Failure::usage(format!("--server {command:?}: {error}; quote it as for a shell")))?;
    if words.is_empty() {
        return Err(Failure::usage("--server: write a program and its arguments"));
    }
    Ok(ServerCommand::Other(words))
}

fn seed_from_the_clock() -> u64 {
    // Short enough to be typed again.
    unix_time().as_millis() as u64 % 1_000_000
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn tell(progress: &Progress, plan: &Plan, event: Event<'_>) {
    match event {
        Event::Recovered(found) => found.iter().for_each(|found| tell_of_journal(progress, found)),
        Event::LabIsUp(_) => progress.doing("the lab is up, measuring"),
        Event::Refused { label, reason } => progress.say(&format!("{label} cannot be set here: {reason}")),
        Event::TrialBegins { done, total, id } => {
            let what = format!("{} at {}", plan.modes[id.mode].label, plan.loads[id.load]);
            progress.step(done, total, &what);
        }
        Event::TrialEnds { trial, again } if again => {
            let label = &plan.modes[trial.id.mode].label;
            let why: Vec<String> = trial.disturbances.iter().map(bench_table::disturbance).collect();
            progress.say(&format!("{label}: disturbed ({}), measured again", why.join(", ")));
        }
        Event::TrialEnds { .. } => {}
        Event::TakenDown(Ok(reverted)) => reverted.failed.iter().for_each(|(_, error)| {
            progress.say(&format!("left behind (`quell lab clean` tries again): {error}"));
        }),
        Event::TakenDown(Err(error)) => progress.say(&error.to_string()),
    }
}

fn tell_of_journal(progress: &Progress, found: &Found) {
    match found {
        Found::Running { path, .. } => {
            progress.say(&format!("another lab is running ({}): the two disturb each other's figures", path.display()))
        }
        // Settings of this host, which no lab shares.
        Found::Kept { .. } => {}
        Found::Recovered { path, reverted } => {
            progress.say(&format!(
                "removed what a killed run left behind ({} things, {})",
                reverted.undone.len(),
                path.display()
            ));
            for (_, error) in &reverted.failed {
                progress.say(&format!("  not removed: {error}"));
            }
        }
        Found::Unusable(unusable) => progress.say(&unusable.to_string()),
        Found::Failed(error) => progress.say(&error.to_string()),
    }
}

fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::NotPossibleHere(missing) => Failure::new(Exit::NotSupported, not_possible(&missing)),
        BenchError::Cpus(error) => Failure::new(Exit::NotSupported, error),
        BenchError::NoModeLeft(_) => Failure::new(Exit::NotSupported, error),
        BenchError::Check(_) => Failure::new(
            Exit::VerifyFailed,
            format!("the lab is not what it should be: {error}. --insist measures all the same and says so"),
        ),
        BenchError::Interrupted | BenchError::Server(ServerError::Interrupted) => {
            Failure::new(Exit::Interrupted, error)
        }
        BenchError::Lab(_) | BenchError::Set { .. } | BenchError::Change(_) => Failure::new(Exit::KernelRefused, error),
        _ => Failure::new(Exit::RolledBack, format!("{error}; the lab has been taken down")),
    }
}

fn not_possible(missing: &[Missing]) -> String {
    let mut text = String::from("this machine cannot run the lab. What is missing:");
    for Missing { what, seen, mend } in missing {
        text.push_str(&format!("\n  {what}\n    seen: {seen}\n    to mend it: {mend}"));
    }
    text
}

fn read(file: &Path) -> Result<BenchResult, Failure> {
    let place = file.display();
    let text = file::read(file)?;
    let schema: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| Failure::usage(format!("{place} is no JSON: {error}")))?;
    match schema.get("schema").and_then(|schema| schema.as_str()) {
        Some(SCHEMA) => {}
        other => {
            let found = other.map_or_else(|| "no schema".to_owned(), |other| format!("the schema {other:?}"));
            return Err(Failure::usage(format!("{place} has {found}, and this version reads {SCHEMA:?}")));
        }
    }
    serde_json::from_str(&text).map_err(|error| Failure::usage(format!("{place} is no result of a bench run: {error}")))
}

fn show(result: &BenchResult, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(result);
    }
    output::data(&format!("{}\n{}", bench_table::render(result), findings::render(&result.findings())))
}
