//! Manual pages: one for each command, from its definition and its page in `docs/`, and one for each other page there.

mod markdown;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use quell_linux::visible;

use crate::cli;
use crate::exit::Failure;
use markdown::{Converted, Guide, convert, quoted};

pub(crate) const COMMAND: &str = "manual-pages";

/// Options of `quell manual-pages`.
#[derive(Debug, Args)]
pub(crate) struct ManualArgs {
    /// Directory `docs` of the source.
    docs: PathBuf,
    /// Directory for the pages.
    into: PathBuf,
    /// Date of the release: 2026-11-25.
    date: String,
}

const fn guide(file: &'static str, page: &'static str, section: &'static str) -> Guide {
    Guide { file, page, section }
}

/// Pages of `docs/` that are part of the manual: of section 1 with the command that they describe.
const GUIDES: &[Guide] = &[
    guide("apply.md", "quell-apply", "1"),
    guide("attach.md", "quell-attach", "1"),
    guide("bench.md", "quell-bench", "1"),
    guide("export.md", "quell-export", "1"),
    guide("load.md", "quell-load", "1"),
    guide("model.md", "quell-sim", "1"),
    guide("report.md", "quell-report", "1"),
    guide("results.md", "quell-results", "1"),
    guide("run.md", "quell-run", "1"),
    guide("show.md", "quell-show", "1"),
    guide("top.md", "quell-top", "1"),
    guide("tune.md", "quell-tune", "1"),
    guide("profile-keys.md", "quell-profile", "5"),
    guide("modes.md", "quell", "7"),
    guide("findings.md", "quell-findings", "7"),
    guide("kernels.md", "quell-kernels", "7"),
    guide("logs.md", "quell-logs", "7"),
    guide("operate.md", "quell-operate", "7"),
    guide("published.md", "quell-published", "7"),
    guide("statistics.md", "quell-statistics", "7"),
    guide("steer.md", "quell-steer", "7"),
    guide("undo.md", "quell-undo", "7"),
    guide("xdp.md", "quell-xdp", "7"),
];

/// Commands, by the first words of their pages' names, and what is true for them.
type Noted = (&'static [&'static str], &'static str, &'static str);

const ALL: &[&str] = &["quell"];
const CHANGING: &[&str] = &[
    "quell-apply",
    "quell-attach",
    "quell-bench",
    "quell-confirm",
    "quell-conformance",
    "quell-detach",
    "quell-lab",
    "quell-revert",
    "quell-run",
    "quell-status",
    "quell-tune",
];
const MEASURING: &[&str] = &["quell-bench", "quell-report", "quell-results", "quell-tune"];

const FILES: &[Noted] = &[
    (&["quell-apply"], "/usr/lib/quell/*.toml, /etc/quell/*.toml", "Profiles that are applied if none is named."),
    (CHANGING, "/var/lib/quell/journal", "Changes, with the values from before. It is how they are restored."),
    (MEASURING, "/var/lib/quell/results", "Results of root; those of others are in ~/.local/state/quell."),
    (&["quell-vm"], "~/.cache/quell/kernels", "Kernels of guests."),
];

const ENVIRONMENT: &[Noted] = &[
    (ALL, "NO_COLOR", "If it is not empty, output has no colors."),
    (CHANGING, "QUELL_JOURNAL_DIR", "Directory of journals. All commands on one host need the same."),
    (ALL, "QUELL_LOG", "What is logged to standard error, see quell-logs(7)."),
    (MEASURING, "QUELL_RESULTS_DIR", "Directory of results."),
    (
        &["quell-run"],
        "QUELL_RUN_DEVICES, QUELL_RUN_MAX_EVENTS, QUELL_RUN_MODE",
        "Options, unless the command line has them.",
    ),
    (&["quell-vm"], "XDG_CACHE_HOME", "Directory of the cache, in place of ~/.cache."),
];

fn noted_for<'a>(noted: &'a [Noted], page: &str) -> impl Iterator<Item = &'a Noted> {
    let is_for =
        move |name: &&str| page.strip_prefix(*name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    noted.iter().filter(move |(commands, ..)| commands.iter().any(is_for))
}

pub(crate) fn write(args: &ManualArgs) -> Result<(), Failure> {
    let failed = |path: &Path, error: &io::Error| Failure::usage(format!("{}: {error}", visible::path(path)));
    let read = |file: &str| {
        let path = args.docs.join(file);
        fs::read_to_string(&path).map(|text| convert(&text, GUIDES)).map_err(|error| failed(&path, &error))
    };
    let mut command = cli::command().disable_help_subcommand(true);
    command.build();
    let examples = cli::examples();
    let exit_codes = read("output.md")?;
    let mut pages = Vec::new();
    for command in with_subcommands(&command) {
        let name = page_name(command);
        let guide = GUIDES.iter().find(|guide| guide.page == name && guide.section == "1");
        let guide = guide.map(|guide| read(guide.file)).transpose()?;
        pages.push((format!("{name}.1"), of_command(command, guide, &examples, &exit_codes, &args.date)));
    }
    for guide in GUIDES.iter().filter(|guide| guide.section != "1") {
        let text = of_guide(*guide, read(guide.file)?, &args.date);
        pages.push((format!("{}.{}", guide.page, guide.section), text));
    }
    fs::create_dir_all(&args.into).map_err(|error| failed(&args.into, &error))?;
    for (file, text) in pages {
        let path = args.into.join(file);
        fs::write(&path, text).map_err(|error| failed(&path, &error))?;
    }
    Ok(())
}

