//! Reports of `quell top`, as text and on the full screen.

pub(crate) mod screen;

use quell_host::attach::effect::ModeVerdict;
use quell_host::attach::payoff::DoesItPay;
use quell_linux::visible::counted;
use quell_result::top::{IntervalReport, ObservedDevice, ObservedIdleState, ObservedProgram, ObservedQueue};
use textwrap::core::display_width;

use super::number::{ABSENT, short};
use super::payoff;
use super::program_arguments::ProgramArguments;
use super::terminal::Terminal;
use crate::output::on_one_line;
use quell_cli::table::Grid;

pub(crate) const LEGEND: &str = "\
Columns of queues:
  PKT/S, PKT/POLL  packets a second, packets per poll
  EMPTY, FULL      share of polls without packets, and with their whole budget
  IRQ              polls a second by the softirq that the interrupt scheduled
  TIMER            by the softirq that the deferral timer scheduled
  OTHER            by a softirq that neither scheduled
  KSOFT            by ksoftirqd
  THREAD           by the NAPI thread
  PROG             by busy-polling programs
  MASKED, SUSP     share of time with the interrupt masked, and suspended: up to
                   the poll of a program, or the timeout
  WAIT50, WAIT99   bound of the wait in the ring in µs: median, 99th percentile
  CPU              CPUs used by polls of softirqs and of the NAPI thread
Columns of programs:
  CPU, US/PKT      CPUs in use; CPU time per packet in µs
  MODE, EFFECT     mode of quell attach or quell run; whether it is in effect";

const QUEUE_HEADINGS: [&str; 18] = [
    "DEVICE", "RX", "NAPI", "PKT/S", "PKT/POLL", "EMPTY", "FULL", "IRQ", "TIMER", "OTHER", "KSOFT", "THREAD", "PROG",
    "MASKED", "SUSP", "WAIT50", "WAIT99", "CPU",
];
/// Columns that name a queue, and those of its pollers.
const NAMES: usize = 3;
const POLLERS: std::ops::Range<usize> = 7..13;
/// Columns that name a program.
const PROGRAM_NAMES: usize = 2;
const PROGRAM_HEADINGS: [&str; 7] = ["PID", "NAME", "QUEUES", "CPU", "US/PKT", "MODE", "EFFECT"];

#[must_use]
pub(crate) fn text(report: &IntervalReport) -> String {
    let seconds = report.interval_ns as f64 / 1e9;
    let mut out = match &report.polls_unknown {
        Some(why) => format!("polls unknown: {}\n", on_one_line(why)),
        None => String::new(),
    };
    let terminal = Terminal::of_stdout();
    out.push_str(&queue_tables(report, seconds, terminal));
    if !report.programs.is_empty() {
        out.push('\n');
        let mut programs = Grid::new(PROGRAM_HEADINGS, PROGRAM_NAMES).with_numbers(0..0).with_gap(1);
        report.programs.iter().for_each(|program| programs.push(program_cells(program)));
        out.push_str(&programs.render(terminal));
        out.push_str(&reasons(report));
    }
    if let Some(idle) = idle_states(report) {
        out.push_str(&format!("{idle}\n"));
    }
    out.extend(losses(report).map(|losses| losses + "\n"));
    if report.hidden_processes > 0 {
        out.push_str(&format!("{}: needs CAP_SYS_PTRACE\n", hidden(report.hidden_processes)));
    }
    out.push('\n');
    out
}

/// The queues in one table. If it is too wide, those who poll are in a table of their own.
fn queue_tables(report: &IntervalReport, seconds: f64, terminal: Terminal) -> String {
    let of_columns = |columns: &[usize]| {
        let headings = columns.iter().map(|&column| QUEUE_HEADINGS[column]);
        let mut grid = Grid::new(headings, NAMES).with_numbers(1..usize::MAX).with_gap(1);
        for cells in report.queues.iter().map(|queue| queue_cells(queue, seconds)) {
            grid.push(columns.iter().map(|&column| cells[column].clone()));
        }
        grid
    };
    let all: Vec<usize> = (0..QUEUE_HEADINGS.len()).collect();
    let wide = of_columns(&all).render(Terminal { columns: None, ..terminal });
    if wide.lines().all(|line| terminal.fits(display_width(line))) {
        return wide;
    }
    let (of_pollers, others): (Vec<usize>, Vec<usize>) = all.into_iter().partition(|column| POLLERS.contains(column));
    let of_pollers: Vec<usize> = (0..NAMES).chain(of_pollers).collect();
    format!("{}\n{}", of_columns(&others).render(terminal), of_columns(&of_pollers).render(terminal))
}

