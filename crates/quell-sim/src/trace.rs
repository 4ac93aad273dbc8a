//! What a run did, moment by moment: the segments of every CPU and the marks of every queue. As
//! JSON trace events it opens in Perfetto, where an interrupt can be seen being suspended; as text
//! it is a timeline for the terminal. Bounded: a long run is cut off and says so.

use std::fmt::Write as _;

use serde::Serialize;

use crate::engine::Ns;
use crate::world::{Context, Program, Stage, Thread};

/// Entries that a recording holds at most, segments and marks each.
const BOUND: usize = 400_000;

/// A stretch of time that a CPU spent on one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Segment {
    /// The CPU.
    pub cpu: usize,
    /// What it did, in the kernel's words.
    pub what: &'static str,
    /// The thread on whose time, where it was one's.
    pub thread: Option<usize>,
    /// From when, in ns.
    pub from_ns: Ns,
    /// Until when, in ns.
    pub to_ns: Ns,
}

/// Something that happened to a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// When, in ns.
    pub at_ns: Ns,
    /// The queue.
    pub queue: usize,
    /// What, in the kernel's words.
    pub what: &'static str,
}

/// A recording of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Trace {
    /// What CPUs did, in the order in which it ended.
    pub segments: Vec<Segment>,
    /// What happened to queues, in order.
    pub marks: Vec<Mark>,
    /// Whether the run was longer than the recording.
    pub cut_off: bool,
}

fn describe(context: Context, thread: Option<&Thread>) -> &'static str {
    match context {
        Context::Halted | Context::Deciding => "idle",
        Context::IdleEntry => "entering idle",
        Context::IdleExit => "leaving idle",
        Context::HardIrq(irq) => irq.name(),
        Context::SoftIrq => "NET_RX softirq",
        Context::Thread => thread.map_or("thread", |thread| match (thread.stage, &thread.program) {
            (Stage::Ksoftirqd, _) => "ksoftirqd",
            (Stage::NapiThread | Stage::NapiThreadWork, _) | (_, Program::NapiThread { .. }) => "NAPI thread",
            (Stage::BusyWork | Stage::BusySpin, _) => "busy poll",
            (Stage::FinalPoll, _) => "final poll",
            (Stage::EventSpin, _) => "waiting for events in a loop",
            (Stage::EpollEntry | Stage::EpollSend | Stage::EpollSleep | Stage::Resume, _) => "epoll_wait",
            (Stage::RecvSleep, _) => "recv",
            (Stage::Program, _) => "application",
        }),
    }
}

impl Trace {
    pub(crate) fn mark(&mut self, at_ns: Ns, queue: usize, what: &'static str) {
        if self.marks.len() < BOUND {
            self.marks.push(Mark { at_ns, queue, what });
        } else {
            self.cut_off = true;
        }
    }

    pub(crate) fn segment(
        &mut self,
        cpu: usize,
        context: Context,
        thread: Option<(usize, &Thread)>,
        from_ns: Ns,
        to_ns: Ns,
    ) {
        if from_ns >= to_ns || matches!(context, Context::Halted | Context::Deciding) {
            return;
        }
        if self.segments.len() >= BOUND {
            self.cut_off = true;
            return;
        }
        let what = describe(context, thread.map(|(_, thread)| thread));
        let thread = thread.filter(|_| context == Context::Thread).map(|(index, _)| index);
        self.segments.push(Segment { cpu, what, thread, from_ns, to_ns });
    }

    /// The recording in the JSON trace event format: CPUs as the threads of process 1, queues as
    /// those of process 2, with a span from each suspension to its end.
    #[must_use]
    pub fn to_perfetto_json(&self) -> String {
        let micros = |ns: Ns| ns as f64 / 1e3;
        let mut events = vec![process_name(1, "CPUs"), process_name(2, "RX queues")];
        events.extend(self.segments.iter().map(|segment| {
            serde_json::json!({
                "name": segment.what, "ph": "X", "pid": 1, "tid": segment.cpu,
                "ts": micros(segment.from_ns), "dur": micros(segment.to_ns - segment.from_ns),
            })
        }));
        events.extend(self.marks.iter().map(|mark| {
            serde_json::json!({
                "name": mark.what, "ph": "i", "s": "t", "pid": 2, "tid": mark.queue, "ts": micros(mark.at_ns),
            })
        }));
        events.extend(self.suspensions().into_iter().map(|(queue, from_ns, to_ns)| {
            serde_json::json!({
                "name": "interrupts suspended", "ph": "X", "pid": 2, "tid": queue,
                "ts": micros(from_ns), "dur": micros(to_ns - from_ns),
            })
        }));
        serde_json::json!({ "displayTimeUnit": "ns", "traceEvents": events }).to_string()
    }

    /// Every suspension: queue, from when, until when.
    #[must_use]
    pub fn suspensions(&self) -> Vec<(usize, Ns, Ns)> {
        let queues = self.marks.iter().map(|mark| mark.queue + 1).max().unwrap_or(0);
        let mut since: Vec<Option<Ns>> = vec![None; queues];
        let mut spans = Vec::new();
        for mark in &self.marks {
            match mark.what {
                "suspended" => since[mark.queue] = since[mark.queue].or(Some(mark.at_ns)),
                "resumed" | "timer" => {
                    if let Some(from_ns) = since[mark.queue].take() {
                        spans.push((mark.queue, from_ns, mark.at_ns));
                    }
                }
                _ => {}
            }
        }
        spans
    }

    /// The recording between two moments as lines for the terminal, each with its moment in µs.
    #[must_use]
    pub fn timeline(&self, from_ns: Ns, to_ns: Ns) -> String {
        let within = |at_ns: Ns| (from_ns..to_ns).contains(&at_ns);
        let segments = self.segments.iter().filter(|segment| within(segment.from_ns)).map(|segment| {
            let us = (segment.to_ns - segment.from_ns) as f64 / 1e3;
            (segment.from_ns, format!("cpu{}  {} for {us:.2} us", segment.cpu, segment.what))
        });
        let marks = self.marks.iter().filter(|mark| within(mark.at_ns));
        let mut lines: Vec<_> =
            segments.chain(marks.map(|mark| (mark.at_ns, format!("rx{}   {}", mark.queue, mark.what)))).collect();
        lines.sort_by_key(|(at_ns, _)| *at_ns);
        let mut text = String::new();
        for (at_ns, line) in lines {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{:>12.3}  {line}", at_ns as f64 / 1e3);
        }
        text
    }
}

fn process_name(pid: u32, name: &str) -> serde_json::Value {
    serde_json::json!({ "name": "process_name", "ph": "M", "pid": pid, "args": { "name": name } })
}
