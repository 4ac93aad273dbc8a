//! Epolls without a known queue, listed at the end of a plan. Attaching to an idle server does not set its epolls.

use std::fmt::Write as _;

use quell_host::attach::AttachPlan;
use quell_host::attach::no_queue::NoQueueCause;
use quell_host::attach::unassigned_epolls::{UnassignedEpoll, UnassignedFiles};
use quell_linux::visible::{counted, noun};

/// Lists the epolls without a known queue. Empty without such epolls. `follows` is the command that sets their queues
/// later; absent if this command does so itself.
pub(super) fn text(plan: &AttachPlan, follows: Option<&str>) -> String {
    let have_no_sockets = plan.unassigned_epolls.iter().all(|epoll| epoll.watches == UnassignedFiles::NoSockets);
    let mut text = match &plan.without_queue {
        Some(cause) if cause.lacks_napi() || *cause == NoQueueCause::NoDatagram => {
            format!("NO QUEUE IS SET YET: {cause}\n")
        }
        _ if plan.unassigned_epolls.is_empty() => return String::new(),
        Some(_) => "NO QUEUE IS SET YET: no packet has arrived on a queue, so no queue is known:\n".to_owned(),
        None if have_no_sockets => "not set yet, as nothing is known to arrive there:\n".to_owned(),
        None => "no queue known yet, as no packet has arrived on a queue:\n".to_owned(),
    };
    for group in alike(&plan.unassigned_epolls) {
        let _ = writeln!(text, "  {}", line(&group));
    }
    let all_watched =
        !plan.unassigned_epolls.is_empty() && plan.unassigned_epolls.iter().all(|epoll| epoll.watched_by.is_some());
    let next = match (all_watched, follows) {
        (true, _) => {
            "nobody sleeps in an epoll that another one watches, so a mode that polls has no effect there: choose a \
             mode that only defers"
        }
        (false, Some(command)) if have_no_sockets => &format!("to set them once they have connections: `{command}`"),
        (false, None) => "their connections will get the mode when packets arrive",
        (false, Some(command)) => &format!("to set them when packets arrive: `{command}`"),
    };
    text + next + "\n"
}

fn alike(epolls: &[UnassignedEpoll]) -> Vec<Vec<&UnassignedEpoll>> {
    let mut groups: Vec<Vec<&UnassignedEpoll>> = Vec::new();
    for epoll in epolls {
        match groups.iter_mut().find(|group| {
            (group[0].pid, group[0].watches, group[0].watched_by) == (epoll.pid, epoll.watches, epoll.watched_by)
        }) {
            Some(group) => group.push(epoll),
            None => groups.push(vec![epoll]),
        }
    }
    groups
}

fn line(group: &[&UnassignedEpoll]) -> String {
    let UnassignedEpoll { pid, process, watches, watched_by, .. } = group[0];
    let fds = group.iter().map(|epoll| epoll.fd.to_string()).collect::<Vec<_>>().join(", ");
    let epolls = noun(&group.len(), "epoll");
    let threads: Vec<String> = group.iter().flat_map(|epoll| &epoll.threads).map(ToString::to_string).collect();
    let threads = match threads.len() {
        0 => String::new(),
        1 => format!(" (thread {})", threads[0]),
        2..=8 => format!(" (threads {})", threads.join(", ")),
        many => format!(" ({})", counted(many, "thread")),
    };
    let watches = match watches {
        UnassignedFiles::NoSockets => "no network sockets",
        UnassignedFiles::ListeningSockets => "listening sockets only",
        _ => "sockets without a known queue",
    };
    let watched = watched_by.map(|outer| format!(", watched by epoll {outer}")).unwrap_or_default();
    format!("{process} {pid}  {epolls} {fds}{threads}: {watches}{watched}")
}
