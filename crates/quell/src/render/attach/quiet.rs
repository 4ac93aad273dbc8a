//! What a mode does not reach yet, because no connection has come there, as the last words of a plan: who attaches to an
//! idle server is to know that this alone does not give it the mode.

use std::fmt::Write as _;

use quell_host::attach::Plan;
use quell_host::attach::quiet::{QuietEpoll, QuietWith};

use super::counted;

/// Nothing where every epoll has its queue. `follows`: it is looked again, by itself.
pub(super) fn text(plan: &Plan, follows: bool) -> String {
    if plan.quiet.is_empty() {
        return String::new();
    }
    let mut text = match plan.queues().next() {
        Some(_) => "not reached yet, for no packet has come there by a queue:\n".to_owned(),
        None => "NOTHING IS REACHED YET: no packet has come by a queue, so no queue gets values:\n".to_owned(),
    };
    for group in alike(&plan.quiet) {
        let _ = writeln!(text, "  {}", line(&group));
    }
    text.push_str(match follows {
        true => "their connections get the mode when they come\n",
        false => {
            "their connections get the mode only with --follow, or when you detach and attach again while there is traffic\n"
        }
    });
    text
}

/// Epolls of one process that have the same share a line.
fn alike(quiet: &[QuietEpoll]) -> Vec<Vec<&QuietEpoll>> {
    let mut groups: Vec<Vec<&QuietEpoll>> = Vec::new();
    for epoll in quiet {
        match groups.iter_mut().find(|group| (group[0].pid, group[0].has) == (epoll.pid, epoll.has)) {
            Some(group) => group.push(epoll),
            None => groups.push(vec![epoll]),
        }
    }
    groups
}

fn line(group: &[&QuietEpoll]) -> String {
    let QuietEpoll { pid, process, has, .. } = group[0];
    let fds = group.iter().map(|epoll| epoll.fd.to_string()).collect::<Vec<_>>().join(", ");
    let epolls = if group.len() == 1 { "epoll" } else { "epolls" };
    let threads: Vec<String> = group.iter().flat_map(|epoll| &epoll.threads).map(ToString::to_string).collect();
    let threads = match threads.len() {
        0 => String::new(),
        1 => format!(" (thread {})", threads[0]),
        2..=8 => format!(" (threads {})", threads.join(", ")),
        many => format!(" ({})", counted(many, "thread")),
    };
    let has = match has {
        QuietWith::NoSockets => "no network sockets, left alone",
        QuietWith::ListeningSockets => "listening sockets only",
        _ => "sockets to which nothing has come by a queue",
    };
    format!("{process} {pid}  {epolls} {fds}{threads}: {has}")
}
