//! Rules about other owners of settings: programs and files that will overwrite queues, interrupts or sysctls.

use std::collections::BTreeSet;

use quell_linux::settings_files::{IrqBans, SettingsOwner};

use super::fix::Fix;
use super::{Node, Observation, Rule, Severity};
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{ConfiguredFile, Device, Irq, Service, SnapshotNapi};

pub(super) const RULES: &[&Rule] = &[&SERVICES, &FILES];

static SERVICES: Rule = Rule {
    id: "service-undoes-settings",
    severity: Severity::Warning,
    title: "a running service sets interrupts, CPUs or sysctls by its own rules",
    impact: "irqbalance moves interrupts every ten seconds; TuneD sets the values of its profile when it starts, and \
          restores earlier values when it stops. Both override manual placement.",
    source: "irqbalance(1), --banirq; tuned.conf(5); tuned-profiles(7), network-latency",
    explanation: "Detected if irqbalance runs and does not exclude the interrupts of the queues (--banirq, --banmod; \
                  no verdict if it runs a policy script; ignored if no device has interrupts), or TuneD runs and its \
                  active profile sets busy polling, interrupts, or ethtool parameters, or cannot be read. A warning if \
                  a queue in the snapshot defers or suspends, or an epoll polls; otherwise a note. Fix: exclude the \
                  settings, or stop the service.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: services,
};

fn services(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let of = |service: &Service| match &*service.name {
        "irqbalance" => of_irqbalance(query, service),
        "tuned" => of_tuned(query, service),
        // Its script is a file of the next rule.
        "google_guest_ag" => None,
        _ => Some(Observation {
            severity: severity(query),
            nodes: vec![service.into()],
            observed: format!("{} runs", service.name),
            fix: vec![stop(service)],
        }),
    };
    query.now.services.known_elements().filter_map(of).collect()
}

/// A warning if anything has a delivery mode that the service can impair.
fn severity(query: &SnapshotQuery<'_>) -> Severity {
    let has_mode = query.napis().any(|(_, napi)| napi.suspends() || napi.defers());
    match has_mode || query.epolls().any(|epoll| epoll.polls()) {
        true => Severity::Warning,
        false => Severity::Note,
    }
}

fn stop(service: &Service) -> Fix {
    Fix::command(&["systemctl", "stop", &service.name])
}

fn of_irqbalance(query: &SnapshotQuery<'_>, service: &Service) -> Option<Observation> {
    let all: Vec<&Irq> = query.now.irqs.known_elements().collect();
    let with_mode: BTreeSet<u32> = query
        .napis()
        .filter(|(_, napi)| napi.defers() || query.is_polled(napi))
        .filter_map(|(_, napi)| napi.irq_number())
        .collect();
    let bans = service.irq_bans.known();
    let is_moved = |irq: &&&Irq| {
        (with_mode.is_empty() || with_mode.contains(&irq.number)) && !bans.is_some_and(|bans| is_banned(bans, irq))
    };
    let moved: Vec<u32> = all.iter().filter(is_moved).map(|irq| irq.number).collect();
    if moved.is_empty() {
        return None;
    }
    let list = moved.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let (severity, observed) = match bans {
        Some(bans) if bans.has_policy_script => {
            (Severity::CannotTell, format!("irqbalance runs with a policy script, which decides about IRQ {list}"))
        }
        Some(_) => (severity(query), format!("irqbalance runs and does not exclude IRQ {list}")),
        None => (severity(query), format!("irqbalance runs; IRQ {list} may not be excluded")),
    };
    let options = moved.iter().map(|irq| format!("--banirq={irq}")).collect::<Vec<_>>().join(" ");
    let mut nodes = vec![Node::from(service)];
    nodes.extend(moved.iter().map(|&number| Node::Irq { number }));
    Some(Observation {
        severity,
        nodes,
        observed,
        fix: vec![
            Fix::advice(format!(
                "add {options} to the options of irqbalance, in /etc/default/irqbalance or /etc/sysconfig/irqbalance"
            )),
            stop(service),
        ],
    })
}

fn is_banned(bans: &IrqBans, irq: &Irq) -> bool {
    let line = irq.description.known().map_or("", String::as_str);
    bans.irqs.contains(&irq.number) || bans.modules.iter().any(|module| line.contains(&**module))
}

fn of_tuned(query: &SnapshotQuery<'_>, service: &Service) -> Option<Observation> {
    let profile = query.now.configured_files.known_elements().find(|file| file.owner == SettingsOwner::Tuned);
    let content = profile.and_then(|profile| Some((profile, profile.content.known()?)));
    let observed = match content {
        Some((_, content)) if content.settings.is_empty() => return None,
        Some((profile, content)) => format!("tuned runs; {} sets {}", profile.path, content.settings.join(", ")),
        None => "tuned runs; its active profile is unknown".to_owned(),
    };
    Some(Observation {
        severity: severity(query),
        nodes: vec![service.into()],
        observed,
        fix: vec![
            Fix::advice("select a profile without these settings (tuned-adm profile NAME), or override them in a copy"),
            stop(service),
        ],
    })
}

