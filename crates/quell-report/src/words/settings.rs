//! Settings as the kernel reported them: before an experiment, under each mode, and after the restore.

use quell_cli::number::ABSENT;
use quell_host::switching::{ReportedEpoll, ReportedQueue, ReportedSettings, ReportedValues};
use quell_linux::visible::counted;
use quell_mode::{EpollParams, NapiAttribute, PartialNapiSettings, duration_text};

use super::TextTable;

pub(super) const QUEUE: [&str; 4] = ["defer-hard-irqs", "gro-flush-timeout", "irq-suspend-timeout", "threaded"];
pub(super) const EPOLL: [&str; 3] = ["busy_poll_usecs", "busy_poll_budget", "prefer_busy_poll"];
/// Number of objects that are named.
const NAMED: usize = 4;

/// Tables of the queues, then of the epolls. The heading of a table has the objects that had the same values at all
/// times; its rows are before, under each mode, and after.
#[must_use]
pub fn settings_tables(settings: &ReportedSettings) -> Vec<TextTable> {
    let queues = settings.queues.iter().map(|queue| (queue_name(queue), rows(&queue.values, queue_cells)));
    let epolls = settings.epolls.iter().map(|epoll| (epoll_name(epoll), rows(&epoll.values, epoll_cells)));
    [tables(&QUEUE, queues), tables(&EPOLL, epolls)].concat()
}

/// Whether all settings were restored, as sentences. `None` if nothing was switched.
#[must_use]
pub fn settings_restored(settings: &ReportedSettings) -> Option<String> {
    let queues = settings.queues.iter().map(|queue| (queue_name(queue), end(&queue.values)));
    let epolls = settings.epolls.iter().map(|epoll| (epoll_name(epoll), end(&epoll.values)));
    let ends = grouped(queues.chain(epolls));
    let total = settings.queues.len() + settings.epolls.len();
    let restored = ends.iter().find(|(_, end)| *end == EndOfSetting::Restored).map_or(0, |(names, _)| names.len());
    let differs = ends.iter().any(|(_, end)| matches!(end, EndOfSetting::Differs(_)));
    let begin = if differs { "Not restored exactly" } else { "Restored exactly" };
    let objects = match settings {
        ReportedSettings { queues, .. } if queues.is_empty() => counted(total, "epoll"),
        ReportedSettings { epolls, .. } if epolls.is_empty() => counted(total, "queue"),
        ReportedSettings { queues, epolls } => {
            format!("{} and {}", counted(queues.len(), "queue"), counted(epolls.len(), "epoll"))
        }
    };
    let of_them = if restored == total { "for".to_owned() } else { format!("for {restored} of") };
    let first =
        format!("{begin}: the kernel reported the same values before and after the measurement {of_them} {objects}.");
    let other = |(names, end): &(Vec<String>, EndOfSetting)| match end {
        EndOfSetting::Restored => None,
        EndOfSetting::Differs(change) => Some(format!(" {}: {change}.", named(names))),
        EndOfSetting::Gone => Some(format!(" {}: afterwards gone, or not readable.", named(names))),
    };
    (total > 0).then(|| first + &ends.iter().filter_map(other).collect::<String>())
}

#[derive(Debug, PartialEq, Eq)]
enum EndOfSetting {
    Restored,
    Differs(String),
    Gone,
}

fn end<V: Copy + PartialEq + std::fmt::Display>(values: &ReportedValues<V>) -> EndOfSetting {
    match values.after {
        Some(after) if after == values.before => EndOfSetting::Restored,
        Some(after) => EndOfSetting::Differs(format!("before {}, after {after}", values.before)),
        None => EndOfSetting::Gone,
    }
}

fn rows<V>(values: &ReportedValues<V>, cells: impl Fn(Option<&V>) -> Vec<String>) -> Vec<Vec<String>> {
    let modes = values.modes.iter().map(|under| (format!("under {}", under.mode), Some(&under.values)));
    let ends = |time: &str, values| (time.to_owned(), values);
    let times = [ends("before", Some(&values.before))].into_iter().chain(modes);
    times
        .chain([ends("after", values.after.as_ref())])
        .map(|(time, values)| [vec![time], cells(values)].concat())
        .collect()
}

