//! `quell attach --follow`: stays and keeps up with what the programs start, steers and binds it if that is asked for, and
//! watches for queues that stall.
//!
//! It looks again after some time rather than at events. The kernel tells of new processes (the proc connector, to root in
//! the initial namespaces alone), but of neither new epolls nor of the queue that a connection comes to arrive by, so it
//! would have to be looked for all the same.

use std::ops::ControlFlow;
use std::time::Duration;

use quell_host::attach::placement::Placement;
use quell_host::attach::wait::{Woken, wait_for_all_within};
use quell_host::attach::{AttachError, Attachment};
use quell_host::attach::{Pass, place};
use quell_host::transaction::Moment;
use quell_linux::clock;
use quell_linux::service_manager;
use quell_linux::signal::Interruption;

use super::stalls::Stalls;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::render::attach::placement;
use crate::render::status::how_it_went_back;

/// How soon what came up is found, at best.
const PERIOD: Duration = Duration::from_millis(250);
/// The time between two looks is at least so many times what a look takes of a CPU: of a program with many connections
/// a look is dear, and over time all looks together are to take no more than 2 % of a CPU, whatever begins and ends
/// meanwhile. A look that is dearer than the one before, for many connections came, is paid for by the next pause.
const SHARE_OF_CPU: u32 = 50;

/// Keeps up until the programs end or a signal comes, and puts everything back.
///
/// # Errors
/// When it cannot keep up any more, or something could not be put back.
pub(super) fn follow(mut attachment: Attachment, mut placement: Placement, told: &Interruption) -> Result<(), Failure> {
    tell_ready(&attachment);
    let kept_up = keep_up(&mut attachment, &mut placement, told);
    placement::untold(&placement).iter().for_each(|line| output::say(line));
    tell(service_manager::stopping());
    let reverted = attachment.end();
    let clean = reverted.as_ref().is_ok_and(|reverted| reverted.failed.is_empty());
    let how = how_it_went_back(&reverted);
    match kept_up {
        Ok(why) if clean => {
            output::say(&format!("{why}: {how}"));
            Ok(())
        }
        Ok(why) => Err(Failure::new(Exit::KernelRefused, format!("{why}: {how}"))),
        Err(error) => Err(Failure::new(Exit::RolledBack, format!("{error}; {how}"))),
    }
}

/// Says why it ended.
fn keep_up(
    attachment: &mut Attachment,
    placement: &mut Placement,
    told: &Interruption,
) -> Result<&'static str, AttachError> {
    let mut stalls = Stalls::default();
    let mut look_used = Duration::ZERO;
    loop {
        // Finding out who lives, to wait for it, is part of a look too.
        let used_before_ns = clock::process_cpu_ns();
        let living = attachment.targets().living();
        let woken = wait_for_all_within(living, told, until_next_look(look_used)).map_err(AttachError::Wait)?;
        if woken == Woken::Told {
            return Ok("told to end");
        }
        let flag = told.flag();
        let mut looks_on = |_: usize, _: Moment| match flag.get() {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        };
        let pass = attachment.keep_up(&mut looks_on)?;
        let placed = pass.picture.as_ref().map(|picture| placement.keep_up(attachment, picture, &mut looks_on));
        if told.flag().get().is_some() {
            return Ok("told to end");
        }
        if pass.over {
            return Ok("the programs have ended");
        }
        tell_of_pass(&pass, attachment);
        placed.iter().flat_map(placement::pass).for_each(|line| output::say(&line));
        stalls.look(attachment).iter().for_each(|line| output::say(line));
        look_used = Duration::from_nanos(clock::process_cpu_ns().saturating_sub(used_before_ns));
    }
}

fn until_next_look(last_look_used: Duration) -> Duration {
    PERIOD.max(last_look_used * SHARE_OF_CPU)
}

fn tell_of_pass(pass: &Pass, attachment: &Attachment) {
    pass.came.iter().for_each(|target| output::say(&format!("{} {} came", target.name, target.pid)));
    pass.ended.iter().for_each(|target| output::say(&format!("{} {} ended", target.name, target.pid)));
    pass.made.iter().for_each(|step| output::say(&format!("set {}", place(step))));
    for step in &pass.changed_by_others {
        output::say(&format!("{}: somebody else has changed it since; it is left alone", place(step)));
    }
    pass.failed.iter().for_each(|(step, error)| output::say(&format!("{} is not set: {error}", place(step))));
    if !pass.made.is_empty() || !pass.ended.is_empty() {
        tell(service_manager::status(&in_place(attachment)));
    }
}

fn tell_ready(attachment: &Attachment) {
    output::say(&format!("following: {}", in_place(attachment)));
    tell(service_manager::ready(&in_place(attachment)));
}

fn in_place(attachment: &Attachment) -> String {
    let (processes, queues) = (attachment.targets().living().count(), attachment.queues().count());
    format!("{processes} process(es), {} epoll(s), {queues} queue(s)", attachment.epolls())
}

/// A service manager that cannot be told is no reason to take the mode from the program.
fn tell(told: std::io::Result<()>) {
    if let Err(error) = told {
        output::say(&format!("telling the service manager: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_take_at_most_two_percent_of_a_cpu_and_come_no_sooner_than_the_period() {
        assert_eq!(until_next_look(Duration::from_micros(300)), PERIOD);
        for used_ms in [6, 40, 900] {
            let used = Duration::from_millis(used_ms);
            assert!(used.as_secs_f64() / until_next_look(used).as_secs_f64() <= 0.02, "{used:?}");
        }
    }
}
