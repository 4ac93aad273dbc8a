//! Measured windows of a load that keeps running. The main thread orders each window before it begins; the housekeeping
//! of a generator thread accepts the order, and collects the records after the window.

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use crate::connection::Connection;
use crate::report::Tally;

use super::{Drive, HOUSEKEEPING_NS, Pace};

/// Longest time to wait for answers after a window has ended, ns.
const COLLECTING_MAX_NS: u64 = 20_000_000;

/// Time from the end of a window to the first check whether all of its answers have arrived, ns. Most have by then.
const FIRST_LOOK_NS: u64 = 200_000;

/// The empty window, used while nothing is measured.
pub(crate) const NO_WINDOW: Range<u64> = u64::MAX..u64::MAX;

/// Orders the measurement of `window_ns`. It replaces an earlier window that has not been collected.
pub(crate) struct WindowOrder {
    pub(crate) number: u64,
    pub(crate) window_ns: Range<u64>,
}

/// Notifies the main thread of the stage of order `number`.
pub(crate) struct WindowNotice {
    pub(crate) number: u64,
    pub(crate) stage: WindowStage,
}

pub(crate) enum WindowStage {
    /// The thread has accepted the window, which has not begun.
    Accepted,
    /// The order arrived after the start of the window and has no effect.
    TooLate,
    /// The window is over. These are its records, with all errors since the end of the previous window.
    Collected(Box<Tally>),
}

/// The thread's end of the exchange. The load stops when the other end is closed.
pub(crate) struct WindowPort {
    pub(crate) orders: Receiver<WindowOrder>,
    pub(crate) notices: Sender<WindowNotice>,
    pub(crate) number: u64,
}

