//! Progress on standard error while a command works: a bar when it is a terminal, nothing otherwise.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// A bar that shows what is being done, how much of it is done, and how long it will take.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar of unknown length.
    #[must_use]
    pub(crate) fn new() -> Self {
        let target =
            if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(style("{spinner} {msg}"));
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar }
    }

    /// Says what is being done now, within a length that is not known yet.
    pub(crate) fn doing(&self, what: &str) {
        self.bar.set_message(output::on_one_line(what));
    }

    /// Says how much is done of how much, and what is being done now.
    pub(crate) fn step(&self, done: usize, total: usize, what: &str) {
        if self.bar.length().is_none() {
            self.bar.set_style(style("{bar:30} {pos}/{len} {msg} ({eta} left)"));
            self.bar.reset_eta();
        }
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(output::on_one_line(what));
    }

    /// Prints a line above the bar, also where there is no bar.
    pub(crate) fn say(&self, line: &str) {
        self.bar.suspend(|| output::say(line));
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
