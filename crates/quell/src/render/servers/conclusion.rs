//! The conclusion about the servers of a host: what to do first.

use std::mem::discriminant;

use quell_host::attach::affected_processes::PacketDelay;
use quell_host::attach::attached::Unfinished;
use quell_host::attach::no_queue::FIRST_DATAGRAM;
use quell_host::attach::owners::ModeInForce;
use quell_host::attach::payoff::DoesItPay;
use quell_host::findings::{EPOLL_MIXES_NAPIS, FixText};
use quell_host::servers::{HostServer, NextStep, OpenQuestion, ServerWait, Suspension};
use quell_linux::visible::{self, counted};
use quell_mode::DeliveryMode;

use super::command::{arguments, command, pays};
use super::{Examined, Fixes, NAMED, again, change_for, limited, settings_changed, to_change};
use crate::journals::name_of;
use crate::output::on_one_line;
use crate::render::conclusion::LastLine;
use crate::render::measured::{as_measured, undone};
use crate::render::payoff::{self, RECONNECT_TO_ATTACHED};

/// The conclusion while changes are left that no process undoes.
#[must_use]
pub(crate) fn undo_first(left: &Unfinished) -> LastLine {
    let Unfinished { path, purpose, waited } = left;
    let why = match waited {
        true => "was undone except for queues that were gone, and queues have its settings",
        false => "was left by an earlier run, and nothing undoes it",
    };
    let purpose = on_one_line(&purpose.to_string());
    let undo = format!("quell revert {}", on_one_line(&name_of(path)));
    LastLine::new(&format!("{purpose} {why}: undo it first"), Some(&undo))
}

/// The server about which the conclusion is.
pub(super) fn most_urgent(servers: &[HostServer]) -> Option<&HostServer> {
    let pays_not =
        |server: &HostServer| server.payoff.as_ref().is_some_and(|payoff| payoff.pays.is_no() || payoff.only_delays());
    let costs = |server: &HostServer| {
        server.payoff.as_ref().is_some_and(|payoff| matches!(payoff.pays, DoesItPay::CostsCpuTime { .. }))
    };
    let rank = |server: &HostServer| match &server.next {
        // Many daemons receive a few packets without an epoll.
        NextStep::Measure { .. } if server.waits != ServerWait::Epoll => 7,
        NextStep::Measure { .. } if server.few_packets_per_s.is_some() => 6,
        NextStep::AwaitClients | NextStep::AwaitDatagrams if server.waits != ServerWait::Epoll => 9,
        // Its mode can be what delays the other servers.
        NextStep::Check if pays_not(server) => 0,
        NextStep::Fix { .. } | NextStep::FindStall { .. } | NextStep::Return { .. } => 1,
        NextStep::Check if costs(server) => 2,
        NextStep::Measure { .. } | NextStep::Decide { .. } => 2,
        NextStep::MeasureAgain { .. } | NextStep::SettingsChanged { .. } => 3,
        NextStep::Attach { .. } => 4,
        NextStep::Check => 5,
        NextStep::Keep { .. } => 6,
        NextStep::AwaitExperiment { .. }
        | NextStep::AwaitClients
        | NextStep::AwaitDatagrams
        | NextStep::NoModeHelps
        | NextStep::NothingToGain(_) => 8,
    };
    servers.iter().min_by_key(|server| (server.is_aside, rank(server)))
}

/// Why the next step is to measure again, with the measurement. Absent for other steps.
pub(super) fn why_again(server: &HostServer) -> Option<String> {
    let (name, pid) = (visible::name(&server.name), server.pid);
    Some(match &server.next {
        NextStep::MeasureAgain { measured, packets_per_s, .. } => {
            format!("{name} {pid} was {}", again(measured, *packets_per_s))
        }
        NextStep::SettingsChanged { measured, then, now, .. } => {
            format!("{name} {pid} was {}", settings_changed(measured, then, now.as_ref()))
        }
        NextStep::Decide { measured, advice, .. }
        | NextStep::Keep { measured, open: Some(OpenQuestion { advice, .. }) } => {
            format!("{name} {pid}: {}: {advice}", as_measured(measured))
        }
        _ => return None,
    })
}

