//! What a launch comes to: the values in effect and who said them, what the program gets, what is set on the host, and
//! what came up while it ran.

use std::fmt::Write as _;

use quell_host::attach::place;
use quell_host::attach::{Pass, Plan, Step};
use quell_launch::choice::Chosen;
use quell_launch::preload_settings::{PreloadSettings, Wait};
use quell_launch::program::Reach;
use quell_linux::visible;

use super::attach::{impossible as impossible_lines, neighbour_line, queue_lines};
use crate::commands::run::Launch;

/// The values in effect, a line each, with who said them.
pub(crate) fn launch(launch: &Launch) -> String {
    let Launch { choice, program, told, queues_stay, placement } = launch;
    let mut text = String::new();
    let mode = &choice.mode;
    let _ = writeln!(text, "mode        {} ({}): {}", mode.value, mode.by, mode.value.description());
    let _ = match &choice.max_events {
        Some(Chosen { value, by }) => writeln!(text, "max events  {value} ({by})"),
        None => writeln!(text, "max events  as many as the program asks for"),
    };
    let _ = match &choice.devices {
        _ if *queues_stay => writeln!(text, "devices     none: the queues stay as they are (command line)"),
        Some(Chosen { value, by }) => writeln!(text, "devices     {} ({by})", value.join(", ")),
        None => writeln!(text, "devices     all of this network namespace"),
    };
    let _ = writeln!(text, "program     {}", visible::path(&program.path));
    let _ = match (&program.reach, told) {
        (_, Some(settings)) => writeln!(text, "in it       {}", in_words(settings).join("; ")),
        (Reach::Preload, None) => writeln!(text, "in it       nothing is done"),
        (Reach::FromOutside(why), None) => writeln!(text, "in it       nothing can be done: {why}"),
    };
    if let Some(devices) = &placement.steer {
        let of = if devices.is_empty() { String::new() } else { format!(", of {}", devices.join(", ")) };
        let _ = writeln!(text, "steering    a worker by each queue{of}, once it waits for connections");
    }
    if placement.pin {
        let _ = writeln!(text, "pinning     each worker on the CPUs of its queue, once that is known");
    }
    text
}

/// What the preload library does, piece by piece.
fn in_words(settings: &PreloadSettings) -> Vec<String> {
    let epoll = settings.epoll.map(|epoll| format!("every epoll is born with busy poll {epoll}"));
    let sockets = settings.sockets.map(|sockets| format!("every socket is born with busy poll {sockets}"));
    let zero = settings.timed_zero_waits.then(|| "waits of zero last 1 ns".to_owned());
    let wait = match settings.wait {
        Wait::AsWritten => None,
        Wait::AtMost(millis) => Some(format!("waits are made of waits of at most {} ms", millis.get())),
        Wait::SpinBeforeSleep(micros) => Some(format!("waits spin for {} µs before they sleep", micros.get())),
    };
    let events = settings.events_max.map(|events| format!("no wait returns more than {} events", events.get()));
    [epoll, sockets, zero, wait, events].into_iter().flatten().collect()
}

/// What of `wanted` is not to be had without the preload library.
pub(crate) fn lost_from_outside(wanted: &PreloadSettings) -> Vec<String> {
    let zero = wanted.timed_zero_waits.then(|| {
        "its waits of zero do not end the suspension: a program that spins on them waits for the timeout".to_owned()
    });
    let wait = match wanted.wait {
        Wait::AsWritten => None,
        Wait::AtMost(millis) => Some(format!("its waits are as long as it wrote them, not {} ms", millis.get())),
        Wait::SpinBeforeSleep(_) => Some("it does not spin before it sleeps".to_owned()),
    };
    let sockets = wanted.sockets.map(|_| "its sockets do not busy poll".to_owned());
    let events = wanted.events_max.map(|_| "its waits return as many events as it asks for".to_owned());
    [zero, wait, sockets, events].into_iter().flatten().collect()
}

/// What would be set on the host, and whom it touches.
pub(crate) fn queues(plan: &Plan) -> String {
    let mut lines: Vec<String> = queue_lines(plan).into_iter().map(|line| format!("queues      {line}")).collect();
    if lines.is_empty() {
        lines.push("queues      none here has settings of its own".to_owned());
    }
    lines.extend(whom_it_touches(plan));
    if !plan.impossible.is_empty() {
        lines.push(format!("cannot be done here:\n{}", impossible(plan)));
    }
    lines.join("\n") + "\n"
}

/// What cannot be done, a line each.
pub(crate) fn impossible(plan: &Plan) -> String {
    impossible_lines(plan)
}

/// Who else has sockets on the queues.
pub(crate) fn whom_it_touches(plan: &Plan) -> Vec<String> {
    plan.neighbours.iter().map(|neighbour| format!("touches {}", neighbour_line(neighbour))).collect()
}

/// What came up in a program: what was set only now if that was asked for, and what could not be.
pub(crate) fn pass(pass: &Pass, verbose: bool) -> Vec<String> {
    let made = pass.made.iter().filter(|_| verbose).map(|step| match step {
        Step::Queue(_) => format!("{} has come up, and has the mode", place(step)),
        Step::Epoll(_) | Step::Sockets(_) | Step::Ring(_) => format!("{} got the mode from outside", place(step)),
    });
    let others = pass.changed_by_others.iter();
    let others = others.map(|step| format!("{} was changed by somebody else, and is left alone", place(step)));
    let failed = pass.failed.iter().map(|(step, error)| format!("{} has not the mode: {error}", place(step)));
    made.chain(others).chain(failed).collect()
}
