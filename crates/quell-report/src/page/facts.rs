//! Where and how a result was measured: machine, subject, settings, checks.

use std::time::{Duration, UNIX_EPOCH};

use maud::{Markup, html};
use quell_host::switching::ReportedSettings;
use quell_linux::visible::counted;
use quell_mode::{DeliveryMode, Threaded};
use quell_result::experiment::SubjectFacts;
use quell_result::facts::{Check, HostFacts};

use super::parts;
use crate::draw::{Grid, shown};
use crate::words::{self, TextTable};

/// Time of day in UTC; `None` for times that no clock shows.
pub(crate) fn utc(unix_s: u64) -> Option<String> {
    // Later times have five digits of the year.
    let time = (unix_s < 253_402_300_800).then(|| UNIX_EPOCH.checked_add(Duration::from_secs(unix_s)))??;
    Some(humantime::format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', " UTC"))
}

/// Machine and subject as names and values.
pub(crate) fn machine(host: &HostFacts, subject: &SubjectFacts) -> Markup {
    let mut facts = vec![("subject", words::subject(subject).join("; "))];
    if !matches!(subject, SubjectFacts::Model(_)) {
        facts.extend(of_host(host));
    }
    facts.extend(queues(subject).map(|queues| ("queues", queues)));
    let mut remarks = Vec::new();
    if let SubjectFacts::Programs(programs) = subject {
        remarks = words::placement(programs.placement.as_ref());
    }
    remarks.extend(words::problems(subject.problems()));
    facts.iter_mut().for_each(|(_, value)| *value = shown_long(value));
    html! {
        (parts::facts(&facts))
        @if !remarks.is_empty() { ul { @for remark in &remarks { li { (shown_long(remark)) } } } }
    }
}

/// The machine as names and values.
pub(crate) fn of_host(host: &HostFacts) -> Vec<(&'static str, String)> {
    let mut facts = vec![("kernel", format!("Linux {} {}", shown(&host.kernel_release), shown(&host.kernel_version)))];
    facts.extend(host.kernel_command_line.as_ref().map(|line| ("kernel command line", shown(line))));
    facts.extend(host.cpu_model.as_ref().map(|model| ("processor", shown(model))));
    facts.push(("CPUs", numbers(&host.cpus)));
    let us = |value: Option<u32>| value.map_or_else(|| "unknown".to_owned(), |us| format!("{us} µs"));
    facts
        .push(("net.core.busy_poll and busy_read", format!("{} and {}", us(host.busy_poll_us), us(host.busy_read_us))));
    facts
}

/// A sentence that contains names, which can be long.
pub(crate) fn shown_long(text: &str) -> String {
    let mut letters = text.chars();
    let start: String = letters.by_ref().take(600).collect();
    if letters.next().is_some() { start + "…" } else { start }
}

fn numbers(numbers: &[u32]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn queues(subject: &SubjectFacts) -> Option<String> {
    match subject {
        SubjectFacts::Programs(programs) => {
            let one = |queue: &quell_result::facts::QueueFacts| {
                let irq = queue.irq.map_or_else(String::new, |irq| format!(", IRQ {irq}"));
                format!("{} queue {} (NAPI {}{irq})", shown(&queue.device), numbers(&queue.queues), queue.napi)
            };
            Some(programs.queues.iter().map(one).collect::<Vec<_>>().join("; "))
        }
        SubjectFacts::Veth { lab, .. } => Some(format!(
            "{} of a veth pair: NAPI {} of the server on CPU {}, NAPI {} of the client on CPU {}",
            counted(lab.queues, "queue"),
            numbers(&lab.server_napi_ids),
            numbers(&lab.cpus.server_cpus()),
            numbers(&lab.client_napi_ids),
            numbers(&lab.cpus.client_cpus()),
        )),
        SubjectFacts::Guest(guest) => Some(format!("receive interrupt {}", guest.rx_irq)),
        SubjectFacts::Command(_) | SubjectFacts::Model(_) => None,
    }
}

/// Checks before the measurement.
pub(crate) fn checks(subject: &SubjectFacts) -> Option<Grid> {
    let SubjectFacts::Veth { lab, .. } = subject else { return None };
    let mut grid = Grid::new(["condition", "observed", "holds"]);
    let row = |check: &Check| {
        vec![shown(&check.claim), shown(&check.observed), if check.holds { "yes" } else { "NO" }.to_owned()]
    };
    grid.rows = lab.checks.iter().map(row).collect();
    (!grid.rows.is_empty()).then_some(grid)
}

/// What the kernel reported about the settings of these experiments. Experiments with the same tables share them.
pub(crate) fn reported<'a>(settings: impl Iterator<Item = &'a ReportedSettings>) -> Option<Markup> {
    let (mut said, mut tables): (Vec<String>, Vec<TextTable>) = Default::default();
    for settings in settings {
        said.extend(words::settings_restored(settings).filter(|text| !said.contains(text)));
        let new = words::settings_tables(settings);
        tables.extend(new.into_iter().filter(|table| !tables.contains(table)).collect::<Vec<_>>());
    }
    (!said.is_empty()).then(|| {
        html! {
            @for text in &said { p { (shown_long(text)) } }
            details {
                summary { "Values before, under each mode, and after" }
                (text_tables(&tables))
            }
        }
    })
}

/// Tables that the terminal has, too, each below its heading.
pub(crate) fn text_tables<'a>(tables: impl IntoIterator<Item = &'a TextTable>) -> Markup {
    html! { @for table in tables {
        p.about { (shown_long(&table.heading)) }
        div.named { (parts::table(&Grid::from(table), &table.heading)) }
    } }
}

/// What each mode sets.
pub(crate) fn settings<'a>(modes: impl Iterator<Item = (&'a str, DeliveryMode)>) -> Grid {
    let mut grid = Grid::new([
        "mode",
        "delivery of packets",
        "gro-flush-timeout",
        "defer-hard-irqs",
        "irq-suspend-timeout",
        "NAPI thread",
        "epoll busy poll",
        "prefer busy poll",
    ]);
    for (name, mode) in modes {
        let (napi, epoll) = (mode.napi(), mode.epoll());
        let threaded = match napi.threaded {
            Threaded::Off => "no",
            Threaded::Thread => "yes",
            Threaded::BusyPoll => "busy polls",
        };
        grid.rows.push(vec![
            shown(name),
            mode.kind().description().replace(" us ", " µs "),
            us(napi.gro_flush_timeout_ns),
            napi.defer_hard_irqs.to_string(),
            us(napi.irq_suspend_timeout_ns),
            threaded.to_owned(),
            epoll.map_or_else(|| "–".to_owned(), |epoll| us(u64::from(epoll.busy_poll_usecs) * 1_000)),
            epoll.map_or("–", |epoll| if epoll.prefer_busy_poll { "yes" } else { "no" }).to_owned(),
        ]);
    }
    grid
}

fn us(ns: u64) -> String {
    if ns == 0 { "0".to_owned() } else { format!("{} µs", quell_cli::number::short(ns as f64 / 1e3)) }
}
