//! Results that common load generators print, as figures with units. A load generator is recognised by the shape of its
//! output, because judges run it through ssh or scripts.

use std::collections::{BTreeMap, BTreeSet};

use quell_result::figures::{PRINTED_ERRORS, PRINTED_REQUESTS, REQUESTS};
use serde_json::Value;

use super::judge::PrintedFigures;

const MEAN: &str = "mean-us";
const P50: &str = "p50-us";
const P99: &str = "p99-us";
const P99_9: &str = "p99.9-us";
/// Upper limits of believable values: a day, and 10¹² requests or requests per second.
const TIME_MAX_US: f64 = 86_400e6;
const COUNT_MAX: f64 = 1e12;
/// Steps of a histogram of HdrHistogram whose smallest value is 10 µs. Those of higher values are at most 0.1 % of them.
const HDR_STEP_US: f64 = 8.0;
const S: f64 = 1e6;
const MS: f64 = 1e3;

/// A load generator whose output is recognised.
#[derive(Debug, PartialEq)]
pub struct LoadTool {
    pub name: &'static str,
    /// How to make it print percentiles of the latency.
    pub percentiles: &'static str,
    /// Pattern of the line with which its results begin. The last such line counts.
    begins: &'static str,
    /// Pattern of a line of each test that it ran. The output does not say to which of several tests a figure belongs.
    per_test: Option<&'static str>,
    /// µs per unit of the times that it prints without a unit. `None` if it always prints one.
    unit_us: Option<f64>,
    /// Steps of its times, in µs. `None` if they are fine, or given by the user.
    step_us: Option<f64>,
    /// Patterns of lines, and the meaning of each captured word. The first pattern that matches a line counts.
    lines: &'static [(&'static str, &'static [Meaning])],
    /// Start of the line with the names of columns, and of the line with their values.
    table: Option<(&'static str, &'static str)>,
}

/// Meaning of a word.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Meaning {
    /// Number of answered requests.
    Requests,
    /// Number of requests that failed, if these are no part of [`Self::Requests`].
    FailedRequests,
    Errors,
    RequestsPerSecond,
    Time(&'static str),
    /// Percentile in percent, and its time in the next captured word.
    Percent,
    TimeOfPercent,
    /// End of the first bucket of a histogram. Percentiles in it are interpolated from 0.
    FirstBucket,
    /// End of a bucket, and the number of requests in it in the next captured word.
    BucketEnd,
    BucketCount,
}

use Meaning::{
    BucketCount, BucketEnd, Errors, FailedRequests, FirstBucket, Percent, Requests, RequestsPerSecond, Time,
    TimeOfPercent,
};

/// Lines of hey, and of oha, which mirrors them.
const OF_HEY: &[(&str, &[Meaning])] = &[
    ("Requests/sec: ?", &[RequestsPerSecond]),
    ("Average: ?", &[Time(MEAN)]),
    ("?% in ?", &[Percent, TimeOfPercent]),
    ("[2*] ? responses", &[Requests]),
    ("[3*] ? responses", &[Requests]),
    ("[*] ? responses", &[FailedRequests]),
    // Requests in flight at the end of the run.
    ("[*] aborted due to deadline", &[]),
    ("[?]", &[Errors]),
];

