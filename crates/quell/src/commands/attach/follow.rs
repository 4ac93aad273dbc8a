//! `quell attach --follow`: stays in the foreground, applies the mode to new workers and queues, keeps steering and
//! pinning up to date, watches for stalled queues, and reports when the mode stops being in effect.
//!
//! It polls instead of waiting for events. The proc connector reports new processes of the whole host (only to root in the
//! initial namespaces); the children of the programs' processes show theirs everywhere, and cost little. Nothing reports
//! new epolls or the queue of a connection.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use quell_change::transaction::ChangeStage;
use quell_host::attach::hand_over::HAND_OVER;
use quell_host::attach::instances::InstanceWatch;
use quell_host::attach::placement::Placement;
use quell_host::attach::stall::LOOKED_EVERY;
use quell_host::attach::wait::{Ends, Woken};
use quell_host::attach::{AttachError, Attachment};
use quell_host::attach::{Pass, describe_step};
use quell_linux::clock;
use quell_linux::pidfd::Signal;
use quell_linux::service_manager;
use quell_linux::signal::{Interruption, InterruptionSignal};
use quell_linux::visible::counted;

use super::keeper;
use super::watch::{MissingQueues, QueueEvents, QueueWatch};
use crate::commands::pace::{Pace, PaceLimits};
use crate::commands::stalls::StallForecast;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::render::attach::placement;
use crate::render::reverted::undo_outcome;

const PERIOD: Duration = Duration::from_millis(250);
/// A pause of 50 times the CPU time of a pass limits all passes to 2 % of a CPU. Passes are expensive for programs with
/// many connections.
const PACE: PaceLimits = PaceLimits { first: PERIOD, longest: PERIOD, pause: 50 };

/// Follows the programs until they exit or a signal arrives, then undoes everything. On [`HAND_OVER`] leaves it to the
/// keeper.
///
/// # Errors
/// When a pass fails, a change could not be undone, or the queues stalled too often ([`Exit::VerifyFailed`]).
pub(super) fn follow(
    mut attachment: Attachment,
    mut placement: Placement,
    watch: QueueWatch,
    interruption: &Interruption,
) -> Result<(), Failure> {
    report_ready(&attachment);
    let kept_up = keep_up(&mut attachment, &mut placement, watch, interruption);
    placement::unverified(&placement).iter().for_each(|line| output::say(line));
    notify(service_manager::stopping());
    if matches!(kept_up, Ok(Over::Normally(_))) && interruption.flag().has(HAND_OVER) {
        attachment.leave().map_err(|error| Failure::new(Exit::RolledBack, error))?;
        output::say(
            "stopped by SIGUSR1: the mode stays applied; restored when the program exits, or by `quell detach`",
        );
        return Ok(());
    }
    let why = match &kept_up {
        Ok(Over::Normally(why) | Over::RevertedAfterStall(why)) => why.clone(),
        Err(error) => error.to_string(),
    };
    let reverted = attachment.end_by(&format!("`quell attach --follow`: {why}"));
    let clean = reverted.as_ref().is_ok_and(|reverted| reverted.failed.is_empty());
    let how = undo_outcome(&reverted);
    match kept_up {
        Ok(Over::Normally(why)) if clean => {
            output::say(&format!("{why}: {how}"));
            Ok(())
        }
        Ok(Over::RevertedAfterStall(why)) if clean => Err(Failure::new(Exit::VerifyFailed, format!("{why}; {how}"))),
        Ok(Over::Normally(why)) => Err(Failure::new(Exit::KernelRefused, format!("{why}: {how}"))),
        Ok(Over::RevertedAfterStall(why)) => Err(Failure::new(Exit::KernelRefused, format!("{why}; {how}"))),
        Err(error) => Err(Failure::new(Exit::RolledBack, format!("{error}; {how}"))),
    }
}

enum Over {
    Normally(String),
    RevertedAfterStall(String),
}

/// The signal that ends this command. Its sender is unknown.
fn stopped_by(interruption: &Interruption) -> String {
    let signal = interruption.flag().get().map_or("a signal", InterruptionSignal::name);
    let asked = if interruption.flag().has(Signal::TERM) { ", as by `quell detach`" } else { "" };
    format!("stopped by {signal}{asked}")
}

