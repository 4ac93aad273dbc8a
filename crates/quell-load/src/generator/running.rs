//! A load that keeps running while windows of it are measured.

use std::ops::{ControlFlow, Range};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use quell_linux::clock::monotonic_ns;

use super::{Generator, LEAD_NS, RunObserver, TICK};
use crate::drive::{NO_WINDOW, WindowNotice, WindowOrder, WindowPort, WindowStage};
use crate::error::LoadError;
use crate::report::{ErrorCounts, GeneratorCpu, LoadReport, Tally};
use crate::spec::Schedule;

/// Time from the order of a window to its start, ns. The threads look for orders every millisecond. If one of them
/// looks too late, the window is ordered again with twice the time.
const WINDOW_LEAD_NS: u64 = 2_000_000;

/// Upper limit of [`WINDOW_LEAD_NS`] after doubling, ns.
const WINDOW_LEAD_MAX_NS: u64 = 1_000_000_000;

/// A load that keeps running until it is stopped. Windows are measured without pausing it or opening new connections,
/// so that a server can be measured while its settings change. Dropping this stops the load and closes the connections.
///
/// Each request belongs to the window in which it is due. Requests due outside all windows are in no report.
pub struct RunningLoad {
    generator: Generator,
    desks: Vec<Desk>,
    last_number: u64,
    /// Errors counted in windows that produced no report.
    unreported: ErrorCounts,
}

struct Desk {
    orders: Sender<WindowOrder>,
    notices: Receiver<WindowNotice>,
}

enum Attempt {
    /// The window was measured, with this CPU cost if /proc could be read.
    Measured(Option<GeneratorCpu>),
    /// A thread was notified after the start of the window.
    TooLate,
}

struct Watch<'a> {
    called_ns: u64,
    planned: Duration,
    observer: &'a mut dyn RunObserver,
}

impl Generator {
    /// Starts a load that runs until [`RunningLoad::stop`]. It has no warm-up: measure the first window when the server
    /// has reached its steady state. An error closes the connections.
    pub fn keep_running(mut self, schedule: Schedule) -> Result<RunningLoad, LoadError> {
        schedule.check()?;
        let mut desks = Vec::with_capacity(self.workers.len());
        self.start_run(schedule, monotonic_ns() + LEAD_NS, &NO_WINDOW, || {
            let (orders, order_receiver) = channel();
            let (notice_sender, notices) = channel();
            desks.push(Desk { orders, notices });
            Some(WindowPort { orders: order_receiver, notices: notice_sender, number: 0 })
        })?;
        Ok(RunningLoad { generator: self, desks, last_number: 0, unreported: ErrorCounts::default() })
    }
}

