//! The command of the next step of a server.

use quell_host::attach::mode_command::placement_options;
use quell_host::attach::{AttachedMode, ModeCommand};
use quell_host::findings::{EPOLL_MIXES_NAPIS, FixText, MISSING_QUEUE_ID, QueuePerEpoll, strace_of_waits};
use quell_host::servers::{EarlierMeasurement, HostServer, NextStep};
use quell_linux::visible;

use super::{Fixes, to_change};
use crate::output::on_one_line;
use crate::render::client_load;
use crate::render::payoff;
use crate::render::program_arguments::ProgramArguments;

pub(super) fn attached(server: &HostServer) -> Option<AttachedMode> {
    server.attached.map(|attached| attached.where_pinning(server.can_pin))
}

pub(super) fn arguments(server: &HostServer) -> ProgramArguments {
    ProgramArguments::of_pids(&[server.pid])
        .attached(attached(server))
        .in_netns(server.named_netns().map(str::to_owned))
        .judged_by(client_load::judge(&server.name, server.address))
        .sharing(server.sharing.clone())
        .mixing(!matches!(server.queue_per_epoll, None | Some(QueuePerEpoll::Impossible { .. })))
}

/// Whether its attached mode pays, and the command that follows.
pub(super) fn pays(server: &HostServer) -> Option<(String, Option<String>)> {
    server.payoff.as_ref().map(|payoff| payoff::advice(payoff, &arguments(server)))
}

/// Command of the next step.
pub(super) fn command(server: &HostServer, fixes: Fixes) -> Option<String> {
    let pid = server.pid;
    match &server.next {
        NextStep::Fix { finding } if fixes == Fixes::ByDoctor && *finding != MISSING_QUEUE_ID => {
            Some(format!("quell doctor {pid}"))
        }
        // The plan of the mode has the finding and its fix.
        NextStep::FindStall { mode, cause: Some(_) } => {
            Some(ModeCommand::of_pids(Some(*mode), [&pid]).to_string() + " --dry-run")
        }
        NextStep::FindStall { cause: None, .. } => Some(strace_of_waits(&pid.to_string())),
        NextStep::Fix { finding } => {
            let can_measure = *finding == EPOLL_MIXES_NAPIS && server.serious == 0 && !server.modes.is_empty();
            match &server.fix {
                _ if can_measure => Some(arguments(server).measure(&server.modes, "")),
                Some(FixText::Command(command)) => Some(on_one_line(command)),
                _ => None,
            }
        }
        NextStep::MeasureAgain { packets_per_s: 0, .. } | NextStep::AwaitClients => load(server, "--seconds 10"),
        NextStep::Measure { steered }
        | NextStep::MeasureAgain { steered, .. }
        | NextStep::SettingsChanged { steered, .. } => {
            Some(arguments(server).measure(&server.modes, placement(server, *steered)))
        }
        NextStep::Decide { command, .. } => Some(visible::name(command).into_owned()),
        NextStep::Attach { .. } | NextStep::Return { .. } if server.attached.is_some() => {
            arguments(server).replace_by(&server.next, server.can_pin)
        }
        // Its plan shows whether the problem still exists.
        NextStep::Attach { mode, steered, measured } => Some(match measured.problem {
            Some(_) => format!("quell attach {mode} {pid}{} --dry-run", placement(server, *steered)),
            None => ModeCommand::of_pids(Some(*mode), [&pid]).placed(*steered, *steered && server.can_pin).to_string(),
        }),
        NextStep::Check => pays(server).map_or_else(|| Some("quell status".to_owned()), |(_, command)| command),
        NextStep::Keep { open: Some(open), .. } => Some(visible::name(&open.command).into_owned()),
        NextStep::Keep { open: None, .. } if to_change(server).is_some() => measure_changed(server),
        NextStep::Keep { measured: EarlierMeasurement { problem: Some(_), result, .. }, open: None } => {
            Some(format!("quell results show {}", visible::name(result)))
        }
        NextStep::Return { .. }
        | NextStep::Keep { .. }
        | NextStep::AwaitExperiment { .. }
        | NextStep::NoModeHelps
        | NextStep::AwaitDatagrams
        | NextStep::NothingToGain(_) => None,
    }
}

/// Options that steer its connections, and pin its workers if that is possible.
fn placement(server: &HostServer, is_steered: bool) -> &'static str {
    placement_options(is_steered, is_steered && server.can_pin)
}

/// Command that measures a server again after its configuration has changed. Only nginx keeps its PID.
fn measure_changed(server: &HostServer) -> Option<String> {
    match server.queue_per_epoll.as_ref()? {
        QueuePerEpoll::Configured { steered: true, .. } if server.name == "nginx" => {
            Some(arguments(server).measure(&[], placement(server, true)))
        }
        QueuePerEpoll::Configured { .. } => Some("quell".to_owned()),
        QueuePerEpoll::Steered | QueuePerEpoll::Impossible { .. } => None,
    }
}

/// A command that sends requests to the server, if its protocol is known.
pub(super) fn load(server: &HostServer, options: &str) -> Option<String> {
    client_load::command(&server.name, server.address, options)
}