/// What to do first on this host: fix, else measure, else attach. `is_root` is whether commands that change settings
/// can be run.
#[must_use]
pub(crate) fn conclusion(servers: &[HostServer], is_root: bool, fixes: Fixes, examined: &Examined) -> LastLine {
    let first = most_urgent(servers);
    if first.is_none() && !is_root {
        return LastLine::new("no server is visible to this user; run this as root", None);
    }
    let Some(first) = first else {
        let (text, command) = no_server(examined);
        return LastLine::new(&text, command);
    };
    let (name, pid) = (visible::name(&first.name), first.pid);
    let alike = also(servers, first);
    let why_again = || why_again(first).unwrap_or_default();
    let reconnect = |steered: &bool| match steered {
        true => "; clients have to reconnect to be steered to one queue per worker: restart them once it runs",
        false => "",
    };
    let only_these = |server: &HostServer| match server.modes.is_empty() {
        true => "",
        false => "; only modes without epoll can work now",
    };
    let text = match &first.next {
        NextStep::Fix { finding } => {
            let change = to_change(first).filter(|_| *finding == EPOLL_MIXES_NAPIS && fixes == Fixes::Above);
            let until_then = command(first, fixes).map(|_| "; until then, only modes without epoll can be compared");
            let change = change.map(|change| format!(": {change}{}", until_then.unwrap_or_default()));
            let advice = match &first.fix {
                Some(FixText::Advice(advice)) if fixes == Fixes::Above => Some(format!(": {}", on_one_line(advice))),
                _ => None,
            };
            let change = change.or(advice).unwrap_or_default();
            format!("fix first what prevents a benefit for {name} {pid} ({finding}){change}")
        }
        NextStep::FindStall { mode, cause } => {
            let stalled = format!("{mode} was reverted for {name} {pid}, because its queues stalled");
            match cause {
                Some(cause) => format!("{stalled}; cause: {}; see its fix", on_one_line(cause)),
                None => format!("{stalled}, and no rule knew why; see which event each epoll_wait returns"),
            }
        }
        NextStep::NoModeHelps => {
            format!("no mode helps {name} {pid}: it accepts connections, and does not read them")
        }
        NextStep::NothingToGain(work) => {
            format!("nothing to gain for {name} {pid}: {}", payoff::own_work(*work))
        }
        NextStep::Measure { steered } => {
            let (steered, compares) = (reconnect(steered), arguments(first).compares());
            match limited(first) {
                None => match &first.suspension {
                    Some(Suspension::WouldStall { finding, observed }) => format!(
                        "a mode that suspends interrupts would stall {name} {pid}: {} ({finding}); measure the others\
                         {steered}{compares}",
                        visible::name(observed)
                    ),
                    _ => format!(
                        "{}: measure which mode is better{}{}{steered}{compares}",
                        nothing_prevents(first),
                        under_load(first),
                        not_observed(first)
                    ),
                },
                Some(limited) => format!("{name} {pid}{limited}{}{compares}", under_load(first)),
            }
        }
        NextStep::MeasureAgain { steered, packets_per_s, .. } => {
            let compares = if *packets_per_s == 0 { String::new() } else { arguments(first).compares() };
            format!("{}{}{}{compares}", why_again(), only_these(first), reconnect(steered))
        }
        NextStep::SettingsChanged { steered, .. } => {
            format!("{}{}{}{}", why_again(), only_these(first), reconnect(steered), arguments(first).compares())
        }
        NextStep::Decide { .. } | NextStep::Keep { open: Some(_), .. } => why_again(),
        NextStep::Return { mode, beneath, measured } => {
            let attached = first.attached.unwrap_or_default().mode;
            let without = match *beneath && *mode != DeliveryMode::default() {
                true => format!(", which its queues have without {attached},"),
                false => String::new(),
            };
            let (as_measured, undone) = (as_measured(measured), undone(*beneath, first.attached));
            format!(
                "use {mode}{without} instead of {attached} for {name} {pid}: {attached} was not better, \
                 {as_measured}{undone}"
            )
        }
        NextStep::Attach { mode, measured, steered } => {
            let instead = first.attached.map(|old| format!(" instead of {}", old.mode)).unwrap_or_default();
            let is_placed = first.attached.is_some_and(|attached| attached.steers || attached.launched);
            let reconnect = match *steered && !is_placed {
                true => format!("; {RECONNECT_TO_ATTACHED}"),
                false => String::new(),
            };
            let as_measured = as_measured(measured);
            match first.present.filter(|now| first.attached.is_none() && *now != DeliveryMode::default()) {
                Some(now) => format!(
                    "use {mode} instead of the present settings ({now}) for {name} {pid}, {as_measured}{reconnect}"
                ),
                None => format!("use {mode}{instead} for {name} {pid}, which was better, {as_measured}{reconnect}"),
            }
        }
        NextStep::Check => match pays(first) {
            Some((text, _)) => format!("{name} {pid}: {text}"),
            None => {
                let end = match first.attached.is_some_and(|attached| attached.launched) {
                    true => "it ends with the command that `quell run` started".to_owned(),
                    false => format!("`quell detach {pid}` undoes it"),
                };
                format!("see whether the mode of {name} {pid} is in effect and what it costs; {end}")
            }
        },
        NextStep::Keep { measured, open: None } => {
            let other = to_change(first).map(|change| {
                let then = if command(first, fixes).is_some() { ", then measure again" } else { "" };
                format!("; one queue per epoll may decide otherwise: {change}{then}")
            });
            let other = other.unwrap_or_default();
            let measured = as_measured(measured);
            match delayed(first) {
                Some(delayed) => format!("set no mode for {name} {pid}: none was better, {measured}{other}; {delayed}"),
                None => format!("keep the settings of {name} {pid}: no compared mode was better, {measured}{other}"),
            }
        }
        NextStep::AwaitExperiment { pid: by } => {
            format!("an experiment (PID {by}) compares modes on {name} {pid}: wait for its end")
        }
        NextStep::AwaitDatagrams => {
            format!("no UDP socket of {name} {pid} has received from a queue: {FIRST_DATAGRAM}")
        }
        NextStep::AwaitClients => {
            let known = first.will_mix.as_ref().and_then(change_for).map(|change| {
                format!(
                    "; known without requests: an epoll will have connections of several queues ({EPOLL_MIXES_NAPIS}): {change}"
                )
            });
            format!(
                "{name} {pid} has no connection through a queue now, or none that stays open{}; send requests from another \
                 machine (loopback has no queue), then run this again",
                known.unwrap_or_default()
            )
        }
    };
    let changes_nothing = |next: &NextStep| {
        matches!(
            next,
            NextStep::Fix { .. }
                | NextStep::Check
                | NextStep::Keep { open: None, .. }
                | NextStep::NoModeHelps
                | NextStep::NothingToGain(_)
                | NextStep::AwaitExperiment { .. }
                | NextStep::AwaitClients
                | NextStep::AwaitDatagrams
        )
    };
    let root = if !changes_nothing(&first.next) && !is_root { " (as root)" } else { "" };
    LastLine { text: format!("{text}{root}{alike}"), command: command(first, fixes) }
}

