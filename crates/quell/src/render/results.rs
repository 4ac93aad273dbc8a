//! The list of stored results: subject, question and answer of each, in one line.

use quell_linux::visible;
use quell_published::Experiment;
use quell_report::words;
use quell_result::ResultDocument;
use quell_result::conclusion::Conclusion;
use quell_result::experiment::{ExperimentResult, SubjectFacts};
use quell_result::facts::HostFacts;
use quell_result::list::{ListedContent, ListedResult, ResultsList};
use quell_result::published::PublishedRun;
use quell_result::published_xdp::PublishedXdpRun;
use quell_result::store::utc;
use quell_result::tune::TuneFile;

use super::document;
use super::number::ABSENT;
use super::terminal::Terminal;

/// Indentation below an ID.
const INDENT: &str = "    ";

/// The list, with an empty line after each result, and the command that prints one of them.
#[must_use]
pub(crate) fn render(list: &ResultsList, terminal: Terminal) -> String {
    if list.results.is_empty() {
        let text = format!(
            "no results in {}; `quell bench` and `quell tune` store theirs there",
            visible::name(&list.directory)
        );
        return terminal.fill(&text, "", "  ") + "\n";
    }
    let entries = list.results.iter().map(|result| entry(result, terminal));
    entries.collect::<String>() + "`quell results show ID` prints one again\n"
}

fn entry(result: &ListedResult, terminal: Terminal) -> String {
    let when = result.started_unix_s.and_then(utc).map_or_else(|| ABSENT.to_owned(), |time| format!("{time} UTC"));
    let id = visible::name(&result.id);
    let below = |text: &str| terminal.fill(&visible::name(text), INDENT, INDENT) + "\n";
    match &result.content {
        ListedContent::Read { subject, question, answer, .. } => {
            format!("{id}  {when}\n{}{}{}\n", below(subject), below(question), below(answer))
        }
        ListedContent::Unreadable { reason } => format!("{id}  {when}  not a result: {}\n\n", visible::name(reason)),
    }
}

/// What is known of a stored document without its details.
#[derive(Debug)]
pub(crate) struct Summary {
    /// Start of the measurement, in seconds since 1970-01-01 UTC. `None` if the document does not state it.
    pub(crate) started_unix_s: Option<u64>,
    /// Subject and host.
    pub(crate) subject: String,
    /// Modes and loads, or the goal.
    pub(crate) question: String,
    /// The answer.
    pub(crate) answer: String,
}

/// Summarizes a document. Documents that are no measurement have the first line of their text as the answer.
#[must_use]
pub(crate) fn summary(document: &ResultDocument) -> Summary {
    match document {
        ResultDocument::Experiment(result) => of_experiment(result),
        ResultDocument::Tune(file) => of_tune(file),
        ResultDocument::Published(run) => of_published(run),
        ResultDocument::PublishedXdp(run) => of_published_xdp(run),
        _ => {
            let text = document::render(document, false, Terminal::PIPE);
            let first = text.as_ref().ok().and_then(|text| text.lines().find(|line| !line.is_empty()));
            Summary {
                started_unix_s: None,
                subject: ABSENT.to_owned(),
                question: document.kind().schema.to_owned(),
                answer: first.unwrap_or(ABSENT).to_owned(),
            }
        }
    }
}

fn of_experiment(result: &ExperimentResult) -> Summary {
    let modes = result.experiments.first().map(|first| first.treatment_names().collect::<Vec<_>>().join(", "));
    let loads = result.experiments.iter().filter_map(|one| one.load).map(|load| load.to_string());
    let loads: Vec<String> = loads.collect();
    let at = if loads.is_empty() { String::new() } else { format!(" at {}", loads.join(", ")) };
    Summary {
        started_unix_s: Some(result.started_unix_s),
        subject: subject(&result.subject, &result.host),
        question: modes.unwrap_or_default() + &at,
        answer: qualified(answer(result.conclusion().as_ref(), &[]), result.not_a_measurement.as_deref()),
    }
}

fn of_tune(file: &TuneFile) -> Summary {
    let plan = &file.search.plan;
    Summary {
        started_unix_s: Some(file.started_unix_s),
        subject: subject(&file.subject, &file.host),
        question: format!("{} at {}", plan.goal, plan.loads.join(", ")),
        answer: qualified(answer(Some(&file.conclusion()), &file.left_alone), file.not_a_measurement.as_deref()),
    }
}

fn of_published(run: &PublishedRun) -> Summary {
    let measured = run.parts.iter().find_map(|part| part.result.as_ref());
    let done = run.parts.iter().filter(|part| part.result.is_some()).count();
    let what = format!("{done} of {} parts measured", run.parts.len());
    Summary {
        started_unix_s: measured.map(|result| result.started_unix_s),
        ..played(run.experiment, measured.map(|result| &result.host), what, run.ended.as_deref())
    }
}

fn of_published_xdp(run: &PublishedXdpRun) -> Summary {
    let done = run.points.iter().filter(|point| point.result.is_some()).count();
    let what = qualified(format!("{done} of {} points measured", run.points.len()), run.not_a_measurement.as_deref());
    Summary {
        started_unix_s: Some(run.started_unix_s),
        subject: match run.slowed_by {
            None => format!("veth lab, Linux {}", run.host.kernel_release),
            Some(_) => format!("guest, Linux {}", run.host.kernel_release),
        },
        ..played(Experiment::C, Some(&run.host), what, run.ended.as_deref())
    }
}

fn played(experiment: Experiment, host: Option<&HostFacts>, what: String, ended: Option<&str>) -> Summary {
    Summary {
        started_unix_s: None,
        subject: host.map_or_else(|| ABSENT.to_owned(), |host| format!("veth lab, Linux {}", host.kernel_release)),
        question: format!("({experiment}) {}", experiment.title()),
        answer: what + &ended.map_or_else(String::new, |why| format!("; ended early: {why}")),
    }
}

fn answer(conclusion: Option<&Conclusion>, left_alone: &[String]) -> String {
    conclusion.map_or_else(|| ABSENT.to_owned(), |conclusion| words::conclusion(conclusion, left_alone))
}

fn qualified(answer: String, not_a_measurement: Option<&str>) -> String {
    match not_a_measurement {
        Some(_) => answer + " (not a measurement)",
        None => answer,
    }
}

fn subject(subject: &SubjectFacts, host: &HostFacts) -> String {
    let name = words::short_subject(subject);
    if let SubjectFacts::Model(_) = subject {
        return name;
    }
    format!("{name}, Linux {}", host.kernel_release)
}
