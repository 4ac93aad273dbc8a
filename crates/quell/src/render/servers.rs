//! The servers of a host as a table, one line each with its next step, and the conclusion about all.

mod command;
mod conclusion;

use quell_change::journal::EndRecord;
use quell_cli::number::short;
use quell_host::attach::AttachedMode;
use quell_host::attach::mode_command::{STARTS_PROGRAM, starting};
use quell_host::attach::owners::ModeInForce;
use quell_host::findings::{EPOLL_MIXES_NAPIS, QueuePerEpoll};
use quell_host::servers::{EarlierMeasurement, HostServer, LocalServer, NextStep, ServerWait, Suspension};
use quell_linux::Pid;
use quell_linux::proc::ProgramPlace;
use quell_linux::visible::{self, agree, counted};
use quell_mode::DeliveryMode;
use schemars::JsonSchema;
use serde::Serialize;

use super::measured::{as_measured, when};
use super::number::ABSENT;
use super::payoff;
use super::terminal::Terminal;
use crate::output::on_one_line;
use command::command;
use conclusion::{delaying, most_urgent, why_again};
use quell_cli::table::{lines, new_table, set_gap};
use textwrap::core::display_width;

pub(crate) use conclusion::{conclusion, undo_first};

/// Maximum number of servers in the table; `--json` lists all.
const SHOWN: usize = 20;
/// Maximum number of programs in the line about those without epolls.
const NAMED: usize = 6;

/// Where the fixes of findings are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fixes {
    /// Above the servers.
    Above,
    /// By `quell doctor`.
    ByDoctor,
}

/// Where servers were looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Examined {
    Host,
    Programs,
    Device(String),
    /// The network namespace of this name; that of this command without one.
    Namespace(Option<String>),
    /// A stored snapshot.
    Snapshot,
}

/// Command of the next step of a server.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ServerCommand {
    pid: Pid,
    command: String,
}

/// Command of the next step of each server that has one.
#[must_use]
pub(crate) fn commands(servers: &[HostServer], fixes: Fixes) -> Vec<ServerCommand> {
    let of = |server: &HostServer| Some(ServerCommand { pid: server.pid, command: command(server, fixes)? });
    servers.iter().filter_map(of).collect()
}

/// The servers, and a line about those without epoll that have received nothing.
#[must_use]
pub(crate) fn table(servers: &[HostServer], terminal: Terminal, fixes: Fixes) -> String {
    let (shown, others): (Vec<&HostServer>, Vec<&HostServer>) =
        servers.iter().partition(|server| server.waits == ServerWait::Epoll || server.queues > 0);
    let mut out = String::new();
    if !shown.is_empty() {
        out.push_str(&rows(&shown, terminal, fixes));
        let concluded = most_urgent(servers).map(|server| server.pid);
        let reasons = shown.iter().take(SHOWN).filter(|server| Some(server.pid) != concluded);
        let reasons = reasons.filter_map(|server| why_again(server));
        out.extend(reasons.map(|reason| terminal.fill(&on_one_line(&reason), "", "  ") + "\n"));
    }
    if !others.is_empty() {
        let other = |server: &&HostServer| format!("{} {} ({})", visible::name(&server.name), server.pid, call(server));
        let named: Vec<String> = others.iter().take(NAMED).map(other).collect();
        let more = others.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let text = format!("no epoll, and no packet from a queue yet: {}{more}", named.join(", "));
        out.push_str(&(terminal.fill(&text, "", "  ") + "\n"));
    }
    out
}

/// Programs that are no servers here because no mode affects them.
#[must_use]
pub(crate) fn not_listed(local: &[LocalServer], terminal: Terminal) -> String {
    let named = local.iter().take(NAMED).map(|server| format!("{} {}", visible::name(&server.name), server.pid));
    let named = named.collect::<Vec<_>>().join(", ");
    let more = local.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    match local.len() {
        0 => String::new(),
        count => {
            let (is, it) = (
                agree(&count, "is not listed: it listens", "are not listed: they listen"),
                agree(&count, "its", "their"),
            );
            let servers = counted(count, "server");
            let text = format!(
                "{servers} {is} on loopback or Unix sockets only, and {it} data passes no queue: {named}{more}"
            );
            terminal.fill(&text, "", "  ") + "\n"
        }
    }
}