impl Drive<'_> {
    /// Collects a window that is over and accepts the next one.
    pub(super) fn keep_windows(&mut self, now_ns: u64) {
        self.collect_window(now_ns);
        let Some(port) = &self.plan.port else { return };
        match port.orders.try_recv() {
            Ok(order) => self.accept_window(order, now_ns),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) if self.sending => {
                self.sending = false;
                self.end_ns = now_ns;
            }
            Err(TryRecvError::Disconnected) => {}
        }
    }

    /// Time of the next housekeeping. The first one after a window comes soon after its end.
    pub(super) fn next_housekeeping_ns(&self, now_ns: u64) -> u64 {
        let regular_ns = now_ns + HOUSEKEEPING_NS;
        let first_look_ns = self.plan.window_ns.end.saturating_add(FIRST_LOOK_NS);
        if first_look_ns > now_ns { regular_ns.min(first_look_ns) } else { regular_ns }
    }

    fn accept_window(&mut self, WindowOrder { number, window_ns }: WindowOrder, now_ns: u64) {
        if now_ns >= window_ns.start {
            return self.notify(number, WindowStage::TooLate);
        }
        self.skip_overdue(now_ns);
        if self.plan.window_ns != NO_WINDOW {
            // An earlier window was abandoned. The next report includes its errors.
            self.tally = Tally { errors: self.tally.errors, ..Tally::default() };
        }
        self.plan.window_ns = window_ns;
        if let Some(port) = &mut self.plan.port {
            port.number = number;
        }
        self.notify(number, WindowStage::Accepted);
    }

    fn collect_window(&mut self, now_ns: u64) {
        let Some(port) = &self.plan.port else { return };
        let (number, end_ns) = (port.number, self.plan.window_ns.end);
        let is_final = now_ns >= end_ns.saturating_add(COLLECTING_MAX_NS);
        if now_ns < end_ns || (!is_final && self.awaits_window()) {
            return;
        }
        self.skip_overdue(now_ns);
        self.record_unanswered(now_ns);
        self.plan.window_ns = NO_WINDOW;
        let tally = Box::new(std::mem::take(&mut self.tally));
        self.notify(number, WindowStage::Collected(tally));
    }

    /// Records the time that outstanding requests of the window have waited so far, a lower bound of their latency. Without
    /// them, quantiles would be those of the fastest requests.
    fn record_unanswered(&mut self, now_ns: u64) {
        self.tally.unanswered = self.unanswered_in_window();
        let window_ns = &self.plan.window_ns;
        let pending = self.thread.connections.iter().flat_map(|connection| &connection.pending);
        for pending in pending.filter(|pending| window_ns.contains(&pending.due_ns)) {
            self.tally.latency.record(now_ns.saturating_sub(pending.due_ns));
        }
    }

    /// Whether any request that was due in the window is unsent or unanswered.
    fn awaits_window(&self) -> bool {
        let end_ns = self.plan.window_ns.end;
        let is_unsent = matches!(&self.plan.pace, Pace::Open(arrivals) if arrivals.due_ns() < end_ns);
        is_unsent || self.unanswered_in_window() > 0
    }

    /// Number of outstanding requests that were due in the window.
    pub(super) fn unanswered_in_window(&self) -> u64 {
        let window_ns = &self.plan.window_ns;
        let outstanding = |connection: &Connection| {
            connection.pending.iter().filter(|pending| window_ns.contains(&pending.due_ns)).count() as u64
        };
        self.thread.connections.iter().map(outstanding).sum()
    }

    /// Open loop: drops overdue arrivals, so that a window does not begin with an earlier backlog. Those that were due
    /// in the current window count as never sent, with the time that they have waited.
    fn skip_overdue(&mut self, now_ns: u64) {
        let Pace::Open(arrivals) = &mut self.plan.pace else { return };
        while arrivals.due_ns() <= now_ns {
            if self.plan.window_ns.contains(&arrivals.due_ns()) {
                self.tally.never_sent += 1;
                self.tally.latency.record(now_ns - arrivals.due_ns());
            }
            arrivals.advance();
        }
    }

    fn notify(&self, number: u64, stage: WindowStage) {
        if let Some(port) = &self.plan.port {
            // If the receiver is gone, the load stops at the next check.
            let _ = port.notices.send(WindowNotice { number, stage });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use std::time::Duration;

    use quell_linux::clock::monotonic_ns;

    use super::super::Plan;
    use super::super::send_order::{CONNECTIONS, answer_all, connected};
    use super::*;
    use crate::arrivals::Arrivals;
    use crate::distribution::Distribution;
    use crate::random::{Purpose, Stream};
    use crate::requests::Source;

    const MS: u64 = 1_000_000;
    const ALL: u64 = CONNECTIONS as u64;

    /// The main thread's end.
    struct Desk {
        orders: Sender<WindowOrder>,
        notices: Receiver<WindowNotice>,
    }

    impl Desk {
        fn order(&self, number: u64, window_ns: Range<u64>) {
            self.orders.send(WindowOrder { number, window_ns }).unwrap();
        }

        fn is_accepted(&self, expected: u64) -> bool {
            let WindowNotice { number, stage } = self.notices.try_recv().unwrap();
            assert_eq!(number, expected);
            matches!(stage, WindowStage::Accepted)
        }

        fn collected(&self) -> Option<Tally> {
            match self.notices.try_recv().ok()?.stage {
                WindowStage::Collected(tally) => Some(*tally),
                _ => None,
            }
        }
    }

    fn plan(pace: Pace) -> (Plan, Desk) {
        let (orders, order_receiver) = channel();
        let (notice_sender, notices) = channel();
        let port = Some(WindowPort { orders: order_receiver, notices: notice_sender, number: 0 });
        let plan = Plan { pace, source: Source::Fixed, start_ns: 0, window_ns: NO_WINDOW, port, stop_at_error: false };
        (plan, Desk { orders, notices })
    }

    /// One arrival per millisecond, from the start of the clock.
    fn every_ms() -> Pace {
        let stream = Stream::new(1, Purpose::Arrivals, 0);
        Pace::Open(Arrivals::new(Distribution::fixed(1), 1_000.0, 0, stream))
    }

    fn due_ns(drive: &Drive<'_>) -> Vec<u64> {
        let mut due: Vec<u64> =
            drive.thread.connections.iter().flat_map(|connection| &connection.pending).map(|p| p.due_ns).collect();
        due.sort_unstable();
        due
    }

    #[test]
    fn a_backlog_is_never_sent_in_its_window_and_does_not_reach_the_next() {
        let (mut state, mut peers) = connected();
        let (plan, desk) = plan(every_ms());
        let mut drive = Drive::new(&mut state, plan);
        desk.order(1, 10 * MS..110 * MS);
        drive.keep_windows(9 * MS);
        assert!(desk.is_accepted(1));
        (0..CONNECTIONS).for_each(|id| drive.open_slots(id, 12 * MS));
        assert_eq!(due_ns(&drive), [10 * MS, 11 * MS, 12 * MS]);

        drive.keep_windows(110 * MS);
        assert!(desk.collected().is_none(), "97 requests are unsent");
        drive.keep_windows(110 * MS + COLLECTING_MAX_NS);
        let first = desk.collected().unwrap();
        assert_eq!((first.sent, first.never_sent, first.unanswered), (ALL, 100 - ALL, ALL));
        assert_eq!(first.latency.count(), 100, "each request of the window has waited");

        desk.order(2, 140 * MS..240 * MS);
        drive.keep_windows(139 * MS);
        assert!(desk.is_accepted(2));
        answer_all(&drive, &mut peers);
        (0..CONNECTIONS).for_each(|id| assert!(drive.take_answers(id)));
        assert_eq!(due_ns(&drive), [140 * MS, 141 * MS, 142 * MS]);
        assert_eq!((drive.tally.sent, drive.tally.never_sent, drive.tally.latency.count()), (ALL, 0, 0));
    }

    #[test]
    fn a_window_is_collected_when_its_answers_have_arrived() {
        let (mut state, mut peers) = connected();
        let (plan, desk) = plan(Pace::Closed);
        let mut drive = Drive::new(&mut state, plan);
        let due_ns = monotonic_ns();
        desk.order(1, due_ns..due_ns + 1);
        drive.keep_windows(due_ns - 1);
        assert!(desk.is_accepted(1));
        (0..CONNECTIONS).for_each(|id| drive.open_slots(id, due_ns));
        drive.keep_windows(due_ns + 1);
        assert!(desk.collected().is_none());
        answer_all(&drive, &mut peers);
        (0..CONNECTIONS).for_each(|id| assert!(drive.take_answers(id)));
        drive.keep_windows(due_ns + 2);
        let tally = desk.collected().unwrap();
        assert_eq!((tally.sent, tally.latency.count(), tally.unanswered), (ALL, ALL, 0));
        assert_eq!(drive.under_way, ALL, "the load goes on");
    }

    #[test]
    fn requests_without_an_answer_have_the_latency_up_to_the_end_of_the_longest_wait() {
        let (mut state, mut peers) = connected();
        let (plan, desk) = plan(Pace::Closed);
        let mut drive = Drive::new(&mut state, plan);
        let due_ns = monotonic_ns();
        desk.order(1, due_ns..due_ns + MS);
        drive.keep_windows(due_ns - 1);
        (0..CONNECTIONS).for_each(|id| drive.open_slots(id, due_ns));
        let collected_ns = due_ns + MS + COLLECTING_MAX_NS;
        drive.keep_windows(collected_ns);
        assert!(desk.is_accepted(1));
        let first = desk.collected().unwrap();
        assert_eq!((first.sent, first.latency.count(), first.unanswered), (ALL, ALL, ALL));
        assert!(first.latency.p50().is_some_and(|p50| p50 >= Duration::from_millis(20)), "{:?}", first.latency.p50());
        desk.order(2, collected_ns + 1..u64::MAX);
        drive.keep_windows(collected_ns);
        answer_all(&drive, &mut peers);
        (0..CONNECTIONS).for_each(|id| assert!(drive.take_answers(id)));
        assert_eq!(drive.tally.latency.count(), 0, "each request counts once");
    }

    #[test]
    fn an_order_after_the_start_of_its_window_has_no_effect() {
        let (mut state, _peers) = connected();
        let (plan, desk) = plan(Pace::Closed);
        let mut drive = Drive::new(&mut state, plan);
        desk.order(1, MS..2 * MS);
        drive.keep_windows(MS);
        assert!(!desk.is_accepted(1));
        assert_eq!(drive.plan.window_ns, NO_WINDOW);
    }

    #[test]
    fn a_replaced_window_leaves_only_its_errors() {
        let (mut state, _peers) = connected();
        let (plan, desk) = plan(Pace::Closed);
        let mut drive = Drive::new(&mut state, plan);
        desk.order(1, 10 * MS..20 * MS);
        drive.keep_windows(0);
        (0..CONNECTIONS).for_each(|id| drive.open_slots(id, 10 * MS));
        drive.lose(0, 11 * MS);
        desk.order(2, 30 * MS..40 * MS);
        drive.keep_windows(12 * MS);
        assert!(desk.is_accepted(1) && desk.is_accepted(2));
        drive.keep_windows(40 * MS);
        let tally = desk.collected().unwrap();
        assert_eq!((tally.sent, tally.unanswered), (0, 0));
        assert_eq!((tally.errors.connections_lost, tally.errors.requests_lost), (1, 1));
    }

    #[test]
    fn the_load_stops_when_nobody_can_order_a_window() {
        let (mut state, _peers) = connected();
        let (plan, desk) = plan(every_ms());
        let mut drive = Drive::new(&mut state, plan);
        drive.keep_windows(MS);
        assert!(drive.sending);
        drop(desk);
        drive.keep_windows(2 * MS);
        (0..CONNECTIONS).for_each(|id| drive.open_slots(id, 3 * MS));
        assert!(!drive.sending && drive.under_way == 0);
    }
}
