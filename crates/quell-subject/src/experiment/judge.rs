//! Judges. A judge is a command of the user that measures one slice and prints figures. Its output is untrusted input.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quell_experiment::Goal;
use quell_linux::process::{Child, Output, ProcessError, Spawn};
use quell_linux::shell;
use quell_linux::visible;
use quell_result::figures::PRINTED_REQUESTS;

use super::client_output::{ToolFigures, tool_figures};
use super::figures::goal_of;

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

/// Outcome of one run of the judges.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JudgeOutcome {
    pub figures: PrintedFigures,
    /// Steps of figures that are printed in coarse ones.
    pub steps: BTreeMap<String, f64>,
    /// For each judge without a figure of latency: the figures that it printed, and how to make it print latency.
    pub without_latency: Vec<String>,
}

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
    /// Whether the figure [`requests`](PRINTED_REQUESTS) counts all requests that the server answers, so that
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
    #[error("`{command}` did not exit within {limit:?}; {}", how_to_limit(command, *limit))]
    TooLong {
        /// Command line.
        command: String,
        /// Time limit.
        limit: Duration,
    },
    /// The budget was spent before the judge exited.
    #[error(
        "the budget was spent before `{command}` exited, with too few slices for an answer; give a longer --budget, or \
         limit its duration, as in `wrk --latency -d 1 …`"
    )]
    BudgetSpent {
        /// Command line.
        command: String,
    },
    /// The output of the judge contains no figures.
    #[error(
        "`{command}` printed no usable figures: {why}. Figures are those of `quell load --figures`, the results of wrk, \
         oha, hey, h2load, redis-benchmark, memtier_benchmark, dnsperf or fortio, or lines `NAME VALUE` or JSON objects with \
         numbers, one per line, that are not negative. Output: {printed}"
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

fn how_to_limit(command: &str, limit: Duration) -> String {
    let advice = match limit < RUN_MAX {
        true if duration_of_load(command).is_some_and(|duration| duration < limit) => {
            let is_by_ssh = command.split_ascii_whitespace().any(|word| word == "ssh" || word.ends_with("/ssh"));
            let keep = if is_by_ssh { "let `ssh` keep a connection (ControlMaster), " } else { "" };
            return format!(
                "with --never, a mode that violates a guard is left within 1 s; it measures for less, so the rest is the \
                 time to start and to connect: {keep}connect fewer clients, or search without --never"
            );
        }
        true => {
            "with --never, a mode that violates a guard is left within 1 s: let it measure for less, as in \
             `quell load … --warm-up 0.1 --seconds 0.3`"
        }
        false => "limit its duration, as in `wrk --latency -d 1 …`",
    };
    advice.to_owned()
}

/// Time for which a command that is `quell load`, or starts it, warms up and measures. `None` for other commands.
fn duration_of_load(command: &str) -> Option<Duration> {
    let words: Vec<&str> = command.split_ascii_whitespace().collect();
    words.windows(2).find(|pair| pair[0].ends_with("quell") && pair[1] == "load")?;
    let value = |names: [&str; 2]| {
        let after = |pair: &[&str]| names.contains(&pair[0]).then(|| pair[1].to_owned());
        let given = |word: &&str| Some(word.strip_prefix(names[0])?.strip_prefix('=')?.to_owned());
        let text = words.windows(2).find_map(after).or_else(|| words.iter().find_map(given))?;
        text.trim_matches(['\'', '"']).parse::<f64>().ok()
    };
    Duration::try_from_secs_f64(value(["--warm-up", "--warm-up"])? + value(["--seconds", "-s"])?).ok()
}

/// Runs judges, and looks at what they connect to in another thread, which is unparked and gets `true` when they have ended.
/// Absent if it panicked.
pub(crate) fn look_while<T, L: Send>(
    run: impl FnOnce() -> T,
    look: impl FnOnce(&AtomicBool) -> L + Send,
) -> (T, Option<L>) {
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        let looking = threads.spawn(|| look(&is_over));
        let done = run();
        is_over.store(true, Ordering::Relaxed);
        looking.thread().unpark();
        (done, looking.join().ok())
    })
}

