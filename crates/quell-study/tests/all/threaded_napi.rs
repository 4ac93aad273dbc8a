//! Tests of experiment (c): the model compared with the published latencies, and statements of the publication.

use std::sync::LazyLock;

use quell_published::{Experiment, PollMechanism, threaded_napi_rows};
use quell_sim::HostProfile;
use quell_study::published::{ThreadedNapiCell, compare, host_of, threaded_napi};

static CELLS: LazyLock<Vec<ThreadedNapiCell>> = LazyLock::new(|| {
    let rows = threaded_napi_rows().expect("the data ships");
    let host = HostProfile::shipped("af-xdp-2025").expect("it ships");
    threaded_napi(&rows, &host, 2, |_| ()).expect("it runs")
});

fn median_us(experiment: u32, mechanism: PollMechanism) -> f64 {
    let cell = CELLS.iter().find(|cell| cell.row.experiment == experiment && cell.row.mechanism == mechanism);
    cell.expect("it was simulated").modelled[1] / 1e3
}

#[test]
fn medians_are_within_8_percent_differences_from_threaded_within_a_microsecond_and_every_order_is_correct() {
    let host = HostProfile::shipped(host_of(Experiment::C)).expect("it ships");
    let comparison = compare(Experiment::C, host, 2, |_, _| ()).expect("it runs");
    for summary in &comparison.summary {
        assert_eq!(summary.met(), Some(true), "{}: {}", summary.what, summary.value);
    }
    let scored = comparison.cells.iter().filter(|cell| cell.scored);
    assert_eq!(scored.count(), 15 + 20);
}

#[test]
fn without_application_work_all_mechanisms_are_within_about_a_microsecond() {
    let threaded = median_us(1, PollMechanism::Threaded);
    for mechanism in PollMechanism::ALL {
        let above = median_us(1, mechanism) - threaded;
        assert!((0.0..1.2).contains(&above), "{mechanism}: {above}");
    }
}

#[test]
fn with_application_work_inline_polling_takes_about_three_to_five_microseconds_longer() {
    let idle = median_us(1, PollMechanism::Inline);
    for experiment in 2..=5 {
        let longer = median_us(experiment, PollMechanism::Inline) - idle;
        assert!((2.5..5.0).contains(&longer), "experiment {experiment}: {longer}");
    }
}

#[test]
fn with_a_dedicated_core_application_work_does_not_change_the_latency() {
    let dedicated = [PollMechanism::Threaded, PollMechanism::Separate];
    for mechanism in dedicated {
        let idle = median_us(1, mechanism);
        for experiment in 2..=5 {
            let moved = median_us(experiment, mechanism) - idle;
            assert!(moved.abs() < 1.0, "experiment {experiment}, {mechanism}: {moved}");
        }
    }
}

#[test]
fn threaded_polling_has_the_steadiest_latency() {
    let width = |cell: &ThreadedNapiCell| cell.modelled[3] - cell.modelled[0];
    for threaded in CELLS.iter().filter(|cell| cell.row.mechanism == PollMechanism::Threaded) {
        for other in CELLS.iter().filter(|cell| cell.row.experiment == threaded.row.experiment) {
            assert!(width(threaded) <= width(other), "{} {}", threaded.row, other.row);
        }
    }
}