/// Modes that Quell reverted without being asked.
#[must_use]
pub(crate) fn reverted(ends: &[EndRecord], terminal: Terminal) -> String {
    let line = |EndRecord { purpose, programs, by, .. }: &EndRecord| {
        let program = programs.first().map(|one| format!(" of {} {}", visible::name(&one.name), one.pid));
        let text = format!("reverted: {purpose}{}, by {}", program.unwrap_or_default(), visible::name(by));
        terminal.fill(&text, "", "  ") + "\n"
    };
    ends.iter().map(line).collect()
}

const HEADING: [&str; 8] = ["server", "PID", "in", "mode", "queues", "workers", "problems", "next"];
const PLACE: usize = 2;
const MODE: usize = 3;
const PROBLEMS: usize = 6;
const NEXT: usize = 7;
/// Columns that a narrow terminal has below each server, those that move first at the front.
const MOVABLE: [usize; 4] = [NEXT, PLACE, PROBLEMS, MODE];

type Cells = [String; HEADING.len()];

fn rows(servers: &[&HostServer], terminal: Terminal, fixes: Fixes) -> String {
    let shown = servers.len().min(SHOWN);
    let rows: Vec<Cells> = servers[..shown].iter().map(|server| cells(server, fixes)).collect();
    let table = |below: &[usize]| {
        let beside = |row: &Cells| -> Vec<String> {
            let columns = row.iter().enumerate().filter(|(column, _)| !below.contains(column));
            columns.map(|(_, cell)| cell.clone()).collect()
        };
        let mut table = new_table();
        table.set_header(beside(&HEADING.map(str::to_owned))).add_rows(rows.iter().map(beside));
        set_gap(&mut table, 2);
        lines(&table)
    };
    let fits = |below: &&[usize]| table(below).lines().all(|line| terminal.fits(display_width(line)));
    let below = (0..MOVABLE.len()).map(|count| &MOVABLE[..count]).find(fits).unwrap_or(&MOVABLE);
    let table = table(below);
    let (heading, lines) = table.split_once('\n').unwrap_or_default();
    let lines = lines.lines().zip(&rows).map(|(line, row)| format!("{line}\n{}", cells_below(row, below, terminal)));
    let mut out = format!("{heading}\n{}", lines.collect::<String>());
    if servers.len() > shown {
        out.push_str(&format!("and {}; --json lists all\n", counted(servers.len() - shown, "more server")));
    }
    out
}

/// The cells of these columns, below their server.
fn cells_below(row: &Cells, columns: &[usize], terminal: Terminal) -> String {
    let is_below = |column: &usize| columns.contains(column) && row[*column] != ABSENT;
    let cell = |column: usize| if column == PLACE { format!("in {}", row[column]) } else { row[column].clone() };
    let about: Vec<String> = [PLACE, MODE, PROBLEMS].into_iter().filter(is_below).map(cell).collect();
    let about = (!about.is_empty()).then(|| terminal.fill(&about.join(", "), "    ", "    ") + "\n");
    let step = is_below(&NEXT).then(|| step_below(&row[NEXT], terminal) + "\n");
    about.unwrap_or_default() + &step.unwrap_or_default()
}

/// A command that does not fit beside its reason is on a line of its own.
fn step_below(step: &str, terminal: Terminal) -> String {
    let is_command = |text: &str| ["quell ", "ssh "].iter().any(|program| text.starts_with(program));
    match step.rsplit_once(": ").filter(|(_, command)| is_command(command)) {
        Some((reason, command)) if !terminal.fits(display_width(step) + 4) => {
            format!("{}\n      {command}", terminal.fill(&format!("{reason}:"), "    ", "    "))
        }
        _ => terminal.fill(step, "    ", "    "),
    }
}