/// That nothing prevents a benefit, unless further connections will.
fn nothing_prevents(server: &HostServer) -> String {
    let program = format!("{} {}", visible::name(&server.name), server.pid);
    match server.will_mix.as_ref().and_then(change_for) {
        Some(change) => format!(
            "{program} has few connections now; with more, an epoll will have those of several queues \
             ({EPOLL_MIXES_NAPIS}), which prevents a benefit: {change}; for as few as now"
        ),
        None if server.must_restart => format!(
            "an epoll of {program} cannot poll its queue before a restart, because its UDP socket keeps one that is gone; \
             until then, only modes without epoll can work"
        ),
        None => delayed(server).unwrap_or_else(|| format!("nothing prevents a benefit for {program}")),
    }
}

/// The mode of another program that delays the packets of this one, which has none.
pub(super) fn delaying(server: &HostServer) -> Option<(&ModeInForce, PacketDelay)> {
    let by = server.sharing.as_ref().filter(|_| server.attached.is_none())?.in_force.as_ref()?;
    Some((by, PacketDelay::of_mode(&by.mode)?))
}

fn delayed(server: &HostServer) -> Option<String> {
    let (ModeInForce { mode, program }, delay) = delaying(server)?;
    let sharing = server.sharing.as_ref()?;
    let (name, pid) = (visible::name(&program.name), program.pid);
    let end = match sharing.launched {
        true => format!("it ends with {name}"),
        false => format!("`quell detach {pid}` ends that"),
    };
    Some(format!(
        "{mode} of {name} {pid}, on the same queues, delays packets of {} {}, {} ({end})",
        visible::name(&server.name),
        server.pid,
        delay.text(&name)
    ))
}