/// The command and its visible subcommands, to any depth.
fn with_subcommands(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|one| !one.is_hide_set()).flat_map(with_subcommands);
    std::iter::once(command).chain(below).collect()
}

fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn is_example_of(example: &str, words: &str) -> bool {
    example.strip_prefix(words).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

fn of_command(
    command: &Command,
    guide: Option<Converted>,
    examples: &[String],
    exit_codes: &Converted,
    date: &str,
) -> String {
    let name = page_name(command);
    let mut roff = heading(&name, "1", date);
    section(&mut roff, "NAME");
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    roff.text([roman(format!("{name} - {}", about.trim_end_matches('.').replace('`', "")))]);
    section(&mut roff, "SYNOPSIS");
    let usage = command.clone().render_usage().to_string();
    let words = command.get_bin_name().unwrap_or_else(|| command.get_name());
    roff.text([bold(words), roman(usage.trim_start_matches("Usage: ").strip_prefix(words).unwrap_or_default())]);
    section(&mut roff, "DESCRIPTION");
    let description = command.get_long_about().map_or(about + ".", ToString::to_string);
    for paragraph in description.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        roff.control("PP", []).text([roman(paragraph.trim().replace('\n', " "))]);
    }
    let guide = guide.unwrap_or_default();
    roff.extend([guide.introduction]);
    let mut text = with_bold_code(&(roff.to_roff() + &options(command)));
    let mut roff = Roff::new();
    if command.get_subcommands().any(|one| !one.is_hide_set()) {
        section(&mut roff, "COMMANDS");
        for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            roff.control("TP", []).text([bold(page_name(one)), roman("(1)")]);
            roff.text([roman(one.get_about().map(ToString::to_string).unwrap_or_default().replace('`', ""))]);
        }
    }
    // The options of a guide are a selection of those of the command.
    for (title, body) in guide.sections.into_iter().filter(|(title, _)| title != "Options") {
        section(&mut roff, &title.to_uppercase());
        roff.extend([body]);
    }
    let examples: Vec<&str> =
        examples.iter().filter(|example| is_example_of(example, words)).map(String::as_str).collect();
    if !examples.is_empty() {
        section(&mut roff, "EXAMPLES");
        roff.control("EX", []);
        for example in examples {
            roff.text([roman(example)]);
        }
        roff.control("EE", []);
    }
    text += &roff.to_roff();
    let exit_status = exit_codes.sections.iter().find(|(title, _)| title == "Exit codes");
    let mut roff = Roff::new();
    section(&mut roff, "EXIT STATUS");
    text += &roff.to_roff();
    text += &exit_status.map(|(_, body)| body.to_roff()).unwrap_or_default();
    let mut roff = Roff::new();
    for (title, noted) in [("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES)] {
        let mut noted = noted_for(noted, &name).peekable();
        if noted.peek().is_some() {
            section(&mut roff, title);
        }
        for (_, term, meaning) in noted {
            roff.control("TP", []).text([bold(*term)]).text([roman(*meaning)]);
        }
    }
    see_also(&mut roff, (&name, "1"), name.rsplit_once('-').map(|(parent, _)| parent), &guide.linked);
    finished(&(text + &roff.to_roff()))
}