/// Stalled queues, devices and AF_XDP sockets that drop packets, and queues that are not sampled although others are. `None` without any.
fn losses(report: &IntervalReport) -> Option<String> {
    let seconds = report.interval_ns as f64 / 1e9;
    let queue = |queue: &ObservedQueue| format!("{} NAPI {}", on_one_line(&queue.device), queue.napi);
    let stalled = report.queues.iter().filter(|queue| queue.stalled == Some(true));
    let stalled = some_of("stalled", stalled.map(queue));
    let direction = |name: &str, count: Option<u64>| {
        let count = count.filter(|count| *count > 0)?;
        Some(format!(" {name} {}/s", rate(count as f64 / seconds)))
    };
    let drops = |device: &ObservedDevice| {
        let directions = [
            direction("rx queue", device.rx_queue_dropped),
            direction("rx", device.rx_dropped),
            direction("tx", device.tx_dropped),
        ];
        let shown: String = directions.into_iter().flatten().collect();
        (!shown.is_empty()).then(|| on_one_line(&device.name) + &shown)
    };
    let drops = some_of("dropped", report.devices.iter().filter_map(drops));
    let unsampled = report.queues.iter().filter_map(|queue| queue.unsampled);
    let unsampled = unsampled.clone().next().map(|why| match unsampled.count() {
        1 => format!("1 queue is not sampled: {why}"),
        count => format!("{count} queues are not sampled, one because {why}"),
    });
    let of_xdp = report.programs.iter().filter_map(|program| {
        let per_s = program.xdp?.dropped_per_s.filter(|per_s| *per_s > 0.0)?;
        Some(format!("{} {} {}/s", on_one_line(&program.name), program.pid, rate(per_s)))
    });
    let of_xdp = some_of("frames lost by AF_XDP sockets", of_xdp);
    let all: Vec<String> = [stalled, drops, of_xdp, unsampled].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// A heading with the first of the objects and the number of the others. `None` without objects.
fn some_of(heading: &str, objects: impl Iterator<Item = String>) -> Option<String> {
    const SHOWN: usize = 3;
    let objects: Vec<String> = objects.collect();
    let first = objects.get(..SHOWN.min(objects.len()))?;
    match objects.len() {
        0 => None,
        count if count > SHOWN => Some(format!("{heading}: {} and {} more", first.join(", "), count - SHOWN)),
        _ => Some(format!("{heading}: {}", first.join(", "))),
    }
}

fn hidden(processes: usize) -> String {
    format!("{} hidden", counted(processes, "process"))
}

/// How often the CPUs entered each idle state. `None` without a cpuidle driver.
fn idle_states(report: &IntervalReport) -> Option<String> {
    let seconds = report.interval_ns as f64 / 1e9;
    let state =
        |state: &ObservedIdleState| format!("{} {}/s", on_one_line(&state.name), rate(state.entered as f64 / seconds));
    let states: Vec<String> = report.idle_states.iter().map(state).collect();
    (!states.is_empty()).then(|| format!("idle states entered: {}", states.join(", ")))
}

fn queue_cells(queue: &ObservedQueue, seconds: f64) -> [String; 18] {
    let rx: Vec<String> = queue.rx_queues.iter().map(ToString::to_string).collect();
    let name = [on_one_line(&queue.device), or_absent(rx.join(",")), queue.napi.to_string()];
    let Some(sample) = &queue.sample else {
        return std::array::from_fn(|column| name.get(column).cloned().unwrap_or_else(|| ABSENT.to_owned()));
    };
    let polls = sample.polls;
    let rate = |count: u64| rate(count as f64 / seconds);
    let of_polls = |count: u64| percent(count, polls.total());
    let known_ns = sample.enabled_ns + sample.masked_ns + sample.suspended_ns;
    let us = |ns: Option<u64>| ns.map_or_else(|| ABSENT.to_owned(), |ns| short(ns as f64 / 1e3));
    let [device, rx, napi] = name;
    [
        device,
        rx,
        napi,
        rate(sample.packets),
        short(sample.packets as f64 / polls.total() as f64),
        of_polls(sample.empty),
        of_polls(sample.budget_exhausted),
        rate(polls.interrupt),
        rate(polls.timer),
        rate(polls.rescheduled),
        rate(polls.ksoftirqd),
        rate(polls.thread),
        rate(polls.program + polls.program_last),
        percent(sample.masked_ns + sample.suspended_ns, known_ns),
        percent(sample.suspended_ns, known_ns),
        us(sample.wait.p50_ns),
        us(sample.wait.p99_ns),
        cpus(queue.cpu_ns().map(|ns| cpus_used(ns, seconds))),
    ]
}

/// Number of CPUs that `ns` of CPU time in an interval are.
fn cpus_used(ns: u64, seconds: f64) -> f64 {
    ns as f64 / 1e9 / seconds
}

fn cpus(cpus: Option<f64>) -> String {
    cpus.map_or_else(|| ABSENT.to_owned(), |cpus| format!("{cpus:.2}"))
}

fn program_cells(program: &ObservedProgram) -> [String; PROGRAM_HEADINGS.len()] {
    [
        program.pid.to_string(),
        name_and_pod(program),
        or_absent(ranges(program)),
        cpus(program.cpus),
        program.cpu_ns_per_packet.map_or_else(|| ABSENT.to_owned(), |ns| short(ns / 1e3)),
        program.mode.as_deref().map_or_else(|| ABSENT.to_owned(), on_one_line),
        program.effect.as_ref().map_or(ABSENT, |effect| verdict(effect).0).to_owned(),
    ]
}

/// Name, in a pod with the first digits of the pod's UID.
fn name_and_pod(program: &ObservedProgram) -> String {
    let name = on_one_line(&program.name);
    match &program.pod {
        Some(pod) => format!("{name} pod/{}", pod.split('-').next().unwrap_or_default()),
        None => name,
    }
}

fn verdict(effect: &ModeVerdict) -> (&'static str, &str) {
    match effect {
        ModeVerdict::InEffect(why) => ("yes", why),
        ModeVerdict::NotInEffect(why) => ("NO", why),
        ModeVerdict::CannotTell(why) => ("cannot tell", why),
    }
}

/// Whether counters speak against a mode that is in effect.
fn is_against(pays: &DoesItPay) -> bool {
    use DoesItPay::{CostsCpuTime, LacksCpus, LeavesQueuesUnpolled};
    matches!(pays, LeavesQueuesUnpolled { .. } | LacksCpus(_) | CostsCpuTime { .. })
}

/// Why the mode of a program is in effect or not, and why it does not pay. Absent without a verdict.
fn why(program: &ObservedProgram) -> Option<String> {
    let (_, why) = verdict(program.effect.as_ref()?);
    let payoff = program.payoff.as_ref().filter(|it| is_against(&it.pays));
    let Some(payoff) = payoff else { return Some(why.to_owned()) };
    if let DoesItPay::CostsCpuTime { .. } = payoff.pays {
        // What follows depends on stored measurements, which a report does not have.
        return Some(format!("{why}; {}; next step: `quell status`", payoff::polls_more(payoff, false)));
    }
    let (text, command) = payoff::advice(payoff, &ProgramArguments::of_pids(&[program.pid]));
    // How it was attached is not in the report, only how its connections can be sorted.
    let command = command.filter(|_| matches!(payoff.pays, DoesItPay::LeavesQueuesUnpolled { .. }));
    let command = command.map_or_else(String::new, |command| format!(": `{command}`"));
    Some(format!("{why}; {text}{command}"))
}

/// One paragraph for the programs of one name that differ in figures only: the first with its reason, then the others.
fn reasons(report: &IntervalReport) -> String {
    let without_figures = |why: &str| why.replace(|letter: char| letter.is_ascii_digit(), "");
    let mut kinds: Vec<(&ObservedProgram, String, String, Vec<String>)> = Vec::new();
    for program in &report.programs {
        let Some(why) = why(program) else { continue };
        let kind = without_figures(&why);
        match kinds.iter_mut().find(|(first, known, ..)| (&first.name, known) == (&program.name, &kind)) {
            Some((.., others)) => others.push(program.pid.to_string()),
            None => kinds.push((program, kind, why, Vec::new())),
        }
    }
    let paragraph = |(first, _, why, others): &(&ObservedProgram, String, String, Vec<String>)| {
        let others = if others.is_empty() { String::new() } else { format!("; similar: {}", others.join(", ")) };
        Terminal::of_stdout().fill(&format!("{}: {}{others}", first.pid, on_one_line(why)), "", "  ") + "\n"
    };
    kinds.iter().map(paragraph).collect()
}

/// The NAPI instances of a program, consecutive ones as a range.
fn ranges(program: &ObservedProgram) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for napi in program.napis.iter().map(|napi| napi.get()) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == napi => *last = napi,
            _ => ranges.push((napi, napi)),
        }
    }
    let range = |&(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

/// A rate in at most five characters.
fn rate(per_second: f64) -> String {
    match per_second {
        small if small < 999.5 => format!("{small:.0}"),
        thousands if thousands < 999_500.0 => format!("{:.1}K", thousands / 1e3),
        millions => format!("{:.2}M", millions / 1e6),
    }
}

fn or_absent(text: String) -> String {
    if text.is_empty() { ABSENT.to_owned() } else { text }
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => ABSENT.to_owned(),
        whole => format!("{:.0}%", 100.0 * part as f64 / whole as f64),
    }
}