/// That its present load is too low to gain from a mode, or that it cannot take a higher one.
fn under_load(server: &HostServer) -> String {
    match (server.few_packets_per_s, server.requests_wait) {
        (None, _) => String::new(),
        (Some(few), false) => format!(", under load: at {}/s, little is to gain", counted(few, "packet")),
        (Some(few), true) => {
            format!("; at {}/s requests wait for the program itself, so little is to gain", counted(few, "packet"))
        }
    }
}

/// That it is unknown whether the program would stall: `bench` and `attach` observe it.
fn not_observed(server: &HostServer) -> &'static str {
    match server.suspension.is_none() && server.present.is_none_or(|present| present == DeliveryMode::default()) {
        true => " (it is first observed whether the program would stall)",
        false => "",
    }
}

/// That no server was found where servers were looked for, and what to do.
fn no_server(examined: &Examined) -> (String, Option<&'static str>) {
    const ALL: Option<&str> = Some("quell doctor --all");
    match examined {
        Examined::Host => ("no server listens on this host; measure one in a private lab".to_owned(), Some("quell bench")),
        Examined::Programs => (
            "nothing to do: none of these programs listens on an address of a device; loopback and Unix sockets have no queue, \
             and the connections of a client are left out here (`quell attach MODE PID --dry-run` plans a mode for it)"
                .to_owned(),
            None,
        ),
        Examined::Device(device) => {
            (format!("no server receives from {}; look at every device and namespace", visible::name(device)), ALL)
        }
        Examined::Namespace(Some(name)) => (
            format!("no server listens in network namespace {}; look in all, such as those of containers", visible::name(name)),
            ALL,
        ),
        Examined::Namespace(None) => (
            "no server listens in the network namespace of this command, the only one examined; look in all, such as those \
             of containers"
                .to_owned(),
            ALL,
        ),
        Examined::Snapshot => ("no server is in this snapshot; list those of this host".to_owned(), Some("quell")),
    }
}

/// The other servers whose next step is of the same kind: `; likewise redis-server 812, 813`.
fn also(servers: &[HostServer], first: &HostServer) -> String {
    let kind = |server: &HostServer| {
        let finding = match server.next {
            NextStep::Fix { finding } => Some(finding),
            _ => None,
        };
        // The advice has figures of one measurement.
        let advice = match &server.next {
            NextStep::Decide { advice, .. } => Some(advice.clone()),
            _ => None,
        };
        let stall = match server.suspension {
            Some(Suspension::WouldStall { finding, .. }) => Some(finding),
            _ => None,
        };
        let payoff = server.payoff.as_ref();
        let pays = payoff.map(|payoff| discriminant(&payoff.pays));
        let in_force = payoff.and_then(|payoff| payoff::in_force(payoff, server.sharing.as_ref()));
        let in_force = in_force.map(|by| by.program.pid);
        (
            discriminant(&server.next),
            finding,
            advice,
            stall,
            pays,
            in_force,
            server.modes.clone(),
            server.can_pin,
            server.few_packets_per_s.is_some(),
            server.queue_per_epoll.clone(),
        )
    };
    let has_epoll = |server: &HostServer| server.waits == ServerWait::Epoll;
    let alike = servers.iter().filter(|server| has_epoll(server) == has_epoll(first) && server.pid != first.pid);
    let alike: Vec<String> = alike
        .filter(|server| kind(server) == kind(first))
        .map(|server| format!("{} {}", visible::name(&server.name), server.pid))
        .collect();
    let more = alike.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    match alike.is_empty() {
        true => String::new(),
        false => format!("; likewise {}{more}", alike[..alike.len().min(NAMED)].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::server;
    use super::*;

    #[test]
    fn started_in_a_network_namespace_the_conclusion_is_about_its_servers() {
        let is_urgent = NextStep::FindStall { mode: DeliveryMode::default(), cause: None };
        let aside = HostServer { is_aside: true, ..server("nginx", is_urgent) };
        let own = server("redis", NextStep::NoModeHelps);
        assert_eq!(most_urgent(&[aside, own]).map(|server| server.name.as_str()), Some("redis"));
    }
}