fn tables(settings: &[&'static str], objects: impl Iterator<Item = (String, Vec<Vec<String>>)>) -> Vec<TextTable> {
    grouped(objects).into_iter().map(|(names, rows)| known(named(&names), settings, &rows)).collect()
}

/// A table of the settings that are known at some time. Its rows begin with the time.
pub(super) fn known(heading: String, settings: &[&'static str], rows: &[Vec<String>]) -> TextTable {
    let is_known = |column: &usize| rows.iter().any(|row| row[*column] != ABSENT);
    let columns: Vec<usize> = (1..=settings.len()).filter(is_known).collect();
    let row = |row: &Vec<String>| [0].iter().chain(&columns).map(|column| row[*column].clone()).collect();
    let head = std::iter::once("when").chain(columns.iter().map(|column| settings[column - 1])).collect();
    TextTable { heading, head, rows: rows.iter().map(row).collect() }
}

/// Names by value, in the order of their appearance.
pub(super) fn grouped<T: PartialEq>(objects: impl Iterator<Item = (String, T)>) -> Vec<(Vec<String>, T)> {
    let mut groups: Vec<(Vec<String>, T)> = Vec::new();
    for (name, value) in objects {
        match groups.iter_mut().find(|(_, other)| *other == value) {
            Some((names, _)) => names.push(name),
            None => groups.push((vec![name], value)),
        }
    }
    groups
}

pub(super) fn named(names: &[String]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let text = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}

fn queue_name(queue: &ReportedQueue) -> String {
    super::queue_name(&queue.device, &queue.queues, queue.napi)
}

fn epoll_name(epoll: &ReportedEpoll) -> String {
    format!("epoll {} of process {}", epoll.fd, epoll.pid)
}

pub(super) fn queue_cells(values: Option<&PartialNapiSettings>) -> Vec<String> {
    let cell = |attribute: &NapiAttribute| {
        let value = values.and_then(|values| values.get(*attribute));
        value.map_or_else(
            || ABSENT.to_owned(),
            |value| match attribute {
                NapiAttribute::GroFlushTimeout | NapiAttribute::IrqSuspendTimeout if value > 0 => duration_text(value),
                _ => value.to_string(),
            },
        )
    };
    NapiAttribute::ALL.iter().map(cell).collect()
}

pub(super) fn epoll_cells(values: Option<&EpollParams>) -> Vec<String> {
    let Some(params) = values else { return vec![ABSENT.to_owned(); EPOLL.len()] };
    let EpollParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll } = *params;
    vec![busy_poll_usecs.to_string(), busy_poll_budget.to_string(), u8::from(prefer_busy_poll).to_string()]
}

#[cfg(test)]
mod tests {
    use quell_host::switching::ModeValues;
    use quell_mode::DeliveryMode;

    use super::*;

    const OFF: EpollParams = EpollParams { busy_poll_usecs: 0, busy_poll_budget: 0, prefer_busy_poll: false };
    const ON: EpollParams = EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };

    fn epoll(fd: i32, after: Option<EpollParams>) -> ReportedEpoll {
        let mode: DeliveryMode = "suspend20".parse().unwrap();
        let modes = vec![ModeValues { mode, values: ON }];
        ReportedEpoll { pid: "7".parse().unwrap(), fd, values: ReportedValues { before: OFF, modes, after } }
    }

    fn settings(epolls: Vec<ReportedEpoll>) -> ReportedSettings {
        ReportedSettings { queues: Vec::new(), epolls }
    }

    #[test]
    fn objects_with_the_same_values_share_a_table() {
        let tables = settings_tables(&settings((3..10).map(|fd| epoll(fd, Some(OFF))).collect()));
        let [table] = &tables[..] else { panic!("{tables:?}") };
        let first = "epoll 3 of process 7, epoll 4 of process 7, epoll 5 of process 7, epoll 6 of process 7 and 3 more";
        assert_eq!(table.heading, first);
        assert_eq!(
            table.rows,
            [["before", "0", "0", "0"], ["under suspend20", "0", "64", "1"], ["after", "0", "0", "0"]]
        );
    }

    #[test]
    fn a_restore_is_exact_or_its_differences_are_named() {
        let said = |epolls| settings_restored(&settings(epolls)).unwrap_or_default();
        assert_eq!(said(vec![]), "");
        let exact = "Restored exactly: the kernel reported the same values before and after the measurement for";
        assert_eq!(said(vec![epoll(3, Some(OFF))]), format!("{exact} 1 epoll."));
        assert_eq!(
            said(vec![epoll(3, Some(OFF)), epoll(4, None), epoll(5, None)]),
            format!(
                "{exact} 1 of 3 epolls. epoll 4 of process 7, epoll 5 of process 7: afterwards gone, or not readable."
            )
        );
        assert_eq!(
            said(vec![epoll(6, Some(ON))]),
            format!(
                "Not r{} 0 of 1 epoll. epoll 6 of process 7: before busy_poll_usecs 0, busy_poll_budget 0, \
                 prefer_busy_poll 0, after busy_poll_usecs 0, busy_poll_budget 64, prefer_busy_poll 1.",
                &exact[1..]
            )
        );
    }
}