static TOOLS: &[LoadTool] = &[
    LoadTool {
        name: "wrk",
        percentiles: "add --latency to wrk",
        begins: "Running * test @ *",
        per_test: None,
        unit_us: None,
        step_us: None,
        lines: &[
            ("? requests in *", &[Requests]),
            ("Requests/sec: ?", &[RequestsPerSecond]),
            ("Latency ? * * *%", &[Time(MEAN)]),
            ("?% ?", &[Percent, TimeOfPercent]),
            ("Socket errors: connect ? read ? write ? timeout ?", &[Errors, Errors, Errors, Errors]),
            ("Non-2xx or 3xx responses: ?", &[Errors]),
        ],
        table: None,
    },
    LoadTool {
        name: "oha",
        percentiles: "use oha --no-tui --output-format json",
        begins: "Success rate: *%",
        per_test: None,
        unit_us: None,
        step_us: None,
        lines: OF_HEY,
        table: None,
    },
    LoadTool {
        name: "hey",
        percentiles: "hey prints it from 100 requests on, in steps of 0.1 ms: let it run for longer, or use oha",
        begins: "Slowest: * secs",
        per_test: None,
        unit_us: Some(S),
        step_us: Some(100.0),
        lines: OF_HEY,
        table: None,
    },
    LoadTool {
        name: "h2load",
        percentiles: "use h2load 1.69 or later, or wrk --latency or oha",
        begins: "finished in * ? req/s",
        per_test: None,
        unit_us: None,
        step_us: None,
        lines: &[
            ("finished in * ? req/s", &[RequestsPerSecond]),
            ("requests: * total * started ? done * succeeded ? failed", &[Requests, Errors]),
            ("time for request: * * ?", &[Time(MEAN)]),
            ("request : * * ? * ? ?", &[Time(P50), Time(P99), Time(MEAN)]),
        ],
        table: None,
    },
    LoadTool {
        name: "redis-benchmark",
        percentiles: "use redis-benchmark of Redis 6.2 or later, without -q",
        begins: "====== * ======",
        per_test: Some("====== * ======"),
        unit_us: Some(MS),
        step_us: Some(HDR_STEP_US),
        lines: &[
            ("? requests completed in *", &[Requests]),
            ("throughput summary: ? requests per second", &[RequestsPerSecond]),
        ],
        table: Some(("avg", "")),
    },
    LoadTool {
        name: "redis-benchmark",
        percentiles: "use redis-benchmark of Redis 6.2 or later",
        begins: "\"test\",\"rps\"*",
        per_test: Some("\"*"),
        unit_us: Some(MS),
        step_us: Some(HDR_STEP_US),
        lines: &[],
        table: Some(("\"test\"", "")),
    },
    LoadTool {
        name: "redis-benchmark",
        percentiles: "use redis-benchmark without -q",
        begins: "*: ? requests per second",
        per_test: Some("*: ? requests per second"),
        unit_us: Some(MS),
        step_us: Some(HDR_STEP_US),
        lines: &[
            ("*: ? requests per second p50=?", &[RequestsPerSecond, Time(P50)]),
            ("*: ? requests per second", &[RequestsPerSecond]),
        ],
        table: None,
    },
    LoadTool {
        name: "memtier_benchmark",
        percentiles: "add --print-percentiles 50,99,99.9 to memtier_benchmark",
        begins: "ALL STATS",
        per_test: None,
        unit_us: Some(MS),
        step_us: Some(HDR_STEP_US),
        lines: &[],
        table: Some(("Type", "Totals")),
    },
    LoadTool {
        name: "dnsperf",
        percentiles: "add -O latency-histogram to dnsperf (2.11 or later)",
        begins: "Statistics:",
        per_test: None,
        unit_us: Some(S),
        step_us: None,
        lines: &[
            ("Queries completed: ?", &[Requests]),
            ("Queries lost: ?", &[Errors]),
            ("Response codes: SERVFAIL ?", &[Errors]),
            ("Response codes: NOERROR * * SERVFAIL ?", &[Errors]),
            ("Response codes: REFUSED ?", &[Errors]),
            ("Response codes: NOERROR * * REFUSED ?", &[Errors]),
            ("Queries per second: ?", &[RequestsPerSecond]),
            ("Average Latency (s): ?", &[Time(MEAN)]),
            ("* - ?: ?", &[BucketEnd, BucketCount]),
        ],
        table: None,
    },
    LoadTool {
        name: "fortio",
        percentiles: "add -r 0.00001 -p 50,99,99.9 to fortio, without -quiet: its default resolution is 1 ms",
        begins: "Aggregated Function Time : count *",
        per_test: None,
        unit_us: Some(S),
        step_us: None,
        lines: &[
            ("Aggregated Function Time : count * avg ?", &[Time(MEAN)]),
            (">= * <= ?", &[FirstBucket]),
            ("# target ?% ?", &[Percent, TimeOfPercent]),
            ("All done ? calls (plus * warmup) * ms avg ? qps", &[Requests, RequestsPerSecond]),
            ("Code 2* : *", &[]),
            ("Code 3* : *", &[]),
            ("Code * : ?", &[Errors]),
        ],
        table: None,
    },
];

