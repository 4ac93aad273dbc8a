//! State of the full-screen view: reports so far, and what the user selected. Pure: keys and reports change it, and
//! `render::top::screen` draws it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use quell_linux::{NapiId, Pid};
use quell_result::top::{IntervalReport, ObservedProgram, ObservedQueue};
use ratatui::termion::event::Key;

pub(crate) const HISTORY: usize = 60;
const INTERVAL_MIN: Duration = Duration::from_millis(250);
const INTERVAL_MAX: Duration = Duration::from_secs(60);
const FILTER_MAX: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct HistoryPoint {
    pub(crate) packets_per_s: f64,
    pub(crate) polls_per_s: f64,
    /// 99th percentile of the bound of the wait, in ns; absent without packets that have a bound.
    pub(crate) wait_p99_ns: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Pane {
    #[default]
    Queues,
    Programs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Page {
    #[default]
    Tables,
    Details,
    Help,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum QueueOrder {
    #[default]
    Device,
    Packets,
    Polls,
    /// Longest 99th percentile of the wait first.
    Wait,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ProgramOrder {
    #[default]
    Pid,
    Cpu,
    /// Modes that are not in effect first, then the other modes, then programs without a mode.
    Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyOutcome {
    Redraw,
    Quit,
}

#[derive(Debug, Default)]
pub(crate) struct TopState {
    pub(crate) report: Option<IntervalReport>,
    pub(crate) interval: Duration,
    pub(crate) is_paused: bool,
    pub(crate) is_filtering: bool,
    /// Only devices and programs whose name contains this text are shown, without regard to case.
    pub(crate) filter: String,
    pub(crate) page: Page,
    pub(crate) pane: Pane,
    pub(crate) queue_order: QueueOrder,
    pub(crate) program_order: ProgramOrder,
    history: BTreeMap<NapiId, VecDeque<HistoryPoint>>,
    queue: Option<NapiId>,
    program: Option<Pid>,
}

impl TopState {
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, ..Self::default() }
    }

    /// Shows a report, unless the view is paused. The history continues while it is paused.
    pub(crate) fn report(&mut self, report: IntervalReport) {
        let seconds = report.interval_ns as f64 / 1e9;
        self.history.retain(|napi, _| report.queues.iter().any(|queue| queue.napi == *napi));
        for queue in &report.queues {
            let points = self.history.entry(queue.napi).or_default();
            let Some(sample) = &queue.sample else { continue };
            points.push_back(HistoryPoint {
                packets_per_s: sample.packets as f64 / seconds,
                polls_per_s: sample.polls.total() as f64 / seconds,
                wait_p99_ns: sample.wait.p99_ns,
            });
            if points.len() > HISTORY {
                points.pop_front();
            }
        }
        if !self.is_paused {
            self.report = Some(report);
        }
    }

    /// Latest intervals of a queue, oldest first.
    pub(crate) fn history(&self, napi: NapiId) -> impl ExactSizeIterator<Item = &HistoryPoint> {
        static NONE: VecDeque<HistoryPoint> = VecDeque::new();
        self.history.get(&napi).unwrap_or(&NONE).iter()
    }

    pub(crate) fn queues(&self) -> Vec<&ObservedQueue> {
        let all = self.report.iter().flat_map(|report| &report.queues);
        let mut queues: Vec<_> = all.filter(|queue| self.passes(&queue.device)).collect();
        let sample = |queue: &ObservedQueue, of: fn(&quell_sampler::QueueSample) -> u64| {
            std::cmp::Reverse(queue.sample.as_ref().map(of))
        };
        match self.queue_order {
            QueueOrder::Device => queues.sort_by(|a, b| (&a.device, a.napi).cmp(&(&b.device, b.napi))),
            QueueOrder::Packets => queues.sort_by_key(|queue| sample(queue, |sample| sample.packets)),
            QueueOrder::Polls => queues.sort_by_key(|queue| sample(queue, |sample| sample.polls.total())),
            QueueOrder::Wait => queues.sort_by_key(|queue| sample(queue, |sample| sample.wait.p99_ns.unwrap_or(0))),
        }
        queues
    }

    pub(crate) fn programs(&self) -> Vec<&ObservedProgram> {
        use quell_host::attach::effect::ModeVerdict;
        let all = self.report.iter().flat_map(|report| &report.programs);
        let mut programs: Vec<_> = all.filter(|program| self.passes(&program.name)).collect();
        match self.program_order {
            ProgramOrder::Pid => {}
            ProgramOrder::Cpu => {
                programs.sort_by(|a, b| b.cpus.unwrap_or(-1.0).total_cmp(&a.cpus.unwrap_or(-1.0)));
            }
            ProgramOrder::Effect => programs.sort_by_key(|program| match (&program.effect, &program.mode) {
                (Some(ModeVerdict::NotInEffect(_)), _) => 0,
                (_, Some(_)) => 1,
                (_, None) => 2,
            }),
        }
        programs
    }

    /// The selected queue: the first one if the user selected none, or the selected one has vanished.
    pub(crate) fn selected_queue(&self) -> Option<&ObservedQueue> {
        let queues = self.queues();
        queues.iter().find(|queue| Some(queue.napi) == self.queue).or_else(|| queues.first()).copied()
    }

    /// The selected program, by the same rule.
    pub(crate) fn selected_program(&self) -> Option<&ObservedProgram> {
        let programs = self.programs();
        programs.iter().find(|program| Some(program.pid) == self.program).or_else(|| programs.first()).copied()
    }

    fn passes(&self, name: &str) -> bool {
        name.to_lowercase().contains(&self.filter.to_lowercase())
    }

    pub(crate) fn key(&mut self, key: Key) -> KeyOutcome {
        match key {
            Key::Ctrl('c') => return KeyOutcome::Quit,
            key if self.is_filtering => self.edit_filter(key),
            Key::Char('q') => return KeyOutcome::Quit,
            key => self.command(key),
        }
        KeyOutcome::Redraw
    }

    fn edit_filter(&mut self, key: Key) {
        match key {
            Key::Char('\n' | '\r') => self.is_filtering = false,
            Key::Esc => {
                self.is_filtering = false;
                self.filter.clear();
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Char(letter) if !letter.is_control() && self.filter.chars().count() < FILTER_MAX => {
                self.filter.push(letter);
            }
            _ => {}
        }
    }

    fn command(&mut self, key: Key) {
        match key {
            Key::Char('?' | 'h') | Key::F(1) => {
                self.page = if self.page == Page::Help { Page::Tables } else { Page::Help };
            }
            Key::Esc if self.page != Page::Tables => self.page = Page::Tables,
            Key::Esc => self.filter.clear(),
            Key::Char('\n' | '\r') => {
                self.page = if self.page == Page::Tables { Page::Details } else { Page::Tables };
            }
            Key::Char('/') => {
                self.page = Page::Tables;
                self.is_filtering = true;
            }
            Key::Char(' ' | 'p') => self.is_paused = !self.is_paused,
            Key::Char('\t') => {
                self.pane = if self.pane == Pane::Queues { Pane::Programs } else { Pane::Queues };
            }
            Key::Char('s') => self.next_order(),
            Key::Char('+') => self.interval = (self.interval * 2).min(INTERVAL_MAX),
            Key::Char('-') => self.interval = (self.interval / 2).max(INTERVAL_MIN),
            Key::Up | Key::Char('k') => self.select(|index, _| index.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.select(|index, _| index + 1),
            Key::PageUp => self.select(|index, _| index.saturating_sub(10)),
            Key::PageDown => self.select(|index, _| index + 10),
            Key::Home | Key::Char('g') => self.select(|_, _| 0),
            Key::End | Key::Char('G') => self.select(|_, last| last),
            _ => {}
        }
    }

    fn next_order(&mut self) {
        match self.pane {
            Pane::Queues => {
                self.queue_order = match self.queue_order {
                    QueueOrder::Device => QueueOrder::Packets,
                    QueueOrder::Packets => QueueOrder::Polls,
                    QueueOrder::Polls => QueueOrder::Wait,
                    QueueOrder::Wait => QueueOrder::Device,
                }
            }
            Pane::Programs => {
                self.program_order = match self.program_order {
                    ProgramOrder::Pid => ProgramOrder::Cpu,
                    ProgramOrder::Cpu => ProgramOrder::Effect,
                    ProgramOrder::Effect => ProgramOrder::Pid,
                }
            }
        }
    }

    /// Moves the selection to the index that `to` computes from the present and the last one.
    fn select(&mut self, to: impl Fn(usize, usize) -> usize) {
        match self.pane {
            Pane::Queues => {
                let queues: Vec<NapiId> = self.queues().iter().map(|queue| queue.napi).collect();
                self.queue = moved(&queues, self.selected_queue().map(|queue| queue.napi), to);
            }
            Pane::Programs => {
                let programs: Vec<Pid> = self.programs().iter().map(|program| program.pid).collect();
                self.program = moved(&programs, self.selected_program().map(|program| program.pid), to);
            }
        }
    }
}

fn moved<T: Copy + PartialEq>(all: &[T], selected: Option<T>, to: impl Fn(usize, usize) -> usize) -> Option<T> {
    let last = all.len().checked_sub(1)?;
    let index = all.iter().position(|one| Some(*one) == selected).unwrap_or(0);
    all.get(to(index, last).min(last)).copied()
}

#[cfg(test)]
mod tests {
    use quell_result::Document as _;
    use quell_sampler::QueueSample;

    use super::*;

    fn report(packets: &[(u32, u64)]) -> IntervalReport {
        let queue = |&(napi, packets): &(u32, u64)| ObservedQueue {
            namespace: 1,
            device: format!("eth{}", napi % 2),
            rx_queues: vec![napi],
            napi: NapiId::from_kernel(napi).unwrap(),
            settings: Default::default(),
            interrupts: None,
            thread_ns: None,
            unsampled: None,
            stalled: Some(false),
            sample: Some(QueueSample { packets, ..QueueSample::default() }),
        };
        IntervalReport {
            schema: IntervalReport::SCHEMA.to_owned(),
            unix_ns: 0,
            interval_ns: 1_000_000_000,
            polls_unknown: None,
            queues: packets.iter().map(queue).collect(),
            devices: Vec::new(),
            programs: Vec::new(),
            idle_states: Vec::new(),
            hidden_processes: 0,
        }
    }

    fn state(packets: &[(u32, u64)]) -> TopState {
        let mut state = TopState::new(Duration::from_secs(1));
        state.report(report(packets));
        state
    }

    fn shown(state: &TopState) -> Vec<u32> {
        state.queues().iter().map(|queue| queue.napi.get()).collect()
    }

    fn selected(state: &TopState) -> Option<u32> {
        state.selected_queue().map(|queue| queue.napi.get())
    }

    fn press(state: &mut TopState, keys: &str) {
        keys.chars().for_each(|key| assert_eq!(state.key(Key::Char(key)), KeyOutcome::Redraw));
    }

    #[test]
    fn the_selection_stays_on_its_queue_when_the_order_changes() {
        let mut state = state(&[(2, 10), (4, 30), (6, 20)]);
        state.key(Key::Down);
        assert_eq!((selected(&state), shown(&state)), (Some(4), vec![2, 4, 6]));
        press(&mut state, "s");
        assert_eq!((selected(&state), shown(&state)), (Some(4), vec![4, 6, 2]));
        state.report(report(&[(2, 10), (4, 1), (6, 20)]));
        assert_eq!((selected(&state), shown(&state)), (Some(4), vec![6, 2, 4]));
        state.report(report(&[(2, 10), (6, 20)]));
        assert_eq!(selected(&state), Some(6), "a selected queue that vanished");
    }

    #[test]
    fn the_selection_stops_at_both_ends() {
        let mut state = state(&[(2, 0), (4, 0)]);
        state.key(Key::Up);
        assert_eq!(selected(&state), Some(2));
        state.key(Key::PageDown);
        assert_eq!(selected(&state), Some(4));
        assert_eq!(selected(&TopState::new(Duration::ZERO)), None);
    }

    #[test]
    fn a_filter_limits_the_tables_until_it_is_cleared() {
        let mut state = state(&[(1, 0), (2, 0)]);
        press(&mut state, "/ETH1q");
        assert!(shown(&state).is_empty(), "a letter of the filter is not a command");
        state.key(Key::Backspace);
        press(&mut state, "\n");
        assert_eq!(shown(&state), [1]);
        state.key(Key::Esc);
        assert_eq!(shown(&state), [2, 1]);
    }

    #[test]
    fn a_paused_view_stays_and_its_history_continues() {
        let mut state = state(&[(2, 10)]);
        press(&mut state, " ");
        state.report(report(&[(2, 99)]));
        assert_eq!(state.queues()[0].sample.unwrap().packets, 10);
        assert_eq!(state.history(NapiId::from_kernel(2).unwrap()).len(), 2);
        press(&mut state, " ");
        state.report(report(&[(2, 99)]));
        assert_eq!(state.queues()[0].sample.unwrap().packets, 99);
    }

    #[test]
    fn a_history_has_a_limit_and_ends_with_its_queue() {
        let mut state = state(&[]);
        (0..2 * HISTORY).for_each(|_| state.report(report(&[(2, 1)])));
        assert_eq!(state.history(NapiId::from_kernel(2).unwrap()).len(), HISTORY);
        state.report(report(&[]));
        assert_eq!(state.history(NapiId::from_kernel(2).unwrap()).len(), 0);
    }

    #[test]
    fn the_interval_has_limits() {
        let mut state = state(&[]);
        press(&mut state, "----------");
        assert_eq!(state.interval, INTERVAL_MIN);
        press(&mut state, "++++++++++++");
        assert_eq!(state.interval, INTERVAL_MAX);
    }

    #[test]
    fn q_and_ctrl_c_quit() {
        let mut state = state(&[]);
        assert_eq!(state.key(Key::Char('q')), KeyOutcome::Quit);
        press(&mut state, "/");
        assert_eq!(state.key(Key::Ctrl('c')), KeyOutcome::Quit);
    }
}
