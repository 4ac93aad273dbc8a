//! `quell sim run --sweep FILE`: rows of a sweep file as lines of JSON, to standard output or to a file. A file that has
//! rows already is continued. Its first line describes the sweep and the model, so that rows of another one are not mixed
//! with them.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use quell_linux::own_file;
use quell_linux::visible::{self, counted};
use quell_mode::DeliveryMode;
use quell_result::simulation::SweepHeader;
use quell_sim::sweep::{self, Setup, SweepRow};
use quell_sim::sweep_file::{SweepFile, SweepPoints};
use quell_sim::{Load, RunError};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::output::{self, Reader};
use crate::render::number;
use crate::render::progress::Progress;
use crate::{commands::sim, file};

/// Upper limit of the length of a line.
const LINE_MAX: u64 = 64 << 10;

/// Simulates all points of a sweep file, and writes their rows to `output` or to standard output.
///
/// # Errors
/// When a file is invalid or cannot be written, when the output has rows of another sweep, or when a run fails.
pub(super) fn run(setup: &Setup, sweep_file: &Path, output: Option<&PathBuf>) -> Result<(), Failure> {
    let refused = |error| Failure::usage(format!("{}: {error}", visible::path(sweep_file)));
    let listed: SweepFile = file::read(sweep_file, file::BY_HAND_MAX)?.parse().map_err(refused)?;
    let progress = Progress::new();
    progress.doing("preparing the sweep");
    let points = listed.resolve(setup).map_err(|error| sim::not_run(&error))?;
    let Some(path) = output else {
        return simulate(setup, &points, 0, &progress, |row| match output::live_json(row)? {
            Reader::Present => Ok(ControlFlow::Continue(())),
            Reader::Gone => Ok(ControlFlow::Break(())),
        });
    };
    let failed = |error: io::Error| {
        Failure::new(Exit::KernelRefused, format!("could not write rows to {}: {error}", visible::path(path)))
    };
    let file = own_file::open_named(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(Failure::usage(format!(
            "{} is not a regular file; without -o, rows go to standard output",
            visible::path(path)
        )));
    }
    if file.try_lock().is_err() {
        return Err(Failure::usage(format!("{} is being written by another process", visible::path(path))));
    }
    let model = setup.fingerprint().map_err(|error| sim::not_run(&error))?;
    let header = SweepHeader::new(setup, model);
    let (done, length) = completed(path, &header, &points)
        .map_err(failed)?
        .map_err(|why| Failure::usage(format!("{} cannot be continued: {why}", visible::path(path))))?;
    let mut out = Rows(file);
    out.0.set_len(length).and_then(|()| out.0.seek(SeekFrom::End(0))).map_err(failed)?;
    if length == 0 {
        out.write(&header).map_err(failed)?;
    }
    simulate(setup, &points, done, &progress, |row| out.write(row).map(ControlFlow::Continue).map_err(failed))?;
    out.0.sync_all().map_err(failed)?;
    let (all, before) = (counted(points.len(), "row"), number::count(done));
    output::say(&format!("{all} in {}, {before} of them from before", visible::path(path)));
    Ok(())
}

/// Simulates the points from `done` on, in order.
fn simulate(
    setup: &Setup,
    points: &SweepPoints,
    done: usize,
    progress: &Progress,
    mut write: impl FnMut(&SweepRow) -> Result<ControlFlow<()>, Failure>,
) -> Result<(), Failure> {
    let job = |index| points.get(index).map(|point| setup.row(&point));
    let mut finished = done;
    let emit = |row: Option<Result<SweepRow, RunError>>| {
        let Some(row) = row else { return ControlFlow::Break(Ok(())) };
        finished += 1;
        progress.step(finished, points.len(), "rows");
        match row.map_err(|error| sim::not_run(&error)).and_then(|row| write(&row)) {
            Ok(next) => next.map_break(Ok),
            Err(failure) => ControlFlow::Break(Err(failure)),
        }
    };
    let outcome = sweep::in_order(done..points.len(), sim::threads(), job, emit);
    progress.finish();
    outcome.break_value().unwrap_or(Ok(()))
}

/// The first difference of the header of a file (`other`) from that of this sweep.
fn difference(this: &SweepHeader, other: &SweepHeader) -> Option<String> {
    let both = |what: &str, here: &dyn ToString, there: &dyn ToString| {
        let (here, there) = (here.to_string(), there.to_string());
        (here != there).then(|| format!("its rows have {what} {there}, this sweep has {here}"))
    };
    let model = || {
        let text = "its rows are of another version of the model or of the host profile; write to a new file";
        (this.model != other.model).then(|| text.to_owned())
    };
    both("the schema", &this.schema, &other.schema)
        .or_else(|| both("host", &this.setup.host, &other.setup.host))
        .or_else(|| both("--queues", &this.setup.queues, &other.setup.queues))
        .or_else(|| both("--irqs-apart", &this.setup.irqs_apart, &other.setup.irqs_apart))
        .or_else(|| both("--connections", &this.setup.connections, &other.setup.connections))
        .or_else(|| both("a warm-up in ns of", &this.setup.warm_up_ns, &other.setup.warm_up_ns))
        .or_else(|| both("a measured time in ns of", &this.setup.measured_ns, &other.setup.measured_ns))
        .or_else(model)
}

/// Number of rows in an output file, and its length up to the last complete line. The inner error is the reason why the
/// file cannot be continued.
fn completed(path: &Path, header: &SweepHeader, points: &SweepPoints) -> io::Result<Result<(usize, u64), String>> {
    let mut reader = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    let (mut lines, mut length) = (0_usize, 0);
    loop {
        line.clear();
        reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
        let is_torn = line.last() != Some(&b'\n');
        if is_torn && line.len() as u64 == LINE_MAX {
            return Ok(Err(format!("line {} is too long for a row", lines + 1)));
        }
        if is_torn && (lines > 0 || header_text(header)?.starts_with(&line)) {
            return Ok(Ok((lines.saturating_sub(1), length)));
        }
        let checked = match lines.checked_sub(1) {
            None => check_header(&line, header),
            Some(index) => check_row(&line, index, points),
        };
        if let Err(why) = checked {
            return Ok(Err(why));
        }
        lines += 1;
        length += line.len() as u64;
    }
}

fn header_text(header: &SweepHeader) -> io::Result<Vec<u8>> {
    serde_json::to_vec(header).map_err(io::Error::from)
}

fn check_header(line: &[u8], header: &SweepHeader) -> Result<(), String> {
    let found: SweepHeader = serde_json::from_slice(line).map_err(|_| "it is not the output of a sweep".to_owned())?;
    difference(header, &found).map_or(Ok(()), Err)
}

fn check_row(line: &[u8], index: usize, points: &SweepPoints) -> Result<(), String> {
    let number = index + 2;
    let found: SweepRow = serde_json::from_slice(line).map_err(|error| format!("line {number} is no row: {error}"))?;
    let Some(point) = points.get(index) else {
        return Err(format!("it has more rows than this sweep has points ({})", points.len()));
    };
    if (found.mode, found.load, found.seed) == (point.mode, point.load, point.seed) {
        return Ok(());
    }
    let text = |mode: DeliveryMode, load: Load, seed: u64| format!("{mode} {load} with seed {seed}");
    Err(format!(
        "line {number} is {}, this sweep has {} there",
        text(found.mode, found.load, found.seed),
        text(point.mode, point.load, point.seed)
    ))
}

/// The output file.
struct Rows(File);

impl Rows {
    /// Writes a line in one piece, so that an interruption leaves at most one incomplete line.
    fn write(&mut self, value: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}