static FILES: Rule = Rule {
    id: "overwriting-configuration",
    severity: Severity::Warning,
    title: "a configuration file or hook will overwrite settings of queues",
    impact: "Quell's values are lost when systemd-udevd applies a .link file, a hook runs because a link comes up, or a \
          guest agent starts its script.",
    source: "systemd.link(5); udev(7); interfaces(5); NetworkManager-dispatcher(8); google_set_multiqueue of Google's \
             guest-configs; net/core/dev.c, netdev_set_defer_hard_irqs: sysfs overwrites every queue",
    explanation: "Detected if a queue defers or suspends, and one of these files sets channels, rings, coalescing, \
                  offloads, steering or interrupts: the first .link file that can match the device; a udev rule; a \
                  script of ifupdown, NetworkManager, networkd-dispatcher, dhclient or SUSE's network service; the \
                  script of Google's guest agent, if the agent runs. A warning if it writes napi_defer_hard_irqs or \
                  gro_flush_timeout, which replaces the values of all queues; otherwise a note. Scripts that these \
                  files call are not examined. Fix: remove the settings, or put them into the profile of `quell \
                  apply`.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: files,
};

fn files(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let has_mode = |napi: &SnapshotNapi| napi.suspends() || napi.defers();
    let here = query.now.own_namespace().map(|namespace| namespace.inode);
    let is_configured = |device: &&Device| device.napis.known_elements().any(has_mode);
    let devices: Vec<&Device> = query.now.devices.iter().filter(is_configured).collect();
    if devices.is_empty() {
        return Vec::new();
    }
    let files: Vec<&ConfiguredFile> = query.now.configured_files.known_elements().collect();
    let agent_runs = query.now.services.known_elements().any(|service| service.name == "google_guest_ag");
    let of = |file: &&ConfiguredFile| {
        let nodes: Vec<Node> = match file.owner {
            // systemd-udevd sees only the devices of its own namespace.
            SettingsOwner::Link => {
                let is_here = |device: &&&Device| Some(device.namespace) == here;
                let applies = |device: &&&Device| link_files_of(&files, device).any(|applied| applied == *file);
                devices.iter().filter(is_here).filter(applies).map(|device| Node::from(*device)).collect()
            }
            SettingsOwner::Hook => vec![Node::Host],
            SettingsOwner::GuestAgent if agent_runs => vec![Node::Host],
            _ => Vec::new(),
        };
        of_file(file, nodes)
    };
    files.iter().filter_map(of).collect()
}

fn of_file(file: &ConfiguredFile, nodes: Vec<Node>) -> Option<Observation> {
    let settings = &file.content.known()?.settings;
    if settings.is_empty() || nodes.is_empty() {
        return None;
    }
    let of_every_queue = ["napi_defer_hard_irqs", "gro_flush_timeout"];
    let advice = match file.owner {
        SettingsOwner::GuestAgent => {
            "turn the script off: set_multiqueue = false in section [InstanceSetup] of /etc/default/instance_configs.cfg"
        }
        SettingsOwner::Link => "remove these lines, and set the values with the profile of `quell apply`",
        _ => "remove these commands, and set the values with the profile of `quell apply`",
    };
    Some(Observation {
        severity: match settings.iter().any(|setting| of_every_queue.contains(&&**setting)) {
            true => Severity::Warning,
            false => Severity::Note,
        },
        nodes,
        observed: format!("{} sets {}", file.path, settings.join(", ")),
        fix: vec![Fix::advice(advice)],
    })
}

/// `.link` files that can apply to a device: the first that certainly matches, and earlier ones that may match.
fn link_files_of<'a>(files: &[&'a ConfiguredFile], device: &Device) -> impl Iterator<Item = &'a ConfiguredFile> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.owner == SettingsOwner::Link) {
        let Some(content) = file.content.known().filter(|content| !content.conditions.is_empty()) else { continue };
        let answers: Vec<Option<bool>> = content.conditions.iter().map(|condition| holds(condition, device)).collect();
        if answers.contains(&Some(false)) {
            continue;
        }
        found.push(*file);
        if !answers.contains(&None) {
            break;
        }
    }
    found.into_iter()
}

/// Whether a condition of a `.link` file holds for a device; absent if the snapshot does not show it.
fn holds(condition: &str, device: &Device) -> Option<bool> {
    let (key, values) = condition.split_once('=')?;
    let any = |is_met: &dyn Fn(&str) -> bool| values.split_whitespace().any(is_met);
    let like = |name: &str| any(&|value| glob::Pattern::new(value).is_ok_and(|pattern| pattern.matches(name)));
    match key {
        _ if values.trim_start().starts_with('!') => None,
        "OriginalName" if values == "*" => Some(true),
        "Driver" => Some(like(device.driver.known()?.driver.as_deref()?)),
        "MACAddress" | "PermanentMACAddress" => {
            let mac = device.mac?.to_string();
            Some(any(&|value| value.eq_ignore_ascii_case(&mac)))
        }
        "Kind" => Some(device.kind.as_deref().is_some_and(like)),
        // The name may have changed since the device appeared.
        _ => None,
    }
}
