//! The life of requests under a mode: where each packet waits, who has the CPU, whether the interrupt is masked, and
//! which timer is armed.

use quell_cli::number::short;
use quell_linux::visible::counted;
use quell_mode::DeliveryMode;
use quell_sim::explain::BUSY_REQUESTS;
use quell_sim::{Ns, Trace};
use svg::node::element::{Group, Title};

use super::{Chart, Grid, Scale, WIDTH, anchored, dot, image, line, rectangle, standalone, text, tick};
use crate::palette::ModeStyle;

const LEFT: f64 = 84.0;
const RIGHT: f64 = WIDTH - 50.0;
const ROW: f64 = 17.0;
const PACKET: f64 = 6.0;
const GAP: f64 = 12.0;
const HEAD: f64 = 4.0;
/// Height of the mark below a timer that expires.
const EXPIRY: f64 = 5.0;
/// Width of a letter, to see whether a word fits a bar.
const LETTER: f64 = 6.8;

/// Who has the CPU: names of activities in a trace, and the row that has them.
const ROWS: [(&str, &[&str]); 5] = [
    ("interrupt", &["NIC interrupt", "NAPI timer interrupt", "interrupt"]),
    ("softirq", &["NET_RX softirq", "ksoftirqd"]),
    (NAPI_THREAD, &[NAPI_THREAD]),
    (
        "epoll_wait",
        &["epoll_wait", "busy poll", "final poll", "recv", "waiting for events in a loop", "polling in user space"],
    ),
    ("server", &["application"]),
];

const NAPI_THREAD: &str = "NAPI thread";

fn has_napi_thread(case: &RecordedCase<'_>) -> bool {
    case.trace.segments.iter().any(|segment| segment.what == NAPI_THREAD)
}

/// A recorded case under a mode.
pub(crate) struct RecordedCase<'a> {
    pub(crate) mode: DeliveryMode,
    pub(crate) trace: &'a Trace,
    /// Time of the first packet.
    pub(crate) first_ns: Ns,
}

/// What became of a packet, in µs after the first one.
struct PacketLife {
    arrived: f64,
    delivered: Option<f64>,
    answered: Option<f64>,
}

/// Latencies and interrupts of a case.
pub(crate) struct CaseSummary {
    /// Time to the last response to the requests that arrive together, in µs.
    pub(crate) burst_us: f64,
    /// Time in which the later request is answered, in µs. Absent without one.
    pub(crate) later_us: Option<f64>,
    /// Time of the last response of all, in µs.
    end_us: f64,
    /// Interrupts of the NIC up to the last response of the burst.
    pub(crate) interrupts: usize,
    /// Busy time of the CPU up to then, by row, in µs.
    busy_us: [f64; ROWS.len()],
}

/// Length of a timeline after the last response, and the smallest one.
const ROOM: f64 = 1.08;
const LENGTH_MIN_US: f64 = 30.0;

