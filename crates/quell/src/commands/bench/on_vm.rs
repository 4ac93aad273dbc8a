//! Modes compared in a guest of the vm lab: what its kernel's interrupts do under each, and whether that is as it has
//! to be. Nothing is timed there, so it is a table of its own.

use std::time::Duration;

use quell_bench::facts::Check;
use quell_bench::vm::interrupts::InterruptResult;
use quell_bench::vm::{self, Request, Seen, VmLabError};
use quell_linux::signal::Interruption;
use quell_mode::DeliveryMode;
use quell_vm::KernelName;
use quell_vm::machine::{Emulator, Machine};

use super::args::BenchArgs;
use crate::commands::vm::{of_machine, stored_kernel};
use crate::exit::{Exit, Failure};
use crate::file::Destination;
use crate::output;
use crate::render::interrupt_table;
use crate::render::progress::Progress;

/// The three ways of delivery: what deferral saves and costs, and what suspension saves.
const MODES: &str = "base,defer20,suspend20";
/// How long a guest boots on a quiet host, and raises the lab.
const BOOT: Duration = Duration::from_secs(6);
/// What a guest takes beside its trials, at most: an emulated machine on a busy host is slow.
const OVERHEAD: Duration = Duration::from_secs(120);
/// How much slower than its clock says a trial may pass for its host.
const SLOWNESS: u32 = 4;

/// What a guest can tell a user whose machine cannot run the lab, and what it takes here.
pub(super) fn offer() -> String {
    let newest = stored_kernel(None).ok().map(|kernel| kernel.origin.name);
    offer_with(newest.as_ref(), Emulator::find().is_ok())
}

fn offer_with(newest: Option<&KernelName>, emulator: bool) -> String {
    let kernel = newest.map_or_else(|| "a newer kernel".to_owned(), |name| format!("Linux {name}"));
    let get = if newest.is_none() { "; `quell vm get` fetches it" } else { "" };
    let install = if emulator { "" } else { "; it takes QEMU (Debian: qemu-system-x86)" };
    format!("quell bench --on vm counts the interrupts of {kernel} in a guest here, without root{get}{install}.")
}

/// Counts, prints the table, and says what did not hold.
pub(super) fn run(args: &BenchArgs) -> Result<(), Failure> {
    if let Some(option) = args.meaningless_in_a_guest().first() {
        return Err(Failure::usage(format!(
            "{option} means nothing with --on vm, where interrupts are counted and nothing is timed"
        )));
    }
    let destination = args.output.clone().map(|file| Destination::named(file, "the result"));
    destination.iter().try_for_each(Destination::check_writable)?;
    let result = count(args)?;
    destination.iter().try_for_each(|destination| destination.write_json(&result))?;
    show(&result, args.json)?;
    verdict(&result)
}

/// Prints a result.
pub(super) fn show(result: &InterruptResult, json: bool) -> Result<(), Failure> {
    if json { output::json(result) } else { output::data(&interrupt_table::render(result)) }
}

/// What has to hold and does not is a failure.
fn verdict(result: &InterruptResult) -> Result<(), Failure> {
    let checks = result.checks();
    let broken: Vec<String> = checks.iter().filter(|check| !check.holds).map(Check::violation).collect();
    if broken.is_empty() {
        return Ok(());
    }
    let host = if result.starved_by().is_some() { "; this host kept the emulator waiting, so try again" } else { "" };
    Err(Failure::new(Exit::VerifyFailed, format!("check failed; {}{host}", broken.join("; "))))
}

fn count(args: &BenchArgs) -> Result<InterruptResult, Failure> {
    let request = request(args)?;
    let limit = OVERHEAD + SLOWNESS * request.measured_at_most();
    let kernel = stored_kernel(args.kernel.as_ref())?;
    let emulator = Emulator::find().map_err(|error| of_machine(&error))?;
    let machine = Machine { emulator, kernel, nic: args.nic.unwrap_or_default().into(), cpus: request.cpus(), limit };
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag = interruption.flag();
    output::say(&format!(
        "Linux {} in a guest, about {} s ...",
        machine.kernel.origin.version,
        (BOOT + request.measured()).as_secs()
    ));
    let progress = Progress::new();
    progress.doing("the guest boots");
    let total = request.modes.len() * request.repeats as usize;
    let mut done = 0;
    let mut watch = |seen: &Seen| match seen {
        Seen::Begins { mode } => progress.step(done, total.max(done + 1), mode),
        Seen::Ends(_) => done += 1,
        Seen::Up(_) | Seen::Refused { .. } => {}
    };
    let counted = vm::count(&machine, &request, &mut watch, &|| flag.get().is_some());
    progress.finish();
    counted.map_err(|error| match error {
        VmLabError::Machine(error) => of_machine(&error),
        error => Failure::new(Exit::RolledBack, error),
    })
}

fn request(args: &BenchArgs) -> Result<Request, Failure> {
    let modes = DeliveryMode::parse_list(args.modes.as_deref().unwrap_or(MODES))
        .map_err(|error| Failure::usage(format!("{error}\n\n{}", error.caret())))?;
    let request = Request { retries: args.retries, ..Request::new(modes, args.repeats) };
    match args.seconds {
        None => Ok(request),
        Some(seconds) => Ok(Request { measure_ms: measure_ms(seconds)?, ..request }),
    }
}

fn measure_ms(seconds: f64) -> Result<u32, Failure> {
    if !(0.05..=3_600.0).contains(&seconds) {
        return Err(Failure::usage(format!("--seconds {seconds}: a trial is measured for 0.05 to 3600 seconds")));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok((seconds * 1e3) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_offered_with_what_it_still_takes() {
        let kernel = "7.3".parse().unwrap();
        assert_eq!(
            offer_with(Some(&kernel), true),
            "quell bench --on vm counts the interrupts of Linux 7.3 in a guest here, without root."
        );
        let nothing = offer_with(None, false);
        assert!(nothing.contains("`quell vm get` fetches it") && nothing.contains("it takes QEMU"), "{nothing}");
    }
}
