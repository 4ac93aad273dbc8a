//! Text output of `quell load --protocol xdp` and `quell respond --xdp`.

use std::time::Duration;

use quell_linux::af_xdp::XdpSocketStats;
use quell_linux::visible::counted;
use quell_result::load::XdpLoadRun;
use quell_sampler::{PollsByPoller, QueuePoller, XdpHook};
use quell_stats::LatencyHistogram;
use quell_xdp::{PollWay, XdpLoadReport, XdpQueue, XdpResponderStats, XdpSchedule};

use super::load_report::latencies;
use super::number::short;
use super::terminal::Terminal;

/// Figures for a judge of an experiment, as those of other loads.
pub(crate) fn figures(report: &XdpLoadReport) -> String {
    let errors = report.lost + report.never_sent;
    let mut out = format!(
        "requests {}\nrequests-per-s {:.1}\nerrors {errors}\nlate {}\n",
        report.answered, report.answered_per_s, report.late
    );
    for (name, quantile) in [("p5-us", 0.05), ("p50-us", 0.5), ("p95-us", 0.95), ("p99-us", 0.99)] {
        if let Some(latency) = report.latency.quantile(quantile) {
            out.push_str(&format!("{name} {:.3}\n", latency.as_secs_f64() * 1e6));
        }
    }
    out
}

pub(crate) fn load(run: &XdpLoadRun, terminal: Terminal) -> String {
    let XdpLoadRun { spec, report, .. } = run;
    let seconds = Duration::from_nanos(report.duration_ns).as_secs_f64();
    let mut out = format!(
        "{} requests/s answered ({} in {seconds:.1} s)\n\n",
        short(report.answered_per_s),
        short(count(report.answered)),
    );
    let rows = [
        ("from intended send", &report.latency),
        ("from actual send", &report.latency_from_send),
        ("generator's lateness", &report.lateness),
    ];
    let calls = report.receive_calls.as_ref().map(|calls| ("receive call", calls));
    out.push_str(&latencies(&rows.into_iter().chain(calls).collect::<Vec<_>>(), terminal));
    out.push('\n');
    let mut lines = vec![queue(&report.queue), format!("polled by {}", way(spec.socket.way))];
    if let Some(polls) = &report.polls {
        lines.push(format!("polls of the queue: {}", shares(polls)));
    }
    lines.extend(report.polls_missing.as_ref().map(|why| format!("polls of the queue are unknown: {why}")));
    if report.queue.defers == Some(false) && !spec.socket.way.is_the_kernels() {
        let why = "interrupts compete with the program (defer-hard-irqs and gro-flush-timeout are not both set)";
        lines.push(format!("the queue does not defer: {why}"));
    }
    lines.extend(outcomes(spec.schedule, report));
    lines.extend(report.socket.as_ref().and_then(drops));
    let cpu = |ns: u64| short(100.0 * count(ns) / count(report.duration_ns.max(1)));
    for thread in &report.cpu {
        let place = thread.cpu.map_or_else(|| "not pinned".to_owned(), |cpu| format!("on CPU {cpu}"));
        let (run, wait) = (cpu(thread.run_ns), cpu(thread.wait_ns));
        lines.push(format!("CPU of the {}: {run} % of one CPU, {wait} % waiting for a CPU, {place}", thread.thread));
    }
    out.extend(lines.iter().map(|line| terminal.fill(line, "", "  ") + "\n"));
    out
}

fn outcomes(schedule: XdpSchedule, report: &XdpLoadReport) -> Vec<String> {
    let mut lines = Vec::new();
    if let XdpSchedule::Open { .. } = schedule {
        let all = (report.sent + report.never_sent).max(1);
        let limit = XdpLoadReport::ON_TIME.as_micros();
        let share = short(100.0 * count(report.on_time) / count(all));
        lines.push(format!("{share} % of requests sent within {limit} µs of the schedule"));
        if report.was_late() {
            lines.push("THE GENERATOR WAS LATE: the latencies from intended send contain its lateness".to_owned());
        }
        lines.push(format!("{} answered after the next was due", counted(report.late, "request")));
    }
    for (number, what) in [
        (report.lost, "without a response"),
        (report.never_sent, "never sent"),
        (report.unexpected, "answered a second time, or too late"),
    ] {
        if number > 0 {
            lines.push(format!("{} {what}", counted(number, "request")));
        }
    }
    if report.invalid > 0 {
        lines.push(format!("{} with a wrong length, checksum, address or number", counted(report.invalid, "frame")));
    }
    lines
}

