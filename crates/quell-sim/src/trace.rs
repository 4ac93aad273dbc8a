//! Trace of a run: segments of every CPU and events of every queue. It converts to JSON trace events for Perfetto, and
//! to a timeline for the terminal. A trace has a fixed capacity. If a run is longer, its trace is truncated and marked
//! as such.

use std::collections::BTreeSet;

use serde::{Serialize, Serializer};

use crate::engine::Ns;
use crate::world::{Context, Cpu, Program, Stage, Thread};

/// Maximum number of segments, and of events, in a trace.
const BOUND: usize = 400_000;

/// Time that a CPU spent on one activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Segment {
    /// Index of the CPU.
    pub cpu: usize,
    /// Name of the activity in the kernel's terms.
    pub what: &'static str,
    /// Thread that ran; `None` in interrupts, in softirqs, and while the CPU was idle.
    pub thread: Option<usize>,
    /// Start of the activity, in ns.
    pub from_ns: Ns,
    /// End of the activity, in ns.
    pub to_ns: Ns,
}

/// An event of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// Time of the event, in ns.
    pub at_ns: Ns,
    /// Index of the queue.
    pub queue: usize,
    /// Name of the event in the kernel's terms.
    pub what: &'static str,
}

/// CPU or queue to which a timeline entry belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimelineSource {
    /// A CPU.
    Cpu(usize),
    /// An RX queue.
    Queue(usize),
}

/// One line of a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineEntry {
    /// Time of the entry, in ns.
    pub at_ns: Ns,
    /// CPU or queue to which the entry belongs.
    pub place: TimelineSource,
    /// Name of the event or activity in the kernel's terms.
    pub what: &'static str,
    /// Duration in ns; `None` for an event without a duration.
    pub lasts_ns: Option<Ns>,
}

/// Trace of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Trace {
    /// Activities of CPUs, in the order in which they ended.
    pub segments: Vec<Segment>,
    /// Events of queues, in the order in which they occurred.
    pub marks: Vec<Mark>,
    /// Whether the trace is truncated.
    pub cut_off: bool,
}

