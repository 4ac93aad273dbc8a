//! The log: its levels, destination and format. `-v` and `QUELL_LOG` select the levels. Without them, no subscriber is
//! installed, and a log statement costs one comparison with the highest enabled level.
//!
//! Lines go to standard error. If that is the systemd journal, each line begins with its priority as `<N>`
//! (`sd-daemon(3)`) and has no time, because the systemd journal adds it. The native protocol (`tracing-journald`)
//! would need a second formatter. It would also bypass the file of a unit with `StandardError=file:`.

use std::fmt::{self, Write as _};
use std::io;
use std::sync::OnceLock;

use quell_linux::process::{Output, Spawn};
use quell_linux::service_manager::{is_the_journal, takes_a_line};
use quell_linux::visible;
use tracing::field::Field;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;

use crate::output;

/// Environment variable with directives; it has precedence over `-v`.
const VARIABLE: &str = "QUELL_LOG";
/// Prefix of all targets, which are module paths of this workspace.
const TARGET_PREFIX: &str = "quell";
const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// Directives in effect; empty while logging is off.
static IN_EFFECT: OnceLock<String> = OnceLock::new();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FullPipe {
    Wait,
    /// The line is lost. A process that restores settings must not wait for a reader.
    DropLine,
}

/// Starts logging as `QUELL_LOG` requests, or for `verbosity` occurrences of `-v`. An invalid `QUELL_LOG` is reported
/// and ignored, because it must not prevent a command that restores settings.
pub(crate) fn start(verbosity: u8, full_pipe: FullPipe) {
    let said = std::env::var_os(VARIABLE).map(|value| value.to_string_lossy().into_owned());
    let directives = match said.filter(|value| !value.trim().is_empty()) {
        Some(value) => match parse(&value) {
            Ok(targets) => Some((value, targets)),
            Err(invalid) => {
                output::say(&format!("quell: {}", invalid.in_text(&value)));
                by_verbosity(verbosity)
            }
        },
        None => by_verbosity(verbosity),
    };
    let Some((text, targets)) = directives else { return };
    let lines = tracing_subscriber::fmt::layer()
        .fmt_fields(debug_fn(field).delimited(" "))
        .event_format(Line { is_journal: is_the_journal(&io::stderr()) })
        .with_writer(move || Stderr { full_pipe })
        .log_internal_errors(false);
    let subscriber = tracing_subscriber::registry().with(targets).with(lines);
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        let _ = IN_EFFECT.set(text);
    }
}

