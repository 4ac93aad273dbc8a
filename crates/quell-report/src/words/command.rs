//! The command that repeats a measurement, as far as a document records it.

use quell_host::attach::mode_command::entered;
use quell_linux::shell;
use quell_load::Workload;
use quell_mode::DeliveryMode;
use quell_result::experiment::{ExperimentResult, SubjectFacts};
use quell_result::facts::{PRESENT, ProgramsFacts};
use quell_result::tune::TuneFile;

use super::{budget, placement_options};

/// Command that makes an experiment again, in the same order; with `longer_ms`, with that budget in another order, and
/// without modes that could not be set. Process IDs are those of then.
#[must_use]
pub fn repeat_experiment(result: &ExperimentResult, longer_ms: Option<u64>) -> String {
    let mut words = vec!["quell".to_owned(), "bench".to_owned()];
    let Some(first) = result.experiments.first() else { return with_subject(words, &result.subject) };
    let design = &first.record.design;
    // The attached mode is a row of the next result, too.
    let modes = std::iter::once(&design.reference).chain(&design.treatments);
    let is_again = |name: &str| name != PRESENT && (longer_ms.is_none() || !result.has_dropped(name));
    let modes = modes.filter(|treatment| is_again(&treatment.name)).map(|treatment| treatment.setting);
    words.extend(["--modes".to_owned(), list(modes)]);
    let loads: Vec<String> = result.experiments.iter().filter_map(|one| Some(one.load?.to_string())).collect();
    if !loads.is_empty() && !matches!(result.subject, SubjectFacts::Programs(_) | SubjectFacts::Command(_)) {
        words.extend(["--loads".to_owned(), loads.join(",")]);
    }
    words.extend(times((design.slice_ms, design.settle_ms), result.budget_ms(), design.seed, longer_ms));
    with_subject(words, &result.subject)
}

/// Command that makes a search again; see [`repeat_experiment`].
#[must_use]
pub fn repeat_search(file: &TuneFile, longer_ms: Option<u64>) -> String {
    let plan = &file.search.plan;
    let mut words = vec!["quell".to_owned(), "tune".to_owned(), "--goal".to_owned(), plan.goal.to_string()];
    for guard in &plan.guards {
        words.extend(["--never".to_owned(), guard.to_string()]);
    }
    if !matches!(file.subject, SubjectFacts::Programs(_) | SubjectFacts::Command(_)) {
        words.extend(["--loads".to_owned(), plan.loads.join(",")]);
    }
    words.extend(times((plan.slice_ms, plan.settle_ms), plan.budget_ms, plan.seed, longer_ms));
    words.extend(file.profile.iter().flat_map(|profile| ["--profile".to_owned(), profile.clone()]));
    with_subject(words, &file.subject)
}

fn list(modes: impl Iterator<Item = DeliveryMode>) -> String {
    modes.map(|mode| mode.to_string()).collect::<Vec<_>>().join(",")
}

fn times((slice_ms, settle_ms): (u32, u32), budget_ms: u64, seed: u64, longer_ms: Option<u64>) -> Vec<String> {
    let options = [
        ("--slice", slice_ms.to_string()),
        ("--settle", settle_ms.to_string()),
        ("--budget", budget(longer_ms.unwrap_or(budget_ms))),
    ];
    let seed = longer_ms.is_none().then(|| ("--seed", seed.to_string()));
    options.into_iter().chain(seed).flat_map(|(option, value)| [option.to_owned(), value]).collect()
}

/// Adds the options that name the subject, and quotes all words for a shell.
fn with_subject(mut words: Vec<String>, subject: &SubjectFacts) -> String {
    let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
    let (mut netns, mut program) = (None, &[][..]);
    match subject {
        SubjectFacts::Programs(facts) => {
            let pids: Vec<String> = facts.named_pids().map(|pid| pid.to_string()).collect();
            option("--pid", pids.join(","));
            for (name, command) in measuring(facts) {
                option(name, shell_words::join(command));
            }
        }
        SubjectFacts::Command(facts) => {
            let given = [("--load", &facts.load), ("--latency", &facts.latency), ("--beside-latency", &facts.beside)];
            for (name, command) in given {
                command.iter().for_each(|command| option(name, shell_words::join(command)));
            }
            (netns, program) = (facts.netns.as_deref(), &facts.command);
        }
        SubjectFacts::Veth { lab, server, load, beside } => {
            option("--on", "lab".to_owned());
            option("--queues", lab.queues.to_string());
            option("--connections", load.connections.to_string());
            if lab.cpus.client.len() > 1 {
                option("--generators", lab.cpus.client.len().to_string());
            }
            let protocol = match load.workload {
                Workload::Redis(_) => Some("redis"),
                Workload::Http(_) => Some("http"),
                _ => None,
            };
            if let Some(protocol) = protocol {
                option("--server", shell_words::join(&server.command));
                option("--protocol", protocol.to_owned());
            }
            beside.iter().for_each(|command| option("--beside", shell_words::join(command)));
            words.extend(lab.steered.then(|| "--steer".to_owned()));
            words.extend((!lab.interrupt_stand_in).then(|| "--no-interrupt-stand-in".to_owned()));
        }
        SubjectFacts::Model(facts) => {
            option("--on", "sim".to_owned());
            option("--host", facts.profile.clone());
            option("--queues", facts.queues.to_string());
            option("--connections", facts.connections.to_string());
            words.extend(facts.irqs_apart.then(|| "--irqs-apart".to_owned()));
        }
        SubjectFacts::Guest(_) => option("--on", "vm".to_owned()),
    }
    let placement = placement_options(subject);
    let end = if program.is_empty() { String::new() } else { format!(" -- {}", shell::command(program)) };
    entered(netns, &shell::command(&words)) + &placement + &end
}

fn measuring(facts: &ProgramsFacts) -> impl Iterator<Item = (&'static str, &[String])> {
    let clients = facts.clients.as_ref().map(|clients| &clients.command);
    let given = [
        ("--load", facts.load.as_ref()),
        ("--latency", facts.latency.as_ref()),
        ("--beside-latency", facts.beside.as_ref()),
        ("--clients", clients),
    ];
    given.into_iter().filter_map(|(option, command)| Some((option, command?.as_slice())))
}
