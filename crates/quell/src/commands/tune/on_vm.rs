//! Searches on a server in a guest, whose kernel and NIC are chosen. This shows that a search works there. Its answer
//! holds for no real machine, because emulation distorts times.

use std::time::Duration;

use quell_linux::signal::Interruption;
use quell_linux::visible;
use quell_mode::DeliveryMode;
use quell_result::facts::HostFacts;
use quell_subject::question::{Searched, guarded_run_max, metrics};
use quell_subject::vm::{self, GuestSearch};
use quell_tune::{ArmState, TuneGoal, TuneMetric, TunePlan, TuneResult};
use quell_vm::machine::{Emulator, Machine};

use super::args::TuneArgs;
use super::{check, show_progress};
use crate::commands::bench::on_vm;
use crate::commands::vm::{of_machine, stored_kernel};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::render::progress::Progress;
use crate::render::tune as render;

/// Modes that are tried: values of each kind that two virtual CPUs can run and that needs no restart of the server. The
/// grid would take too long under emulation.
const ARMS: [&str; 6] = ["defer20", "defer160", "suspend20", "suspend160", "napibusy", "fullbusy"];
/// Name of the load in the result.
const LOAD: &str = "max";
/// Default duration of all slices, measured by the guest's clock.
const BUDGET: Duration = Duration::from_secs(90);
/// Default duration of a slice, in ms, with some 1,000 requests. On a host with other work there are fewer.
const SLICE_MS: u32 = 500;
const LATENCY_SLICE_MS: u32 = 1_000;
const SETTLE_MS: u32 = 200;

/// Searches in a guest. Returns the search and the guest. Returns `None` after a dry run.
pub(super) fn run(args: &TuneArgs) -> Result<Option<(Searched, HostFacts)>, Failure> {
    let plan = plan(args)?;
    guarded_run_max(&plan).map_err(Failure::usage)?;
    check(&plan)?;
    metrics::of_generator().check(&plan).map_err(Failure::usage)?;
    let kernel = stored_kernel(args.kernel.as_ref())?;
    let text = format!(
        "searches on a server in a guest with Linux {}, in a closed loop; this host is not changed\n\
         times in an emulated guest mean nothing, so the answer holds for no real machine\n{}",
        kernel.origin.version,
        render::plan(&plan, " of the guest's time")
    );
    let emulator = Emulator::find().map_err(|error| of_machine(&error))?;
    if args.dry_run {
        return output::data(&text).map(|()| None);
    }
    let modes = [&[plan.present], &plan.arms[..]].concat();
    let machine = Machine {
        emulator,
        kernel,
        nic: args.nic.unwrap_or_default().into(),
        cpus: vm::cpus(&modes),
        limit: on_vm::time_limit(Duration::from_millis(plan.budget_ms)),
    };
    output::say(text.trim_end());
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag = interruption.flag();
    let progress = Progress::new();
    progress.doing("the guest boots");
    let mut watch = |tuner: &_| show_progress(&progress, tuner);
    let found = vm::search_in_guest(&machine, &plan, &mut watch, &|| flag.get().is_some());
    progress.finish();
    let GuestSearch { host, subject, not_a_measurement, result } = found.map_err(on_vm::failure)?;
    if let Some(reason) = nothing_settable(&result) {
        let release = visible::name(&host.kernel_release);
        let text = format!("no mode can be set on Linux {release}: {}", visible::name(reason));
        return Err(Failure::new(Exit::NotSupported, text));
    }
    Ok(Some((Searched { subject, result, not_a_measurement, left_alone: Vec::new() }, host)))
}

/// Why the first mode cannot be set, if none except the present setting can.
fn nothing_settable(result: &TuneResult) -> Option<&str> {
    let reasons = result.arms.get(1..)?.iter().map(|arm| match &arm.state {
        ArmState::NotSettable { reason } => Some(reason.as_str()),
        _ => None,
    });
    reasons.collect::<Option<Vec<&str>>>()?.first().copied()
}

/// Default duration of a slice, in ms. A p99 needs 500 requests. With guards, an arm must be left within a second.
fn slice_ms(args: &TuneArgs, goal: &TuneGoal) -> u32 {
    let mut metrics = std::iter::once(&goal.objective).chain(goal.limits.iter().map(|limit| &limit.metric));
    let names_latency = metrics.any(|metric| matches!(metric, TuneMetric::Latency { .. }));
    if names_latency && args.never.is_empty() { LATENCY_SLICE_MS } else { SLICE_MS }
}

fn plan(args: &TuneArgs) -> Result<TunePlan, Failure> {
    let arms: Result<Vec<DeliveryMode>, _> = ARMS.iter().map(|mode| mode.parse()).collect();
    let plan = super::plan(args, vec![LOAD.to_owned()], SLICE_MS, SETTLE_MS, BUDGET);
    let slice_ms = args.slice.unwrap_or_else(|| slice_ms(args, &plan.goal));
    Ok(TunePlan { arms: arms.map_err(Failure::usage)?, space: None, slice_ms, ..plan })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_tune::{TuneSpace, Tuner};

    #[test]
    fn a_kernel_on_which_no_mode_can_be_set_gives_a_reason_instead_of_an_answer() {
        let plan = TunePlan {
            arms: ARMS.map(|mode| mode.parse().unwrap()).to_vec(),
            space: None,
            ..TunePlan::new("least cpu".parse().unwrap(), DeliveryMode::default(), TuneSpace::default(), 1)
        };
        let mut tuner = Tuner::new(plan).unwrap();
        assert_eq!(nothing_settable(&tuner.clone().finish()), None);
        while let Some(next) = tuner.next_slice() {
            match next.mode == DeliveryMode::default() {
                true => tuner.record(quell_experiment::SliceObservation::default()).unwrap(),
                false => tuner.not_settable("no napi-set".to_owned()),
            }
        }
        assert_eq!(nothing_settable(&tuner.finish()), Some("no napi-set"));
    }
}
