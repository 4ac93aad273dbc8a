//! The answer of a result of `-- COMMAND` for programs that run the command.

use std::path::Path;

use quell_host::servers::{EarlierAnswer, EarlierVerdict, OwnLoad};
use quell_result::ResultDocument;
use quell_result::experiment::{ExperimentResult, SubjectFacts};
use quell_result::facts::CommandFacts;

use crate::conclusions::{experiment, mode};

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn command(line: &str) -> CommandFacts {
    CommandFacts { command: words(line), directory: Some("/srv/shop".into()), ..CommandFacts::default() }
}

#[test]
fn a_process_runs_the_measured_command_if_its_arguments_and_its_directory_are_the_same() {
    let is_run_as = |measured: &CommandFacts, line: &str| measured.is_run_as(&words(line), Path::new("/srv/shop"));
    let node = command("node server.js");
    assert!(is_run_as(&node, "node server.js"));
    assert!(!node.is_run_as(&words("node server.js"), Path::new("/srv/blog")), "another program");
    assert!(!is_run_as(&node, "node server.js --port 80") && !is_run_as(&node, "node"));
    assert!(is_run_as(&command("ip netns exec web node server.js"), "node server.js"));
    let nginx = ["nginx: master process nginx -c shop.conf".to_owned(), String::new()];
    assert!(command("nginx -c shop.conf").is_run_as(&nginx, Path::new("/srv/shop")), "as it names itself");
    assert!(is_run_as(&node, "/usr/bin/node server.js") && !is_run_as(&node, "xnode server.js"));
    assert!(is_run_as(&command("./server.py --port 80"), "python3 ./server.py --port 80"), "as its first line says");
    assert!(!node.is_run_as(&[], Path::new("/srv/shop")), "a kernel thread");
    let in_a_lab = CommandFacts { directory: None, ..node };
    assert!(!is_run_as(&in_a_lab, "node server.js"));
}

fn measured(cpu: f64) -> ResultDocument {
    let facts = CommandFacts {
        latency: Some(words("wrk http://10.9.0.1/")),
        placement: words("--steer --pin"),
        ..command("node server.js")
    };
    let subject = SubjectFacts::Command(facts);
    ResultDocument::Experiment(Box::new(ExperimentResult { subject, ..experiment(&[("threaded", cpu, 1.0)], 0.01) }))
}

fn answer(document: &ResultDocument) -> EarlierAnswer {
    document.answers_for_programs("bench-1", None, None).unwrap().remove(0)
}

#[test]
fn a_result_of_a_command_answers_for_the_programs_that_run_it() {
    let better = measured(7.0);
    assert_eq!(better.measured_command().map(|command| command.command.join(" ")).as_deref(), Some("node server.js"));
    assert!(better.measured_processes().is_empty(), "they have ended");
    let answer_of_better = answer(&better);
    assert_eq!(answer_of_better.verdict, EarlierVerdict::Better(mode("threaded")));
    assert_eq!((answer_of_better.measured.own_load, answer_of_better.steered), (Some(OwnLoad::Judge), true));
    let undecided = measured(9.9);
    let advice = Some(("measure longer".to_owned(), "quell bench -- node server.js".to_owned()));
    let answers = undecided.answers_for_programs("bench-1", advice, None).unwrap();
    assert!(answers.iter().all(|answer| answer.open.is_none()), "its command starts the program again");
    let worse = answer(&measured(13.0));
    assert_eq!((worse.verdict, worse.reference), (EarlierVerdict::Keep(mode("base")), mode("base")));
    assert_eq!(worse.worse, [mode("threaded")]);
}

#[test]
fn a_result_of_a_command_from_another_kernel_says_nothing_about_running_programs() {
    let ResultDocument::Experiment(mut result) = measured(7.0) else { unreachable!() };
    result.host.kernel_release = "5.10".to_owned();
    assert!(ResultDocument::Experiment(result).measured_command().is_none());
}
