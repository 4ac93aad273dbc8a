//! Output of `quell run`: effective values and their sources, changes to the program and to the host, later changes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use quell_host::attach::describe_step;
use quell_host::attach::no_queue::{NoQueueCause, SEND_REQUESTS};
use quell_host::attach::plan::QueueStep;
use quell_host::attach::{AttachPlan, AttachStep, Pass};
use quell_host::steer::SteerRequest;
use quell_launch::choice::Chosen;
use quell_launch::library_report::Library;
use quell_launch::preload_settings::{PreloadSettings, WaitChange};
use quell_launch::program::{NotPreloaded, Reach};
use quell_launch::reached::{Reached, ReachedObjects, Waits};
use quell_linux::CpuList;
use quell_linux::visible::{self, counted};
use quell_mode::{DeliveryMode, NAPI_POLL_WEIGHT, Requirement};

use super::attach::{
    affected_process_line, covered_line, impossible as impossible_lines, limitation_lines, queue_lines,
};
use crate::commands::run::Launch;

pub(crate) fn launch(launch: &Launch) -> String {
    let Launch { choice, program, preload_settings, no_queues, placement, .. } = launch;
    let mut text = String::new();
    let mode = &choice.mode;
    let _ = writeln!(text, "mode        {} ({}): {}", mode.value, mode.by, mode.value.description());
    let _ = match &choice.max_events {
        Some(Chosen { value, by }) => writeln!(text, "max events  {value} ({by})"),
        None => writeln!(text, "max events  not limited"),
    };
    let _ = match &choice.devices {
        _ if *no_queues => writeln!(text, "devices     none (--no-queues)"),
        Some(Chosen { value, by }) => writeln!(text, "devices     {} ({by})", value.join(", ")),
        None => writeln!(text, "devices     all of this network namespace"),
    };
    let _ = writeln!(text, "program     {}", visible::path(&program.path));
    let _ = match (&program.reach, preload_settings) {
        (_, Some(settings)) => writeln!(text, "preloaded   in calls of libc: {}", in_words(settings).join("; ")),
        (Reach::Preload, None) => writeln!(text, "preloaded   nothing needed"),
        (Reach::FromOutside(why), None) => writeln!(text, "preloaded   not possible: {why}"),
    };
    if let Some(SteerRequest { devices, .. }) = &placement.steer {
        let of = if devices.is_empty() { String::new() } else { format!(", of {}", devices.join(", ")) };
        let _ = writeln!(text, "steering    connections of each queue{of} to one worker, once it listens");
    }
    if placement.pin {
        let _ = writeln!(text, "pinning     each worker to the CPUs of its queue, once the queue is known");
    }
    text
}

/// Queues that have the mode before the command starts. `None` without queues.
pub(crate) fn set_on<'a>(mode: &DeliveryMode, queues: impl Iterator<Item = &'a QueueStep>) -> Option<String> {
    let mut devices: BTreeMap<&str, CpuList> = BTreeMap::new();
    for step in queues {
        let queues = devices.entry(&step.device).or_default();
        *queues = queues.iter().chain(step.queues.iter().copied()).collect();
    }
    let on = |(device, queues): (&str, CpuList)| match queues.is_empty() {
        true => device.to_owned(),
        false => format!("{device} rx {queues}"),
    };
    let on: Vec<String> = devices.into_iter().map(on).collect();
    (!on.is_empty()).then(|| format!("{mode} is set on {}: waiting for the first packets", on.join(", ")))
}

/// Why a mode has no effect on a command whose data passes no queue, and what to do.
pub(crate) fn queueless(mode: &DeliveryMode, cause: &NoQueueCause) -> String {
    format!("{mode} has no effect on the command: {cause}, and {SEND_REQUESTS}")
}

fn in_words(settings: &PreloadSettings) -> Vec<String> {
    let epoll = settings.epoll.map(|epoll| format!("new epolls busy poll {}", epoll.short()));
    let sockets = settings.sockets.map(|usecs| format!("new sockets busy poll {}/{NAPI_POLL_WEIGHT}/1", usecs.get()));
    let zero = settings.timed_zero_waits.then(|| "zero timeouts become 1 ns".to_owned());
    let wait = match settings.wait {
        WaitChange::AsWritten => None,
        WaitChange::AtMost(millis) => Some(format!("waits are split into waits of at most {} ms", millis.get())),
        WaitChange::SpinBeforeSleep(micros) => Some(format!("waits spin for {} µs before sleeping", micros.get())),
    };
    let events = settings.events_max.map(|events| format!("waits return at most {}", counted(events.get(), "event")));
    [epoll, sockets, zero, wait, events].into_iter().flatten().collect()
}

