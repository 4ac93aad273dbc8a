//! Earlier attachments of the programs that are to be attached: one that is continued, or those that are restored first.

use quell_change::journal::Purpose;
use quell_host::attach::attached::{orphans, refuse_what_is_attached};
use quell_host::attach::hand_over::{Earlier, find_earlier};
use quell_host::attach::{AttachError, AttachRequest, Attached, Targets};

use super::{AttachArgs, detach, failure};
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;

/// With `--take-over`, the attachment to continue, after others of these programs were restored; and whether an earlier one
/// steered. A dry run returns those that would be restored.
pub(super) fn of(targets: &Targets, request: &AttachRequest, args: &AttachArgs) -> Result<(Earlier, bool), Failure> {
    if !args.take_over {
        let orphans = if args.dry_run { orphans(&journal(), targets).map_err(failure)? } else { Vec::new() };
        return match orphans.is_empty() {
            true => nothing_is_attached(targets, request, args).map(|()| (Earlier::None, false)),
            false => Ok(restored_first(orphans)),
        };
    }
    let steers = args.placement.wanted().steer.is_some();
    match find_earlier(&journal(), targets, request, steers, args.accept_stalls).map_err(failure)? {
        Earlier::None => Ok((Earlier::None, false)),
        Earlier::Continues(attached) => {
            output::say(&format!("takes over {}", attached.purpose()));
            let steered = attached.history.steers();
            Ok((Earlier::Continues(attached), steered))
        }
        Earlier::Differs(attached) if args.dry_run => Ok(restored_first(attached)),
        Earlier::Differs(attached) => {
            let (_, steered) = restored_first(attached.clone());
            let ended = detach::end(&journal(), attached);
            let failed_in_part = ended.detached.iter().any(|(_, detached)| !detached.failed.is_empty());
            detach::check_all_restored(&ended.errors, failed_in_part)?;
            Ok((Earlier::None, steered))
        }
    }
}

fn nothing_is_attached(targets: &Targets, request: &AttachRequest, args: &AttachArgs) -> Result<(), Failure> {
    refuse_what_is_attached(&journal(), targets).map_err(|error| match error {
        AttachError::AlreadyAttached { pid, purpose: purpose @ Purpose::Attachment { .. } } => {
            let instead = args.command_instead(request.mode);
            let text = format!(
                "process {pid} is already attached ({purpose}); nothing was changed. To replace it: `{instead}`"
            );
            Failure::new(Exit::KernelRefused, text)
        }
        error => failure(error),
    })
}

/// Says that these are restored first. Also returns whether one steers.
fn restored_first(attached: Vec<Attached>) -> (Earlier, bool) {
    attached.iter().for_each(|one| output::say(&format!("restores {} first", one.purpose())));
    let steered = attached.iter().any(|one| one.history.steers());
    if steered {
        output::say("connections that arrive until the new mode is set are not steered: let their clients reconnect");
    }
    (Earlier::Differs(attached), steered)
}