fn cells(server: &HostServer, fixes: Fixes) -> Cells {
    let mode = match (server.attached, server.present) {
        (Some(AttachedMode { mode, launched, .. }), _) => {
            format!("{mode} ({})", if launched { "launched" } else { "attached" })
        }
        // Overrides are too long for a column; `quell show` has them.
        (None, Some(mode)) if mode == mode.kind().into() => mode.to_string(),
        (None, Some(_)) => "custom".to_owned(),
        (None, None) if server.queues == 0 => ABSENT.to_owned(),
        (None, None) => "differs".to_owned(),
    };
    let counts = [(server.serious, "serious"), (server.warnings, "warning"), (server.notes, "note")];
    let word = |&(count, word): &(usize, &str)| match word {
        "serious" => format!("{count} serious"),
        _ => counted(count, word),
    };
    let problems: Vec<String> = counts.iter().filter(|(count, _)| *count > 0).map(word).collect();
    let or_absent = |text: String| if text.is_empty() { ABSENT.to_owned() } else { text };
    let place = server.place.as_ref().map(|place| visible::name(&place.to_string()).into_owned());
    let has_own_netns = matches!(server.place, Some(ProgramPlace::Pod(_) | ProgramPlace::Container(_)));
    let netns = server.netns.as_ref().filter(|_| !has_own_netns);
    let netns = netns.map(|netns| format!("netns {}", visible::name(netns)));
    let place = [place, netns].into_iter().flatten().collect::<Vec<_>>().join(", ");
    [
        visible::name(&server.name).into_owned(),
        server.pid.to_string(),
        or_absent(place),
        mode,
        server.queues.to_string(),
        server.workers.to_string(),
        or_absent(problems.join(", ")),
        next(server, fixes),
    ]
}

/// Where it waits for packets.
fn call(server: &HostServer) -> &'static str {
    match server.waits {
        ServerWait::Epoll => "epoll",
        ServerWait::Xdp => "AF_XDP",
        ServerWait::IoUring => "io_uring",
        ServerWait::Poll => "poll or select",
        ServerWait::Receive => "blocking receive",
        ServerWait::Nothing => "reads nothing",
        ServerWait::Unknown => "unknown",
    }
}

/// Why modes in which epolls poll cannot work on it, and what to measure. Absent if they can.
fn limited(server: &HostServer) -> Option<String> {
    let others = "so modes in which epolls poll do not apply: measure the others";
    let (call, queues) = (call(server), counted(server.queues, "queue"));
    Some(match (server.waits, &server.queue_per_epoll) {
        _ if server.modes.is_empty() => return None,
        (ServerWait::Epoll, Some(QueuePerEpoll::Impossible { reason })) => {
            format!(": {reason}, or measure modes in which epolls do not poll")
        }
        (ServerWait::Epoll, _) => format!(" receives from {queues} in an epoll, which polls one, {others}"),
        (ServerWait::Receive, _) => format!(
            " waits in a {call}, {others} (sockpoll50 polls there, unless a UDP socket receives from several queues; its \
             measurement starts the program: `{}`)",
            starting(server.named_netns(), "quell bench --modes base,sockpoll50")
        ),
        (ServerWait::Unknown, _) => format!(" has no epoll with connections, {others}"),
        _ => format!(" waits in {call}, {others}"),
    })
}

/// What could change the answer of a measurement: an epoll has the connections of several queues.
fn to_change(server: &HostServer) -> Option<String> {
    change_for(server.queue_per_epoll.as_ref()?)
}

fn change_for(by: &QueuePerEpoll) -> Option<String> {
    match by {
        QueuePerEpoll::Steered => None,
        QueuePerEpoll::Configured { change, .. } => Some(change.clone()),
        QueuePerEpoll::Impossible { reason } => Some(reason.clone()),
    }
}

/// The problem that more connections will bring.
fn known_now(server: &HostServer) -> String {
    server.will_mix.as_ref().map_or_else(String::new, |_| format!(" (known now: {EPOLL_MIXES_NAPIS})"))
}

