//! The full-screen view of `quell top`.

mod details;

use std::fmt::Write as _;

use quell_host::attach::effect::ModeVerdict;
use quell_linux::visible::counted;
use quell_mode::DeliveryMode;
use quell_report::palette::accent;
use quell_result::top::{IntervalReport, ObservedProgram, ObservedQueue};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState, Wrap};

use super::{
    LEGEND, PROGRAM_HEADINGS, QUEUE_HEADINGS, hidden, idle_states, losses, on_one_line, percent, program_cells,
    queue_cells, rate, why,
};
use crate::commands::top::state::{HistoryPoint, Page, Pane, ProgramOrder, QueueOrder, TopState};

/// Columns of queues as indices of [`QUEUE_HEADINGS`], the most important first, and their widths.
const QUEUE_COLUMNS: [(usize, u16); 18] = [
    (0, 9),
    (1, 4),
    (3, 6),
    (12, 6),
    (8, 6),
    (7, 6),
    (4, 8),
    (14, 5),
    (16, 7),
    (15, 7),
    (13, 6),
    (11, 6),
    (17, 5),
    (5, 5),
    (2, 5),
    (6, 5),
    (9, 6),
    (10, 6),
];
/// Minimum width of a sparkline, and the width that further columns leave to it.
const SPARK_MIN: u16 = 8;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

const KEYS: &str = "\
Keys:
  ↑ ↓ PgUp PgDn Home End  select       Tab     queues or programs
  Enter                   details      Esc     back; clear the filter
  /                       filter names s       next order of the table
  Space                   pause        + -     longer or shorter interval
  ?                       this page    q       quit
";

type HistoryValue = fn(&HistoryPoint) -> Option<f64>;

#[derive(Clone, Copy)]
struct Palette {
    good: Style,
    bad: Style,
    dim: Style,
    heading: Style,
    colour: bool,
}

impl Palette {
    fn new(colour: bool) -> Self {
        let of = |style: Style, tint: Color| if colour { style.fg(tint) } else { style };
        Self {
            good: of(Style::new(), Color::Green),
            bad: of(Style::new().add_modifier(Modifier::BOLD), Color::Red),
            dim: of(Style::new(), Color::DarkGray),
            heading: of(Style::new().add_modifier(Modifier::BOLD), Color::Cyan),
            colour,
        }
    }

    /// The colour that the mode has in reports.
    fn mode(self, mode: Option<&str>) -> Style {
        let mode = mode.filter(|_| self.colour).and_then(|mode| mode.parse::<DeliveryMode>().ok());
        mode.map_or(Style::new(), |mode| Style::new().fg(Color::Indexed(accent(mode.kind()).terminal)))
    }

    fn verdict(self, effect: Option<&ModeVerdict>) -> Style {
        match effect {
            Some(ModeVerdict::InEffect(_)) => self.good,
            Some(ModeVerdict::NotInEffect(_)) => self.bad,
            Some(ModeVerdict::CannotTell(_)) | None => Style::new(),
        }
    }
}

pub(crate) fn draw(frame: &mut Frame<'_>, state: &TopState, colour: bool) {
    let palette = Palette::new(colour);
    // The help needs nearly all rows of a small terminal.
    let head_rows = match (state.page, state.report.as_ref().and_then(|report| report.polls_unknown.as_ref())) {
        (Page::Help, _) if state.report.is_some() => 0,
        (_, None) => 3,
        // The reason may need further rows.
        (_, Some(_)) => 6,
    };
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(head_rows), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    let Some(report) = &state.report else {
        frame.render_widget(Paragraph::new("quell top: waiting for the first interval"), head);
        return;
    };
    let text = Paragraph::new(summary(report, palette));
    // Stalls and drops stay on the third line if the shares of polls are too long for the second one.
    let text = if report.polls_unknown.is_some() { text.wrap(Wrap { trim: true }) } else { text };
    frame.render_widget(text, head);
    match state.page {
        Page::Tables => tables(frame, body, state, palette),
        Page::Details => details::draw(frame, body, state, palette),
        Page::Help => {
            frame.render_widget(Paragraph::new(format!("{KEYS}\n{LEGEND}")), body);
        }
    }
    frame.render_widget(Paragraph::new(footer(state)).style(palette.dim), foot);
}