fn describe(cpu: &Cpu, thread: Option<&Thread>) -> &'static str {
    match cpu.context {
        Context::Halted | Context::Deciding => "idle",
        Context::IdleEntry => "entering idle",
        Context::IdleExit => "leaving idle",
        Context::HardIrq => cpu.irqs.front().map_or("interrupt", |irq| irq.name()),
        Context::SoftIrq => "NET_RX softirq",
        Context::Thread => thread.map_or("thread", |thread| match (thread.stage, &thread.program) {
            (Stage::Ksoftirqd, _) => "ksoftirqd",
            (Stage::NapiThread | Stage::NapiThreadWork, _) | (_, Program::NapiThread { .. }) => "NAPI thread",
            (_, Program::Poller(_)) => "polling thread",
            (Stage::BusyWork | Stage::BusySpin, _) => "busy poll",
            (Stage::FinalPoll, _) => "final poll",
            (Stage::RingSpin | Stage::ClockSpin, _) => "polling in user space",
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

    pub(crate) fn segment(&mut self, cpu: usize, state: &Cpu, thread: Option<(usize, &Thread)>, to_ns: Ns) {
        let (context, from_ns) = (state.context, state.segment_began_ns);
        if from_ns >= to_ns || matches!(context, Context::Halted | Context::Deciding) {
            return;
        }
        if self.segments.len() >= BOUND {
            self.cut_off = true;
            return;
        }
        let what = describe(state, thread.map(|(_, thread)| thread));
        let thread = thread.filter(|_| context == Context::Thread).map(|(index, _)| index);
        self.segments.push(Segment { cpu, what, thread, from_ns, to_ns });
    }

    /// Converts to the JSON trace event format. CPUs are the threads of process 1, and queues are those of process 2.
    /// Each suspension is a span.
    pub fn perfetto(&self) -> impl Serialize + '_ {
        Perfetto { display_time_unit: "ns", trace_events: Events(self) }
    }

    /// Times of the first and the last entry, in ns. `None` if the trace is empty.
    #[must_use]
    pub fn span_ns(&self) -> Option<(Ns, Ns)> {
        let began =
            self.segments.iter().map(|segment| segment.from_ns).chain(self.marks.first().map(|mark| mark.at_ns));
        let ended = self.segments.last().map(|segment| segment.to_ns).max(self.marks.last().map(|mark| mark.at_ns));
        began.min().zip(ended)
    }

    /// All suspensions, each with its queue, start and end.
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

    /// Entries that start in `from_ns..to_ns`, in the order in which they start.
    #[must_use]
    pub fn timeline(&self, from_ns: Ns, to_ns: Ns) -> Vec<TimelineEntry> {
        let of_cpus = self.segments.iter().map(|segment| TimelineEntry {
            at_ns: segment.from_ns,
            place: TimelineSource::Cpu(segment.cpu),
            what: segment.what,
            lasts_ns: Some(segment.to_ns - segment.from_ns),
        });
        let of_queues = self.marks.iter().map(|mark| TimelineEntry {
            at_ns: mark.at_ns,
            place: TimelineSource::Queue(mark.queue),
            what: mark.what,
            lasts_ns: None,
        });
        let within = |entry: &TimelineEntry| (from_ns..to_ns).contains(&entry.at_ns);
        let mut entries: Vec<_> = of_queues.chain(of_cpus).filter(within).collect();
        entries.sort_by_key(|entry| entry.at_ns);
        entries
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Perfetto<'a> {
    display_time_unit: &'static str,
    trace_events: Events<'a>,
}

/// The trace events. They are serialized one by one, because a trace is large.
struct Events<'a>(&'a Trace);

const CPUS: u32 = 1;
const QUEUES: u32 = 2;

#[derive(Serialize)]
struct Event {
    name: &'static str,
    ph: &'static str,
    pid: u32,
    tid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// Scope of an instant event, which is its thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Name>,
}

#[derive(Serialize)]
struct Name {
    name: String,
}

impl Event {
    fn named(what: &'static str, pid: u32, tid: usize, name: String) -> Self {
        Self { name: what, ph: "M", pid, tid, ts: None, dur: None, s: None, args: Some(Name { name }) }
    }

    fn span(name: &'static str, pid: u32, tid: usize, from_ns: Ns, to_ns: Ns) -> Self {
        let (ts, dur) = (Some(micros(from_ns)), Some(micros(to_ns - from_ns)));
        Self { name, ph: "X", pid, tid, ts, dur, s: None, args: None }
    }

    fn instant(name: &'static str, pid: u32, tid: usize, at_ns: Ns) -> Self {
        Self { name, ph: "i", pid, tid, ts: Some(micros(at_ns)), dur: None, s: Some("t"), args: None }
    }
}

fn micros(ns: Ns) -> f64 {
    ns as f64 / 1e3
}

impl Serialize for Events<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Trace { segments, marks, .. } = self.0;
        let cpus: BTreeSet<usize> = segments.iter().map(|segment| segment.cpu).collect();
        let queues: BTreeSet<usize> = marks.iter().map(|mark| mark.queue).collect();
        let groups = [(CPUS, "CPUs"), (QUEUES, "RX queues")];
        let groups = groups.map(|(pid, name)| Event::named("process_name", pid, 0, name.to_owned()));
        let cpus = cpus.into_iter().map(|cpu| Event::named("thread_name", CPUS, cpu, format!("CPU {cpu}")));
        let queues =
            queues.into_iter().map(|queue| Event::named("thread_name", QUEUES, queue, format!("queue {queue}")));
        let segments =
            segments.iter().map(|segment| Event::span(segment.what, CPUS, segment.cpu, segment.from_ns, segment.to_ns));
        let marks = marks.iter().map(|mark| Event::instant(mark.what, QUEUES, mark.queue, mark.at_ns));
        let suspensions = self.0.suspensions().into_iter();
        let suspensions = suspensions
            .map(|(queue, from_ns, to_ns)| Event::span("interrupts suspended", QUEUES, queue, from_ns, to_ns));
        let events = groups.into_iter().chain(cpus).chain(queues).chain(suspensions).chain(segments).chain(marks);
        serializer.collect_seq(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording() -> Trace {
        let mark = |at_ns, what| Mark { at_ns, queue: 0, what };
        let segment = |what, from_ns, to_ns| Segment { cpu: 1, what, thread: None, from_ns, to_ns };
        Trace {
            segments: vec![segment("application", 1_000, 3_000), segment("idle", 3_000, 9_000)],
            marks: vec![mark(2_000, "suspended"), mark(2_500, "suspended"), mark(8_000, "resumed")],
            cut_off: false,
        }
    }

    #[test]
    fn a_suspension_is_a_span_in_the_trace_file() {
        let file = serde_json::to_value(recording().perfetto()).expect("plain data");
        let events = file["traceEvents"].as_array().expect("a list");
        let span = events.iter().find(|event| event["name"] == "interrupts suspended").expect("it is there");
        assert_eq!((&span["ph"], span["ts"].as_f64(), span["dur"].as_f64()), (&"X".into(), Some(2.0), Some(6.0)));
        let named = |name: &str| events.iter().any(|event| event["args"]["name"] == name);
        assert!(named("CPU 1") && named("queue 0"));
    }

    #[test]
    fn timeline_entries_are_ordered_by_their_start() {
        let whats: Vec<_> = recording().timeline(1_000, 3_001).iter().map(|entry| entry.what).collect();
        assert_eq!(whats, ["application", "suspended", "suspended", "idle"]);
        assert_eq!(recording().span_ns(), Some((1_000, 9_000)));
    }
}
