//! A recording of `quell top` in words and tables: who polled, how long packets can have waited, what changed.

use std::collections::BTreeMap;

use quell_cli::number::{ABSENT, short};
use quell_host::attach::effect::ModeVerdict;
use quell_linux::visible::{self, counted};
use quell_linux::{NapiId, Pid};
use quell_mode::PartialNapiSettings;
use quell_result::top::{IntervalReport, ObservedEpolls, ObservedProgram, ObservedQueue, TopRecording};
use quell_sampler::{QueuePoller, QueueSample};
use quell_stats::Spread;

use super::settings::{EPOLL, QUEUE, epoll_cells, grouped, known, named, queue_cells};
use super::{TextTable, poller_name};

#[derive(Debug)]
pub struct RecordingSummary {
    /// Who polled, in a few words.
    pub headline: String,
    /// Rates, waits, drops: sentences.
    pub statements: Vec<String>,
    /// Polls, and waits.
    pub queues: [TextTable; 2],
    pub programs: TextTable,
    /// In the order of time.
    pub changes: Vec<RecordedChange>,
    /// Settings of the queues at the start and at the end, then epolls at the end.
    pub settings: Vec<TextTable>,
}

/// Something that was different from one report to the next.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedChange {
    /// End of the interval in which it was noticed, in seconds since the start of the recording.
    pub at_s: f64,
    pub text: String,
}

#[must_use]
pub fn recording_summary(recording: &TopRecording) -> RecordingSummary {
    let reports = &recording.reports;
    let totals = queue_totals(reports);
    RecordingSummary {
        headline: headline(reports, &totals),
        statements: statements(reports, &totals),
        queues: queue_tables(&totals),
        programs: programs_table(reports),
        changes: changes(reports),
        settings: settings(reports),
    }
}

/// Ends of the intervals in seconds since the start of the recording.
pub(crate) fn ends_s(reports: &[IntervalReport]) -> Vec<f64> {
    let mut end_ns = 0.0;
    let mut end = |report: &IntervalReport| {
        end_ns += report.interval_ns as f64;
        end_ns / 1e9
    };
    reports.iter().map(&mut end).collect()
}

/// Name of an observed queue.
pub(crate) fn name_of(queue: &ObservedQueue) -> String {
    super::queue_name(&queue.device, &queue.rx_queues, queue.napi)
}

/// Name of an observed program.
pub(crate) fn name_of_program(program: &ObservedProgram) -> String {
    format!("{} ({})", visible::name(&program.name), program.pid)
}

/// A queue over all reports that have samples of it.
#[derive(Debug)]
pub(crate) struct QueueTotals<'a> {
    /// The queue in its latest report.
    pub(crate) queue: &'a ObservedQueue,
    seconds: f64,
    polls: BTreeMap<QueuePoller, f64>,
    pub(crate) packets: f64,
    empty: f64,
    masked_ns: f64,
    /// 50th and 99th percentile of the bound of the wait in each report, in µs; absent in reports without packets.
    waits_us: [Vec<Option<f64>>; 2],
    stalled: usize,
}

impl QueueTotals<'_> {
    /// Bound of the wait over the reports: of the median packet (0), or of the 99th percentile (1).
    fn wait(&self, quantile: usize) -> Option<Spread> {
        Spread::of(self.waits_us[quantile].iter().copied())
    }

    fn all_polls(&self) -> f64 {
        self.polls.values().sum()
    }
}

/// Totals of each queue, those with the most packets first.
pub(crate) fn queue_totals(reports: &[IntervalReport]) -> Vec<QueueTotals<'_>> {
    let mut totals: BTreeMap<NapiId, QueueTotals<'_>> = BTreeMap::new();
    for report in reports {
        for queue in &report.queues {
            let of_queue = totals.entry(queue.napi).or_insert_with(|| QueueTotals {
                queue,
                seconds: 0.0,
                polls: BTreeMap::new(),
                packets: 0.0,
                empty: 0.0,
                masked_ns: 0.0,
                waits_us: Default::default(),
                stalled: 0,
            });
            of_queue.queue = queue;
            let Some(sample) = &queue.sample else { continue };
            add(of_queue, sample, report.interval_ns);
            of_queue.stalled += usize::from(queue.stalled == Some(true));
        }
    }
    let mut totals: Vec<QueueTotals<'_>> = totals.into_values().collect();
    totals.sort_by(|one, other| other.packets.total_cmp(&one.packets));
    totals
}