/// Makes a process of this program log like this one, to the same destination.
pub(crate) fn inherited_by(spawn: Spawn<'_>) -> Spawn<'_> {
    match IN_EFFECT.get() {
        Some(directives) => spawn.env(VARIABLE, directives).stderr(Output::Inherit),
        None => spawn,
    }
}

fn by_verbosity(verbosity: u8) -> Option<(String, Targets)> {
    let level = match verbosity {
        0 => return None,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    Some((level.to_string(), Targets::new().with_default(level)))
}

#[derive(Debug, PartialEq, Eq)]
struct InvalidDirective {
    /// Position of the invalid part, in characters from 0.
    at: usize,
    why: String,
}

impl InvalidDirective {
    /// Returns the reason, and the text with a caret below the invalid part.
    fn in_text(&self, text: &str) -> String {
        // Each piece is escaped separately, so that the caret is below the printed position.
        let before: String = text.chars().take(self.at).collect();
        let column = visible::name(&before).chars().count();
        let why = visible::name(&self.why);
        format!(
            "{VARIABLE}, character {}: {why}; {VARIABLE} is ignored\n  {}\n  {:column$}^",
            self.at + 1,
            visible::name(text),
            ""
        )
    }
}

/// Parses directives: `LEVEL` or `TARGET=LEVEL`, separated by commas. A subset of those of `tracing-subscriber`'s
/// `EnvFilter`.
fn parse(text: &str) -> Result<Targets, InvalidDirective> {
    let mut targets = Targets::new();
    let mut at = 0;
    for directive in text.split(',') {
        let start = at + leading_blanks(directive);
        at += directive.chars().count() + 1;
        targets = match directive.split_once('=') {
            None => targets.with_default(level(directive.trim(), start, "a level or TARGET=LEVEL")?),
            Some((target, value)) => {
                let target = target.trim();
                if !target.starts_with(TARGET_PREFIX) {
                    let why = format!("invalid target {target:?}: expected a module path such as quell_host::attach");
                    return Err(InvalidDirective { at: start, why });
                }
                let value_at = at - 1 - value.chars().count() + leading_blanks(value);
                targets.with_target(target, level(value.trim(), value_at, "a level")?)
            }
        };
    }
    Ok(targets)
}

fn leading_blanks(text: &str) -> usize {
    text.chars().take_while(|letter| letter.is_whitespace()).count()
}

fn level(text: &str, at: usize, expected: &str) -> Result<LevelFilter, InvalidDirective> {
    let found = LEVELS.iter().find(|(name, _)| text.eq_ignore_ascii_case(name));
    found.map(|(_, level)| *level).ok_or_else(|| {
        let names = LEVELS.map(|(name, _)| name).join(", ");
        InvalidDirective { at, why: format!("{text:?} is not {expected}; levels are {names}") }
    })
}

/// Writes `name=value`. A value with blanks is quoted, so that its end is visible.
fn field(out: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let text = format!("{value:?}");
    match field.name() {
        "message" => out.write_str(&text),
        name if text.contains(' ') && !text.starts_with(['"', '[']) => write!(out, "{name}={text:?}"),
        name => write!(out, "{name}={text}"),
    }
}

/// Format of a line: time, level, target, spans, message, fields. Everything is on one line, and control characters are
/// escaped.
struct Line {
    is_journal: bool,
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let mut line = String::new();
        if self.is_journal {
            write!(line, "<{}>", priority(*metadata.level()))?;
        } else {
            SystemTime.format_time(&mut Writer::new(&mut line))?;
            line.push(' ');
        }
        write!(line, "{:5} {}", metadata.level(), metadata.target())?;
        for span in ctx.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            write!(line, " {}", span.name())?;
            let extensions = span.extensions();
            if let Some(fields) = extensions.get::<FormattedFields<N>>().filter(|fields| !fields.is_empty()) {
                write!(line, "{{{fields}}}")?;
            }
        }
        line.push_str(": ");
        ctx.format_fields(Writer::new(&mut line), event)?;
        writeln!(out, "{}", visible::name(&line))
    }
}

/// Priority of a level in `syslog(3)`.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// Standard error. Write errors are ignored, because there is no other place to report them.
struct Stderr {
    full_pipe: FullPipe,
}

impl io::Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.full_pipe == FullPipe::Wait || takes_a_line(&io::stderr()) {
            let _ = io::Write::write_all(&mut io::stderr().lock(), line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_choose_levels_by_target() {
        let targets = parse("warn, quell_host=debug,quell_host::attach=TRACE").unwrap();
        assert!(targets.would_enable("quell_linux::netlink", &Level::WARN));
        assert!(!targets.would_enable("quell_linux::netlink", &Level::INFO));
        assert!(targets.would_enable("quell_host::steer", &Level::DEBUG));
        assert!(targets.would_enable("quell_host::attach::plan", &Level::TRACE));
    }

    #[test]
    fn an_invalid_directive_is_reported_with_its_position() {
        for (text, at, word) in [
            ("debgu", 0, "debgu"),
            ("warn, debgu", 6, "debgu"),
            ("quell_host = loud", 13, "loud"),
            ("warn,nginx=debug", 5, "nginx"),
            ("warn,", 5, "\"\""),
            ("quell_host", 0, "quell_host"),
        ] {
            let invalid = parse(text).unwrap_err();
            assert_eq!(invalid.at, at, "{text}: {invalid:?}");
            assert!(invalid.why.contains(word), "{text}: {invalid:?}");
        }
    }

    #[test]
    fn the_caret_is_below_the_position_even_after_escaped_characters() {
        let text = "warn,\u{1b},debug";
        let shown = parse(text).unwrap_err().in_text(text);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1..], [r"  warn,\u{1b},debug", "       ^"], "{shown}");
    }

    #[test]
    fn every_level_can_be_selected() {
        for (name, level) in LEVELS {
            assert_eq!(level.to_string(), name);
        }
    }
}
