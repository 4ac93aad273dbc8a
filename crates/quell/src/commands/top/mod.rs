//! `quell top`: who polls the queues now, how long packets can have waited, and whether the modes of programs are in
//! effect.

mod screen;
pub(crate) mod state;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use quell_linux::output_file::{OutputFile, OutputLines};
use quell_linux::shell;
use quell_linux::signal::Interruption;
use quell_linux::visible;
use quell_mode::parse_duration;
use quell_observer::Observer;
use quell_result::store::ResultStore;
use quell_result::top::{IntervalReport, RecordingHeader};

use super::snapshot_scope::{ScopeArgs, not_taken};
use crate::exit::{Exit, Failure, not_written};
use crate::journals::journal;
use crate::output::{self, Reader};
use crate::render::progress::Progress;
use crate::render::top as render;

/// Options of `quell top`.
#[derive(Debug, Args)]
#[command(after_help = render::LEGEND)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    scope: ScopeArgs,
    /// Seconds between two reports.
    #[arg(short, long, value_name = "S", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Number of reports; implies `--batch` [until interrupted]
    #[arg(short = 'n', long, value_name = "N", value_parser = count)]
    count: Option<u64>,
    /// Print reports as text, one after another. Without a terminal this is the default.
    #[arg(short, long, conflicts_with = "json")]
    batch: bool,
    /// Print one JSON object per report, each on a line.
    #[arg(short, long)]
    json: bool,
    /// Also write all reports to this file (minute.jsonl), a line of JSON each, for `quell report` and `quell results show`.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// The observer, and the file that gets its reports.
struct RecordedObserver<'a> {
    observer: Observer,
    record: Option<OutputLines<'a>>,
}

impl RecordedObserver<'_> {
    fn report(&mut self) -> Result<IntervalReport, Failure> {
        let report = self.observer.report().map_err(|error| not_taken(&error))?;
        self.record.as_mut().map_or(Ok(()), |record| record.add(&report)).map_err(not_written)?;
        Ok(report)
    }
}

pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let limits = Duration::from_millis(100)..=Duration::from_secs(3_600);
    let interval = parse_duration(text).map_err(|_| "expected a number of seconds".to_owned())?;
    if limits.contains(&interval) { Ok(interval) } else { Err("expected 0.1 to 3600 seconds".to_owned()) }
}

fn count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("expected at least 1".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("expected a number of reports".to_owned()),
    }
}

fn refused(error: std::io::Error) -> Failure {
    Failure::new(Exit::KernelRefused, error)
}

/// Runs the command until it has printed its reports, the user quits, a signal arrives, or nobody reads its output any
/// more.
pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let interruption = Interruption::listen().map_err(refused)?;
    let (scope, programs) = args.scope.scope()?;
    let file = args.record.clone().map(|path| OutputFile::named(path, "the recording"));
    let record = file.as_ref().map(begin_record).transpose()?;
    let observer = Observer::begin(scope, programs, journal()).map_err(|error| not_taken(&error))?;
    let mut observer = RecordedObserver { observer, record };
    let shown = show(args, &mut observer, interruption);
    if let Some(file) = &file {
        let argument = ResultStore::of_user().argument_for(file.path());
        let (path, argument) = (visible::path(file.path()), shell::word(&argument));
        output::say(&format!("recording: {path}\nto look at it: quell report {argument} -o FILE.html"));
    }
    shown
}

fn begin_record(file: &OutputFile) -> Result<OutputLines<'_>, Failure> {
    let header = RecordingHeader::begin().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let mut record = file.begin_lines().map_err(Failure::usage)?;
    record.add(&header).map_err(not_written)?;
    Ok(record)
}

fn show(args: &TopArgs, observer: &mut RecordedObserver<'_>, interruption: Interruption) -> Result<(), Failure> {
    let on_screen = !(args.batch || args.json || args.count.is_some());
    if on_screen && std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        return screen::run(observer, interruption, args.interval);
    }
    let mut left = args.count;
    while left != Some(0) {
        let observed = Progress::during("observing this host", || interruption.wait(args.interval));
        if observed.map_err(refused)?.is_some() {
            break;
        }
        let report = observer.report()?;
        let reader = match args.json {
            true => output::live_json(&report)?,
            false => output::live(&render::text(&report))?,
        };
        if reader == Reader::Gone {
            break;
        }
        left = left.map(|left| left - 1);
    }
    Ok(())
}
