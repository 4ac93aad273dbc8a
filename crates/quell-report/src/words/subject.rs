//! A subject in words: what was measured, where, and under whose load.

use std::collections::BTreeMap;

use quell_cli::number;
use quell_host::findings::WITHOUT_NAPI_ID;
use quell_linux::shell;
use quell_linux::visible::{self, counted};
use quell_mode::DeliveryMode;
use quell_result::experiment::SubjectFacts;
use quell_result::facts::{
    CommandFacts, HostFacts, ModelFacts, PlacementFacts, ProblemFacts, ProgramsFacts, RemoteClientsFacts, SteeredFacts,
};
use quell_result::simulation::SimulationSetup;
use quell_sim::sweep::SweepRow;

/// Kernel and processor.
#[must_use]
pub fn host(host: &HostFacts) -> String {
    let cpu = host.cpu_model.as_deref().unwrap_or("unknown processor");
    format!("Linux {} on {}", visible::name(&host.kernel_release), visible::name(cpu))
}

/// A subject in a few words.
#[must_use]
pub fn short_subject(subject: &SubjectFacts) -> String {
    match subject {
        SubjectFacts::Programs(facts) => {
            let mut names: Vec<&str> = facts.processes.iter().map(|process| process.name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            visible::name(&names.join(", ")).into_owned()
        }
        SubjectFacts::Command(facts) => shell::command(&facts.command),
        SubjectFacts::Veth { server, .. } => {
            let name = server.version.as_ref().or(server.command.first());
            let name = name.map_or_else(|| "a server".into(), |name| visible::name(name));
            format!("{name} in a veth lab")
        }
        SubjectFacts::Model(facts) => format!("model of {}", visible::name(&facts.profile)),
        SubjectFacts::Guest(facts) => {
            let driver = facts.driver.as_deref().map_or_else(|| "a NIC".into(), visible::name);
            format!("{driver} in a guest")
        }
    }
}

/// Describes a subject in one or two sentences without full stops.
#[must_use]
pub fn subject(subject: &SubjectFacts) -> Vec<String> {
    match subject {
        SubjectFacts::Programs(programs) => {
            std::iter::once(of_programs(programs)).chain(programs.base_is.map(base_is)).collect()
        }
        SubjectFacts::Command(facts) => std::iter::once(of_command(facts)).chain(facts.base_is.map(base_is)).collect(),
        SubjectFacts::Veth { lab, server, load, beside } => {
            let name = server.version.as_ref().or(server.command.first());
            let name = name.map_or_else(|| "unknown".into(), |name| visible::name(name));
            let stand_in =
                if lab.interrupt_stand_in { "NAPI threads replace interrupts" } else { "softirqs on the sending CPU" };
            let beside =
                beside.as_ref().map(|words| format!("; second server on the same queues: {}", shell::command(words)));
            let beside = beside.unwrap_or_default();
            let steered = if lab.steered { "; connections are steered" } else { "" };
            let shared = if lab.shared_core == Some(true) { "; server and client share a core" } else { "" };
            vec![format!(
                "{name} in a veth lab, {}, {}, {stand_in}{steered}{shared}{beside}",
                counted(lab.queues, "queue"),
                counted(load.connections, "connection")
            )]
        }
        SubjectFacts::Model(model) => of_model(model),
        SubjectFacts::Guest(guest) => {
            let driver = guest.driver.as_deref().map_or_else(|| "a NIC".into(), visible::name);
            let load = visible::name(&guest.load);
            vec![format!("{driver} with interrupt {} in a guest; {load}", guest.rx_irq)]
        }
    }
}

fn of_model(model: &ModelFacts) -> Vec<String> {
    let (profile, description) = (visible::name(&model.profile), visible::name(&model.description));
    let server = format!(
        "an epoll server similar to memcached, {}, {}{}; times are virtual",
        counted(model.queues, "queue"),
        counted(model.connections, "connection"),
        if model.irqs_apart { ", a CPU per worker and per queue" } else { "" },
    );
    vec![format!("model of {profile}: {description}"), server]
}

/// A warning about simulated modes whose polling threads share the CPUs of the workers. `None` without such a mode.
#[must_use]
pub fn pollers_share_cpus(setup: &SimulationSetup, rows: &[SweepRow]) -> Option<String> {
    let shares = |row: &&SweepRow| row.mode.poller().is_some() && !setup.irqs_apart;
    let mode = rows.iter().find(shares)?.mode;
    Some(format!(
        "{mode}: each polling thread shares the CPU of a worker here, and takes all that the worker leaves. Use this mode \
         only where a CPU per queue is free, which --irqs-apart simulates under every mode"
    ))
}

/// What `base` is on queues with NAPI threads.
#[must_use]
pub fn base_is(mode: DeliveryMode) -> String {
    format!("base is {mode} here: these queues have NAPI threads, which modes without them leave as they are")
}

fn of_programs(programs: &ProgramsFacts) -> String {
    let mut names: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for process in &programs.processes {
        names.entry(&process.name).or_default().push(process.pid.to_string());
    }
    let names = names.iter().map(|(name, pids)| format!("{} {}", visible::name(name), pids.join(" ")));
    let names: Vec<String> = names.collect();
    let mut devices: Vec<&str> = programs.queues.iter().map(|queue| queue.device.as_str()).collect();
    devices.sort_unstable();
    devices.dedup();
    let devices: Vec<_> = devices.into_iter().map(visible::name).collect();
    let attached = programs.attached.map_or_else(String::new, |mode| format!("; attached: {mode}"));
    format!(
        "{}: {} of {}, {}{attached}; {}",
        names.join(", "),
        counted(programs.queues.len(), "queue"),
        if devices.is_empty() { "no device".to_owned() } else { devices.join(", ") },
        counted(programs.epolls, "epoll"),
        match &programs.clients {
            Some(clients) => of_clients(clients),
            None => traffic(programs.load.as_deref(), programs.latency.as_deref(), programs.beside.as_deref()),
        },
    )
}

/// Describes clients on other machines, and how exactly requests are attributed to slices.
fn of_clients(facts: &RemoteClientsFacts) -> String {
    let mut hosts: Vec<&str> = facts.clients.iter().map(|client| client.host.as_str()).collect();
    hosts.dedup();
    let hosts: Vec<_> = hosts.into_iter().map(visible::name).collect();
    let measuring = facts.clients.iter().find(|client| client.measures_only);
    let measuring =
        measuring.map_or_else(String::new, |client| format!("; only rank {} measures latency", client.rank));
    format!(
        "load of {} on {}{measuring}; requests are attributed to slices within ± {} ms (clocks compared by ping-pong)",
        counted(facts.clients.len(), "client"),
        hosts.join(", "),
        number::short(facts.attribution_error_ns() as f64 / 1e6)
    )
}

fn of_command(facts: &CommandFacts) -> String {
    let traffic = match &facts.client {
        Some(client) => format!("Quell's generator in a private lab, {}", counted(client.connections, "connection")),
        None => traffic(facts.load.as_deref(), facts.latency.as_deref(), facts.beside.as_deref()),
    };
    let placement = match &facts.placement[..] {
        [] => String::new(),
        options => format!(" with {}", visible::name(&options.join(" "))),
    };
    let queues = queues_of_command(facts).map(|queues| format!("; {queues}")).unwrap_or_default();
    format!("{}: started for each slice{placement}{queues}; {traffic}", shell::command(&facts.command))
}

/// The queues that modes set for a command: `modes set all queues of this network namespace: eth0`.
#[must_use]
pub fn queues_of_command(facts: &CommandFacts) -> Option<String> {
    let names: Vec<_> = facts.devices.as_ref()?.iter().map(|name| visible::name(name)).collect();
    Some(match names[..] {
        [] => "this network namespace has no queues, so modes set epolls only".to_owned(),
        _ => format!("modes set all queues of this network namespace: {}", names.join(", ")),
    })
}

fn traffic(load: Option<&[String]>, latency: Option<&[String]>, beside: Option<&[String]>) -> String {
    let load = match (load, latency) {
        (Some(load), _) => Some(format!("load: {}", shell::command(load))),
        (None, None) => Some("live traffic".to_owned()),
        (None, Some(_)) => None,
    };
    let latency = match latency {
        Some(latency) => format!("measured by: {}", shell::command(latency)),
        None => "latency is not measured, so only CPU time and what the kernel counts are compared".to_owned(),
    };
    let beside =
        beside.map(|beside| format!("another program on the same queues is measured by: {}", shell::command(beside)));
    load.into_iter().chain([latency]).chain(beside).collect::<Vec<_>>().join("; ")
}

/// Steered connections and pinned workers, before or after they were placed.
#[must_use]
pub fn placement(placement: Option<&PlacementFacts>) -> Vec<String> {
    let Some(placement) = placement else { return Vec::new() };
    let mut said = Vec::new();
    for steered in &placement.steered {
        let SteeredFacts { group, sockets, connections_before, aligned_before, new_connections, unsorted } = steered;
        let before = match connections_before {
            0 => String::new(),
            count => format!(
                "; before, {aligned_before} of {} shared the queue of their worker",
                counted(*count, "connection")
            ),
        };
        let arrived = match new_connections {
            None if *connections_before == 0 => String::new(),
            None => "; existing connections stay with their workers until their clients reconnect".to_owned(),
            Some(0) => "; no client has reconnected, so the result is that of the connections from before".to_owned(),
            Some(count) => format!("; {} arrived through the filter", counted(*count, "new connection")),
        };
        let left = match unsorted.filter(|count| *count > 0 && *new_connections != Some(0)) {
            Some(count) => format!("; {} stayed unsorted", counted(count, "connection")),
            None => String::new(),
        };
        let text = format!(
            "steering {}: over {} under every mode{before}{arrived}{left}",
            visible::name(group),
            counted(*sockets, "socket"),
        );
        said.push(text);
    }
    if placement.is_by_attachment() {
        let pins = if placement.pins() { ", and pins their workers" } else { "" };
        said.push(format!("the attachment of the programs steers their connections{pins}, under every mode"));
    }
    if placement.pinned > 0 {
        said.push(format!("pinned to the CPUs of their queues: {}", counted(placement.pinned, "thread")));
    }
    for why in &placement.not_pinned {
        said.push(format!("not pinned: {}", visible::name(why)));
    }
    said
}

/// Problems: one paragraph for all objects with the same problem under the same modes.
#[must_use]
pub fn problems(problems: &[ProblemFacts]) -> Vec<String> {
    let mut kinds: Vec<(&ProblemFacts, Vec<&str>)> = Vec::new();
    for problem in problems {
        match kinds.iter_mut().find(|(first, _)| (&first.id, &first.modes) == (&problem.id, &problem.modes)) {
            Some((_, observed)) => observed.push(&problem.observed),
            None => kinds.push((problem, vec![&problem.observed])),
        }
    }
    let paragraph = |(first, observed): &(&ProblemFacts, Vec<&str>)| {
        let modes: Vec<String> = first.modes.iter().map(ToString::to_string).collect();
        let severity = if first.id == WITHOUT_NAPI_ID { "warning" } else { "serious" };
        let text = format!("{severity} under {}: {}: {}", modes.join(", "), first.id, observed.join("; "));
        visible::name(&text).into_owned()
    };
    kinds.iter().map(paragraph).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_of_several_workers_is_one_paragraph_that_names_each_once() {
        let problem = |observed: &str| ProblemFacts {
            id: "epoll-mixes-napis".to_owned(),
            observed: observed.to_owned(),
            modes: vec!["suspend20".parse().unwrap_or_else(|_| unreachable!())],
            stays_when_steered: false,
        };
        let said = problems(&[problem("nginx (812): 3 on 7"), problem("nginx (813): 4 on 7")]);
        assert_eq!(said, ["serious under suspend20: epoll-mixes-napis: nginx (812): 3 on 7; nginx (813): 4 on 7"]);
    }

    #[test]
    fn a_placement_speaks_of_connections_from_before_only_if_there_are_any() {
        let said = |connections_before, new_connections| {
            let group = "tcp 0.0.0.0:80".to_owned();
            let (sockets, aligned_before, unsorted) = (2, 0, Some(connections_before / 4));
            let steered =
                vec![SteeredFacts { group, sockets, connections_before, aligned_before, new_connections, unsorted }];
            placement(Some(&PlacementFacts { steered, ..PlacementFacts::default() })).concat()
        };
        assert_eq!(said(0, None), "steering tcp 0.0.0.0:80: over 2 sockets under every mode");
        assert!(said(0, Some(16)).ends_with("every mode; 16 new connections arrived through the filter"));
        assert!(
            said(16, None).contains("before, 0 of 16 connections") && said(16, None).contains("until their clients")
        );
        assert!(said(16, Some(2)).ends_with("; 4 connections stayed unsorted"), "{}", said(16, Some(2)));
    }
}
