//! Judges. A judge is a command of the user that measures one slice and prints figures. Its output is untrusted input.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quell_linux::process::{Child, Output, ProcessError, Spawn};
use quell_linux::visible;

/// Upper limit of the output that is parsed, in bytes. Of longer output, only the end is parsed.
const OUTPUT_MAX: usize = 64 * 1024;
/// Default time limit of one run of a judge.
const RUN_MAX: Duration = Duration::from_secs(60);
/// Maximum number of figures. Each is a comparison, whose analysis takes time beside the slices.
const FIGURES_MAX: usize = 200;
/// Time after the end of the budget for a judge that is still running, besides the length of two slices.
const EXCESS: Duration = Duration::from_secs(1);
/// Interval at which a running judge is polled, and at which the experiment can be stopped.
const TICK: Duration = Duration::from_millis(50);
/// Maximum length of the output excerpt in an error, in characters.
const EXCERPT_CHARS: usize = 200;

/// Figures that judges printed, by name.
pub type PrintedFigures = BTreeMap<String, f64>;

/// A judge: program and arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judge {
    words: Vec<String>,
}

/// The judges of an experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judges {
    /// Judge that measures the server.
    pub latency: Option<Judge>,
    /// Judge that measures another program on the same queues. The names of its figures are prefixed with [`BESIDE`].
    pub beside: Option<Judge>,
    /// Whether the figure [`requests`](quell_result::figures::PRINTED_REQUESTS) counts all requests that the server answers, so that
    /// costs are divided by it. Otherwise they are divided by the number of packets.
    pub counts_all_requests: bool,
    /// Time limit of one run.
    pub run_max: Duration,
    /// Time at which a judge is killed because the budget is spent; absent before the first slice.
    pub end: Option<Instant>,
}

impl Default for Judges {
    fn default() -> Self {
        Self { latency: None, beside: None, counts_all_requests: true, run_max: RUN_MAX, end: None }
    }
}

/// Prefix of the names of figures that belong to a second program on the same queues.
pub const BESIDE: &str = "beside ";

/// Reason why a judge printed no figures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JudgeError {
    /// The command is empty or incorrectly quoted.
    #[error("{command:?} is not a command: {why}")]
    NotACommand {
        /// Text that was specified as command.
        command: String,
        /// Reason why the text is invalid.
        why: String,
    },
    /// The judge could not be started.
    #[error("cannot start `{command}`: {source}")]
    Start {
        /// Command line.
        command: String,
        /// Error of the system call.
        source: ProcessError,
    },
    /// The judge exited with an error.
    #[error("`{command}` failed with {status}; output: {printed}")]
    Failed {
        /// Command line.
        command: String,
        /// Exit status.
        status: String,
        /// Last bytes of the judge's output.
        printed: String,
    },
    /// The judge did not exit within the time limit.
    #[error("`{command}` did not exit within {limit:?}; limit its duration, as in `wrk -d 1 …`")]
    TooLong {
        /// Command line.
        command: String,
        /// Time limit.
        limit: Duration,
    },
    /// The judge was still running after the end of the budget.
    #[error("`{command}` was still running when the budget was spent; limit its duration, as in `wrk -d 1 …`")]
    BudgetSpent {
        /// Command line.
        command: String,
    },
    /// The output of the judge contains no figures.
    #[error(
        "`{command}` printed no usable figures: {why}. Figures are lines `NAME VALUE` or JSON objects with numbers, one per line, \
         and are not negative. Output: {printed}"
    )]
    NoFigures {
        /// Command line.
        command: String,
        /// Reason why the output is invalid.
        why: String,
        /// Last bytes of the judge's output.
        printed: String,
    },
}

impl Judge {
    /// Parses a command line that is quoted as for a shell. Does not start the command.
    ///
    /// # Errors
    /// [`JudgeError::NotACommand`].
    pub fn new(command: &str) -> Result<Self, JudgeError> {
        let not = |why: String| JudgeError::NotACommand { command: command.to_owned(), why };
        let words = shell_words::split(command).map_err(|error| not(error.to_string()))?;
        if words.is_empty() {
            return Err(not("the text is empty".to_owned()));
        }
        Ok(Self { words })
    }

    /// Returns the program and its arguments.
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Runs the judge and parses its figures; see [`Judges::run`].
    ///
    /// # Errors
    /// See [`JudgeError`].
    pub fn run(&self, slice_ms: u32, stopped: &dyn Fn() -> bool) -> Result<Option<PrintedFigures>, JudgeError> {
        let mut running = vec![RunningJudge::start(self, slice_ms)?];
        Ok(wait_for_all(&mut running, RUN_MAX, None, stopped)?.and_then(|mut figures| figures.pop()))
    }

    fn command(&self) -> String {
        visible::name(&shell_words::join(&self.words)).into_owned()
    }
}