impl RunningLoad {
    /// Measures a window of length `window`, which begins within a few milliseconds, once all threads have accepted it.
    /// The load continues before, during and after it.
    ///
    /// After the window, this waits at most 20 ms for the answers to its requests, plus up to 5 ms until a sleeping
    /// thread wakes. The window's requests that are still outstanding are then `unanswered`, and those still unsent are
    /// `never_sent`. An open loop continues with current arrivals: a backlog does not carry over to the next window.
    ///
    /// A request that is answered later is in no histogram. Its answer counts in `answered_in_window` of the window in
    /// which it arrives; a timeout counts among the errors of a later report. After [`LoadError::Cancelled`] the load
    /// continues, and the next report includes the errors of this window. After [`LoadError::ThreadLost`],
    /// [`RunningLoad::stop`] returns the reason.
    pub fn measure(&mut self, window: Duration, observer: &mut dyn RunObserver) -> Result<LoadReport, LoadError> {
        let length_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / 4);
        let called_ns = monotonic_ns();
        let mut lead_ns = WINDOW_LEAD_NS;
        loop {
            let start_ns = monotonic_ns() + lead_ns;
            let window_ns = start_ns..start_ns + length_ns;
            let planned = Duration::from_nanos(window_ns.end - called_ns);
            let mut watch = Watch { called_ns, planned, observer: &mut *observer };
            if let Some(report) = self.measure_once(&window_ns, &mut watch)? {
                return Ok(report);
            }
            // A thread takes orders between its rounds, so a busy one can see the order after the window has begun. Its
            // records would lack the beginning, so all threads get a later window.
            lead_ns = (2 * lead_ns).min(WINDOW_LEAD_MAX_NS);
        }
    }

    /// As [`Self::measure`], for the window `window_ns` on [`monotonic_ns`]'s clock, so that generators on several
    /// machines measure at the same time. Returns `None` at once if a thread was notified after the start of the window.
    pub fn measure_at(
        &mut self,
        window_ns: Range<u64>,
        observer: &mut dyn RunObserver,
    ) -> Result<Option<LoadReport>, LoadError> {
        let called_ns = monotonic_ns();
        let planned = Duration::from_nanos(window_ns.end.saturating_sub(called_ns));
        self.measure_once(&window_ns, &mut Watch { called_ns, planned, observer })
    }

    fn measure_once(&mut self, window_ns: &Range<u64>, watch: &mut Watch<'_>) -> Result<Option<LoadReport>, LoadError> {
        if window_ns.is_empty() {
            return Err(LoadError::spec("window", "it is empty"));
        }
        let mut total = Tally { errors: std::mem::take(&mut self.unreported), ..Tally::default() };
        match self.measure_into(&mut total, window_ns, watch) {
            Ok(Attempt::Measured(cpu)) => {
                let length_ns = window_ns.end - window_ns.start;
                Ok(Some(total.into_report(length_ns, cpu, self.generator.engines())))
            }
            Ok(Attempt::TooLate) => {
                self.unreported = total.errors;
                Ok(None)
            }
            Err(error) => {
                self.unreported = total.errors;
                Err(error)
            }
        }
    }

    fn measure_into(
        &mut self,
        total: &mut Tally,
        window_ns: &Range<u64>,
        watch: &mut Watch<'_>,
    ) -> Result<Attempt, LoadError> {
        self.order(window_ns)?;
        if !self.is_accepted(total, watch)? {
            return Ok(Attempt::TooLate);
        }
        let ControlFlow::Continue(cpu) =
            self.generator.watch_window(window_ns, watch.called_ns, watch.planned, watch.observer)
        else {
            return Err(LoadError::Cancelled);
        };
        for desk in &self.desks {
            self.next_stage(desk, total, watch)?;
        }
        Ok(Attempt::Measured(cpu))
    }

    fn order(&mut self, window_ns: &Range<u64>) -> Result<(), LoadError> {
        self.last_number += 1;
        for desk in &self.desks {
            let order = WindowOrder { number: self.last_number, window_ns: window_ns.clone() };
            desk.orders.send(order).map_err(|_| LoadError::ThreadLost)?;
        }
        Ok(())
    }

    fn is_accepted(&self, total: &mut Tally, watch: &mut Watch<'_>) -> Result<bool, LoadError> {
        let mut all = true;
        for desk in &self.desks {
            all &= matches!(self.next_stage(desk, total, watch)?, WindowStage::Accepted);
        }
        Ok(all)
    }

    /// Waits for the next notice about the last order and adds its records to `total`. An abandoned window adds only
    /// its errors.
    fn next_stage(&self, desk: &Desk, total: &mut Tally, watch: &mut Watch<'_>) -> Result<WindowStage, LoadError> {
        loop {
            match desk.notices.recv_timeout(TICK) {
                Ok(WindowNotice { number, stage }) => {
                    // Notices of windows that were given up still arrive. Their errors happened and must be reported;
                    // their latencies belong to no report.
                    let is_current = number == self.last_number;
                    match &stage {
                        WindowStage::Collected(tally) if is_current => total.add(tally),
                        WindowStage::Collected(tally) => total.errors.add(&tally.errors),
                        WindowStage::Accepted | WindowStage::TooLate => {}
                    }
                    if is_current {
                        return Ok(stage);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(LoadError::ThreadLost),
                Err(RecvTimeoutError::Timeout) => {
                    if self.generator.tick(watch.called_ns, watch.planned, watch.observer).is_break() {
                        return Err(LoadError::Cancelled);
                    }
                }
            }
        }
    }

    /// Stops the load and waits for the last answers until their timeouts. The connections stay open, except those
    /// without an answer. The error is that of a generator thread; the connections are then closed.
    pub fn stop(mut self) -> Result<Generator, LoadError> {
        // A thread stops when its desk is gone.
        self.desks.clear();
        self.generator.finish(monotonic_ns(), Duration::ZERO, &mut ())?;
        Ok(self.generator)
    }

    /// The generator, for its threads and specification. Its NAPI IDs were read before the load.
    #[must_use]
    pub fn generator(&self) -> &Generator {
        &self.generator
    }
}