/// Figures of a load generator.
#[derive(Debug)]
pub struct ToolFigures {
    pub tool: &'static LoadTool,
    pub figures: PrintedFigures,
}

impl ToolFigures {
    /// Steps of those of its times that are coarse.
    #[must_use]
    pub fn steps(&self) -> BTreeMap<String, f64> {
        let times = self.figures.keys().filter(|name| [MEAN, P50, P99, P99_9].contains(&name.as_str()));
        self.tool.step_us.map(|us| times.map(|name| (name.clone(), us)).collect()).unwrap_or_default()
    }
}

/// Parses the output of a load generator. `None` if it is not recognised.
///
/// # Errors
/// Why the output has no usable figures.
pub fn tool_figures(text: &str) -> Option<Result<ToolFigures, String>> {
    let (tool, reading) = match serde_json::from_str(text) {
        Ok(Value::Object(document)) => of_json(&Value::Object(document))?,
        _ => {
            // Progress is printed before carriage returns.
            let lines: Vec<&str> = text.split(['\n', '\r']).map(str::trim).collect();
            let begins = |tool: &LoadTool| lines.iter().rposition(|line| captured(tool.begins, line).is_some());
            let (tool, begin) = TOOLS.iter().find_map(|tool| Some((tool, begins(tool)?)))?;
            let is_test = |line: &&&str| {
                tool.per_test.is_some_and(|test| {
                    captured(test, line).is_some() && (test == tool.begins || captured(tool.begins, line).is_none())
                })
            };
            if let tests @ 2.. = lines.iter().filter(is_test).count() {
                return Some(Err(format!("{} ran {tests} tests; name one, as in `-t get`", tool.name)));
            }
            (tool, Reading::of_lines(tool, &lines[begin..]))
        }
    };
    let figures = reading.figures();
    Some(match figures.get(PRINTED_REQUESTS) {
        Some(0.0) => Err(format!("{} got no answer", tool.name)),
        _ if figures.is_empty() => Err(format!("{} printed no figure that can be read", tool.name)),
        _ => Ok(ToolFigures { tool, figures }),
    })
}

/// Values of a load generator.
#[derive(Debug, Default)]
struct Reading {
    figures: BTreeMap<&'static str, f64>,
    /// Figures of which a value is no number, negative or too large. They are absent.
    invalid: BTreeSet<&'static str>,
    percent: Option<f64>,
    first_bucket_us: Option<f64>,
    bucket_end_us: Option<f64>,
    buckets: Vec<(f64, f64)>,
}

impl Reading {
    fn of_lines(tool: &LoadTool, lines: &[&str]) -> Self {
        let mut reading = Self::default();
        for line in lines {
            let found = tool.lines.iter().find_map(|(pattern, meanings)| Some((captured(pattern, line)?, meanings)));
            for ((word, next), meaning) in found.iter().flat_map(|(words, meanings)| words.iter().zip(meanings.iter()))
            {
                reading.add(*meaning, word, next, tool.unit_us);
            }
        }
        let prints = |meaning| tool.lines.iter().any(|(_, meanings)| meanings.contains(&meaning));
        // Counts of zero are often not printed.
        for (meaning, name) in [(Requests, PRINTED_REQUESTS), (Errors, PRINTED_ERRORS)] {
            if prints(meaning) {
                reading.figures.entry(name).or_insert(0.0);
            }
        }
        if prints(FirstBucket) {
            // Without the histogram its resolution is unknown.
            reading.first_bucket_us.get_or_insert(f64::INFINITY);
        }
        if let Some((names, values)) = tool.table {
            reading.add_table(tool, lines, names, values);
        }
        reading
    }