impl Judges {
    /// Runs all judges at the same time and parses their figures. The environment variable `QUELL_SLICE_MS` contains
    /// the length of the slice. If `stopped` returns true before the judges exit, they are killed, and the result is
    /// `None`.
    ///
    /// # Errors
    /// See [`JudgeError`].
    pub fn run(&self, slice_ms: u32, stopped: &dyn Fn() -> bool) -> Result<Option<PrintedFigures>, JudgeError> {
        let judges = [(&self.latency, ""), (&self.beside, BESIDE)];
        let judges: Vec<(&Judge, &str)> =
            judges.into_iter().filter_map(|(judge, prefix)| Some((judge.as_ref()?, prefix))).collect();
        let running = judges.iter().map(|(judge, _)| RunningJudge::start(judge, slice_ms));
        let mut running = running.collect::<Result<Vec<_>, _>>()?;
        let Some(printed) = wait_for_all(&mut running, self.run_max, self.end, stopped)? else { return Ok(None) };
        let named = printed.into_iter().zip(&judges).flat_map(|(figures, (_, prefix))| {
            figures.into_iter().map(move |(name, value)| (format!("{prefix}{name}"), value))
        });
        Ok(Some(named.collect()))
    }

    /// Limits the runs to a budget that begins now, with two slices and a second more.
    pub fn end_after(&mut self, budget_ms: u64, slice_ms: u32) {
        let excess = EXCESS + Duration::from_millis(slice_ms.into()) * 2;
        self.end = Instant::now().checked_add(Duration::from_millis(budget_ms).saturating_add(excess));
    }

    /// Returns whether there are no judges.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.latency.is_none() && self.beside.is_none()
    }
}

struct RunningJudge<'a> {
    judge: &'a Judge,
    child: Child,
}

impl<'a> RunningJudge<'a> {
    fn start(judge: &'a Judge, slice_ms: u32) -> Result<Self, JudgeError> {
        let words = &judge.words;
        let spawn = Spawn::new(&words[0]).args(&words[1..]).env("QUELL_SLICE_MS", slice_ms.to_string());
        let spawn = spawn.stdout(Output::Tail(OUTPUT_MAX)).stderr(Output::Tail(OUTPUT_MAX)).dies_with_this_thread();
        let child = spawn.start().map_err(|source| JudgeError::Start { command: judge.command(), source })?;
        Ok(Self { judge, child })
    }

    /// Returns the figures of the judge after it has exited, and `None` while it is running.
    fn figures(&mut self) -> Result<Option<PrintedFigures>, JudgeError> {
        let command = || self.judge.command();
        let waited = self.child.wait(TICK);
        let Some(status) = waited.map_err(|source| JudgeError::Start { command: command(), source })? else {
            return Ok(None);
        };
        let stdout = self.child.stdout_tail().unwrap_or_default();
        let text = String::from_utf8_lossy(&stdout);
        if !status.success() {
            let stderr = self.child.stderr_tail().unwrap_or_default();
            let said = if stderr.trim_ascii().is_empty() { text } else { String::from_utf8_lossy(&stderr) };
            return Err(JudgeError::Failed { command: command(), status: status.to_string(), printed: excerpt(&said) });
        }
        let no_figures = |why| JudgeError::NoFigures { command: command(), why, printed: excerpt(&text) };
        parse(&text).map(Some).map_err(no_figures)
    }
}

/// Waits for all judges and returns their figures in the same order. Returns `None` if `stopped` returns true before
/// that.
fn wait_for_all(
    running: &mut [RunningJudge<'_>],
    limit: Duration,
    end: Option<Instant>,
    stopped: &dyn Fn() -> bool,
) -> Result<Option<Vec<PrintedFigures>>, JudgeError> {
    let deadline = Instant::now() + limit;
    let mut printed = Vec::with_capacity(running.len());
    for one in running {
        let figures = loop {
            if let Some(figures) = one.figures()? {
                break figures;
            }
            if stopped() {
                return Ok(None);
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return Err(JudgeError::BudgetSpent { command: one.judge.command() });
            }
            if Instant::now() >= deadline {
                return Err(JudgeError::TooLong { command: one.judge.command(), limit });
            }
        };
        printed.push(figures);
    }
    Ok(Some(printed))
}

/// Parses figures: lines that are JSON objects, and lines of the form `NAME VALUE`. Other lines are ignored, because
/// many programs print headings. If a name occurs several times, its last value is used.
fn parse(text: &str) -> Result<PrintedFigures, String> {
    let mut figures = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        if let Ok(serde_json::Value::Object(object)) = serde_json::from_str(line) {
            figures.extend(object.into_iter().filter_map(|(name, value)| Some((name, value.as_f64()?))));
        } else if let Some((name, value)) = line.split_once([' ', '\t', '=', ':'])
            && let Ok(value) = value.trim().parse::<f64>()
            && !name.is_empty()
        {
            figures.insert(name.to_owned(), value);
        }
    }
    match figures.iter().find(|(_, value)| !value.is_finite() || **value < 0.0) {
        Some((name, value)) => Err(format!("{:?} is {value}", visible::name(name))),
        None if figures.is_empty() => Err("no line contains a name and a number".to_owned()),
        None if figures.len() > FIGURES_MAX => {
            Err(format!("{} lines contain a name and a number, at most {FIGURES_MAX} can be compared", figures.len()))
        }
        None => Ok(figures),
    }
}