pub(crate) fn lost_from_outside(wanted: &PreloadSettings) -> Vec<String> {
    let zero = wanted.timed_zero_waits.then(|| {
        "zero timeouts do not end the suspension: a program that spins on them stalls until the timeout".to_owned()
    });
    let wait = match wanted.wait {
        WaitChange::AsWritten => None,
        WaitChange::AtMost(millis) => Some(format!("its waits are not limited to {} ms", millis.get())),
        WaitChange::SpinBeforeSleep(_) => Some("it does not spin before sleeping".to_owned()),
    };
    let sockets = wanted.sockets.map(|_| "its sockets do not busy poll".to_owned());
    let events = wanted.events_max.map(|_| "its number of events per wait is not limited".to_owned());
    [zero, wait, sockets, events].into_iter().flatten().collect()
}

/// Describes in one or two sentences whether the mode has reached a process. `settings` are the intended settings of
/// the preload library; `why` is the reason why it could not be preloaded.
pub(crate) fn reached(
    mode: &DeliveryMode,
    settings: &PreloadSettings,
    reached: &Reached,
    why: Option<&NotPreloaded>,
) -> String {
    let parts: Vec<String> = [
        epolls_reached(mode, settings, reached.epolls),
        sockets_reached(mode, settings, reached),
        waits_reached(mode, settings, reached, why),
    ]
    .into_iter()
    .flatten()
    .collect();
    format!("{} {} {}", visible::name(&reached.name), reached.pid, parts.join("; it "))
}

fn epolls_reached(mode: &DeliveryMode, settings: &PreloadSettings, found: ReachedObjects) -> Option<String> {
    let wanted = settings.epoll.map(|epoll| format!("busy poll {}", epoll.short()));
    match found {
        ReachedObjects::Unknown => None,
        ReachedObjects::Nothing => {
            Some(format!("has sockets, but no epoll watches them, so {mode} has no effect on its waits"))
        }
        ReachedObjects::Everywhere => Some(format!("has {} on every epoll with sockets", wanted?)),
        ReachedObjects::Lacking { without, of } => {
            Some(format!("lacks {} on {without} of its {} with sockets", wanted?, counted(of, "epoll")))
        }
    }
}

fn sockets_reached(mode: &DeliveryMode, settings: &PreloadSettings, reached: &Reached) -> Option<String> {
    let option = format!("SO_BUSY_POLL {}", settings.sockets?.get());
    let (without, of) = match reached.sockets {
        ReachedObjects::Unknown | ReachedObjects::Nothing => return None,
        ReachedObjects::Everywhere => return Some(format!("has {option} on its sockets")),
        ReachedObjects::Lacking { without, of } => (without, of),
    };
    let because = match reached.library {
        Library::Absent => ": it runs without the preload library",
        Library::Loaded(calls) if calls.refused_socket => ": the kernel refused it, because CAP_NET_ADMIN is missing",
        Library::Loaded(calls) if !calls.made_socket => {
            ": it creates its sockets without the C library, or inherited them"
        }
        Library::Loaded(_) | Library::Unknown => "",
    };
    let effect = if without == of { format!(", so {mode} has no effect on it") } else { String::new() };
    Some(format!("lacks {option} on {without} of its {}{because}{effect}", counted(of, "socket")))
}

fn waits_reached(
    mode: &DeliveryMode,
    settings: &PreloadSettings,
    reached: &Reached,
    why: Option<&NotPreloaded>,
) -> Option<String> {
    let way = match (reached.waits, reached.library) {
        (Waits::Unknown, _) => return None,
        (Waits::ThroughLibrary, _) => return Some("calls epoll_wait through the preload library".to_owned()),
        (Waits::NotSeen, _) if reached.epolls == ReachedObjects::Nothing => return None,
        (Waits::NotSeen, _) => return Some("has not been observed in epoll_wait yet".to_owned()),
        (Waits::AroundLibrary, Library::Absent) => match why {
            Some(why) => format!("runs without the preload library ({why})"),
            None => "runs without the preload library".to_owned(),
        },
        (Waits::AroundLibrary, _) => "calls epoll_wait without the C library".to_owned(),
    };
    if mode.requirements().contains(&Requirement::SpinBeforeSleep) {
        return Some(format!("{way}, so {mode} has no effect on it"));
    }
    let lost = lost_from_outside(&PreloadSettings { sockets: None, ..*settings });
    Some(format!("{way}, so {}", lost.join(", and ")))
}

/// Whether connections of several queues can reach one epoll that polls, before any epoll exists.
pub(crate) fn shared_queues(mode: &DeliveryMode, queues: usize, steers: bool) -> Option<String> {
    (mode.epoll().is_some_and(|epoll| epoll.prefer_busy_poll) && queues > 1 && !steers).then(|| {
        format!(
            "shared      if the program serves TCP or UDP through a device: an epoll polls one of the {queues} queues, but can get \
             connections of all (epoll-mixes-napis): use --steer or a device with one queue, if the program does not sort \
             them itself (memcached -N {queues})\n"
        )
    })
}