/// The options of a command. `clap_mangen` has no link to its parts, so they are taken from its text.
fn options(command: &Command) -> String {
    let mut text = Vec::new();
    // Writing to memory cannot fail.
    let _ = Man::new(command.clone()).render_options_section(&mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    let start = text.find(".SH").unwrap_or(text.len());
    text[start..].to_owned()
}

fn of_guide(guide: Guide, converted: Converted, date: &str) -> String {
    let mut roff = heading(guide.page, guide.section, date);
    section(&mut roff, "NAME");
    let title = converted.title.replace('`', "");
    roff.text([roman(format!("{} - {}", guide.page, lower_first(&title)))]);
    section(&mut roff, "DESCRIPTION");
    roff.extend([converted.introduction]);
    for (title, body) in converted.sections {
        section(&mut roff, &title.to_uppercase());
        roff.extend([body]);
    }
    see_also(&mut roff, (guide.page, guide.section), None, &converted.linked);
    finished(&roff.to_roff())
}

fn heading(name: &str, number: &str, date: &str) -> Roff {
    let mut roff = Roff::new();
    let source = format!("quell {}", env!("CARGO_PKG_VERSION"));
    roff.control("TH", [name.to_uppercase().as_str(), number, date, &source, "Quell Manual"]);
    // Names of options and settings stay whole, and lines have no gaps.
    roff.control("nh", []).control("ad", ["l"]);
    roff
}

fn section(roff: &mut Roff, title: &str) {
    roff.control("SH", [quoted(title).as_str()]);
}

/// Help texts have code in backticks, and no other marks.
fn with_bold_code(roff: &str) -> String {
    let spans = roff.split('`').enumerate();
    spans.map(|(index, span)| if index % 2 == 1 { format!("\\fB{span}\\fR") } else { span.to_owned() }).collect()
}

/// The page of the parent command, the pages that the text links to, and `quell(1)` and `quell(7)`, which list the
/// rest.
fn see_also(roff: &mut Roff, own: (&str, &str), parent: Option<&str>, linked: &[Guide]) {
    let parent = parent.map(|page| (page.to_owned(), "1"));
    let general = [("quell".to_owned(), "1"), ("quell".to_owned(), "7")];
    let linked = linked.iter().map(|guide| (guide.page.to_owned(), guide.section));
    let mut pages: Vec<(String, &str)> = parent.into_iter().chain(general).chain(linked).collect();
    pages.sort_by(|(one, first), (other, second)| (first, one).cmp(&(second, other)));
    pages.dedup();
    pages.retain(|(page, number)| (page.as_str(), *number) != own);
    section(roff, "SEE ALSO");
    let mut inlines = Vec::new();
    for (index, (page, number)) in pages.iter().enumerate() {
        inlines.extend([roman(if index == 0 { "" } else { ", " }), bold(page), roman(format!("({number})"))]);
    }
    roff.text(inlines);
}

fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// Defines the string for apostrophes that is right in all formatters. Removes blanks at the ends of lines, and macros
/// that the one before them makes ineffective, about which formatters warn.
fn finished(text: &str) -> String {
    let mut finished = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n".to_owned();
    let mut previous = "";
    for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        let is_ineffective = match line {
            ".PP" => previous.starts_with(".SH") || previous.starts_with(".SS"),
            ".br" => previous == ".br",
            _ => false,
        };
        if !is_ineffective {
            finished += line;
            finished += "\n";
        }
        previous = line;
    }
    finished
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

    use std::process::Command as Process;

    use quell_test_support::{Lacks, skip};

    use super::*;

    fn written() -> (tempfile::TempDir, Vec<(String, String)>) {
        let directory = tempfile::tempdir().unwrap();
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        write(&ManualArgs { docs, into: directory.path().to_owned(), date: "2026-11-25".to_owned() }).unwrap();
        let entries = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap());
        let mut pages: Vec<_> = entries
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap()))
            .collect();
        pages.sort_unstable();
        (directory, pages)
    }

    #[test]
    fn every_command_has_a_page_with_every_section_and_every_option() {
        let (_directory, pages) = written();
        let mut command = cli::command().disable_help_subcommand(true);
        command.build();
        for command in with_subcommands(&command) {
            let file = page_name(command) + ".1";
            let (_, page) = pages.iter().find(|(name, _)| *name == file).unwrap_or_else(|| panic!("no {file}"));
            for title in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "ENVIRONMENT", "SEE ALSO"] {
                assert!(
                    page.contains(&format!(".SH {title}\n")) || page.contains(&format!(".SH \"{title}\"\n")),
                    "{file} has no {title}"
                );
            }
            for option in command.get_arguments().filter(|one| !one.is_hide_set()).filter_map(|one| one.get_long()) {
                assert!(
                    page.contains(&format!("\\-\\-{}\\fR", option.replace('-', "\\-"))),
                    "{file} has no --{option}"
                );
            }
        }
    }

    #[test]
    fn every_page_that_is_named_exists() {
        let (_directory, pages) = written();
        for (file, page) in &pages {
            let also = page.rsplit(".SH \"SEE ALSO\"\n").next().unwrap().trim().replace('\\', "");
            for named in also.split(", ") {
                let (name, section) =
                    named.trim_start_matches("fB").split_once("fR(").unwrap_or_else(|| panic!("{named}"));
                let target = format!("{name}.{}", section.trim_end_matches(')'));
                assert!(pages.iter().any(|(file, _)| *file == target), "{file} refers to {target}");
            }
        }
        for (commands, ..) in FILES.iter().chain(ENVIRONMENT) {
            for command in *commands {
                assert!(pages.iter().any(|(file, _)| *file == format!("{command}.1")), "{command}");
            }
        }
    }

    #[test]
    fn formatters_warn_of_nothing() {
        let (directory, pages) = written();
        for (program, arguments) in [
            ("mandoc", &["-T", "lint", "-W", "warning"][..]),
            ("man", &["--warnings", "-E", "UTF-8", "-Tutf8", "-Z", "-l"]),
        ] {
            for (file, _) in &pages {
                let mut formatter = Process::new(program);
                formatter
                    .args(arguments)
                    .arg(file)
                    .current_dir(directory.path())
                    .env("MANROFFSEQ", "")
                    .env("MANWIDTH", "80");
                let Ok(formatted) = formatter.output() else {
                    skip(Lacks::Tool(program), format_args!("{program} is not installed"));
                    break;
                };
                let said = [formatted.stderr, if program == "mandoc" { formatted.stdout } else { Vec::new() }].concat();
                assert!(formatted.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
            }
        }
    }
}