/// Drops of a socket, if there are any.
fn drops(stats: &XdpSocketStats) -> Option<String> {
    let named = [
        (stats.rx_dropped, "dropped"),
        (stats.rx_ring_full.unwrap_or(0), "found the RX ring full"),
        (stats.rx_fill_ring_empty.unwrap_or(0), "found the fill ring empty"),
        (stats.rx_invalid_descriptors + stats.tx_invalid_descriptors, "with an invalid descriptor"),
    ];
    let seen: Vec<String> =
        named.into_iter().filter(|(number, _)| *number > 0).map(|(number, what)| format!("{number} {what}")).collect();
    (!seen.is_empty()).then(|| format!("frames that the socket lost: {}", seen.join(", ")))
}

/// A queue and the modes of its socket.
pub(crate) fn queue(queue: &XdpQueue) -> String {
    let hook = match queue.hook {
        XdpHook::Native => "native XDP",
        XdpHook::Generic => "generic XDP",
    };
    let mode = if queue.zero_copy { "zero-copy" } else { "copy" };
    let napi = match (queue.socket_napi, queue.napi) {
        (Some(id), _) => format!("NAPI {id}"),
        (None, Some(id)) => format!("NAPI {id}, which the socket does not know"),
        (None, None) => "unknown NAPI".to_owned(),
    };
    format!("{} queue {}: {hook}, {mode} mode, {napi}", queue.device, queue.queue)
}

fn way(way: PollWay) -> &'static str {
    match way {
        PollWay::Interrupts => "softirqs after interrupts",
        PollWay::BusyPoll => "the receiving thread (SO_PREFER_BUSY_POLL)",
        PollWay::BusyPollThread => "a second thread (SO_PREFER_BUSY_POLL)",
        PollWay::NapiThread => "the NAPI thread",
        PollWay::ThreadedBusyPoll => "the NAPI thread, without end",
        PollWay::UdpBusyPoll => "the receiving thread (SO_PREFER_BUSY_POLL of a UDP socket of the queue)",
        PollWay::UdpBusyPollThread => "a second thread (SO_PREFER_BUSY_POLL of a UDP socket of the queue)",
        PollWay::IoUring => "the receiving thread (io_uring by NAPI ID, a substitute for SO_PREFER_BUSY_POLL)",
        PollWay::IoUringThread => "a second thread (io_uring by NAPI ID, a substitute for SO_PREFER_BUSY_POLL)",
    }
}

/// Who polled, in percent.
fn shares(polls: &PollsByPoller) -> String {
    let total = polls.total();
    let name = |poller: QueuePoller| if poller == QueuePoller::Thread { "NAPI thread" } else { poller.field() };
    let named = QueuePoller::ALL.map(|poller| (poller.polls(polls), name(poller)));
    let share = |number: u64| short(100.0 * count(number) / count(total.max(1)));
    let shares: Vec<String> = named
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, name)| format!("{name} {} %", share(number)))
        .collect();
    if shares.is_empty() { "none".to_owned() } else { format!("{total}: {}", shares.join(", ")) }
}

/// What a responder did.
pub(crate) fn answered(stats: &XdpResponderStats) -> String {
    let mut out = format!(
        "{} answered, {} dropped\n",
        counted(stats.answered, "request"),
        counted(stats.invalid, "invalid frame")
    );
    if let Some(line) = stats.socket.as_ref().and_then(drops) {
        out.push_str(&format!("{line}\n"));
    }
    if let Some(calls) = stats.receive_calls.as_ref().filter(|calls| !calls.is_empty()) {
        out.push_str(&format!("\ntime in the receive call\n{}", doublings(calls)));
    }
    out
}

/// Counts by powers of two of ns, as `hist()` of bpftrace.
fn doublings(calls: &LatencyHistogram) -> String {
    const WIDTH: u64 = 52;
    let mut counts = std::collections::BTreeMap::new();
    for (ns, times) in calls.slots() {
        *counts.entry(ns.max(1).ilog2()).or_insert(0_u64) += u64::from(times);
    }
    let most = counts.values().copied().max().unwrap_or(1).max(1);
    let bar = |times: u64| "@".repeat(usize::try_from(times * WIDTH / most).unwrap_or(0));
    let line = |(power, times): (&u32, &u64)| {
        let (from, to) = (1_u64 << power, 1_u64 << (power + 1));
        format!("[{from}, {to}) ns {times:>10} |{:<52}|\n", bar(*times))
    };
    counts.iter().map(line).collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts for display")]
fn count(number: u64) -> f64 {
    number as f64
}
