//! Compares modes in a guest of the vm lab by their interrupts, and checks that the counts are plausible. No times are
//! measured.

use std::time::Duration;

use quell_linux::signal::Interruption;
use quell_linux::visible;
use quell_result::experiment::ExperimentResult;
use quell_result::facts::Check;
use quell_result::guest_checks as checks;
use quell_subject::vm::{self, GuestEvent, GuestRequest, VmLabError};
use quell_vm::KernelName;
use quell_vm::machine::{Emulator, Machine};

use super::args::BenchArgs;
use crate::commands::vm::{of_machine, stored_kernel};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::render::progress::Progress;

/// Default modes: interrupts, deferral and suspension.
const MODES: [&str; 3] = ["base", "defer20", "suspend20"];
/// Default duration of the experiment, measured by the guest's clock.
const BUDGET: Duration = Duration::from_secs(60);
/// Time limit for everything except the slices, such as booting. Emulation on a busy host is slow.
const OVERHEAD: Duration = Duration::from_secs(120);
/// Maximum ratio of host time to guest time, because the guest's clock can be slower than the host's.
const SLOWNESS: u32 = 4;

/// Time limit of a guest for slices that take this long by the guest's clock.
pub(in crate::commands) fn time_limit(budget: Duration) -> Duration {
    OVERHEAD.saturating_add(budget.saturating_mul(SLOWNESS))
}

/// The failure of a task in a guest, with its exit code.
pub(in crate::commands) fn failure(error: VmLabError) -> Failure {
    match error {
        VmLabError::Machine(error) => of_machine(&error),
        error => Failure::new(Exit::RolledBack, error),
    }
}

/// Describes what `quell bench --on vm` offers on a machine without lab, and which of its requirements are missing.
pub(super) fn offer() -> String {
    let newest = stored_kernel(None).ok().map(|kernel| kernel.origin.name);
    offer_with(newest.as_ref(), Emulator::find().is_ok())
}

fn offer_with(newest: Option<&KernelName>, emulator: bool) -> String {
    let kernel = newest.map_or_else(|| "a newer kernel".to_owned(), |name| format!("Linux {name}"));
    let get = if newest.is_none() { "; `quell vm get` fetches it" } else { "" };
    let install = if emulator { "" } else { "; it needs QEMU (Debian: qemu-system-x86)" };
    format!(
        "quell bench --on vm can count the interrupts of {kernel} in a guest on this machine, without root{get}{install}."
    )
}

/// Runs the experiment in a guest.
pub(super) fn run(args: &BenchArgs) -> Result<ExperimentResult, Failure> {
    if let Some(option) = args.meaningless_in_a_guest().first() {
        return Err(Failure::usage(format!(
            "{option} cannot be used with --on vm, which counts interrupts and measures no times"
        )));
    }
    let timing = super::timing(args, BUDGET, super::Slices::Emulated);
    let request = GuestRequest { modes: super::modes(args, &MODES)?, timing };
    request.check().map_err(Failure::usage)?;
    let limit = time_limit(request.budget());
    let kernel = stored_kernel(args.kernel.as_ref())?;
    let emulator = Emulator::find().map_err(|error| of_machine(&error))?;
    let machine =
        Machine { emulator, kernel, nic: args.nic.unwrap_or_default().into(), cpus: vm::cpus(&request.modes), limit };
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag = interruption.flag();
    output::say(&format!(
        "Linux {} in a guest, at most {} s ...",
        machine.kernel.origin.version,
        request.budget().as_secs()
    ));
    let progress = Progress::new();
    progress.doing("the guest boots");
    let mut watch = |event: &GuestEvent| match event {
        GuestEvent::SliceBegins { block, mode, spent, .. } => {
            super::show_slice(&progress, "", *spent, *block, mode);
        }
        GuestEvent::Dropped { mode, reason } => {
            progress.say(&format!("{} is left out: {}", visible::name(mode), visible::name(reason)));
        }
        GuestEvent::Up(_) | GuestEvent::SliceEnds(_) | GuestEvent::Ended(_) => {}
        GuestEvent::SearchSliceBegins(_) | GuestEvent::Searched(_) => {}
    };
    let result = vm::run_guest(&machine, &request, &mut watch, &|| flag.get().is_some());
    progress.finish();
    result.map_err(failure)
}

/// Fails if a check of the counts fails.
pub(super) fn verdict(result: &ExperimentResult) -> Result<(), Failure> {
    let checked = result.experiments.iter().flat_map(checks::checks);
    let broken: Vec<String> = checked.filter(|check| !check.holds).map(|check| Check::violation(&check)).collect();
    if broken.is_empty() {
        return Ok(());
    }
    let is_starved = result.experiments.iter().any(|experiment| checks::starved_by(experiment).is_some());
    let host = if is_starved { "; the emulator waited too long for CPUs of this host, so try again" } else { "" };
    Err(Failure::new(Exit::VerifyFailed, format!("check failed; {}{host}", broken.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offer_of_a_guest_lists_its_missing_requirements() {
        let kernel = "7.3".parse().unwrap();
        assert_eq!(
            offer_with(Some(&kernel), true),
            "quell bench --on vm can count the interrupts of Linux 7.3 in a guest on this machine, without root."
        );
        let nothing = offer_with(None, false);
        assert!(nothing.contains("`quell vm get` fetches it") && nothing.contains("it needs QEMU"), "{nothing}");
    }
}