pub(crate) fn queues(plan: &AttachPlan) -> String {
    let mut lines: Vec<String> = queue_lines(plan).into_iter().map(|line| format!("queues      {line}")).collect();
    if lines.is_empty() {
        lines.push("queues      none with NAPI settings here".to_owned());
    }
    lines.extend(limitation_lines(&plan.limitations));
    lines.extend(affected_lines(plan));
    if !plan.impossible.is_empty() {
        lines.push(format!("not possible here:\n{}", impossible(plan)));
    }
    lines.join("\n") + "\n"
}

pub(crate) fn impossible(plan: &AttachPlan) -> String {
    impossible_lines(plan)
}

pub(crate) fn affected_lines(plan: &AttachPlan) -> Vec<String> {
    let affected =
        plan.affected_processes.iter().map(|affected| format!("affects {}", affected_process_line(affected)));
    affected.chain(plan.covers.iter().map(covered_line)).collect()
}

/// Outcome of a pass: new objects that were set (only with `details`), and failures.
pub(crate) fn pass(pass: &Pass, details: bool) -> Vec<String> {
    let made = pass.made.iter().filter(|_| details).map(|step| match step {
        AttachStep::Queue(_) => format!("{} appeared and was set", describe_step(step)),
        AttachStep::Epoll(_) | AttachStep::Sockets(_) | AttachStep::Ring(_) => {
            format!("{} was set from outside", describe_step(step))
        }
    });
    let others = pass.changed_by_others.iter();
    let others = others.map(|step| format!("{} was changed by another program; left alone", describe_step(step)));
    let failed = pass.failed.iter().map(|(step, error)| format!("could not set {}: {error}", describe_step(step)));
    made.chain(others).chain(failed).collect()
}

#[cfg(test)]
mod tests {
    use quell_launch::library_report::Calls;
    use quell_launch::library_settings::library_settings;
    use quell_linux::Pid;

    use super::*;

    #[test]
    fn a_plan_warns_of_epolls_with_several_queues_if_the_mode_polls_in_epoll_wait_and_nothing_is_steered() {
        let warns = |mode: &str, queues, steers| shared_queues(&mode.parse().unwrap(), queues, steers).is_some();
        assert!(warns("suspend200", 2, false) && warns("fullbusy", 2, false));
        assert!(!warns("suspend200", 1, false) && !warns("suspend200", 2, true) && !warns("defer200", 2, false));
    }

    const LOADED: Library = Library::Loaded(Calls { waited: false, made_socket: false, refused_socket: false });

    fn said(
        mode: &str,
        epolls: ReachedObjects,
        sockets: ReachedObjects,
        waits: Waits,
        library: Library,
        why: Option<&NotPreloaded>,
    ) -> String {
        let mode = mode.parse().unwrap();
        let (pid, name) = (Pid::new(1234).unwrap(), "server".to_owned());
        let found = Reached { pid, start_time_ticks: 1, name, epolls, sockets, waits, library };
        reached(&mode, &library_settings(&mode, None).unwrap(), &found, why)
    }

    #[test]
    fn a_process_is_described_by_what_the_mode_has_reached() {
        use ReachedObjects::{Everywhere, Lacking, Nothing, Unknown};
        let all = Lacking { without: 2, of: 2 };
        for (mode, epolls, sockets, waits, library, why, expected) in [
            (
                "eventspin50",
                Unknown,
                Unknown,
                Waits::AroundLibrary,
                LOADED,
                None,
                "server 1234 calls epoll_wait without the C library, so eventspin50 has no effect on it",
            ),
            (
                "eventspin50",
                Nothing,
                Unknown,
                Waits::NotSeen,
                LOADED,
                None,
                "server 1234 has sockets, but no epoll watches them, so eventspin50 has no effect on its waits",
            ),
            (
                "suspend20",
                Everywhere,
                Unknown,
                Waits::ThroughLibrary,
                LOADED,
                None,
                "server 1234 has busy poll 0/64/1 on every epoll with sockets; it calls epoll_wait through the preload library",
            ),
            (
                "fullbusy",
                Lacking { without: 1, of: 3 },
                Unknown,
                Waits::AroundLibrary,
                Library::Absent,
                Some(&NotPreloaded::Static),
                "server 1234 lacks busy poll 1000/64/1 on 1 of its 3 epolls with sockets; it runs without the preload library \
              (it is statically linked), so its waits are not limited to 1 ms",
            ),
            (
                "sockpoll50",
                Unknown,
                Everywhere,
                Waits::Unknown,
                LOADED,
                None,
                "server 1234 has SO_BUSY_POLL 50 on its sockets",
            ),
            (
                "sockpoll50",
                Unknown,
                all,
                Waits::Unknown,
                LOADED,
                None,
                "server 1234 lacks SO_BUSY_POLL 50 on 2 of its 2 sockets: it creates its sockets without the C \
              library, or inherited them, so sockpoll50 has no effect on it",
            ),
        ] {
            assert_eq!(said(mode, epolls, sockets, waits, library, why), expected);
        }
    }
}