fn excerpt(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() {
        return "(none)".to_owned();
    }
    let cut: String = text.chars().take(EXCERPT_CHARS).collect();
    let more = if cut.len() < text.len() { "…" } else { "" };
    format!("{}{more}", visible::name(&cut))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(command: &str) -> Result<Option<BTreeMap<String, f64>>, JudgeError> {
        Judge::new(command).unwrap().run(200, &|| false)
    }

    #[test]
    fn lines_of_names_and_values_and_lines_of_json_are_figures() {
        let figures =
            parse("starting\nRequests/sec:  1234.5\np99 17\n{\"p50\": 3, \"unit\": \"ms\"}\np99=18\n").unwrap();
        assert_eq!(
            figures,
            BTreeMap::from([("Requests/sec".into(), 1234.5), ("p50".into(), 3.0), ("p99".into(), 18.0)])
        );
    }

    #[test]
    fn a_judge_gets_the_length_of_the_slice_in_its_environment() {
        let figures = run("sh -c 'echo slice $QUELL_SLICE_MS'").unwrap().unwrap();
        assert_eq!(figures["slice"], 200.0);
    }

    #[test]
    fn errors_quote_the_output_of_a_judge() {
        let failed = run("sh -c 'echo connection refused >&2; exit 3'").unwrap_err().to_string();
        assert!(failed.contains("exit status: 3") && failed.contains("connection refused"), "{failed}");
        for nonsense in ["echo hello", "echo p99 -3", "echo p99 NaN", "true"] {
            let error = run(nonsense).unwrap_err();
            assert!(matches!(error, JudgeError::NoFigures { .. }), "{nonsense}: {error}");
        }
        assert!(matches!(run("/does/not/exist"), Err(JudgeError::Start { .. })));
        assert!(matches!(Judge::new(" "), Err(JudgeError::NotACommand { .. })));
        assert!(matches!(Judge::new("echo '"), Err(JudgeError::NotACommand { .. })));
    }

    #[test]
    fn control_characters_in_the_output_do_not_reach_the_error() {
        let error = run("printf 'a\\033[31mb'").unwrap_err().to_string();
        assert!(!error.contains('\u{1b}'), "{error:?}");
    }

    #[test]
    fn two_judges_run_at_the_same_time_and_figures_of_the_second_get_a_prefix() {
        let judge = |command: &str| Some(Judge::new(command).unwrap());
        // Each judge waits for a file that the other one creates.
        let dir = tempfile::tempdir().unwrap();
        let meet = |mine: &str, other: &str| {
            let dir = dir.path().display();
            judge(&format!("sh -c 'touch {dir}/{mine}; until [ -e {dir}/{other} ]; do sleep 0.01; done; echo p99 7'"))
        };
        let judges = Judges { latency: meet("a", "b"), beside: meet("b", "a"), ..Judges::default() };
        let figures = judges.run(200, &|| false).unwrap().unwrap();
        assert_eq!(figures, PrintedFigures::from([("p99".into(), 7.0), ("beside p99".into(), 7.0)]));
    }

    #[test]
    fn a_judge_that_hangs_is_killed_when_the_budget_is_spent() {
        let latency = Some(Judge::new("sleep 1000").unwrap());
        let mut judges = Judges { latency, ..Judges::default() };
        judges.end_after(1, 1);
        let error = judges.run(200, &|| false).unwrap_err();
        assert!(matches!(error, JudgeError::BudgetSpent { .. }), "{error}");
    }

    #[test]
    fn more_figures_than_can_be_compared_are_refused_before_the_experiment() {
        let lines = |count: usize| (0..count).map(|n| format!("figure{n} {n}\n")).collect::<String>();
        assert_eq!(parse(&lines(FIGURES_MAX)).unwrap().len(), FIGURES_MAX);
        let refused = parse(&lines(3_000)).unwrap_err();
        assert!(refused.starts_with("3000 lines") && refused.contains("at most 200"), "{refused}");
    }

    #[test]
    fn an_interrupted_judge_is_killed() {
        let ended = Judge::new("sleep 1000").unwrap().run(200, &|| true).unwrap();
        assert_eq!(ended, None);
    }

    #[test]
    fn a_judge_that_exceeds_its_time_limit_is_named_and_killed() {
        let latency = Some(Judge::new("sleep 1000").unwrap());
        let judges = Judges { latency, run_max: Duration::from_millis(1), ..Judges::default() };
        let error = judges.run(200, &|| false).unwrap_err().to_string();
        assert!(error.starts_with("`sleep 1000` did not exit within 1ms"), "{error}");
    }

    proptest! {
        #[test]
        fn no_output_makes_the_parser_panic(text in ".{0,200}") {
            let _ = parse(&text);
        }
    }
}
