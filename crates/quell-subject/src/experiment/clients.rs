//! Load of clients on other machines (`quell-mpi --follow`). The clients' command runs during the whole experiment. For each
//! slice, this side orders a window ahead of time, on the clock of the first client, and receives the reports after it.

use std::io::{BufRead as _, BufReader, PipeReader, PipeWriter, Read as _, Write as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use quell_linux::clock::monotonic_ns;
use quell_linux::visible;
use quell_load::clients::{ClientsNotice, ClientsOrder, ClockOffset, combined};
use quell_load::{LoadReport, OfferedLoad, RunObserver, Schedule};
use quell_result::facts::RemoteClientsFacts;

/// Time limit for all clients to connect and to store the keys.
const READY_WITHIN: Duration = Duration::from_secs(300);
/// Time limit for the time of the first client.
const TIME_WITHIN: Duration = Duration::from_secs(2);
/// Time limit for the reports of a window after its end. The clients themselves name a late client earlier.
const REPORTS_WITHIN: Duration = Duration::from_secs(5);
/// Number of exchanges of a comparison of clocks.
const EXCHANGES: u32 = 32;
/// Interval between comparisons of clocks, which take place between slices.
const COMPARE_EVERY: Duration = Duration::from_secs(10);
/// Time from the order of a window to its start. It is doubled when a client receives the order too late.
const LEAD: Duration = Duration::from_millis(40);
/// Upper limit of the doubled lead.
const LEAD_MAX: Duration = Duration::from_secs(1);
/// Interval at which an experiment can be stopped.
const TICK: Duration = Duration::from_millis(20);
/// Maximum length of a line of the clients, bytes: reports of 1,000 clients.
const LINE_MAX: u64 = 64 << 20;

/// Why the clients cannot measure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientsError {
    /// A client failed. The sentence names it.
    #[error("the clients ended the run: {0}")]
    Failed(String),
    /// The clients' command closed its output.
    #[error("the clients' command has closed its output")]
    Ended,
    /// The command did not report that its clients are ready.
    #[error(
        "the clients did not report within {READY_WITHIN:?} that they are ready; the command must start `quell-mpi … --follow`"
    )]
    NotReady,
    /// An answer is missing.
    #[error("the clients did not {action} within {within:?}; the network to them may be interrupted")]
    Silent {
        /// Missing action, in the infinitive.
        action: &'static str,
        /// Time limit.
        within: Duration,
    },
    /// A line cannot be parsed.
    #[error("a line of the clients' command is not from `quell-mpi --follow`: {0}")]
    Line(String),
    /// The clients have another version of Quell.
    #[error("the clients have version {theirs} of Quell, this machine has {own}; install one version on all machines")]
    Version {
        /// Version on the clients.
        theirs: String,
        /// Version on this machine.
        own: &'static str,
    },
    /// An order could not be written.
    #[error("could not send an order to the clients: {0}")]
    Order(std::io::Error),
    /// Orders arrive too late.
    #[error("orders reach the clients later than {LEAD_MAX:?} after they were sent")]
    OrdersLate,
}

/// Outcome of one order.
#[derive(Debug)]
pub enum RemoteWindow {
    /// All clients measured the window.
    Measured(Box<LoadReport>),
    /// A client received the order after the start of the window. The next order has a longer lead.
    TooLate,
    /// The experiment was stopped.
    Stopped,
}

/// Clients under load. Dropping this closes their standard input, which ends them.
#[derive(Debug)]
pub struct RemoteClients {
    orders: PipeWriter,
    notices: Receiver<Received>,
    last_number: u64,
    clock: ClockOffset,
    compared: Instant,
    lead: Duration,
    measures_only: Option<usize>,
    facts: RemoteClientsFacts,
    schedule: Schedule,
}

/// A notice and the time of its arrival.
type Received = Result<(u64, ClientsNotice), ClientsError>;

