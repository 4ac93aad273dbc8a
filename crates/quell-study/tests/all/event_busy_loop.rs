//! Tests of experiment (d): the two forms of the busy loop, and statements of the publication.

use std::sync::LazyLock;

use quell_published::{Experiment, event_loop_rows};
use quell_sim::HostProfile;
use quell_study::published::{ErrorKind, FormRatio, compare, event_loops, form_ratios, host_of};

static RATIOS: LazyLock<Vec<FormRatio>> = LazyLock::new(|| {
    let rows = event_loop_rows().expect("the data ships");
    let host = HostProfile::shipped("neper-2024").expect("it ships");
    form_ratios(&event_loops(&rows, &host, 2, |_| ()).expect("it runs"))
});

#[test]
fn the_ratio_of_the_forms_is_within_three_points_at_every_size() {
    assert_eq!(RATIOS.len(), 8);
    for ratio in RATIOS.iter() {
        let error = ratio.modelled - ratio.published;
        assert!(error.abs() < 0.03, "{} bytes: {error:.3}", ratio.message_bytes);
    }
}

#[test]
fn throughput_and_latency_are_scored_at_the_sizes_whose_published_figures_agree() {
    let host = HostProfile::shipped("neper-2024").expect("it ships");
    let comparison = compare(Experiment::D, host, 2, |_, _| ()).expect("it runs");
    let relative = || comparison.cells.iter().filter(|cell| cell.error_kind == ErrorKind::Relative);
    assert!(relative().all(|cell| cell.bound.is_some() && cell.scored != cell.row.starts_with("16384")));
    assert_eq!(relative().filter(|cell| cell.scored).count(), 7 * 2 * 5);
    assert_eq!(comparison.summary.len(), 1 + 2 * 5);
    let p50 = comparison.summary.iter().find(|line| line.what == "p50 us: 90th percentile").expect("a goal");
    assert_eq!(p50.met(), Some(true), "{}", p50.value);
}

#[test]
fn the_gain_returns_with_messages_of_several_segments() {
    for ratio in RATIOS.iter().filter(|ratio| ratio.message_bytes > 4096) {
        assert!(ratio.modelled > 1.01, "{} bytes: {}", ratio.message_bytes, ratio.modelled);
    }
}

#[test]
fn the_gain_of_looping_inside_epoll_wait_vanishes_as_messages_grow_to_a_segment() {
    let of = |bytes| RATIOS.iter().find(|ratio| ratio.message_bytes == bytes).expect("a size").modelled;
    assert!(of(1) > 1.05 && of(1) > of(1024) && of(1024) > of(2048) && of(2048) > of(4096));
    assert!((of(4096) - 1.0).abs() < 0.01, "{}", of(4096));
}

#[test]
fn looping_in_the_program_is_never_faster() {
    for ratio in RATIOS.iter() {
        assert!(ratio.modelled > 0.99, "{} bytes: {}", ratio.message_bytes, ratio.modelled);
    }
}

#[test]
fn rows_whose_median_contradicts_their_throughput_are_listed() {
    let rows = event_loop_rows().expect("the data ships");
    let contradicting: Vec<_> = rows.iter().filter(|row| row.contradiction().is_some()).collect();
    assert_eq!(contradicting.len(), 2);
    assert!(contradicting.iter().all(|row| row.message_bytes == 16384));
    assert_eq!(host_of(Experiment::D), "neper-2024");
}
