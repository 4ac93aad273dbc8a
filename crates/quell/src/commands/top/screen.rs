//! The full-screen loop: it waits for keys, signals, changes of the terminal's size, and the end of the interval.

use std::io::{self, Read as _, Stdout, Write as _};
use std::time::{Duration, Instant};

use quell_linux::event::{Epoll, Trigger};
use quell_linux::pidfd::Signal;
use quell_linux::signal::Interruption;
use ratatui::Terminal;
use ratatui::backend::TermionBackend;
use ratatui::termion::event::{Event, Key};
use ratatui::termion::input::TermRead as _;
use ratatui::termion::raw::{IntoRawMode as _, RawTerminal};
use ratatui::termion::screen::{AlternateScreen, IntoAlternateScreen as _};

use super::RecordedObserver;
use super::state::{KeyOutcome, TopState};
use crate::exit::{Exit, Failure};
use crate::render::terminal::Terminal as TerminalProperties;
use crate::render::top::screen::draw;

const KEYS: u64 = 0;
const SIGNAL: u64 = 1;
const RESIZED: u64 = 2;

type Screen = Terminal<TermionBackend<AlternateScreen<RawTerminal<Stdout>>>>;

enum Woken {
    Keys(Vec<Key>),
    Resized,
    IntervalOver,
    /// A signal, or the terminal is gone.
    End,
}

struct Inputs {
    interruption: Interruption,
    resized: Interruption,
    epoll: Epoll,
}

/// Shows reports on the terminal until the user quits, a signal arrives, or the terminal is gone.
pub(super) fn run(
    observer: &mut RecordedObserver<'_>,
    interruption: Interruption,
    interval: Duration,
) -> Result<(), Failure> {
    let mut inputs = Inputs::open(interruption).map_err(terminal_refused)?;
    let _flushed = FlushedAtEnd;
    let mut screen = open_screen().map_err(terminal_refused)?;
    let colour = TerminalProperties::of_stdout().colour;
    let mut state = TopState::new(interval);
    let mut reported_at = Instant::now();
    loop {
        // A terminal that is gone cannot be drawn on. This is how the user ended the command.
        if screen.draw(|frame| draw(frame, &state, colour)).is_err() {
            return Ok(());
        }
        let left = state.interval.saturating_sub(reported_at.elapsed());
        match inputs.wait(left).map_err(terminal_refused)? {
            Woken::End => return Ok(()),
            Woken::Resized => {}
            Woken::Keys(keys) => {
                if keys.into_iter().any(|key| state.key(key) == KeyOutcome::Quit) {
                    return Ok(());
                }
            }
            Woken::IntervalOver => {
                reported_at = Instant::now();
                state.report(observer.report()?);
            }
        }
    }
}

impl Inputs {
    fn open(interruption: Interruption) -> io::Result<Self> {
        let resized = Interruption::listen_to(&[Signal::WINCH])?;
        let epoll = Epoll::new(3)?;
        epoll.add(io::stdin(), KEYS, Trigger::Level)?;
        epoll.add(&interruption, SIGNAL, Trigger::Level)?;
        epoll.add(&resized, RESIZED, Trigger::Level)?;
        Ok(Self { interruption, resized, epoll })
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<Woken> {
        if self.interruption.flag().get().is_some() {
            return Ok(Woken::End);
        }
        self.epoll.wait(Some(timeout))?;
        let events: Vec<_> = (0..self.epoll.len()).filter_map(|index| self.epoll.get(index)).collect();
        if events.iter().any(|event| event.token == SIGNAL || event.hung_up) {
            return Ok(Woken::End);
        }
        if events.iter().any(|event| event.token == RESIZED) {
            self.resized.reset()?;
            return Ok(Woken::Resized);
        }
        match events.is_empty() {
            true if timeout.is_zero() => Ok(Woken::IntervalOver),
            // A signal or the timeout ended the wait.
            true => Ok(Woken::Keys(Vec::new())),
            false => Ok(read_keys()),
        }
    }
}

/// Reads the keys that wait. A terminal that is gone returns an error or no bytes.
fn read_keys() -> Woken {
    // As large as the buffer of standard input, so that nothing stays in that buffer, which the epoll does not see.
    let mut bytes = [0; 8 * 1024];
    match io::stdin().lock().read(&mut bytes) {
        Ok(0) | Err(_) => Woken::End,
        Ok(count) => {
            let key = |event: io::Result<Event>| match event {
                Ok(Event::Key(key)) => Some(key),
                Ok(Event::Mouse(_) | Event::Unsupported(_)) | Err(_) => None,
            };
            Woken::Keys(bytes[..count].events().filter_map(key).collect())
        }
    }
}

/// Flushes standard output when it is dropped: the sequence that leaves the alternate screen must precede messages on
/// standard error.
struct FlushedAtEnd;

impl Drop for FlushedAtEnd {
    fn drop(&mut self) {
        // A terminal that is gone needs no sequence.
        let _ = io::stdout().flush();
    }
}

/// Switches the terminal to raw mode and to its alternate screen. Dropping the result switches back, also during a panic.
fn open_screen() -> io::Result<Screen> {
    let terminal = io::stdout().into_raw_mode()?.into_alternate_screen()?;
    Terminal::new(TermionBackend::new(terminal))
}

fn terminal_refused(error: io::Error) -> Failure {
    Failure::new(Exit::KernelRefused, format!("could not use the terminal: {error}; quell top -b prints text"))
}