#[cfg(test)]
mod tests {
    use quell_host::attach::payoff::ModePayoff;
    use quell_linux::{NapiId, Pid};
    use quell_result::Document as _;
    use quell_result::top::ObservedXdp;
    use quell_sampler::{PollsByPoller, QueueSample, Unsampled, WaitBounds};

    use super::*;

    fn napi(number: u32) -> NapiId {
        NapiId::from_kernel(number).unwrap()
    }

    fn report(sample: Option<QueueSample>, polls_unknown: Option<&str>) -> IntervalReport {
        let queue = ObservedQueue {
            namespace: 1,
            device: "eth0\u{1b}[2J".to_owned(),
            rx_queues: vec![0, 1],
            napi: napi(8193),
            settings: Default::default(),
            interrupts: None,
            thread_ns: Some(100_000_000),
            stalled: sample.map(|sample| sample.wait.has_stalled()),
            unsampled: None,
            sample,
        };
        let device = ObservedDevice {
            namespace: 1,
            name: queue.device.clone(),
            rx_dropped: Some(0),
            rx_queue_dropped: None,
            tx_dropped: None,
        };
        let program = ObservedProgram {
            pid: Pid::from_kernel(42).unwrap(),
            name: "me\nmcached".to_owned(),
            unit: None,
            pod: None,
            container: None,
            drifted: None,
            napis: [8193, 8194, 8196].map(napi).to_vec(),
            xdp: None,
            epolls: Vec::new(),
            cpus: Some(0.5),
            cpu_ns_per_packet: Some(12_345.0),
            cpu_ns: None,
            skipped: None,
            mode: Some("suspend20".to_owned()),
            root: None,
            effect: Some(ModeVerdict::CannotTell("only 7 packets".to_owned())),
            payoff: None,
        };
        IntervalReport {
            schema: IntervalReport::SCHEMA.to_owned(),
            unix_ns: 0,
            interval_ns: 2_000_000_000,
            polls_unknown: polls_unknown.map(str::to_owned),
            queues: vec![queue],
            devices: vec![device],
            programs: vec![program],
            idle_states: vec![ObservedIdleState { name: "C1\x1b".to_owned(), entered: 40 }],
            hidden_processes: 0,
        }
    }

