//! The page of one queue, or one program.

use quell_result::top::{ObservedDevice, ObservedProgram, ObservedQueue, SkippedPart};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Sparkline, Wrap};

use super::{Palette, block, queue_table};
use crate::commands::top::state::{HistoryPoint, Pane, TopState};
use crate::output::on_one_line;
use crate::render::number::{ABSENT, short};
use crate::render::top::{cpus, cpus_used, percent, program_cells, rate, verdict, why};

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &TopState, palette: Palette) {
    match state.pane {
        Pane::Queues => match state.selected_queue() {
            Some(queue) => queue_details(frame, area, state, queue, palette),
            None => frame.render_widget(Paragraph::new("no queue"), area),
        },
        Pane::Programs => match state.selected_program() {
            Some(program) => program_details(frame, area, state, program, palette),
            None => frame.render_widget(Paragraph::new("no program"), area),
        },
    }
}

fn queue_details(frame: &mut Frame<'_>, area: Rect, state: &TopState, queue: &ObservedQueue, palette: Palette) {
    let seconds = state.report.as_ref().map_or(1.0, |report| report.interval_ns as f64 / 1e9);
    let rx: Vec<String> = queue.rx_queues.iter().map(ToString::to_string).collect();
    let rx = if rx.is_empty() { ABSENT.to_owned() } else { rx.join(",") };
    let title = format!(" {} RX {rx}, NAPI {} ", on_one_line(&queue.device), queue.napi);
    let block = block(title, true, palette);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let Some(sample) = &queue.sample else {
        let of_all = state.report.as_ref().and_then(|report| report.polls_unknown.as_deref()).map(on_one_line);
        let why = queue.unsampled.map(|why| why.to_string()).or(of_all);
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        let text = Paragraph::new(format!("polls unknown{why}")).wrap(Wrap { trim: true });
        return frame.render_widget(text, inner);
    };
    let of_polls = |count: u64| percent(count, sample.polls.total());
    let per_s = |count: u64| rate(count as f64 / seconds);
    let us = |ns: Option<u64>| ns.map_or_else(|| ABSENT.to_owned(), |ns| short(ns as f64 / 1e3));
    let cpus = |ns: Option<u64>| cpus(ns.map(|ns| cpus_used(ns, seconds)));
    let known_ns = sample.enabled_ns + sample.masked_ns + sample.suspended_ns;
    let polls = sample.polls;
    let poller = |who: &'static str, count: u64| {
        let bar = "█".repeat((count * 20).checked_div(polls.total()).unwrap_or(0) as usize);
        Line::from(format!("  {who:<24}{:>8}/s {:>5}  {bar}", per_s(count), of_polls(count)))
    };
    let interrupts = queue.interrupts.map_or_else(|| ABSENT.to_owned(), |count| format!("{}/s", per_s(count)));
    let lines = vec![
        Line::from(format!(
            "packets {}/s   polls {}/s   empty {}   whole budget {}   interrupts {interrupts}",
            per_s(sample.packets),
            per_s(polls.total()),
            of_polls(sample.empty),
            of_polls(sample.budget_exhausted),
        )),
        Line::styled("Polls by", palette.heading),
        poller("program", polls.program),
        poller("program, after its loop", polls.program_last),
        poller("deferral timer", polls.timer),
        poller("interrupt", polls.interrupt),
        poller("NAPI thread", polls.thread),
        poller("ksoftirqd", polls.ksoftirqd),
        poller("other softirq", polls.rescheduled),
        Line::styled("Interrupt", palette.heading),
        Line::from(format!(
            "  enabled {}   masked {}   suspended {}   found suspended by program polls {}",
            percent(sample.enabled_ns, known_ns),
            percent(sample.masked_ns, known_ns),
            percent(sample.suspended_ns, known_ns),
            sample.program_found_suspended.map_or_else(|| ABSENT.to_owned(), |found| percent(found, polls.program)),
        )),
        Line::styled("CPU time of polls", palette.heading),
        Line::from(format!(
            "  softirqs {}   NAPI thread {}   per packet {}",
            cpus(sample.softirq_ns),
            cpus(queue.thread_ns),
            us_per_packet(queue).map_or_else(|| ABSENT.to_owned(), |us| short(us) + " µs"),
        )),
        Line::styled("Bound of the wait in the ring, µs", palette.heading),
        Line::from(format!(
            "  median {}   99th {}   maximum {}   mean if arrivals are even {}",
            us(sample.wait.p50_ns),
            us(sample.wait.p99_ns),
            us(sample.wait.max_ns),
            us(sample.wait.mean_ns.map(|mean| mean / 2)),
        )),
        Line::from(format!(
            "  packets at an enabled interrupt, without a bound: {}/s",
            per_s(sample.wait.interrupt_packets)
        )),
        Line::from(stalls_and_drops(state, queue)),
    ];
    let rows = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let [text, charts] = Layout::vertical([Constraint::Length(rows), Constraint::Min(0)]).areas(inner);
    frame.render_widget(Paragraph::new(lines), text);
    let history: Vec<_> = state.history(queue.napi).copied().collect();
    let charts = Layout::horizontal([Constraint::Fill(1); 3]).spacing(2).split(charts);
    let chart = |name: &'static str, value: fn(&HistoryPoint) -> Option<u64>| {
        let block = Block::new().title(Span::styled(name, palette.heading));
        Sparkline::default().block(block).style(palette.good).data(history.iter().map(value).collect::<Vec<_>>())
    };
    frame.render_widget(chart("packets/s", |point| Some(point.packets_per_s as u64)), charts[0]);
    frame.render_widget(chart("polls/s", |point| Some(point.polls_per_s as u64)), charts[1]);
    frame.render_widget(chart("99th of the wait", |point| point.wait_p99_ns), charts[2]);
}

