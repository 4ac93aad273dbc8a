//! What is on a page: answer, charts with tables behind them, data; its size; and documents that have no page.

use std::fs;
use std::path::Path;

use quell_cli::number;
use quell_report::page::{self, ReportError, ReportSource};
use quell_result::ResultDocument;
use serde_json::json;

use crate::recorded::{documents, experiment, explained, simulated, source};

fn generated() -> ReportSource {
    ReportSource {
        name: "generated.json".to_owned(),
        document: ResultDocument::Experiment(Box::new(experiment().clone())),
    }
}

/// Number of elements of this name.
fn count(page: &str, element: &str) -> usize {
    page.matches(&format!("<{element} ")).count() + page.matches(&format!("<{element}>")).count()
}

#[test]
fn every_document_that_is_a_measurement_has_a_page_without_anything_from_a_network() {
    for document in documents() {
        let page = page::page(&[source("one.json", &document)]).unwrap();
        assert!(page.starts_with("<!DOCTYPE html><html lang=\"en\">"), "{}", &page[..80]);
        assert_eq!(count(&page, "h1"), 1, "{document}");
        for outside in ["src=\"", "@import", "url(", "href=\"http", "<link"] {
            assert!(!page.contains(outside), "{outside} in a page of {}", document["schema"]);
        }
    }
}

#[test]
fn each_chart_has_a_table_behind_it_and_its_name() {
    for sources in [vec![generated()], documents().iter().map(|document| source("one", document)).collect()] {
        let page = page::page(&sources).unwrap();
        let charts = page.matches("<svg class=\"chart\"").count();
        assert!(charts > 5, "{charts}");
        assert_eq!(page.matches("Values as a table").count(), charts);
        assert_eq!(page.matches("role=\"img\" aria-label=").count(), charts);
    }
}

#[test]
fn an_experiment_has_its_sections_in_the_order_of_the_questions_of_a_reader() {
    let page = page::page(&[generated()]).unwrap();
    let sections = [
        "<h1>",
        ">Latency<",
        ">What each mode changes<",
        ">Over the loads<",
        ">What the experiment saw<",
        ">Where and how<",
        ">Settings<",
        ">The command that repeats it<",
        ">Data<",
    ];
    let at: Vec<usize> =
        sections.iter().map(|section| page.find(section).unwrap_or_else(|| panic!("{section}"))).collect();
    assert!(at.is_sorted(), "{at:?}");
    for word in
        ["m-base v0", "m-suspend v0", "m-suspend v1", "base again", "blocks that other programs disturbed", "Ringed"]
    {
        assert!(page.contains(word), "{word}");
    }
}

#[test]
fn a_page_of_6_modes_6_loads_and_300_slices_is_below_1_mb() {
    let page = page::page(&[generated()]).unwrap();
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
    assert!(page.contains("download=\"generated.hlog\"") && page.contains("download=\"generated.json.gz\""));
}

#[test]
fn a_judge_that_printed_quantiles_gets_points_and_no_curve() {
    let mut document = documents().remove(0);
    document["experiments"].as_array_mut().unwrap().truncate(1);
    for slice in document["experiments"][0]["record"]["slices"].as_array_mut().unwrap() {
        slice["observation"]["latency"] = json!(null);
        slice["observation"]["metrics"]["p50-us"] = json!(101.0);
        slice["observation"]["metrics"]["p99-us"] = json!(909.0);
    }
    let page = page::page(&[source("printed", &document)]).unwrap();
    assert!(page.contains("p99: 909 µs") && page.contains("there is no curve"));
    assert!(!page.contains("class=\"band\"") && !page.contains(".hlog"));
}

#[test]
fn results_are_compared_at_the_loads_and_in_the_modes_that_they_share() {
    let mut other = documents().remove(0);
    other["experiments"].as_array_mut().unwrap().truncate(1);
    let page = page::page(&[source("before.json", &documents()[0]), source("after.json", &other)]).unwrap();
    for text in ["2 results, compared", "A before", "B after", "B to A", "effect in B", "<b>suspend200 at 50%</b>"] {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains("<b>suspend200 at max</b>"), "only one has this load");
}

#[test]
fn a_measurement_says_whether_the_kernel_reported_the_same_settings_afterwards() {
    let mut document = documents().remove(0);
    let page = page::page(&[source("restored", &document)]).unwrap();
    for text in ["Restored exactly", "under suspend200", "server0 queue 0 (NAPI 678)", "epoll 7 of process 23414"] {
        assert!(page.contains(text), "{text}");
    }
    document["experiments"][0]["settings"]["queues"][0]["values"]["after"]["gro-flush-timeout"] = json!(7_000);
    let page = page::page(&[source("changed", &document)]).unwrap();
    assert!(page.contains("Not restored exactly") && page.contains("after defer-hard-irqs 0, gro-flush-timeout 7 µs"));
}

#[test]
fn results_without_a_common_mode_and_load_say_so_instead_of_an_empty_table() {
    let mut other = documents().remove(0);
    other["experiments"].as_array_mut().unwrap().truncate(1);
    other["experiments"][0]["load"] = json!("777");
    let page = page::page(&[source("before.json", &documents()[0]), source("after.json", &other)]).unwrap();
    assert!(
        page.contains("None: no two of these results have the same mode at the same load. A has base, suspend200 at")
    );
    assert!(!page.contains("effect in A"));
}