/// Three lines: whether modes are in effect; who polls and what is unknown; stalls, drops, and idle states of the CPUs.
fn summary(report: &IntervalReport, palette: Palette) -> Vec<Line<'static>> {
    let with_mode: Vec<_> = report.programs.iter().filter(|program| program.mode.is_some()).collect();
    let is =
        |program: &&&ObservedProgram, wanted: fn(&ModeVerdict) -> bool| program.effect.as_ref().is_some_and(wanted);
    let in_effect = with_mode.iter().filter(|program| is(program, |effect| matches!(effect, ModeVerdict::InEffect(_))));
    let not = with_mode.iter().filter(|program| is(program, |effect| matches!(effect, ModeVerdict::NotInEffect(_))));
    let (in_effect, not) = (in_effect.count(), not.count());
    let modes = match (with_mode.len(), not) {
        (0, _) => Span::raw("no program has a mode"),
        (all, 0) if in_effect == all => {
            Span::styled(format!("{in_effect} of {} in effect", counted(all, "mode")), palette.good)
        }
        (all, 0) => {
            Span::raw(format!("{in_effect} of {} in effect, {} not judged", counted(all, "mode"), all - in_effect))
        }
        (all, not) => Span::styled(format!("{not} of {} NOT in effect", counted(all, "mode")), palette.bad),
    };
    let (queues, programs) = (report.queues.len(), report.programs.len());
    let counts = format!("{}, {}", counted(queues, "queue"), counted(programs, "program"));
    let mut second = match &report.polls_unknown {
        Some(why) => vec![Span::styled(format!("polls unknown: {}", on_one_line(why)), palette.bad)],
        None => vec![Span::raw(who_polls(report))],
    };
    if report.hidden_processes > 0 {
        second.push(Span::styled(format!("  {}", hidden(report.hidden_processes)), palette.dim));
    }
    let name = Span::styled("quell top", palette.heading);
    let first = Line::from(vec![name, Span::raw(": "), modes, Span::raw(format!("; {counts}"))]);
    let mut third: Vec<Span<'static>> =
        losses(report).map(|losses| Span::styled(losses, palette.bad)).into_iter().collect();
    if let Some(idle) = idle_states(report) {
        let separator = if third.is_empty() { "" } else { "  " };
        third.push(Span::styled(format!("{separator}{idle}"), palette.dim));
    }
    vec![first, Line::from(second), Line::from(third)]
}

fn who_polls(report: &IntervalReport) -> String {
    let seconds = report.interval_ns as f64 / 1e9;
    let samples = || report.queues.iter().filter_map(|queue| queue.sample.as_ref());
    let packets: u64 = samples().map(|sample| sample.packets).sum();
    let sum = |of: fn(&quell_sampler::PollsByPoller) -> u64| samples().map(|sample| of(&sample.polls)).sum::<u64>();
    let total = sum(quell_sampler::PollsByPoller::total);
    let mut text = format!("{} packets/s, {} polls/s", rate(packets as f64 / seconds), rate(total as f64 / seconds));
    let shares = [
        ("programs", sum(|polls| polls.program + polls.program_last)),
        ("timer", sum(|polls| polls.timer)),
        ("interrupt", sum(|polls| polls.interrupt)),
        ("NAPI threads", sum(|polls| polls.thread)),
        ("ksoftirqd", sum(|polls| polls.ksoftirqd)),
        ("other", sum(|polls| polls.rescheduled)),
    ];
    for (index, (who, polls)) in shares.into_iter().filter(|(_, polls)| *polls > 0).enumerate() {
        let _ = write!(text, "{} {who} {}", if index == 0 { ":" } else { "," }, percent(polls, total));
    }
    text
}

fn footer(state: &TopState) -> String {
    if state.is_filtering {
        return format!("filter: {}█  Enter keeps it, Esc clears it", state.filter);
    }
    let (mut text, space) = match state.is_paused {
        true => ("PAUSED".to_owned(), "continue"),
        false => (format!("every {} s", state.interval.as_secs_f64()), "pause"),
    };
    if !state.filter.is_empty() {
        let _ = write!(text, "  filter: {}", state.filter);
    }
    format!("{text}  ? help  Tab table  Enter details  / filter  Space {space}  q quit")
}

