//! The command of the next step of a server.

use quell_host::attach::mode_command::placement_options;
use quell_host::attach::{AttachedMode, ModeCommand};
use quell_host::findings::{EPOLL_MIXES_NAPIS, FixText, QueuePerEpoll};
use quell_host::servers::{EarlierMeasurement, HostServer, NextStep};
use quell_linux::visible;

use super::{Fixes, to_change};
use crate::output::on_one_line;
use crate::render::payoff::{self, ProgramArguments};

pub(super) fn attached(server: &HostServer) -> Option<AttachedMode> {
    let HostServer { attached, launched, steered, pinned, .. } = *server;
    attached.map(|mode| AttachedMode { mode, launched, steers: steered, pins: pinned })
}

pub(super) fn arguments(server: &HostServer) -> ProgramArguments {
    ProgramArguments::of_pids(&[server.pid])
        .attached(attached(server))
        .judged_by(judge(server))
        .sharing(server.sharing.clone())
}

/// Whether its attached mode pays, and the command that follows.
pub(super) fn pays(server: &HostServer) -> Option<(String, Option<String>)> {
    server.payoff.as_ref().map(|payoff| payoff::advice(payoff, &arguments(server)))
}

/// Command of the next step.
pub(super) fn command(server: &HostServer, fixes: Fixes) -> Option<String> {
    let pid = server.pid;
    match &server.next {
        NextStep::Fix { .. } if fixes == Fixes::ByDoctor => Some(format!("quell doctor {pid}")),
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
            Some(arguments(server).measure(&server.modes, placement_options(*steered, *steered)))
        }
        NextStep::Decide { command, .. } => Some(visible::name(command).into_owned()),
        // Its plan shows whether the problem still exists.
        NextStep::Attach { mode, .. } | NextStep::Return { mode, .. } if server.attached.is_some() => {
            let is_steered = matches!(server.next, NextStep::Attach { steered: true, .. });
            let placed = |old: AttachedMode| AttachedMode {
                steers: old.steers || is_steered,
                pins: old.pins || is_steered,
                ..old
            };
            Some(ProgramArguments::of_pids(&[pid]).attached(attached(server).map(placed)).replace(mode))
        }
        NextStep::Attach { mode, steered, measured } => Some(match measured.problem {
            Some(_) => format!("quell attach {mode} {pid}{} --dry-run", placement_options(*steered, *steered)),
            None => ModeCommand::of_pids(Some(*mode), [&pid]).placed(*steered, *steered).to_string(),
        }),
        NextStep::Check => pays(server).map_or_else(|| Some("quell status".to_owned()), |(_, command)| command),
        NextStep::Keep { open: Some(open), .. } => Some(visible::name(&open.command).into_owned()),
        NextStep::Keep { open: None, .. } if to_change(server).is_some() => measure_changed(server),
        NextStep::Keep { measured: EarlierMeasurement { problem: Some(_), result, .. }, open: None } => {
            Some(format!("quell results show {}", visible::name(result)))
        }
        NextStep::Return { .. } | NextStep::Keep { .. } | NextStep::AwaitExperiment { .. } => None,
    }
}

/// Command that measures a server again after its configuration has changed. Only nginx keeps its PID.
fn measure_changed(server: &HostServer) -> Option<String> {
    match server.queue_per_epoll.as_ref()? {
        QueuePerEpoll::Configured { steered: true, .. } if server.name == "nginx" => {
            Some(arguments(server).measure(&[], placement_options(true, true)))
        }
        QueuePerEpoll::Configured { .. } => Some("quell".to_owned()),
        QueuePerEpoll::Steered | QueuePerEpoll::Impossible { .. } => None,
    }
}

/// HTTP servers, which `quell load` recognises.
const HTTP: [&str; 8] = ["nginx", "haproxy", "envoy", "caddy", "apache2", "httpd", "lighttpd", "traefik"];
/// Servers in which `quell load` stores keys unless its options forbid it.
const KEY_VALUE: [&str; 3] = ["memcached", "redis-server", "valkey-server"];
const HTTPS: [u16; 2] = [443, 8443];

/// A command that measures latency of the server, if its protocol is known. The reader replaces CLIENT.
pub(super) fn judge(server: &HostServer) -> Option<String> {
    let has_address = server.address.is_some_and(|address| !address.ip().is_unspecified());
    has_address.then(|| load(server, "--rate 1K --warm-up 0.1 --seconds 1 --figures"))?
}

/// A command that sends requests to the server, if its protocol is known. The reader replaces CLIENT, and ADDRESS if the
/// server listens on all.
pub(super) fn load(server: &HostServer, options: &str) -> Option<String> {
    let address = server.address.filter(|it| !HTTPS.contains(&it.port()))?;
    let reads_only = match &*server.name {
        name if KEY_VALUE.contains(&name) => " --no-preload --get-share 1",
        name if HTTP.contains(&name) => "",
        _ => return None,
    };
    let address = match address.ip().is_unspecified() {
        true => format!("ADDRESS:{}", address.port()),
        false => address.to_string(),
    };
    Some(format!("ssh CLIENT quell load {address}{reads_only} {options}"))
}