    fn words<'a>(text: &'a str, first: &str) -> Vec<&'a str> {
        let line = text.lines().find(|line| line.starts_with(first)).unwrap_or_else(|| panic!("{text}"));
        line.split_whitespace().collect()
    }

    #[test]
    fn rates_are_short() {
        assert_eq!([0.4, 12.6, 999.6, 79_030.0, 1_234_567.0].map(rate), ["0", "13", "1.0K", "79.0K", "1.23M"]);
    }

    #[test]
    fn figures_are_per_second_and_shares() {
        let sample = QueueSample {
            polls: PollsByPoller { interrupt: 20, timer: 60, program: 15, program_last: 5, ..PollsByPoller::default() },
            packets: 4_000,
            empty: 25,
            softirq_ns: Some(300_000_000),
            masked_ns: 3,
            enabled_ns: 1,
            wait: WaitBounds { p50_ns: Some(256_000), ..WaitBounds::default() },
            ..QueueSample::default()
        };
        let text = text(&report(Some(sample), None));
        let shown = words(&text, "eth0");
        let expected = "0,1 8193 2.0K 40.0 25% 0% 10 30 0 0 0 10 75% 0% 256 – 0.20";
        assert_eq!(shown[1..].join(" "), expected, "{text}");
        assert!(text.contains("idle states entered: C1") && text.contains(" 20/s\n"), "{text}");
    }

    #[test]
    fn names_of_others_stay_on_their_line_and_ranges_are_short() {
        let text = text(&report(None, None));
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let shown = words(&text, "42");
        assert!(shown[1].starts_with("me") && shown[1].ends_with("mcached"), "{text}");
        assert_eq!(shown[2..6], ["8193-8194,8196", "0.50", "12.3", "suspend20"]);
        assert!(text.contains("\n42: only 7 packets\n"), "{text}");
    }

    #[test]
    fn a_mode_that_polls_more_has_no_advice_that_a_stored_measurement_could_contradict() {
        let mut report = report(None, None);
        let mode = "suspend20".parse().unwrap();
        let pays = DoesItPay::CostsCpuTime { instead: mode, break_even_packets_per_s: None };
        report.programs[0].payoff = Some(ModePayoff { pays, ..ModePayoff::of(mode, &[], None, None) });
        let why = why(&report.programs[0]).unwrap();
        assert!(why.ends_with("polls more than interrupts would; next step: `quell status`"), "{why}");
    }

    #[test]
    fn on_a_narrow_terminal_the_pollers_are_in_a_table_of_their_own() {
        let report = report(Some(QueueSample { packets: 12_345, ..QueueSample::default() }), None);
        let of = |columns| queue_tables(&report, 1.0, Terminal { columns, ..Terminal::PIPE });
        assert_eq!(of(None).lines().count(), 2);
        let narrow = of(Some(80));
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(QUEUE_HEADINGS.iter().all(|heading| narrow.contains(heading)), "{narrow}");
    }

    #[test]
    fn workers_that_differ_in_figures_only_share_a_paragraph() {
        let mut report = report(None, None);
        let worker = |pid, why: &str| ObservedProgram {
            pid: Pid::from_kernel(pid).unwrap(),
            effect: Some(ModeVerdict::CannotTell(why.to_owned())),
            ..report.programs[0].clone()
        };
        let workers = [worker(43, "only 9 packets"), worker(44, "none of 20 polls")];
        report.programs.extend(workers);
        let shown = text(&report);
        assert!(shown.contains("\n42: only 7 packets; similar: 43\n44: none of 20 polls\n"), "{shown}");
    }

    #[test]
    fn stalls_and_drops_have_a_line_only_if_there_are_some() {
        assert!(!text(&report(None, None)).contains("dropped"));
        let wait = WaitBounds { stalled_polls: 1, ..WaitBounds::default() };
        let mut report = report(Some(QueueSample { wait, ..QueueSample::default() }), None);
        report.devices[0].rx_dropped = Some(24);
        report.devices[0].rx_queue_dropped = Some(60);
        let shown = text(&report);
        let line = shown.lines().find(|line| line.starts_with("stalled: eth0")).unwrap_or_else(|| panic!("{shown}"));
        assert!(line.contains(" NAPI 8193; dropped: eth0") && line.ends_with(" rx queue 30/s rx 12/s"), "{line}");
        let lost = ObservedXdp { sockets: 1, dropped: 900, fill_ring_empty: 0, dropped_per_s: Some(4.0) };
        report.programs[0].xdp = Some(lost);
        let line = losses(&report).unwrap();
        assert!(line.contains("; frames lost by AF_XDP sockets: ") && line.ends_with(" 4/s"), "{line}");
    }

    #[test]
    fn queues_that_are_not_sampled_are_counted_with_the_reason() {
        let mut report = report(None, None);
        report.queues[0].unsampled = Some(Unsampled::TooMany);
        let shown = text(&report);
        assert!(shown.contains("\n1 queue is not sampled: 4,096 other instances are sampled\n"), "{shown}");
    }

    #[test]
    fn a_single_hidden_process_is_not_several() {
        let shown = |hidden_processes| text(&IntervalReport { hidden_processes, ..report(None, None) });
        assert!(shown(1).contains("\n1 process hidden: needs CAP_SYS_PTRACE\n"), "{}", shown(1));
        assert!(shown(2).contains("\n2 processes hidden: "), "{}", shown(2));
        assert!(!shown(0).contains("hidden"), "{}", shown(0));
    }

    #[test]
    fn a_long_list_is_cut() {
        let names = |count: u8| (0..count).map(|number| number.to_string());
        assert_eq!(some_of("dropped", names(0)), None);
        assert_eq!(some_of("dropped", names(3)).unwrap(), "dropped: 0, 1, 2");
        assert_eq!(some_of("dropped", names(5)).unwrap(), "dropped: 0, 1, 2 and 2 more");
    }

    #[test]
    fn polls_that_cannot_be_sampled_are_absent_with_the_reason() {
        let text = text(&report(None, Some("needs CAP_BPF")));
        assert!(text.starts_with("polls unknown: needs CAP_BPF\n"), "{text}");
        assert!(words(&text, "eth0")[3..].iter().all(|cell| *cell == ABSENT), "{text}");
    }
}