    fn add_table(&mut self, tool: &LoadTool, lines: &[&str], names: &str, values: &str) {
        fn cells(line: &str) -> Vec<&str> {
            match line.starts_with('"') {
                true => line.split("\",\"").map(|cell| cell.trim_matches('"')).collect(),
                false => line.split_whitespace().filter(|cell| *cell != "Latency").collect(),
            }
        }
        let mut lines = lines.iter().skip_while(|line| !line.starts_with(names));
        let Some(names) = lines.next() else { return };
        let Some(values) = lines.find(|line| line.starts_with(values)) else { return };
        for (name, value) in cells(names).into_iter().zip(cells(values)) {
            let name = name.strip_suffix("_latency_ms").unwrap_or(name);
            match name.strip_prefix('p').and_then(|percent| percent.parse::<f64>().ok()) {
                Some(percent) => {
                    self.percent = Some(percent);
                    self.add(TimeOfPercent, value, "", tool.unit_us);
                }
                None if ["avg", "Avg."].contains(&name) => self.add(Time(MEAN), value, "", tool.unit_us),
                None if ["rps", "Ops/sec"].contains(&name) => self.add(RequestsPerSecond, value, "", None),
                None => {}
            }
        }
    }

    /// Adds a word. `next` is the following word of its line, which can be its unit.
    fn add(&mut self, meaning: Meaning, word: &str, next: &str, unit_us: Option<f64>) {
        let time = || time_us(word, next, unit_us);
        match meaning {
            Requests => self.count(PRINTED_REQUESTS, word),
            Errors => self.count(PRINTED_ERRORS, word),
            FailedRequests => {
                self.count(PRINTED_REQUESTS, word);
                self.count(PRINTED_ERRORS, word);
            }
            RequestsPerSecond => self.first(REQUESTS, number(word)),
            Time(name) => self.first(name, time()),
            Percent => self.percent = number(word),
            TimeOfPercent => {
                if let Some(name) = self.percent.take().and_then(quantile) {
                    self.first(name, time());
                }
            }
            FirstBucket => self.first_bucket_us = self.first_bucket_us.or_else(time),
            BucketEnd => self.bucket_end_us = time(),
            BucketCount => self.buckets.extend(self.bucket_end_us.take().zip(number(word))),
        }
    }

    fn count(&mut self, name: &'static str, word: &str) {
        match number(word) {
            Some(count) => *self.figures.entry(name).or_insert(0.0) += count,
            None => _ = self.invalid.insert(name),
        }
    }

    fn first(&mut self, name: &'static str, value: Option<f64>) {
        match value {
            Some(value) => _ = self.figures.entry(name).or_insert(value),
            None => _ = self.invalid.insert(name),
        }
    }

    fn figures(mut self) -> PrintedFigures {
        let all: f64 = self.buckets.iter().map(|(_, count)| count).sum();
        for (name, share) in [(P50, 0.5), (P99, 0.99), (P99_9, 0.999)] {
            let mut below = 0.0;
            let end = self.buckets.iter().find(|(_, count)| {
                below += count;
                below >= share * all
            });
            if let Some((end_us, _)) = end {
                self.figures.insert(name, *end_us);
            }
        }
        let Self { mut figures, invalid, first_bucket_us, .. } = self;
        let is_percentile = |name: &str| [P50, P99, P99_9].contains(&name);
        let is_coarse = |name: &str, value: f64| is_percentile(name) && first_bucket_us.is_some_and(|end| value <= end);
        figures.retain(|name, value| !invalid.contains(name) && !is_coarse(name, *value));
        if figures.keys().any(|name| is_percentile(name)) {
            figures.remove(MEAN);
        }
        figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Name of a percentile that is compared.
fn quantile(percent: f64) -> Option<&'static str> {
    [(50.0, P50), (99.0, P99), (99.9, P99_9)].into_iter().find_map(|(at, name)| (at == percent).then_some(name))
}

/// Matches the start of a line with a pattern of words. `*` stands for any text within a word, `?` for such text that is
/// captured. Returns the captured texts, each with the word after it.
fn captured<'a>(pattern: &str, line: &'a str) -> Option<Vec<(&'a str, &'a str)>> {
    let mut words = line.split_whitespace().map(|word| word.trim_end_matches([',', ';'])).peekable();
    let mut captured = Vec::new();
    for expected in pattern.split(' ') {
        let word = words.next()?;
        let Some(wild) = expected.find(['*', '?']) else {
            if word != expected {
                return None;
            }
            continue;
        };
        let text = word.strip_prefix(&expected[..wild])?.strip_suffix(&expected[wild + 1..])?;
        if expected[wild..].starts_with('?') {
            captured.push((text, words.peek().copied().unwrap_or_default()));
        }
    }
    Some(captured)
}