fn tables(frame: &mut Frame<'_>, area: Rect, state: &TopState, palette: Palette) {
    let (queues, programs) = (state.queues(), state.programs());
    let why = state.selected_program().and_then(why);
    let why_rows = if why.is_some() { 3 } else { 0 };
    // Each table gets the rows that it needs; programs get at most half of the screen.
    let needed = |rows: usize| u16::try_from(rows + 3).unwrap_or(u16::MAX);
    let lower_rows = needed(programs.len()).min(area.height / 2);
    let upper_rows = needed(queues.len()).min(area.height.saturating_sub(lower_rows + why_rows));
    let [upper, lower, reason, _] =
        Layout::vertical([upper_rows, lower_rows, why_rows, 0].map(Constraint::Length)).areas(area);
    let order = match state.queue_order {
        QueueOrder::Device => "device",
        QueueOrder::Packets => "packets",
        QueueOrder::Polls => "polls",
        QueueOrder::Wait => "wait",
    };
    let title = title("Queues", queues.len(), order);
    let selected = state.selected_queue().and_then(|one| queues.iter().position(|queue| queue.napi == one.napi));
    let is_selected = state.pane == Pane::Queues;
    let block = block(title, is_selected, palette);
    queue_table(frame, upper, state, &queues, block, selected.filter(|_| is_selected), palette);

    let order = match state.program_order {
        ProgramOrder::Pid => "PID",
        ProgramOrder::Cpu => "CPU",
        ProgramOrder::Effect => "effect",
    };
    let selected = state.selected_program().and_then(|one| programs.iter().position(|program| program.pid == one.pid));
    let is_selected = state.pane == Pane::Programs;
    let block = self::block(self::title("Programs", programs.len(), order), is_selected, palette);
    program_table(frame, lower, &programs, block, selected.filter(|_| is_selected), palette);
    if let (Some(why), Some(program)) = (why, state.selected_program()) {
        let text = format!("{}: {}", program.pid, on_one_line(&why));
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), reason);
    }
}

fn title(name: &str, count: usize, order: &str) -> String {
    format!(" {name} ({count}) by {order} ")
}

fn block(title: String, is_selected: bool, palette: Palette) -> Block<'static> {
    let style = if is_selected { palette.heading } else { palette.dim };
    Block::new().borders(Borders::TOP).title(Span::styled(title, style)).border_style(palette.dim)
}

/// Indices of the columns that fit, in the order of the headings, and the width that is left.
fn columns_that_fit(width: u16) -> (Vec<(usize, u16)>, u16) {
    let mut left = width;
    let mut fitting = Vec::new();
    for (index, column) in QUEUE_COLUMNS {
        let needed = column + 1;
        if left < needed + SPARK_MIN {
            break;
        }
        left -= needed;
        fitting.push((index, column));
    }
    fitting.sort_unstable();
    (fitting, left)
}

fn queue_table(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &TopState,
    queues: &[&ObservedQueue],
    block: Block<'_>,
    selected: Option<usize>,
    palette: Palette,
) {
    let seconds = state.report.as_ref().map_or(1.0, |report| report.interval_ns as f64 / 1e9);
    let (columns, left) = columns_that_fit(area.width);
    // A wide terminal has a sparkline of polls and one of waits, too.
    let all: [(&str, HistoryValue); 3] = [
        ("PACKETS", |point| Some(point.packets_per_s)),
        ("POLLS", |point| Some(point.polls_per_s)),
        ("WAITS", |point| point.wait_p99_ns.map(|ns| ns as f64)),
    ];
    let sparks = if left >= 3 * SPARK_MIN + 2 { &all[..] } else { &all[..1] };
    let spark = (left + 1) / sparks.len() as u16 - 1;
    let aligned = |index: usize, text: String| {
        let alignment = if index == 0 { Alignment::Left } else { Alignment::Right };
        Cell::from(Line::from(text).alignment(alignment))
    };
    let row = |queue: &&ObservedQueue| {
        let cells = queue_cells(queue, seconds);
        let shown = columns.iter().map(|&(index, _)| aligned(index, cells[index].clone()));
        let history = sparks.iter().map(|(_, value)| {
            Cell::from(sparkline(state.history(queue.napi), spark.into(), value)).style(palette.good)
        });
        Row::new(shown.chain(history).collect::<Vec<_>>())
    };
    let headings = columns.iter().map(|&(index, _)| aligned(index, QUEUE_HEADINGS[index].to_owned()));
    let header = Row::new(headings.chain(sparks.iter().map(|(name, _)| Cell::from(*name))).collect::<Vec<_>>())
        .style(palette.heading);
    let widths: Vec<_> =
        columns.iter().map(|&(_, width)| width).chain(sparks.iter().map(|_| spark)).map(Constraint::Length).collect();
    let table = Table::new(queues.iter().map(row), widths).header(header).block(block).column_spacing(1);
    render_table(frame, area, table, selected);
}

