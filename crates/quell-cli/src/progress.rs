//! Progress bar on standard error, if it is a terminal.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tracing::level_filters::LevelFilter;

use crate::output;

#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    #[must_use]
    pub fn new() -> Self {
        // A progress bar and log lines would overwrite each other.
        let is_shown = std::io::stderr().is_terminal() && LevelFilter::current() == LevelFilter::OFF;
        let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(style("{spinner} {msg}"));
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar }
    }

    /// Shows an activity of unknown duration while it lasts.
    pub fn during<T>(what: &str, activity: impl FnOnce() -> T) -> T {
        let progress = Self::new();
        progress.doing(what);
        let done = activity();
        progress.finish();
        done
    }

    /// Like `during`, for an activity of some seconds: without a terminal, a line says what it is, unless JSON is printed,
    /// which scripts may read together with standard error.
    pub fn during_seconds<T>(what: &str, json: bool, activity: impl FnOnce() -> T) -> T {
        if !json && !std::io::stderr().is_terminal() {
            output::say(what);
        }
        Self::during(what, activity)
    }

    /// Shows the current activity, whose duration is unknown.
    pub fn doing(&self, what: &str) {
        self.bar.set_message(output::on_one_line(what));
    }

    /// Shows progress and the current activity.
    pub fn step(&self, done: usize, total: usize, what: &str) {
        if self.bar.length().is_none() {
            self.bar.set_style(style("{bar:30} {pos}/{len} {msg} ({eta} left)"));
            self.bar.reset_eta();
        }
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(output::on_one_line(what));
    }

    /// Shows the spent share of a budget in percent, and a table below the bar.
    pub fn table(&self, percent: u64, lines: &[String]) {
        if self.bar.length().is_none() {
            self.bar.set_length(100);
            self.bar.set_style(style("{bar:30} {pos} % of the budget (about {eta} left)\n{msg}"));
            self.bar.reset_eta();
        }
        self.bar.set_position(percent);
        let lines: Vec<String> = lines.iter().map(|line| output::on_one_line(line)).collect();
        self.bar.set_message(lines.join("\n"));
    }

    /// Prints a line above the bar. Without a bar it is printed as well.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| output::say(line));
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
