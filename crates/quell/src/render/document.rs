//! The text of a document of any kind.

use quell_conformance::suite;
use quell_result::ResultDocument;

use super::show_tree::{self, Style};
use super::terminal::Terminal;
use super::{conformance, experiment, load_report, published, recording, results, sim_rows, top, tune, xdp, xsk_rows};
use crate::exit::Failure;

/// Renders a document as its command does. `details` adds absolute figures of an experiment, and equal queues of a
/// snapshot.
///
/// # Errors
/// When the document refers to published data or scenarios that this version does not have.
pub(crate) fn render(document: &ResultDocument, details: bool, terminal: Terminal) -> Result<String, Failure> {
    Ok(match document {
        ResultDocument::Experiment(result) => terminal.wrap(&experiment::render(result, details)),
        ResultDocument::Tune(file) => terminal.wrap(&tune::render(file, details)),
        ResultDocument::Published(run) => published::render(run).map_err(Failure::usage)?,
        ResultDocument::PublishedXdp(run) => published::render_xdp(run).map_err(Failure::usage)?,
        ResultDocument::Load(run) => load_report::render(&run.report, terminal),
        ResultDocument::XdpLoad(run) => xdp::load(run, terminal),
        ResultDocument::Clients(run) => run.table(),
        ResultDocument::Simulation(run) => sim_rows::render(&run.setup, &run.rows, terminal),
        ResultDocument::Xsk(run) => xsk_rows::render(run, terminal),
        ResultDocument::Sweep(sweep) => sim_rows::render(&sweep.header.setup, &sweep.rows, terminal),
        ResultDocument::Top(report) => top::text(report),
        ResultDocument::Recording(recording) => terminal.wrap(&recording::render(recording, details, terminal)),
        ResultDocument::Snapshot(snapshot) => show_tree::tree(snapshot, Style { terminal, details }),
        ResultDocument::Conformance(report) => {
            conformance::render(report, &suite::all().map_err(Failure::usage)?, terminal)
        }
        ResultDocument::List(list) => results::render(list, terminal),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::results::summary;
    use serde_json::{Value, json};

    const PLAIN: Terminal = Terminal::of_columns(80);

    fn recorded() -> Vec<Value> {
        let fixtures = [
            include_str!("../../tests/fixtures/result.json"),
            include_str!("../../tests/fixtures/interrupts.json"),
            include_str!("../../tests/fixtures/tune.json"),
        ];
        let mut documents: Vec<Value> = fixtures.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
        let recording = ResultDocument::parse(include_str!("../../tests/fixtures/recording.json")).unwrap();
        // Histograms take most of the time: one in each document suffices.
        documents[0]["experiments"].as_array_mut().unwrap().truncate(1);
        keep_first_latency(&mut documents[0]["experiments"][0]["record"]["slices"]);
        keep_first_latency(&mut documents[2]["search"]["slices"]);
        keep_first_latency(&mut documents[2]["search"]["confirmations"][0]["experiments"][0]["slices"]);
        let part = json!({
            "transport": "tcp", "shape": "epoll", "message-bytes": 1, "threads": 1, "result": documents[0].clone(),
        });
        for experiment in ["a", "b", "d"] {
            documents.push(json!({ "schema": "quell-published/1", "experiment": experiment, "parts": [part.clone()] }));
        }
        documents.push(played_by_af_xdp(&documents[0]));
        documents.push(serde_json::to_value(recording).unwrap());
        documents
    }

    /// A document of experiment (c) with the slices of another experiment.
    fn played_by_af_xdp(experiment: &Value) -> Value {
        let mut result = experiment["experiments"][0].clone();
        let design = &mut result["record"]["design"];
        let way =
            |poller| json!({ "name": poller, "setting": { "poller": poller, "sleeps": false, "own-cpu": false } });
        let [reference, others @ ..] = ["interrupts", "udp-busy-poll", "napi-thread", "io-uring"].map(way);
        design["reference"] = reference;
        let treatments = design["treatments"].as_array_mut().unwrap();
        treatments.iter_mut().zip(others).for_each(|(treatment, way)| *treatment = way);
        assert!(treatments.len() <= 3, "{treatments:?}");
        let latency = result["record"]["slices"][0]["observation"]["latency"].clone();
        json!({
            "schema": "quell-published-xdp/1",
            "quell-version": "0.2.0",
            "started-unix-s": 1_764_000_000,
            "host": experiment["host"],
            "placement": { "receiver": 1, "sender": 0, "poller": 2 },
            "points": [{
                "rate-kpps": 32.0, "delay-us": 30.0, "result": result, "receive-calls": { "udp-busy-poll": latency },
            }],
            "absent": [{ "ways": "busy-poll", "why": "no NAPI ID" }],
        })
    }

    fn keep_first_latency(slices: &mut Value) {
        let others = slices.as_array_mut().unwrap().iter_mut().skip(1);
        others.for_each(|slice| slice["observation"]["latency"] = Value::Null);
    }

    /// Everything that is printed of a document, if it is one.
    fn printed(document: &Value) -> Option<String> {
        let document = ResultDocument::parse(&document.to_string()).ok()?;
        let text = render(&document, true, PLAIN).unwrap();
        if let ResultDocument::Experiment(result) = &document {
            let _ = quell_report::picture::draw(result);
        }
        Some(format!("{text}{:?}", summary(&document)))
    }

    /// Every value in a document with its path, except for those below a part of a published experiment, which is an
    /// experiment. Of arrays, the first element and the last one.
    fn pointers(value: &Value, at: &str, into: &mut Vec<String>) {
        into.push(at.to_owned());
        match value {
            _ if at == "/parts/0/result" => {}
            Value::Array(elements) => {
                let two = elements.iter().enumerate().filter(|(index, _)| *index == 0 || index + 1 == elements.len());
                two.for_each(|(index, element)| pointers(element, &format!("{at}/{index}"), into));
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    let name = name.replace('~', "~0").replace('/', "~1");
                    pointers(field, &format!("{at}/{name}"), into);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn every_recorded_document_is_printed() {
        for document in recorded() {
            assert!(printed(&document).is_some(), "{:?}", ResultDocument::parse(&document.to_string()));
        }
    }

    #[test]
    fn no_value_in_a_document_makes_a_renderer_fail() {
        let hostile =
            [json!(null), json!(1e308), json!(4_294_967_295_u64), json!(u64::MAX), json!("\u{1b}[2J\n"), json!([])];
        for document in recorded() {
            let mut all = Vec::new();
            pointers(&document, "", &mut all);
            for pointer in all {
                for value in &hostile {
                    let mut forged = document.clone();
                    *forged.pointer_mut(&pointer).unwrap() = value.clone();
                    let text = printed(&forged).unwrap_or_default();
                    assert!(!text.contains('\u{1b}'), "{pointer}: {text}");
                }
            }
        }
    }
}