fn program_details(frame: &mut Frame<'_>, area: Rect, state: &TopState, program: &ObservedProgram, palette: Palette) {
    let block = block(format!(" {} {} ", program.pid, on_one_line(&program.name)), true, palette);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [_, _, _, cpu, us_per_packet, mode, _] = program_cells(program);
    let mut lines = vec![Line::from(format!("CPUs in use {cpu}   CPU per packet, µs {us_per_packet}   mode {mode}"))];
    let unit = program.unit.as_deref().map_or_else(|| ABSENT.to_owned(), on_one_line);
    let drifted = program.drifted.map_or_else(|| ABSENT.to_owned(), |count| count.to_string());
    if let Some(container) = &program.container {
        let pod = program.pod.as_deref().unwrap_or(ABSENT);
        lines.push(Line::from(format!("pod {pod}   container {container}")));
    }
    lines.push(Line::from(format!("unit {unit}   drifted settings {drifted}")));
    if let Some(skipped) = program.skipped.as_ref().filter(|skipped| !skipped.is_empty()) {
        let part = |part: &SkippedPart| match part.napi {
            Some(napi) => format!("NAPI {napi} {}", part.reason.name()),
            None => part.reason.name().to_owned(),
        };
        let parts: Vec<String> = skipped.iter().map(part).collect();
        lines.push(Line::styled(format!("not applied: {}", parts.join(", ")), palette.bad));
    }
    if let Some(effect) = &program.effect {
        let (in_effect, _) = verdict(effect);
        lines.push(Line::from(vec![Span::raw("in effect: "), Span::styled(in_effect, palette.verdict(Some(effect)))]));
        lines.extend(why(program).map(|why| Line::from(on_one_line(&why))));
    }
    let [text, table] = Layout::vertical([Constraint::Length(7), Constraint::Min(0)]).areas(inner);
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), text);
    let all = state.report.iter().flat_map(|report| &report.queues);
    let queues: Vec<_> = all.filter(|queue| program.napis.contains(&queue.napi)).collect();
    let block = super::block(" Its queues ".to_owned(), false, palette);
    queue_table(frame, table, state, &queues, block, None, palette);
}

fn stalls_and_drops(state: &TopState, queue: &ObservedQueue) -> String {
    let is_its = |device: &&ObservedDevice| device.namespace == queue.namespace && device.name == queue.device;
    let seconds = state.report.as_ref().map_or(1.0, |report| report.interval_ns as f64 / 1e9);
    let device = state.report.iter().flat_map(|report| &report.devices).find(is_its);
    let per_s = |of: fn(&ObservedDevice) -> Option<u64>| match device.and_then(of) {
        Some(count) => format!("{}/s", rate(count as f64 / seconds)),
        None => ABSENT.to_owned(),
    };
    let stalled = match queue.stalled {
        Some(true) => "yes",
        Some(false) => "no",
        None => ABSENT,
    };
    let (full, rx, tx) =
        (per_s(|device| device.rx_queue_dropped), per_s(|device| device.rx_dropped), per_s(|device| device.tx_dropped));
    format!("  stalled (50 ms) {stalled}   dropped by the device: rx queue {full}, rx {rx}, tx {tx}")
}

/// CPU time of the polls of a queue per packet, in µs. Absent if programs poll too, whose CPU time has other work.
fn us_per_packet(queue: &ObservedQueue) -> Option<f64> {
    let sample = queue.sample.filter(|sample| sample.packets > 0 && sample.polls.program == 0)?;
    Some(queue.cpu_ns()? as f64 / 1e3 / sample.packets as f64)
}