fn add(totals: &mut QueueTotals<'_>, sample: &QueueSample, interval_ns: u64) {
    totals.seconds += interval_ns as f64 / 1e9;
    for poller in QueuePoller::ALL {
        *totals.polls.entry(poller).or_default() += poller.polls(&sample.polls) as f64;
    }
    totals.packets += sample.packets as f64;
    totals.empty += sample.empty as f64;
    totals.masked_ns += sample.masked_ns as f64 + sample.suspended_ns as f64;
    for (waits, ns) in totals.waits_us.iter_mut().zip([sample.wait.p50_ns, sample.wait.p99_ns]) {
        waits.push(ns.map(|ns| ns as f64 / 1e3));
    }
}

/// Polls of all queues by poller, the most frequent one first.
fn shares(totals: &[QueueTotals<'_>]) -> Vec<(&'static str, f64)> {
    let of = |poller| totals.iter().filter_map(|queue| queue.polls.get(&poller)).sum();
    let counts: Vec<(&'static str, f64)> = QueuePoller::ALL.map(|poller| (poller_name(poller), of(poller))).to_vec();
    let all: f64 = counts.iter().map(|(_, polls)| polls).sum();
    let mut shares: Vec<_> = counts.into_iter().map(|(name, polls)| (name, polls / all * 100.0)).collect();
    shares.retain(|(_, share)| *share >= 1.0);
    shares.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    shares
}

fn headline(reports: &[IntervalReport], totals: &[QueueTotals<'_>]) -> String {
    if reports.is_empty() {
        return "The recording has no report".to_owned();
    }
    if totals.iter().all(|queue| queue.queue.sample.is_none()) {
        return "The polls are unknown".to_owned();
    }
    match &shares(totals)[..] {
        [] => "Nobody polled: no packets arrived".to_owned(),
        shares => {
            let one = |(name, share): &(&str, f64)| format!("{name} {share:.0} %");
            format!("Polls: {}", shares.iter().map(one).collect::<Vec<_>>().join(", "))
        }
    }
}

fn statements(reports: &[IntervalReport], totals: &[QueueTotals<'_>]) -> Vec<String> {
    let mut said = Vec::new();
    let seconds: f64 = reports.iter().map(|report| report.interval_ns as f64 / 1e9).sum();
    let (packets, polls) =
        totals.iter().fold((0.0, 0.0), |(packets, polls), queue| (packets + queue.packets, polls + queue.all_polls()));
    said.push(format!(
        "{} in {} s on {}: {} packets/s in {} polls/s.",
        counted(reports.len(), "report"),
        short(seconds),
        counted(totals.len(), "queue"),
        short(packets / seconds),
        short(polls / seconds)
    ));
    said.extend(
        reports
            .iter()
            .rev()
            .find_map(|report| report.polls_unknown.as_ref())
            .map(|why| format!("Polls were unknown at least at times: {}.", visible::name(why))),
    );
    let waits = totals.iter().filter_map(|queue| Some((queue, queue.wait(1)?)));
    if let Some((queue, wait)) = waits.max_by(|(_, one), (_, other)| one.max.total_cmp(&other.max)) {
        said.push(format!(
            "99 % of the packets of a report waited at most {} µs in the ring, in the worst report of {}; {} µs in a typical \
             one.",
            short(wait.max),
            name_of(queue.queue),
            short(wait.median)
        ));
    }
    let stalled = totals.iter().filter(|queue| queue.stalled > 0);
    let stalled: Vec<String> = stalled.map(|queue| name_of(queue.queue)).collect();
    if !stalled.is_empty() {
        said.push(format!("Stalled at times: {}.", named(&stalled)));
    }
    let mut drops: BTreeMap<&str, u64> = BTreeMap::new();
    for device in reports.iter().flat_map(|report| &report.devices) {
        let lost = [device.rx_dropped, device.rx_queue_dropped, device.tx_dropped].into_iter().flatten();
        let sum = drops.entry(&device.name).or_default();
        *sum = lost.fold(*sum, u64::saturating_add);
    }
    let lost = drops.iter().filter(|(_, count)| **count > 0);
    said.extend(lost.map(|(name, count)| format!("{} dropped {}.", visible::name(name), counted(*count, "packet"))));
    said
}

/// Rates and shares of the polls, without those who never polled; then how long packets can have waited.
fn queue_tables(totals: &[QueueTotals<'_>]) -> [TextTable; 2] {
    let polls_by = |queue: &QueueTotals<'_>, poller| queue.polls.get(&poller).copied().unwrap_or(0.0);
    let polls_at_all = |poller: &QueuePoller| totals.iter().any(|queue| polls_by(queue, *poller) > 0.0);
    let seen = || QueuePoller::ALL.into_iter().filter(polls_at_all);
    let polls = |queue: &QueueTotals<'_>| {
        let polls = queue.all_polls();
        let share = |part: f64| if polls > 0.0 { format!("{:.0}", part / polls * 100.0) } else { ABSENT.to_owned() };
        let rates = [queue.packets, polls].map(|count| short(count / queue.seconds));
        let shares = seen().map(|poller| share(polls_by(queue, poller))).chain([share(queue.empty)]);
        [name_of(queue.queue)].into_iter().chain(rates).chain(shares).collect()
    };
    let waits = |queue: &QueueTotals<'_>| {
        let [median, p99] = [0, 1].map(|quantile| queue.wait(quantile));
        let waits = [median.map(|wait| wait.median), p99.map(|wait| wait.median), p99.map(|wait| wait.max)];
        let masked = short(queue.masked_ns / queue.seconds / 1e7);
        let waits = waits.map(|wait| wait.map_or_else(|| ABSENT.to_owned(), short));
        [name_of(queue.queue), masked].into_iter().chain(waits).collect()
    };
    let head = ["queue", "packets/s", "polls/s"].into_iter().chain(seen().map(poller_name)).chain(["empty"]);
    [
        TextTable {
            heading: "Polls: rates, then who polled and how many found no packet, in percent".to_owned(),
            head: head.collect(),
            rows: totals.iter().map(polls).collect(),
        },
        TextTable {
            heading: "Waits: time with the interrupt masked, and bounds of the wait in the ring in µs".to_owned(),
            head: vec!["queue", "masked %", "typical p50", "typical p99", "worst p99"],
            rows: totals.iter().map(waits).collect(),
        },
    ]
}

/// Programs in all reports, by PID. Those with the latest report of each.
pub(crate) fn programs(reports: &[IntervalReport]) -> BTreeMap<Pid, Vec<&ObservedProgram>> {
    let mut all: BTreeMap<Pid, Vec<&ObservedProgram>> = BTreeMap::new();
    for program in reports.iter().flat_map(|report| &report.programs) {
        all.entry(program.pid).or_default().push(program);
    }
    all
}

fn programs_table(reports: &[IntervalReport]) -> TextTable {
    let row = |seen: &Vec<&ObservedProgram>| {
        let last = seen.last()?;
        let typical = |value: fn(&ObservedProgram) -> Option<f64>| {
            let spread = Spread::of(seen.iter().map(|program| value(program)));
            spread.map_or_else(|| ABSENT.to_owned(), |spread| short(spread.median))
        };
        let napis = last.napis.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let effect = last.effect.as_ref().map_or(ABSENT, effect_word);
        let mode = last.mode.as_ref().map_or_else(|| ABSENT.to_owned(), |mode| visible::name(mode).into_owned());
        let us_per_packet = |program: &ObservedProgram| program.cpu_ns_per_packet.map(|ns| ns / 1e3);
        let cells = [typical(|program| program.cpus), typical(us_per_packet), mode, effect.to_owned(), napis];
        Some([name_of_program(last)].into_iter().chain(cells).collect())
    };
    TextTable {
        heading: "Programs: typical CPU use, mode at the end".to_owned(),
        head: vec!["program", "CPUs", "µs/packet", "mode", "in effect", "NAPI"],
        rows: programs(reports).values().filter_map(row).collect(),
    }
}

fn effect_word(verdict: &ModeVerdict) -> &'static str {
    match verdict {
        ModeVerdict::InEffect(_) => "yes",
        ModeVerdict::NotInEffect(_) => "NO",
        ModeVerdict::CannotTell(_) => "cannot tell",
    }
}

/// Changes from each report to the next. Objects with the same change are one.
fn changes(reports: &[IntervalReport]) -> Vec<RecordedChange> {
    let mut all = Vec::new();
    for (pair, at_s) in reports.windows(2).zip(ends_s(reports).into_iter().skip(1)) {
        let [before, after] = pair else { continue };
        let found = queue_changes(before, after).into_iter().chain(program_changes(before, after));
        let text = |(names, what): (Vec<String>, String)| format!("{}: {what}", named(&names));
        all.extend(grouped(found).into_iter().map(|found| RecordedChange { at_s, text: text(found) }));
    }
    all
}

fn queue_changes(before: &IntervalReport, after: &IntervalReport) -> Vec<(String, String)> {
    let earlier: BTreeMap<NapiId, &ObservedQueue> = before.queues.iter().map(|queue| (queue.napi, queue)).collect();
    let mut found = Vec::new();
    for queue in &after.queues {
        let mut say = |what: String| found.push((name_of(queue), what));
        let Some(old) = earlier.get(&queue.napi) else {
            say("new".to_owned());
            continue;
        };
        let new = queue.settings.unlike(&old.settings);
        if new != PartialNapiSettings::NONE {
            say(format!("{new} (before: {})", old.settings.where_present_in(&new)));
        }
        if queue.stalled == Some(true) && old.stalled != Some(true) {
            say("stalled".to_owned());
        }
    }
    let is_gone = |queue: &&ObservedQueue| after.queues.iter().all(|other| other.napi != queue.napi);
    found.extend(before.queues.iter().filter(is_gone).map(|queue| (name_of(queue), "gone".to_owned())));
    found
}

fn program_changes(before: &IntervalReport, after: &IntervalReport) -> Vec<(String, String)> {
    let earlier: BTreeMap<Pid, &ObservedProgram> =
        before.programs.iter().map(|program| (program.pid, program)).collect();
    let mut found = Vec::new();
    for program in &after.programs {
        let mut say = |what: String| found.push((name_of_program(program), what));
        let Some(old) = earlier.get(&program.pid) else {
            say("new".to_owned());
            continue;
        };
        match (&old.mode, &program.mode) {
            (old, new) if old == new => {}
            (_, Some(new)) => say(format!("attached with {}", visible::name(new))),
            (Some(old), None) => say(format!("detached from {}", visible::name(old))),
            (None, None) => {}
        }
        if old.epolls != program.epolls {
            say(format!("{} (before: {})", epolls(&program.epolls), epolls(&old.epolls)));
        }
        let [was, is] = [old, program].map(|program| program.effect.as_ref().map(effect_word));
        if was != is
            && let Some(ModeVerdict::NotInEffect(why) | ModeVerdict::InEffect(why) | ModeVerdict::CannotTell(why)) =
                &program.effect
        {
            say(format!("mode in effect: {}, {}", is.unwrap_or_default(), visible::name(why)));
        }
    }
    let is_gone = |program: &&ObservedProgram| after.programs.iter().all(|other| other.pid != program.pid);
    found.extend(before.programs.iter().filter(is_gone).map(|program| (name_of_program(program), "gone".to_owned())));
    found
}

fn epolls(epolls: &[ObservedEpolls]) -> String {
    let one = |epolls: &ObservedEpolls| format!("{} with {}", counted(epolls.count, "epoll"), epolls.params);
    match epolls {
        [] => "no epoll".to_owned(),
        some => some.iter().map(one).collect::<Vec<_>>().join("; "),
    }
}

fn settings(reports: &[IntervalReport]) -> Vec<TextTable> {
    let (Some(first), Some(last)) = (reports.first(), reports.last()) else { return Vec::new() };
    let at_start = |napi: NapiId| first.queues.iter().find(|queue| queue.napi == napi).map(|queue| queue.settings);
    let rows = |queue: &ObservedQueue| {
        let row = |when: &str, values| [vec![when.to_owned()], queue_cells(values)].concat();
        vec![row("at the start", at_start(queue.napi).as_ref()), row("at the end", Some(&queue.settings))]
    };
    let queues = grouped(last.queues.iter().map(|queue| (name_of(queue), rows(queue))));
    let mut tables: Vec<TextTable> =
        queues.into_iter().map(|(names, rows)| known(named(&names), &QUEUE, &rows)).collect();
    let row = |program: &ObservedProgram, epolls: &ObservedEpolls| {
        [vec![name_of_program(program), epolls.count.to_string()], epoll_cells(Some(&epolls.params))].concat()
    };
    let all = last.programs.iter().flat_map(|program| program.epolls.iter().map(move |epolls| row(program, epolls)));
    let rows: Vec<Vec<String>> = all.collect();
    if !rows.is_empty() {
        let head = [&["program", "epolls"], &EPOLL[..]].concat();
        tables.push(TextTable { heading: "Epolls at the end".to_owned(), head, rows });
    }
    tables
}