impl JudgeError {
    /// Whether another run can succeed.
    pub(crate) fn is_worth_repeating(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::TooLong { .. } | Self::NoFigures { .. })
    }
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

    /// The command line.
    pub(crate) fn command(&self) -> String {
        shell::command(&self.words)
    }
}

impl Judges {
    /// Runs all judges at the same time and parses their figures. The environment variable `QUELL_SLICE_MS` contains
    /// the length of the slice. If `stopped` returns true before the judges exit, they are killed, and the result is
    /// `None`.
    ///
    /// # Errors
    /// See [`JudgeError`].
    pub fn run(&self, slice_ms: u32, stopped: &dyn Fn() -> bool) -> Result<Option<JudgeOutcome>, JudgeError> {
        let mut running = self.start(slice_ms)?;
        let Some(printed) = wait_for_all(&mut running, self.run_max, self.end, stopped)? else { return Ok(None) };
        let mut outcome = JudgeOutcome::default();
        for (output, RunningJudge { judge, prefix, .. }) in printed.into_iter().zip(&running) {
            outcome.without_latency.extend(output.why_without_latency(judge));
            let named = |(name, value)| (format!("{prefix}{name}"), value);
            outcome.steps.extend(output.steps.into_iter().map(named));
            outcome.figures.extend(output.figures.into_iter().map(named));
        }
        Ok(Some(outcome))
    }

    /// Starts all judges. They are killed when the value is dropped.
    pub(crate) fn start(&self, slice_ms: u32) -> Result<Vec<RunningJudge<'_>>, JudgeError> {
        let judges = [(&self.latency, ""), (&self.beside, BESIDE)].into_iter();
        let judges = judges.filter_map(|(judge, prefix)| Some((judge.as_ref()?, prefix)));
        judges.map(|(judge, prefix)| RunningJudge::start(judge, prefix, slice_ms)).collect()
    }

    /// Limits the runs to a budget that begins now, with two slices and a second more.
    pub fn end_after(&mut self, budget_ms: u64, slice_ms: u32) {
        let excess = EXCESS + Duration::from_millis(slice_ms.into()) * 2;
        self.end = Instant::now().checked_add(Duration::from_millis(budget_ms).saturating_add(excess));
    }

    /// Whether the figures contain the number of requests by which costs are divided.
    #[must_use]
    pub fn counts_requests(&self, figures: &PrintedFigures) -> bool {
        self.counts_all_requests && figures.contains_key(PRINTED_REQUESTS)
    }

    /// Returns whether there are no judges.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.latency.is_none() && self.beside.is_none()
    }
}

/// A judge that measures.
pub(crate) struct RunningJudge<'a> {
    judge: &'a Judge,
    /// Prefix of the names of its figures.
    prefix: &'static str,
    child: Child,
}

impl<'a> RunningJudge<'a> {
    fn start(judge: &'a Judge, prefix: &'static str, slice_ms: u32) -> Result<Self, JudgeError> {
        let words = &judge.words;
        let spawn = Spawn::new(&words[0]).args(&words[1..]).env("QUELL_SLICE_MS", slice_ms.to_string());
        let spawn = spawn.stdout(Output::Tail(OUTPUT_MAX)).stderr(Output::Tail(OUTPUT_MAX)).dies_with_this_thread();
        let child = spawn.start().map_err(|source| JudgeError::Start { command: judge.command(), source })?;
        Ok(Self { judge, prefix, child })
    }

    pub(crate) fn has_exited(&mut self) -> bool {
        self.child.wait(Duration::ZERO).is_ok_and(|status| status.is_some())
    }

    /// Returns the figures of the judge after it has exited, and `None` while it is running.
    fn output(&mut self) -> Result<Option<JudgeOutput>, JudgeError> {
        let command = || self.judge.command();
        let waited = self.child.wait(TICK);
        let Some(status) = waited.map_err(|source| JudgeError::Start { command: command(), source })? else {
            return Ok(None);
        };
        let stdout = self.child.stdout_tail().unwrap_or_default();
        let stderr = self.child.stderr_tail().unwrap_or_default();
        let [first, second] = if status.success() { [stdout, stderr] } else { [stderr, stdout] };
        // fortio prints its results to stderr.
        let text = if first.trim_ascii().is_empty() { second } else { first };
        let text = String::from_utf8_lossy(&text);
        if !status.success() {
            return Err(JudgeError::Failed { command: command(), status: status.to_string(), printed: excerpt(&text) });
        }
        let no_figures = |why| JudgeError::NoFigures { command: command(), why, printed: excerpt(&text) };
        JudgeOutput::parse(&text).map(Some).map_err(no_figures)
    }
}