/// Parses a count or a rate.
fn number(word: &str) -> Option<f64> {
    word.parse().ok().filter(|number| (0.0..=COUNT_MAX).contains(number))
}

/// Parses a time with a unit: attached (`87.00us`), in the next word (`1.2 ms`), or the tool's. Zero means less than the
/// tool prints, or no answer.
fn time_us(word: &str, next: &str, unit_us: Option<f64>) -> Option<f64> {
    let digits = word.find(|letter: char| letter != '.' && !letter.is_ascii_digit()).unwrap_or(word.len());
    let (value, attached) = match unit_us {
        // In scientific notation.
        Some(_) if word.parse::<f64>().is_ok() => (word, ""),
        _ => word.split_at(digits),
    };
    let of_word = |unit: &str| match unit {
        "ns" => Some(1e-3),
        "us" | "µs" => Some(1.0),
        "ms" | "msec" => Some(MS),
        "s" | "sec" | "secs" => Some(S),
        "m" | "min" => Some(60.0 * S),
        "h" | "hr" => Some(3_600.0 * S),
        _ => None,
    };
    let unit_us = if attached.is_empty() { of_word(next).or(unit_us) } else { of_word(attached) }?;
    Some(value.parse::<f64>().ok()? * unit_us).filter(|us| *us > 0.0 && *us <= TIME_MAX_US)
}

/// Reads the JSON documents of oha and fortio.
fn of_json(document: &Value) -> Option<(&'static LoadTool, Reading)> {
    let mut reading = Reading::default();
    let tool = |name: &str| TOOLS.iter().find(|tool| tool.name == name);
    let mut add = |meaning: Meaning, value: Option<&Value>| {
        if let Some(value) = value {
            reading.add(meaning, &value.to_string(), "", Some(S));
        }
    };
    let entries = |pointer: &str| document.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
    let tool = if let Some(percentiles) = document.get("latencyPercentiles").and_then(Value::as_object) {
        let of_percentile = percentiles.iter().filter_map(|(name, value)| Some((name.strip_prefix('p')?, value)));
        for (percent, value) in of_percentile {
            add(Percent, serde_json::from_str(percent).ok().as_ref());
            add(TimeOfPercent, Some(value));
        }
        add(RequestsPerSecond, document.pointer("/summary/requestsPerSec"));
        add(Time(MEAN), document.pointer("/summary/average"));
        for (error, count) in entries("/errorDistribution") {
            if error != "aborted due to deadline" {
                add(Errors, Some(count));
            }
        }
        tool("oha")?
    } else {
        let percentiles = document.pointer("/DurationHistogram/Percentiles")?.as_array()?;
        for percentile in percentiles {
            add(Percent, percentile.get("Percentile"));
            add(TimeOfPercent, percentile.get("Value"));
        }
        add(FirstBucket, document.pointer("/DurationHistogram/Data/0/End"));
        add(RequestsPerSecond, document.get("ActualQPS"));
        add(Time(MEAN), document.pointer("/DurationHistogram/Avg"));
        tool("fortio")?
    };
    for (code, count) in entries("/statusCodeDistribution").chain(entries("/RetCodes")) {
        let meaning = match code.as_bytes() {
            [b'2' | b'3', ..] => Requests,
            [b'4' | b'5', ..] => FailedRequests,
            _ => Errors,
        };
        add(meaning, Some(count));
    }
    for name in [PRINTED_REQUESTS, PRINTED_ERRORS] {
        reading.figures.entry(name).or_insert(0.0);
    }
    Some((tool, reading))
}