/// Time that all cases have room for, in µs.
pub(crate) fn length_us(cases: &[RecordedCase<'_>]) -> f64 {
    let ends = cases.iter().filter_map(RecordedCase::summary).map(|summary| summary.end_us);
    ends.fold(LENGTH_MIN_US, f64::max) * ROOM
}

impl CaseSummary {
    /// Time that was not spent in the server.
    pub(crate) fn overhead_us(&self) -> f64 {
        self.busy_us[..ROWS.len() - 1].iter().sum()
    }
}

impl RecordedCase<'_> {
    fn us(&self, ns: Ns) -> f64 {
        (ns as f64 - self.first_ns as f64) / 1e3
    }

    /// Packets are delivered and answered in the order of their arrival.
    fn packets(&self) -> Vec<PacketLife> {
        let times = |what: &str| -> Vec<f64> {
            let marks = self.trace.marks.iter().filter(|mark| mark.at_ns >= self.first_ns && mark.what == what);
            marks.map(|mark| self.us(mark.at_ns)).collect()
        };
        let (delivered, answered) = (times("delivered"), times("response"));
        let life = |(index, arrived): (usize, f64)| PacketLife {
            arrived,
            delivered: delivered.get(index).copied(),
            answered: answered.get(index).copied(),
        };
        times("packet").into_iter().enumerate().map(life).collect()
    }

    /// `None` if a packet was not answered.
    pub(crate) fn summary(&self) -> Option<CaseSummary> {
        let times =
            self.packets().iter().map(|life| Some((life.arrived, life.answered?))).collect::<Option<Vec<_>>>()?;
        let burst = &times[..times.len().min(BUSY_REQUESTS + 1)];
        let last = |times: &[(f64, f64)]| times.iter().map(|(_, answered)| *answered).fold(0.0, f64::max);
        let burst_us = last(burst);
        let later = times.get(burst.len());
        let interrupts = self.trace.marks.iter().filter(|mark| mark.at_ns >= self.first_ns && mark.what == "interrupt");
        let busy_us = std::array::from_fn(|row| {
            let segments = self.segments(row).filter(|(from, _, _)| *from <= burst_us);
            segments.map(|(from, to, _)| to.min(burst_us) - from.max(0.0)).sum()
        });
        Some(CaseSummary {
            burst_us,
            later_us: later.map(|(arrived, answered)| answered - arrived),
            end_us: last(&times),
            interrupts: interrupts.filter(|mark| self.us(mark.at_ns) <= burst_us).count(),
            busy_us,
        })
    }

    /// Segments of a row after the first packet, in µs.
    fn segments(&self, row: usize) -> impl Iterator<Item = (f64, f64, &'static str)> {
        let (_, names) = ROWS[row];
        let of_row = self.trace.segments.iter().filter(|segment| names.contains(&segment.what));
        of_row
            .map(|segment| (self.us(segment.from_ns), self.us(segment.to_ns), segment.what))
            .filter(|(_, to, _)| *to > 0.0)
    }

    /// States of the interrupt after the first packet: from, to, name.
    fn interrupt_states(&self, end_us: f64) -> Vec<(f64, f64, &'static str)> {
        let mut states = Vec::new();
        let mut now = ("enabled", f64::NEG_INFINITY);
        for mark in &self.trace.marks {
            let state = match mark.what {
                "interrupt" | "resumed" | "timer" => "masked",
                "interrupt enabled" => "enabled",
                "suspended" => "suspended",
                _ => continue,
            };
            if state != now.0 {
                states.push((now.1, self.us(mark.at_ns), now.0));
                now = (state, self.us(mark.at_ns));
            }
        }
        states.push((now.1, f64::INFINITY, now.0));
        let visible = states.into_iter().filter(|(from, to, _)| *to > 0.0 && *from < end_us);
        visible.map(|(from, to, name)| (from.max(0.0), to.min(end_us), name)).collect()
    }

    /// Times in which a timer is armed: after a poll while the interrupt stays masked, and during a suspension.
    fn timers(&self, states: &[(f64, f64, &'static str)]) -> Vec<(f64, f64, &'static str)> {
        if !self.mode.napi().defers() {
            return Vec::new();
        }
        let polled_by = |from: f64, to: f64| {
            let polls = self.segments(1).chain(self.segments(2)).filter(|(_, end, _)| *end > from && *end <= to);
            polls.map(|(_, end, _)| end).reduce(f64::min)
        };
        let timer = |(from, to, state): &(f64, f64, &'static str)| match *state {
            "suspended" => Some((*from, *to, "irq-suspend-timeout")),
            "masked" => Some((polled_by(*from, *to)?, *to, "gro-flush-timeout")),
            _ => None,
        };
        states.iter().filter_map(timer).collect()
    }
}

/// Draws a case up to `end_us`.
pub(crate) fn chart(case: &RecordedCase<'_>, end_us: f64) -> Chart {
    let name = case.mode.to_string();
    let (marks, height) = drawn(case, end_us);
    let summary = case.summary();
    let unit = summary.as_ref().map_or_else(
        || "not all requests were answered".to_owned(),
        |summary| {
            let (us, interrupts) = (short(summary.burst_us), counted(summary.interrupts, "interrupt"));
            let later = summary.later_us.map_or_else(String::new, |us| format!("; the later one in {} µs", short(us)));
            format!("answered after {us} µs with {interrupts}{later}")
        },
    );
    Chart { title: name, unit, note: None, svg: image(height, marks), table: table(case) }
}

/// The marks of a case and their height.
pub(crate) fn drawn(case: &RecordedCase<'_>, end_us: f64) -> (Group, f64) {
    let name = case.mode.to_string();
    let style = ModeStyle::of_all(std::iter::once((name.as_str(), case.mode)));
    let x = Scale::from_zero(end_us, LEFT, RIGHT);
    let mut marks = Group::new().set("class", style.first().map(ModeStyle::classes).unwrap_or_default());
    let mut y = HEAD;
    let packets = case.packets();
    marks = marks.add(text(0.0, y + 11.0, "packets", ""));
    for (index, life) in packets.iter().enumerate() {
        marks = marks.add(packet(index, life, y, &x, end_us));
        y += PACKET;
    }
    let (first, last) = (packets.first(), packets.get(BUSY_REQUESTS).or(packets.first()));
    let ring = first.and_then(|life| Some((life.arrived, life.delivered?)));
    if let Some((from, to)) = ring.filter(|(from, to)| x.at(*to) - x.at(*from) > 12.0 * LETTER) {
        marks = marks.add(anchored(text(x.at((from + to) / 2.0), y + 11.0, "in the NIC’s ring", "t"), "middle"));
    }
    let socket = last.and_then(|life| Some((life.delivered?, life.answered?.min(end_us))));
    if let Some((from, to)) = socket.filter(|(from, to)| x.at(*to) - x.at(*from) > 12.0 * LETTER) {
        marks = marks.add(anchored(text(x.at((from + to) / 2.0), y + 11.0, "in the socket", "t"), "middle"));
    }
    y += 13.0 + GAP;
    let summary = case.summary();
    for (row, (name, _)) in ROWS.iter().enumerate() {
        if *name == NAPI_THREAD && !has_napi_thread(case) {
            continue;
        }
        marks = marks.add(text(0.0, y + 12.0, name, "")).add(line((LEFT, y + ROW), (RIGHT, y + ROW), "grid"));
        for (from, to, what) in case.segments(row).filter(|(from, _, _)| *from < end_us) {
            let said = format!("{what}: {} µs from {} µs on", short(to - from), short(from));
            let class = if *name == "server" { "bar" } else { "work" };
            let bar = rectangle((x.at(from), y + 2.0), (x.at(to), y + ROW), class);
            marks = marks.add(bar.add(Title::new(said)));
        }
        if let Some(summary) = &summary {
            let us = summary.busy_us[row];
            let said = if us > 0.0 { format!("{} µs", tick((us * 10.0).round() / 10.0)) } else { "0".to_owned() };
            marks = marks.add(text(RIGHT + 5.0, y + 12.0, &said, "t"));
        }
        y += ROW;
    }
    if let Some(last_us) = summary.map(|summary| summary.burst_us).filter(|us| *us <= end_us) {
        let at = x.at(last_us);
        marks = marks.add(line((at, HEAD), (at, y + 4.0), "limit"));
    }
    y += GAP;
    let states = case.interrupt_states(end_us);
    marks = marks.add(text(0.0, y + 12.0, "IRQ is", ""));
    marks = states.iter().fold(marks, |marks, state| marks.add(span(*state, y, &x, state.2)));
    y += ROW;
    marks = marks.add(text(0.0, y + 12.0, "timer", ""));
    marks = case.timers(&states).into_iter().fold(marks, |marks, timer| marks.add(span(timer, y, &x, "timer")));
    for mark in case.trace.marks.iter().filter(|mark| mark.what == "timer" && mark.at_ns >= case.first_ns) {
        let at = case.us(mark.at_ns);
        if at < end_us {
            marks = marks.add(line((x.at(at), y + ROW), (x.at(at), y + ROW + EXPIRY), "zero"));
        }
    }
    y += ROW + EXPIRY + 2.0;
    marks = marks.add(line((LEFT, y), (RIGHT, y), "axis"));
    for value in x.ticks(5) {
        marks = marks.add(anchored(text(x.at(value), y + 15.0, &tick(value), "t"), "middle"));
    }
    let axis = "µs after the first packet";
    marks = marks.add(anchored(text((LEFT + RIGHT) / 2.0, y + 31.0, axis, "t"), "middle"));
    (marks, y + 38.0)
}

/// A packet: in the ring, then in the socket or being worked on, then answered.
fn packet(index: usize, life: &PacketLife, y: f64, x: &Scale, end_us: f64) -> Group {
    let number = index + 1;
    let mut group = Group::new();
    let delivered = life.delivered.unwrap_or(end_us);
    let ring = rectangle((x.at(life.arrived), y + 1.0), (x.at(delivered), y + PACKET), "ring-wait");
    let us = |from: f64, to: f64| short(to - from);
    group = group.add(ring.add(Title::new(format!("packet {number}: {} µs in the ring", us(life.arrived, delivered)))));
    let Some(delivered) = life.delivered else { return group };
    let answered = life.answered.unwrap_or(end_us);
    let socket = rectangle((x.at(delivered), y + 1.0), (x.at(answered), y + PACKET), "socket-wait");
    let said = format!("packet {number}: {} µs in the socket and the server", us(delivered, answered));
    group = group.add(socket.add(Title::new(said)));
    match life.answered {
        Some(answered) if answered <= end_us => {
            let said = format!("packet {number}: answered after {} µs", us(life.arrived, answered));
            group.add(dot((x.at(answered), y + PACKET / 2.0 + 0.5), 2.5, "dot", &said))
        }
        _ => group,
    }
}

/// A state of a row that has one state at a time, with its name where it fits.
fn span((from, to, name): (f64, f64, &'static str), y: f64, x: &Scale, class: &str) -> Group {
    let (left, right) = (x.at(from), x.at(to));
    let said = format!("{name}: {} µs from {} µs on", short(to - from), short(from));
    let group = Group::new().add(rectangle((left, y + 2.0), (right, y + ROW), class).add(Title::new(said)));
    match right - left > (name.len() as f64 + 1.0) * LETTER {
        true => group.add(anchored(text((left + right) / 2.0, y + 13.0, name, "t"), "middle")),
        false => group,
    }
}

fn table(case: &RecordedCase<'_>) -> Grid {
    let mut grid = Grid::new(["packet", "arrived, µs", "delivered, µs", "answered, µs"]);
    let us = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |us| format!("{us:.1}"));
    for (index, life) in case.packets().iter().enumerate() {
        let cells = [Some(life.arrived), life.delivered, life.answered].map(us);
        grid.rows.push(std::iter::once((index + 1).to_string()).chain(cells).collect());
    }
    grid
}

/// Draws cases side by side as an image of its own.
pub(crate) fn picture(cases: &[RecordedCase<'_>], end_us: f64) -> String {
    let (mut all, mut height) = (Group::new(), 0.0_f64);
    for (index, case) in cases.iter().enumerate() {
        let (marks, of_case) = drawn(case, end_us);
        let left = SHEET + index as f64 * (WIDTH + SHEET);
        let placed = Group::new().set("transform", format!("translate({left} {})", SHEET + TITLE)).add(marks);
        all = all.add(text(left, SHEET + 6.0, &case.mode.to_string(), "h")).add(placed);
        height = height.max(of_case);
    }
    let width = SHEET + cases.len() as f64 * (WIDTH + SHEET);
    standalone(width, height + TITLE + SHEET, all)
}

/// Room around the charts of a picture, and for their titles.
const SHEET: f64 = 20.0;
const TITLE: f64 = 18.0;