#[test]
fn rows_of_one_load_have_bars_and_an_answer_and_seeds_their_median() {
    let rows = simulated(&[("base", 50e3, 1), ("base", 50e3, 2), ("suspend20", 50e3, 1), ("suspend20", 50e3, 2)]);
    let page = page::page(&[source("one", &rows)]).unwrap();
    let p99 = |seed: usize| rows["rows"][seed]["figures"]["p99-us"].as_f64().unwrap();
    assert!(p99(0) != p99(1), "the seeds differ");
    let median = number::short(f64::midpoint(p99(0), p99(1)));
    assert!(page.contains(&format!("base: {median} µs, range of the seeds")), "{median}");
    assert!(page.contains("At 50K requests/s: lowest p50: "), "an answer");
    assert_eq!(page.matches("<svg class=\"chart\"").count(), 4);
}

#[test]
fn ways_to_poll_af_xdp_sockets_have_bars_of_latency_and_cpu_time_at_each_rate() {
    let page = page::page(&[source("xsk", &documents()[8])]).unwrap();
    assert_eq!(page.matches("<svg class=\"chart\"").count(), 3);
    for rate in ["at 83.3 µs", "at 83.3/38 µs"] {
        assert_eq!(page.matches(&format!(">\n{rate}\n<")).count(), 3, "{rate}");
    }
    assert!(page.contains("threaded-busy-poll") && page.contains("Nothing was measured."));
}

#[test]
fn a_simulation_is_not_said_to_be_measured_and_a_change_without_an_interval_says_so() {
    let mut short = generated();
    let ResultDocument::Experiment(result) = &mut short.document else { unreachable!() };
    for experiment in &mut result.experiments {
        experiment.record.slices.retain(|slice| slice.block < 7);
    }
    let page = page::page(&[short]).unwrap();
    assert!(page.contains("Simulated in ") && !page.contains("Measured in "));
    assert!(!page.contains('∞') && page.contains("<td>no interval</td>"));
}

#[test]
fn a_load_from_many_clients_has_each_of_them_and_why_it_is_invalid() {
    let page = page::page(&[source("clients", &documents()[7])]).unwrap();
    for text in ["rank 0 (client0), measures only", "rank 1 (client1)", "INVALID: client1 is saturated"] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn a_recording_has_the_polls_and_waits_of_each_queue_and_what_changed() {
    let mut document = documents().remove(6);
    let page = page::page(&[source("minute.json", &document)]).unwrap();
    for text in [
        "<h1>Polls: program ",
        "eth0 queue 0 (NAPI 8193), eth0 queue 1 (NAPI 8194): defer-hard-irqs 100, gro-flush-timeout 200 µs (before",
        "memcached (42): attached with suspend200",
        "memcached (42): 4 epolls with busy_poll_usecs 0, busy_poll_budget 64, prefer_busy_poll 1 (before",
        "eth0 queue 0 (NAPI 8193), eth0 queue 1 (NAPI 8194): stalled",
        "eth0 dropped 2 packets",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert_eq!(page.matches("<svg class=\"chart\"").count(), 7, "three of each queue, one of the program");
    let hour: Vec<_> = (0..60).flat_map(|_| document["reports"].as_array().unwrap().clone()).collect();
    document["reports"] = json!(hour);
    let long = page::page(&[source("hour.json", &document)]).unwrap();
    assert!(long.contains("Each point of a line covers 60 reports"));
}

#[test]
fn a_limit_of_a_search_is_a_line_across_the_latencies_of_the_confirmation() {
    let mut document = documents().remove(2);
    document["search"]["plan"]["goal"]["limits"] =
        json!([{ "metric": { "kind": "latency", "quantile": 0.99 }, "at-most": 500.0 }]);
    let page = page::page(&[source("tune", &document)]).unwrap();
    assert!(page.contains("class=\"limit\"") && page.contains("p99&lt;=500us"));
}

#[test]
fn an_explanation_says_what_each_mode_makes_of_a_busy_period() {
    let page = page::explanation(&explained());
    assert_eq!(page.matches("<svg class=\"chart\"").count(), 6);
    for text in ["suspend20 answers all nine within", "epoll_wait", "gro-flush-timeout", "suspended"] {
        assert!(page.contains(text), "{text}");
    }
}

/// `QUELL_WRITE_DOCS=1` writes the picture instead of comparing it.
#[test]
fn the_picture_of_a_busy_period_in_the_docs_is_current() {
    let picture = page::busy_period_picture(&explained());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/busy-period.svg");
    if std::env::var_os("QUELL_WRITE_DOCS").is_some() {
        fs::write(&file, &picture).unwrap();
    }
    let shown = fs::read_to_string(&file).unwrap_or_default();
    assert!(shown == picture, "out of date: QUELL_WRITE_DOCS=1 cargo test -p quell-report --test all pages::");
}

#[test]
fn what_cannot_be_shown_has_one_sentence() {
    let empty = {
        let mut document = documents().remove(0);
        for experiment in document["experiments"].as_array_mut().unwrap() {
            experiment["record"]["slices"] = json!([]);
        }
        source("empty.json", &document)
    };
    let list = source("list.json", &json!({ "schema": "quell-results/1", "directory": "/", "results": [] }));
    for (sources, said) in [
        (vec![], "no result: name at least one"),
        (vec![empty], "empty.json has no slice, so there is nothing to show"),
        (vec![list], "a report shows measurements, recordings, simulations and loads; list.json is a quell-results/1"),
    ] {
        let error: ReportError = page::page(&sources).unwrap_err();
        assert_eq!(error.to_string(), said);
    }
}