fn keep_up(
    attachment: &mut Attachment,
    placement: &mut Placement,
    mut watch: QueueWatch,
    interruption: &Interruption,
) -> Result<Over, AttachError> {
    let (mut forecast, mut seen, mut missing) = (StallForecast::default(), None, MissingQueues::default());
    let (mut instances, mut pace) = (InstanceWatch::default(), Pace::new(PACE));
    loop {
        let before_ns = clock::process_cpu_ns();
        let mut ends = Ends::of(attachment.targets().living(), interruption).map_err(AttachError::Wait)?;
        let found_in_ns = clock::process_cpu_ns().saturating_sub(before_ns);
        loop {
            let look_at = (Instant::now() + LOOKED_EVERY).min(pace.due());
            let woken = ends.wait(Some(look_at)).map_err(AttachError::Wait)?;
            if woken == Woken::Signalled {
                return Ok(Over::Normally(stopped_by(interruption)));
            }
            let QueueEvents { lines, must_end } = watch.look(attachment, seen.as_ref());
            lines.iter().for_each(|line| output::say(line));
            if let Some(why) = must_end {
                return Ok(Over::RevertedAfterStall(why));
            }
            if let Some(pid) = attachment.restart_keeper(&mut |path| keeper::start(path))? {
                output::say(&keeper::restarted(pid));
            }
            if attachment.targets().has_started_another() || instances.has_changed(attachment) {
                pace.hurry();
            }
            if woken == Woken::AllEnded || pace.is_due() {
                break;
            }
        }
        // The looks for stalls are not part of a pass: otherwise a long pause would make the next one longer.
        let before_ns = clock::process_cpu_ns();
        let flag = interruption.flag();
        let mut observer = |_: usize, _: ChangeStage| match flag.get() {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        };
        let pass = attachment.keep_up(&mut observer)?;
        let placed =
            pass.snapshot.as_ref().map(|snapshot| placement.keep_up(&mut *attachment, snapshot, &mut observer));
        if interruption.flag().get().is_some() {
            return Ok(Over::Normally(stopped_by(interruption)));
        }
        if pass.over {
            return Ok(Over::Normally("the programs have exited".to_owned()));
        }
        let is_changing = !pass.started.is_empty() || !pass.made.is_empty();
        report_pass(&pass, attachment);
        missing.look(&pass, attachment).iter().for_each(|line| output::say(line));
        placed.iter().flat_map(placement::pass).for_each(|line| output::say(&line));
        let look = |seen| forecast.look(attachment, seen, !pass.made.is_empty());
        let QueueEvents { lines, must_end } = pass.snapshot.as_ref().map(look).unwrap_or_default();
        lines.iter().for_each(|line| output::say(line));
        if let Some(why) = must_end {
            return Ok(Over::RevertedAfterStall(why));
        }
        seen = pass.snapshot;
        let passed_in_ns = clock::process_cpu_ns().saturating_sub(before_ns);
        pace.spend(Duration::from_nanos(found_in_ns + passed_in_ns), is_changing);
    }
}

fn report_pass(pass: &Pass, attachment: &Attachment) {
    pass.started.iter().for_each(|target| output::say(&format!("{} {} started", target.name, target.pid)));
    pass.ended.iter().for_each(|target| output::say(&format!("{} {} exited", target.name, target.pid)));
    pass.made.iter().for_each(|step| output::say(&format!("set {}", describe_step(step))));
    for step in &pass.changed_by_others {
        output::say(&format!("{}: changed by another program; left alone", describe_step(step)));
    }
    pass.failed
        .iter()
        .for_each(|(step, error)| output::say(&format!("could not set {}: {error}", describe_step(step))));
    if !pass.made.is_empty() || !pass.ended.is_empty() {
        notify(service_manager::status(&in_effect(attachment)));
    }
}

fn report_ready(attachment: &Attachment) {
    output::say(&format!("following: {}", in_effect(attachment)));
    notify(service_manager::ready(&in_effect(attachment)));
}

fn in_effect(attachment: &Attachment) -> String {
    let (processes, queues) = (attachment.targets().living().count(), attachment.queues().count());
    let epolls = counted(attachment.epolls(), "epoll");
    format!("{}, {epolls}, {}", counted(processes, "process"), counted(queues, "queue"))
}

/// Failure to notify the service manager is not fatal.
fn notify(result: std::io::Result<()>) {
    if let Err(error) = result {
        output::say(&format!("could not notify the service manager: {error}"));
    }
}