/// The next step and its command.
fn next(server: &HostServer, fixes: Fixes) -> String {
    let step = match &server.next {
        NextStep::Fix { finding } => format!("fix {finding}"),
        NextStep::FindStall { mode, .. } => format!("{mode} stalled it: see the cause"),
        NextStep::NoModeHelps => "none: it does not read its connections".to_owned(),
        NextStep::NothingToGain(work) => format!("none: {}", payoff::own_work(*work)),
        NextStep::Measure { .. } if server.modes.is_empty() => match &server.suspension {
            Some(Suspension::WouldStall { .. }) => "measure modes without suspension".to_owned(),
            _ if server.few_packets_per_s.is_some() && server.requests_wait => {
                format!("little to gain, requests wait for the program{}", known_now(server))
            }
            _ if server.few_packets_per_s.is_some() => format!("measure under load{}", known_now(server)),
            _ => format!("measure{}", known_now(server)),
        },
        NextStep::Measure { .. } if server.waits == ServerWait::Epoll => "measure modes without epoll".to_owned(),
        NextStep::Measure { .. } => format!("measure modes without epoll ({})", call(server)),
        // The reasons are below the table, or in the conclusion.
        NextStep::MeasureAgain { packets_per_s: 0, .. } => "look again under load".to_owned(),
        NextStep::MeasureAgain { .. } => "measure again at this load".to_owned(),
        NextStep::SettingsChanged { .. } => "measure again with these settings".to_owned(),
        NextStep::Decide { .. } => "undecided".to_owned(),
        NextStep::Attach { mode, measured, .. } => format!("attach {mode}, {}", as_measured(measured)),
        NextStep::Return { mode, measured, .. } => format!("return to {mode}, {}", as_measured(measured)),
        NextStep::Keep { open: Some(_), .. } => "keep for now".to_owned(),
        NextStep::Keep { measured, open: None } => match delaying(server) {
            Some((ModeInForce { mode, program }, _)) => {
                format!("delayed by {mode} of {} {}", visible::name(&program.name), program.pid)
            }
            None => {
                let other = to_change(server).map(|_| "; one queue per epoll may change that");
                format!("keep, {}{}", as_measured(measured), other.unwrap_or_default())
            }
        },
        NextStep::Check => server.payoff.as_ref().map_or_else(
            || "check".to_owned(),
            |payoff| match payoff::in_force(payoff, server.sharing.as_ref()) {
                Some(ModeInForce { mode, program }) => {
                    format!("{mode} of {} {} is in force", visible::name(&program.name), program.pid)
                }
                None => payoff::in_short(payoff).to_owned(),
            },
        ),
        NextStep::AwaitExperiment { pid } => format!("wait: an experiment (PID {pid}) compares modes on it"),
        NextStep::AwaitDatagrams => "no datagram through a queue".to_owned(),
        NextStep::AwaitClients => {
            format!("no connection through a queue{}: send requests, then again", known_now(server))
        }
    };
    let is_fixed_above = matches!(server.next, NextStep::Fix { .. }) && fixes == Fixes::Above;
    let command = command(server, fixes).filter(|_| !is_fixed_above);
    match command {
        Some(command) if command.ends_with(STARTS_PROGRAM) => format!("{step}, after its end: {command}"),
        Some(command) => format!("{step}: {command}"),
        None => step,
    }
}

fn again(measured: &EarlierMeasurement, packets_per_s: u64) -> String {
    let now = if packets_per_s == 0 { "none".to_owned() } else { format!("{}/s", short(packets_per_s as f64)) };
    let again = if packets_per_s == 0 { "look again under load" } else { "measure again" };
    format!("measured{} ({}), now {now}: {again}", when(measured), visible::name(&measured.result))
}

/// `measured on 2026-11-25 (bench-20261125-180405) with other settings (base then, threaded now): measure again`.
fn settings_changed(measured: &EarlierMeasurement, then: &DeliveryMode, now: Option<&DeliveryMode>) -> String {
    let now = now.map_or_else(|| "settings that differ or that no mode has".to_owned(), ToString::to_string);
    let (when, result) = (when(measured), visible::name(&measured.result));
    format!("measured{when} ({result}) with other settings ({then} then, {now} now): measure again")
}

#[cfg(test)]
mod tests;