fn program_table(
    frame: &mut Frame<'_>,
    area: Rect,
    programs: &[&ObservedProgram],
    block: Block<'_>,
    selected: Option<usize>,
    palette: Palette,
) {
    let row = |program: &&ObservedProgram| {
        let [others @ .., mode, effect] = program_cells(program).map(Cell::from);
        let mode = mode.style(palette.mode(program.mode.as_deref()));
        Row::new(others.into_iter().chain([mode, effect.style(palette.verdict(program.effect.as_ref()))]))
    };
    let widths = [8, 15, 11, 5, 6, 15, 12].map(Constraint::Length);
    let table = Table::new(programs.iter().map(row), widths).column_spacing(1).block(block);
    render_table(frame, area, table.header(Row::new(PROGRAM_HEADINGS).style(palette.heading)), selected);
}

/// Renders the rows around the selected one.
fn render_table(frame: &mut Frame<'_>, area: Rect, table: Table<'_>, selected: Option<usize>) {
    let table = table.row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(selected));
}

/// The latest `width` values as bars, relative to the greatest one. An absent value is a space.
fn sparkline<'a>(
    points: impl ExactSizeIterator<Item = &'a HistoryPoint>,
    width: usize,
    value: impl Fn(&HistoryPoint) -> Option<f64>,
) -> String {
    let skipped = points.len().saturating_sub(width);
    let values: Vec<_> = points.skip(skipped).map(value).collect();
    let greatest = values.iter().flatten().copied().fold(0.0, f64::max);
    let bar = |value: &Option<f64>| match value {
        None => ' ',
        Some(_) if greatest == 0.0 => BARS[0],
        Some(value) => BARS[((value / greatest * 8.0).ceil() as usize).clamp(1, 8) - 1],
    };
    values.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use quell_result::Document as _;
    use std::time::Duration;

    use quell_linux::{NapiId, Pid};
    use quell_result::top::{ObservedDevice, SkipReason, SkippedPart};
    use quell_sampler::{PollsByPoller, QueueSample};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::termion::event::Key;

    use super::*;

    fn queue(number: u32, packets: u64) -> ObservedQueue {
        let polls = PollsByPoller { program: 3 * packets, timer: packets, ..PollsByPoller::default() };
        ObservedQueue {
            namespace: 1,
            device: format!("eth{}\u{1b}[2J", number / 64),
            rx_queues: vec![number % 64],
            napi: NapiId::from_kernel(8_192 + number).unwrap(),
            settings: Default::default(),
            interrupts: None,
            thread_ns: None,
            unsampled: None,
            stalled: Some(false),
            sample: Some(QueueSample { polls, packets, masked_ns: 1, ..QueueSample::default() }),
        }
    }

    fn state(queues: u32, effect: ModeVerdict) -> TopState {
        let program = ObservedProgram {
            pid: Pid::from_kernel(42).unwrap(),
            name: "me\nmcached".to_owned(),
            unit: None,
            pod: None,
            container: None,
            drifted: None,
            napis: vec![NapiId::from_kernel(8_193).unwrap()],
            xdp: None,
            epolls: Vec::new(),
            cpus: Some(0.5),
            cpu_ns_per_packet: None,
            cpu_ns: None,
            skipped: None,
            mode: Some("suspend200".to_owned()),
            root: None,
            effect: Some(effect),
            payoff: None,
        };
        let mut state = TopState::new(Duration::from_secs(1));
        state.report(IntervalReport {
            schema: IntervalReport::SCHEMA.to_owned(),
            unix_ns: 0,
            interval_ns: 1_000_000_000,
            polls_unknown: None,
            queues: (0..queues).map(|number| queue(number, 1_000 + u64::from(number))).collect(),
            devices: vec![ObservedDevice {
                namespace: 1,
                name: "eth0\u{1b}[2J".to_owned(),
                rx_dropped: Some(12),
                rx_queue_dropped: Some(4),
                tx_dropped: None,
            }],
            programs: vec![program],
            idle_states: Vec::new(),
            hidden_processes: 0,
        });
        state
    }

    fn drawn(state: &TopState, columns: u16, rows: u16, colour: bool) -> TestBackend {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| draw(frame, state, colour)).unwrap();
        terminal.backend().clone()
    }

    fn lines(state: &TopState, columns: u16, rows: u16) -> Vec<String> {
        let screen = drawn(state, columns, rows, false);
        let cells: Vec<&str> = screen.buffer().content().iter().map(|cell| cell.symbol()).collect();
        cells.chunks(columns.into()).map(|line| line.concat().trim_end().to_owned()).collect()
    }

    #[test]
    fn the_first_lines_say_whether_modes_are_in_effect_and_who_polls() {
        let shown = lines(&state(4, ModeVerdict::InEffect("all polls".to_owned())), 80, 24);
        assert_eq!(shown[0], "quell top: 1 of 1 mode in effect; 4 queues, 1 program");
        assert_eq!(shown[1], "4.0K packets/s, 16.0K polls/s: programs 75%, timer 25%");
        let shown = lines(&state(4, ModeVerdict::NotInEffect("no busy poll".to_owned())), 80, 24);
        assert_eq!(shown[0], "quell top: 1 of 1 mode NOT in effect; 4 queues, 1 program");
        assert!(shown.iter().any(|line| line == "42: no busy poll"), "{shown:#?}");
        let shown = lines(&state(4, ModeVerdict::CannotTell("only 7 packets".to_owned())), 80, 24);
        assert_eq!(shown[0], "quell top: 0 of 1 mode in effect, 1 not judged; 4 queues, 1 program");
    }

    #[test]
    fn a_wider_terminal_shows_more_columns_and_every_column_fits() {
        let state = state(4, ModeVerdict::InEffect(String::new()));
        let headings = |columns| {
            let shown = lines(&state, columns, 24);
            shown.into_iter().find(|line| line.starts_with("DEVICE")).unwrap()
        };
        let at_80 = headings(80);
        let shown: Vec<&str> = at_80.split_whitespace().collect();
        let expected = ["DEVICE", "RX", "PKT/S", "PKT/POLL", "IRQ", "TIMER", "PROG", "SUSP", "WAIT99", "PACKETS"];
        assert_eq!(shown, expected);
        assert!(headings(100).contains("THREAD"), "{}", headings(100));
        assert!(QUEUE_HEADINGS.iter().all(|heading| headings(140).contains(heading)), "{}", headings(140));
        assert!(headings(30).contains("PACKETS"), "{}", headings(30));
        assert!(headings(160).ends_with("PACKETS    POLLS      WAITS"), "{}", headings(160));
    }

    #[test]
    fn the_last_line_names_the_keys_and_fits_80_columns() {
        let mut state = state(1, ModeVerdict::InEffect(String::new()));
        let last = |state: &TopState| lines(state, 80, 24).pop().unwrap();
        assert_eq!(last(&state), "every 1 s  ? help  Tab table  Enter details  / filter  Space pause  q quit");
        state.key(Key::Char(' '));
        assert_eq!(last(&state), "PAUSED  ? help  Tab table  Enter details  / filter  Space continue  q quit");
    }

    #[test]
    fn the_selected_of_two_hundred_queues_is_on_the_screen() {
        let mut state = state(200, ModeVerdict::InEffect(String::new()));
        state.key(Key::End);
        let shown = lines(&state, 80, 24);
        assert!(shown.iter().any(|line| line.starts_with("eth3") && line.contains(" 7 ")), "{shown:#?}");
    }

    #[test]
    fn a_terminal_of_any_size_is_drawn_on() {
        let mut state = state(3, ModeVerdict::InEffect("why".to_owned()));
        for page in [Page::Tables, Page::Details, Page::Help] {
            state.page = page;
            for (columns, rows) in [(1, 1), (5, 3), (20, 8), (300, 100)] {
                assert_eq!(lines(&state, columns, rows).len(), usize::from(rows));
            }
        }
    }

    #[test]
    fn names_of_others_cannot_control_the_terminal() {
        let shown = lines(&state(1, ModeVerdict::InEffect(String::new())), 80, 24).concat();
        assert!(!shown.contains(['\u{1b}', '\n']) && shown.contains("mcached"), "{shown}");
    }

    #[test]
    fn without_colors_no_cell_has_one() {
        let state = state(2, ModeVerdict::NotInEffect("why".to_owned()));
        let colored = |colour| {
            let screen = drawn(&state, 80, 24, colour);
            screen.buffer().content().iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
        };
        assert!(colored(true) && !colored(false));
    }

    #[test]
    fn details_of_a_queue_show_every_poller() {
        let mut state = state(2, ModeVerdict::InEffect(String::new()));
        state.key(Key::Char('\n'));
        let shown = lines(&state, 80, 24).join("\n");
        for part in [
            "RX 0, NAPI 8192",
            "program                     3.0K/s   75%",
            "masked 100%",
            "99th of the wait",
            "stalled (50 ms) no   dropped by the device: rx queue 4/s, rx 12/s, tx –",
        ] {
            assert!(shown.contains(part), "{part}\n{shown}");
        }
    }

    #[test]
    fn the_help_fits_a_terminal_of_80_columns_and_24_rows() {
        let mut state = state(2, ModeVerdict::InEffect(String::new()));
        state.page = Page::Help;
        let shown = lines(&state, 80, 24);
        for line in KEYS.lines().chain(LEGEND.lines()) {
            assert!(shown.iter().any(|row| row == line), "{line}\n{shown:#?}");
        }
    }

    #[test]
    fn a_long_reason_why_polls_are_unknown_is_complete_in_the_head_and_in_details() {
        let mut state = state(2, ModeVerdict::InEffect(String::new()));
        let report = state.report.as_mut().unwrap();
        report.polls_unknown = Some(format!("{}the end", "a reason of many words ".repeat(7)));
        report.queues[0].sample = None;
        assert!(lines(&state, 80, 24)[..6].concat().contains("the end"));
        state.key(Key::Char('\n'));
        assert_eq!(lines(&state, 80, 24).concat().matches("the end").count(), 2);
    }

    #[test]
    fn stalls_and_drops_are_on_the_third_line() {
        let mut state = state(2, ModeVerdict::InEffect(String::new()));
        state.report.as_mut().unwrap().queues[1].stalled = Some(true);
        let shown = lines(&state, 80, 24);
        assert!(shown[2].starts_with("stalled: eth0") && shown[2].contains(" NAPI 8193; dropped: eth0"), "{shown:#?}");
    }

    #[test]
    fn details_of_a_program_show_the_parts_that_are_skipped() {
        let mut state = state(2, ModeVerdict::InEffect(String::new()));
        let part = SkippedPart { napi: NapiId::from_kernel(8_193), reason: SkipReason::QueueNotSet };
        state.report.as_mut().unwrap().programs[0].skipped = Some(vec![part]);
        state.key(Key::Char('\t'));
        state.key(Key::Char('\n'));
        let shown = lines(&state, 80, 24).join("\n");
        assert!(shown.contains("not applied: NAPI 8193 queue-not-set"), "{shown}");
    }

    #[test]
    fn bars_are_relative_to_the_greatest_value_and_absent_values_have_none() {
        let point = |packets_per_s| HistoryPoint { packets_per_s, polls_per_s: 0.0, wait_p99_ns: None };
        let points = [8.0, 4.0, 0.1].map(point);
        assert_eq!(sparkline(points.iter(), 3, |point| Some(point.packets_per_s)), "█▄▁");
        assert_eq!(sparkline(points.iter(), 2, |point| Some(point.packets_per_s)), "█▁");
        assert_eq!(sparkline(points.iter(), 3, |_| None), "   ");
    }
}
