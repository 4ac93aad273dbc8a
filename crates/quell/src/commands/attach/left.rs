//! What happens to an attachment after it was left to its keeper.

use std::thread;
use std::time::{Duration, Instant};

use quell_change::journal::{EndRecord, StallRecord, TargetProgram, Witness};
use quell_host::attach::stall::{SuspendedQueue, watching_sampler};
use quell_host::attach::{Attachment, Targets};
use quell_mode::NapiSettings;

use super::restore;
use crate::exit::{Exit, Failure};
use crate::journals::{boot_id, journal};
use crate::output;

/// How long, and how often, to look for the record of an end.
const RECORDED_WITHIN: Duration = Duration::from_secs(2);
const RECORDED_AGAIN: Duration = Duration::from_millis(20);

/// Hands the attachment over to its keeper. Returns its journal.
pub(super) fn leave(mut attachment: Attachment) -> Result<LeftJournal, Failure> {
    if let Err(error) = attachment.check_programs_run() {
        return Err(restore(&error, &attachment.end()));
    }
    let suspended = SuspendedQueue::of_steps(attachment.queues());
    let watched = if suspended.is_empty() { Ok(()) } else { watching_sampler(&suspended).map(drop) };
    let sets_queues = attachment.request().mode.napi() != NapiSettings::default();
    let on = if sets_queues && attachment.queues().next().is_none() { ", on no queue yet" } else { "" };
    let path = attachment.leave().map_err(|error| Failure::new(Exit::RolledBack, error))?;
    let witness = journal().witness(&path).map_err(Failure::refused)?;
    output::say(&format!("applied and verified{on}; restored when the program exits, or by `quell detach`"));
    if let Err(error) = watched {
        output::say(&format!("not watched for stalls: {error}"));
    }
    Ok(LeftJournal { witness, earlier: journal().ends() })
}

/// Journal of an attachment after it was handed over to the keeper; absent if it was removed at once.
pub(super) struct LeftJournal {
    witness: Option<Witness>,
    /// Ends that were recorded before.
    earlier: Vec<EndRecord>,
}

impl LeftJournal {
    pub(super) fn is_kept(&mut self) -> bool {
        self.witness.as_mut().is_some_and(Witness::is_kept)
    }

    /// Who ended the attachment of these programs, and why, if it is recorded in time: after the changes are undone.
    fn ended_by(&self, targets: &Targets) -> Option<String> {
        let is_target = |program: &TargetProgram| targets.living().any(|target| target.is_same_process(program));
        let is_this = |end: &EndRecord| !self.earlier.contains(end) && end.programs.iter().any(is_target);
        let until = Instant::now() + RECORDED_WITHIN;
        loop {
            if let Some(end) = journal().ends().into_iter().rfind(is_this) {
                return Some(end.by);
            }
            if Instant::now() >= until {
                return None;
            }
            thread::sleep(RECORDED_AGAIN);
        }
    }
}

/// Why the keeper has restored everything while the mode was being checked.
pub(super) fn reverted_meanwhile(targets: &Targets, left: Option<&LeftJournal>) -> Failure {
    let mut targets = targets.clone();
    let all_exited = targets.refresh().is_ok() && targets.pids().is_empty();
    let has_stalled = |record: &StallRecord| {
        record.reverted && record.programs.iter().any(|one| targets.living().any(|target| target.is_same_process(one)))
    };
    let stalls = boot_id().and_then(|boot_id| journal().stall_records(&boot_id).map_err(Failure::refused));
    let why = match all_exited {
        true => "the programs exited".to_owned(),
        false if stalls.is_ok_and(|stalls| stalls.iter().any(has_stalled)) => {
            "its queues stalled (`quell status` shows the cause)".to_owned()
        }
        false => match left.and_then(|left| left.ended_by(&targets)) {
            Some(by) => format!("ended by {by}"),
            None => "another command ended the attachment".to_owned(),
        },
    };
    Failure::new(Exit::VerifyFailed, format!("the mode was reverted while it was being checked: {why}"))
}
