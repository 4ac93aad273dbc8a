//! Modes compared in a guest of the vm lab: what its kernel's interrupts do under each, and whether that is as it has
//! to be. Nothing is timed there, so it is a table of its own.

use std::time::Duration;

use quell_bench::vm::interrupts::InterruptResult;
use quell_bench::vm::{self, Request, VmLabError};
use quell_linux::signal::Interruption;
use quell_mode::DeliveryMode;
use quell_vm::machine::Machine;

use super::args::BenchArgs;
use super::measure_ms;
use crate::commands::vm::{of_machine, stored_kernel};
use crate::exit::{Exit, Failure};
use crate::render::interrupt_table;
use crate::{file, output};

/// The three ways of delivery: what deferral saves and costs, and what suspension saves.
const MODES: &str = "base,defer20,suspend20";
/// What a guest takes beside its trials, at most: an emulated machine on a busy host is slow.
const OVERHEAD: Duration = Duration::from_secs(120);
/// How much slower than its clock says a trial may pass for its host.
const SLOWNESS: u32 = 4;

/// Counts, prints the table, and says what did not hold.
pub(super) fn run(args: &BenchArgs) -> Result<(), Failure> {
    if let Some(option) = args.meaningless_in_a_guest().first() {
        return Err(Failure::usage(format!(
            "{option} means nothing with --on vm, where interrupts are counted and nothing is timed"
        )));
    }
    if let Some(file) = &args.output {
        file::check_writable(file, "the result")?;
    }
    let result = count(args)?;
    if let Some(file) = &args.output {
        file::write_json(file, "the result", &result)?;
    }
    match args.json {
        true => output::json(&result)?,
        false => output::data(&interrupt_table::render(&result))?,
    }
    let broken: Vec<String> =
        result.checks().iter().filter(|check| !check.holds).map(|check| check.claim.clone()).collect();
    match broken.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(Exit::VerifyFailed, format!("it does not hold here that {}", broken.join("; ")))),
    }
}

fn count(args: &BenchArgs) -> Result<InterruptResult, Failure> {
    let request = request(args)?;
    let limit = OVERHEAD + SLOWNESS * request.measured();
    let kernel = stored_kernel(args.kernel.as_ref())?;
    let machine = Machine { kernel, nic: args.nic.unwrap_or_default().into(), cpus: request.cpus(), limit };
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag = interruption.flag();
    output::say(&format!(
        "Linux {} in a guest, about {} s ...",
        machine.kernel.origin.version,
        (Duration::from_secs(15) + request.measured()).as_secs()
    ));
    vm::count(&machine, &request, &|| flag.get().is_some()).map_err(|error| match error {
        VmLabError::Machine(error) => of_machine(&error),
        error => Failure::new(Exit::RolledBack, error),
    })
}

fn request(args: &BenchArgs) -> Result<Request, Failure> {
    let modes = DeliveryMode::parse_list(args.modes.as_deref().unwrap_or(MODES))
        .map_err(|error| Failure::usage(format!("{error}\n\n{}", error.caret())))?;
    let request = Request::new(modes, args.repeats);
    match args.seconds {
        None => Ok(request),
        Some(seconds) => Ok(Request { measure_ms: measure_ms(Some(seconds), super::extent(args))?, ..request }),
    }
}