impl RemoteClients {
    /// Waits until the clients are under load, and compares clocks. `command` has standard input `orders` and standard
    /// output `notices`. `None` if `stopped` returned true.
    ///
    /// # Errors
    /// See [`ClientsError`].
    pub fn connect(
        command: &[String],
        orders: PipeWriter,
        notices: PipeReader,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Self>, ClientsError> {
        let notices = read(notices);
        let deadline = Instant::now() + READY_WITHIN;
        let ready = loop {
            match notices.recv_timeout(TICK) {
                Ok(received) => match received?.1 {
                    ClientsNotice::Ready { version, spec, run, clients } => break (version, spec, run, clients),
                    other => return Err(unexpected(&other)),
                },
                Err(RecvTimeoutError::Disconnected) => return ended(stopped),
                Err(RecvTimeoutError::Timeout) if stopped() => return Ok(None),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => return Err(ClientsError::NotReady),
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        let (theirs, load, run, clients) = ready;
        let own = env!("CARGO_PKG_VERSION");
        if theirs != own {
            return Err(ClientsError::Version { theirs, own });
        }
        let measures_only = clients.iter().position(|client| client.measures_only);
        let clock = ClockOffset::SAME_CLOCK;
        let facts = RemoteClientsFacts { command: command.to_vec(), clients, clock, load };
        let (schedule, compared) = (run.schedule, Instant::now());
        let mut clients =
            Self { orders, notices, last_number: 0, clock, compared, lead: LEAD, measures_only, facts, schedule };
        clients.compare_clocks()?;
        clients.facts.clock = clients.clock;
        Ok(Some(clients))
    }

    /// The clients, and how their clocks compare.
    #[must_use]
    pub fn facts(&self) -> &RemoteClientsFacts {
        &self.facts
    }

    /// Load that all clients together offer.
    #[must_use]
    pub fn offered_load(&self) -> OfferedLoad {
        match self.schedule {
            Schedule::Open { rate_per_s, .. } => OfferedLoad::Rate(rate_per_s),
            Schedule::Closed => OfferedLoad::Max,
        }
    }

    fn order(&mut self, order: &ClientsOrder) -> Result<(), ClientsError> {
        let line = serde_json::to_string(order).map_err(|error| ClientsError::Order(error.into()))?;
        match writeln!(self.orders, "{line}") {
            // The clients have ended. Their output ends too, which says so.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(ClientsError::Order),
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Waits for the next notice, or for `stopped`.
    fn notice(
        &self,
        action: &'static str,
        within: Duration,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<(u64, ClientsNotice)>, ClientsError> {
        let deadline = Instant::now() + within;
        loop {
            match self.notices.recv_timeout(TICK) {
                Ok(received) => match received? {
                    (_, ClientsNotice::Failed { why }) => {
                        return Err(ClientsError::Failed(visible::name(&why).into_owned()));
                    }
                    received => return Ok(Some(received)),
                },
                Err(RecvTimeoutError::Disconnected) => return ended(stopped),
                Err(RecvTimeoutError::Timeout) if stopped() => return Ok(None),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                    return Err(ClientsError::Silent { action, within });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn compare_clocks(&mut self) -> Result<(), ClientsError> {
        let mut offsets = Vec::new();
        for _ in 0..EXCHANGES {
            let (number, sent_ns) = (self.next_number(), monotonic_ns());
            self.order(&ClientsOrder::Time { number })?;
            match self.notice("report their time", TIME_WITHIN, &|| false)? {
                Some((received_ns, ClientsNotice::Time { number: of, clock_ns })) if of == number => {
                    offsets.extend(ClockOffset::from_exchange(sent_ns, clock_ns, received_ns));
                }
                Some((_, other)) => return Err(unexpected(&other)),
                None => return Err(ClientsError::Ended),
            }
        }
        let silent = ClientsError::Silent { action: "report their time", within: TIME_WITHIN };
        self.clock = ClockOffset::most_exact(offsets).ok_or(silent)?;
        self.compared = Instant::now();
        Ok(())
    }

    /// Measures a window of `length` on all clients. The observer is notified at its start and end on this machine.
    ///
    /// # Errors
    /// See [`ClientsError`].
    pub fn measure(
        &mut self,
        length: Duration,
        observer: &mut dyn RunObserver,
        stopped: &dyn Fn() -> bool,
    ) -> Result<RemoteWindow, ClientsError> {
        if self.compared.elapsed() >= COMPARE_EVERY {
            self.compare_clocks()?;
        }
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let start_ns = monotonic_ns().saturating_add(ns(self.lead));
        let end_ns = start_ns.saturating_add(ns(length));
        let number = self.next_number();
        let window_ns = self.clock.to_remote_ns(start_ns)..self.clock.to_remote_ns(end_ns);
        self.order(&ClientsOrder::Window { number, window_ns })?;
        if !sleep_until(start_ns, stopped) {
            return Ok(RemoteWindow::Stopped);
        }
        observer.window_started();
        if !sleep_until(end_ns, stopped) {
            return Ok(RemoteWindow::Stopped);
        }
        observer.window_ended();
        let Some((_, notice)) = self.notice("report a window", REPORTS_WITHIN, stopped)? else {
            return Ok(RemoteWindow::Stopped);
        };
        match notice {
            ClientsNotice::Window { number: of, reports: Some(reports) } if of == number => {
                let report = combined(&reports, self.measures_only);
                report.map(|report| RemoteWindow::Measured(Box::new(report))).ok_or(ClientsError::Ended)
            }
            ClientsNotice::Window { number: of, reports: None } if of == number => {
                if self.lead >= LEAD_MAX {
                    return Err(ClientsError::OrdersLate);
                }
                self.lead = (2 * self.lead).min(LEAD_MAX);
                Ok(RemoteWindow::TooLate)
            }
            other => Err(unexpected(&other)),
        }
    }
}

/// Sleeps until a time. Returns false if `stopped` returned true before.
fn sleep_until(until_ns: u64, stopped: &dyn Fn() -> bool) -> bool {
    loop {
        if stopped() {
            return false;
        }
        let left = Duration::from_nanos(until_ns.saturating_sub(monotonic_ns()));
        if left.is_zero() {
            return true;
        }
        sleep(left.min(TICK));
    }
}

/// The clients' output has ended. If their command has too, `stopped` says so soon, and its messages give the reason.
fn ended<T>(stopped: &dyn Fn() -> bool) -> Result<Option<T>, ClientsError> {
    let until_ns = monotonic_ns().saturating_add(u64::try_from(TIME_WITHIN.as_nanos()).unwrap_or(0));
    if sleep_until(until_ns, stopped) { Err(ClientsError::Ended) } else { Ok(None) }
}

/// Reads notices on a thread, so that the time of arrival does not include waiting. Lines that are not JSON objects are
/// ignored, because launchers print banners.
fn read(notices: PipeReader) -> Receiver<Received> {
    let (sender, received) = channel();
    std::thread::spawn(move || {
        let mut notices = BufReader::new(notices);
        loop {
            let mut line = Vec::new();
            let read = notices.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
            let received_ns = monotonic_ns();
            if !matches!(read, Ok(1..)) {
                return;
            }
            if !line.starts_with(b"{") {
                continue;
            }
            let notice = serde_json::from_slice(&line);
            let notice = notice.map_err(|error| ClientsError::Line(error.to_string()));
            if sender.send(notice.map(|notice| (received_ns, notice))).is_err() {
                return;
            }
        }
    });
    received
}

fn unexpected(notice: &ClientsNotice) -> ClientsError {
    match notice {
        ClientsNotice::Failed { why } => ClientsError::Failed(visible::name(why).into_owned()),
        ClientsNotice::Ready { .. } => ClientsError::Line("the clients became ready twice".to_owned()),
        ClientsNotice::Time { number, .. } | ClientsNotice::Window { number, .. } => {
            ClientsError::Line(format!("an answer to request {number}, which is not the current one"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients whose lines are given, and what was written to them.
    fn connect(lines: &str) -> Result<Option<RemoteClients>, ClientsError> {
        let (_, orders) = std::io::pipe().unwrap();
        let (notices, mut written) = std::io::pipe().unwrap();
        written.write_all(lines.as_bytes()).unwrap();
        drop(written);
        RemoteClients::connect(&[], orders, notices, &|| false)
    }

    #[test]
    fn output_that_is_not_from_the_clients_is_refused() {
        assert!(matches!(connect("Welcome to client1\n"), Err(ClientsError::Ended)));
        assert!(matches!(connect("{\"time\": 1}\n"), Err(ClientsError::Line(_))));
        assert!(matches!(connect("{\"window\":{\"number\":1,\"reports\":null}}\n"), Err(ClientsError::Line(_))));
    }

    #[test]
    fn a_client_that_fails_is_quoted_without_control_characters() {
        let error = connect("{\"failed\":{\"why\":\"rank 1 (a\\u001b[31m) is late\"}}\n").unwrap_err().to_string();
        assert!(error.contains("rank 1 (a") && !error.contains('\u{1b}'), "{error:?}");
    }
}