/// Waits for all judges and returns their outputs in the same order. Returns `None` if `stopped` returns true before
/// that.
fn wait_for_all(
    running: &mut [RunningJudge<'_>],
    limit: Duration,
    end: Option<Instant>,
    stopped: &dyn Fn() -> bool,
) -> Result<Option<Vec<JudgeOutput>>, JudgeError> {
    let deadline = Instant::now() + limit;
    let mut printed = Vec::with_capacity(running.len());
    for one in running {
        let output = loop {
            if let Some(output) = one.output()? {
                break output;
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
        printed.push(output);
    }
    Ok(Some(printed))
}

/// Parses the figures of a judge.
///
/// # Errors
/// Why the text has no usable figures.
pub fn parse(text: &str) -> Result<PrintedFigures, String> {
    JudgeOutput::parse(text).map(|output| output.figures)
}

/// Figures that a judge printed.
#[derive(Debug, PartialEq)]
struct JudgeOutput {
    figures: PrintedFigures,
    steps: BTreeMap<String, f64>,
    /// How to make the load generator print percentiles, if it is a known one.
    percentiles: Option<&'static str>,
}

impl JudgeOutput {
    /// Parses the results of a load generator, or else lines that are JSON objects, and lines of the form `NAME VALUE`.
    /// Other lines are ignored, because many programs print headings. If a name occurs several times, its last value is
    /// used.
    fn parse(text: &str) -> Result<Self, String> {
        if let Some(figures) = tool_figures(text) {
            let of_tool = |found: ToolFigures| {
                let (steps, percentiles) = (found.steps(), Some(found.tool.percentiles));
                Self { figures: found.figures, steps, percentiles }.without_rare_percentiles()
            };
            return figures.map(of_tool);
        }
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
            None if figures.len() > FIGURES_MAX => Err(format!(
                "{} lines contain a name and a number, at most {FIGURES_MAX} can be compared",
                figures.len()
            )),
            None => Ok(Self { figures, steps: BTreeMap::new(), percentiles: None }.without_rare_percentiles()),
        }
    }

    /// The same without percentiles for which it counted too few requests: they are the maximum.
    fn without_rare_percentiles(mut self) -> Self {
        if let Some(&requests) = self.figures.get(PRINTED_REQUESTS) {
            let is_rare = |percent: f64| requests * (1.0 - percent / 100.0) < 1.0 - 1e-9;
            self.figures.retain(|name, _| !percent_of(name).is_some_and(is_rare));
        }
        self
    }

    /// Returns what is missing if a load generator printed no p99, or an unknown program nothing like a time.
    fn why_without_latency(&self, judge: &Judge) -> Option<String> {
        let is_time = |name: &str| {
            let is_percentile = name.strip_prefix('p').is_some_and(|rest| rest.starts_with(char::is_numeric));
            let words = ["lat", "mean", "median", "avg", "max", "rtt", "time", "delay", "wait"];
            let ends = ["us", "ms", "ns", "-s", "_s", "sec"];
            is_percentile
                || words.iter().any(|word| name.contains(word))
                || (goal_of(name) == Goal::Lowest && ends.iter().any(|end| name.ends_with(end)))
        };
        let is_latency = |name: &String| match self.percentiles {
            Some(_) => name == "p99-us",
            None => is_time(&name.to_ascii_lowercase()),
        };
        if self.figures.keys().any(is_latency) {
            return None;
        }
        let names: Vec<Cow<'_, str>> = self.figures.keys().map(|name| visible::name(name)).collect();
        let counted = self.figures.get(PRINTED_REQUESTS).filter(|requests| **requests < 100.0);
        let remedy = self.percentiles.unwrap_or(match counted {
            Some(_) => "a p99 needs at least 100 requests in a slice (--slice)",
            None => "print it too, in a line such as `p99-us 120`",
        });
        let missing = if self.percentiles.is_some() { "p99" } else { "latency" };
        Some(format!("`{}` prints no {missing}, only {}: {remedy}", judge.command(), names.join(", ")))
    }
}

/// 99.9 of `p99.9-us`.
fn percent_of(name: &str) -> Option<f64> {
    let digits = name.strip_prefix('p')?;
    let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(digits.len());
    digits[..end].parse().ok().filter(|percent| (0.0..100.0).contains(percent))
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

    fn judges(command: &str) -> Judges {
        Judges { latency: Some(Judge::new(command).unwrap()), ..Judges::default() }
    }

    fn run(command: &str) -> Result<JudgeOutcome, JudgeError> {
        Ok(judges(command).run(200, &|| false)?.unwrap())
    }

    #[test]
    fn percentiles_of_fewer_requests_than_they_need_are_no_figures() {
        let names = |text: &str| parse(text).unwrap().into_keys().collect::<Vec<_>>();
        assert_eq!(names("requests 20\np50-us 90\np99-us 700\nmax-us 700"), ["max-us", "p50-us", "requests"]);
        assert_eq!(names("requests 100\np99-us 700\np99.9-us 700"), ["p99-us", "requests"]);
        assert_eq!(names("p99-us 700"), ["p99-us"], "the number of requests is unknown");
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
    fn a_judge_without_a_latency_is_reported_with_its_figures_and_the_remedy() {
        let wrk = "sh -c 'echo Running 1s test @ x; echo 10 requests in 1.00s; echo Requests/sec: 10'";
        let [note] = &run(wrk).unwrap().without_latency[..] else { panic!("one judge") };
        assert!(note.ends_with("only errors, requests, requests-per-s: add --latency to wrk"), "{note}");
        let [note] = &run("echo hits/s 5").unwrap().without_latency[..] else { panic!("one judge") };
        assert!(note.contains("only hits/s: print it too"), "{note}");
        for latency in ["p99 7", "latency_ms 7", "Avg.rtt 7", "p50-us 7", "slow-ms 7"] {
            assert_eq!(run(&format!("echo {latency}")).unwrap().without_latency, [""; 0], "{latency}");
        }
    }

    #[test]
    fn results_on_stderr_count_if_nothing_is_printed_to_stdout() {
        assert_eq!(run("sh -c 'echo p99 7 >&2'").unwrap().figures["p99"], 7.0);
        assert!(run("sh -c 'echo p99 7 >&2; echo done'").is_err());
    }

    #[test]
    fn a_judge_gets_the_length_of_the_slice_in_its_environment() {
        let figures = run("sh -c 'echo slice $QUELL_SLICE_MS'").unwrap().figures;
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
        let outcome = judges.run(200, &|| false).unwrap().unwrap();
        assert_eq!(outcome.figures, PrintedFigures::from([("p99".into(), 7.0), ("beside p99".into(), 7.0)]));
    }

    #[test]
    fn a_judge_that_hangs_is_killed_when_the_budget_is_spent() {
        let mut judges = judges("sleep 1000");
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
        let ended = judges("sleep 1000").run(200, &|| true).unwrap();
        assert_eq!(ended, None);
    }

    #[test]
    fn a_load_that_measures_for_less_than_its_limit_is_not_told_to_measure_for_less() {
        let advice = |command: &str| how_to_limit(command, Duration::from_millis(890));
        let short = "ssh client /usr/bin/quell load 10.0.0.1:80 --rate 2K --warm-up 0.1 --seconds=0.3 --figures";
        assert!(advice(short).contains("the time to start and to connect: let `ssh` keep"), "{}", advice(short));
        let local = advice(short.strip_prefix("ssh client ").unwrap());
        assert!(local.contains("the time to start and to connect: connect fewer") && !local.contains("ssh"), "{local}");
        for long in ["wrk -d 1", "quell load 10.0.0.1:80", "quell load 10.0.0.1:80 --warm-up 0.5 -s 1"] {
            assert!(advice(long).contains("let it measure for less"), "{long}");
        }
    }

    #[test]
    fn a_judge_that_exceeds_its_time_limit_is_named_and_killed() {
        let judges = Judges { run_max: Duration::from_millis(1), ..judges("sleep 1000") };
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
