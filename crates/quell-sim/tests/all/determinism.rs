//! A run is identical on every machine, which golden digests verify. Only intentional changes of the simulated
//! mechanism may change a digest.

use crate::common::*;
use quell_sim::sweep::{Point, Setup, sweep};
use quell_sim::{Load, Run, RunScale};

const SCALE: RunScale = RunScale { queues: 2, warm_up_ns: 2 * MS, measured_ns: 5 * MS, hashed: true, seed: 11 };

/// A host with fixed costs, so that a new fit of the shipped profile does not change the digests.
fn fixed_host() -> quell_sim::HostProfile {
    let mut host = host();
    host.constants = quell_sim::Constants::default();
    host
}

#[test]
fn golden_digests() {
    let digest = |text: &str, load| {
        let run = Run::memcached(mode(text), load, &fixed_host(), SCALE);
        format!("{text} {load} {:016x}", run.simulate().expect("it runs").digest)
    };
    let digests = [
        digest("base", Load::Qps(600e3)),
        digest("defer20", Load::Qps(600e3)),
        digest("suspend20", Load::Qps(600e3)),
        digest("fullbusy", Load::Max),
    ];
    assert_eq!(digests, GOLDEN);
}

const GOLDEN: [&str; 4] = [
    "base 600K 6151dd13525b1133",
    "defer20 600K de347d4c50388455",
    "suspend20 600K a84923dbaee75aba",
    "fullbusy max 712c3dda2de6f0ca",
];

#[test]
fn another_seed_gives_another_run() {
    let digest = |seed| {
        let run = Run::memcached(mode("base"), Load::Qps(600e3), &fixed_host(), RunScale { seed, ..SCALE });
        run.simulate().expect("it runs").digest
    };
    assert_eq!(digest(1), digest(1));
    assert_ne!(digest(1), digest(2));
}

#[test]
fn a_sweep_gives_the_same_rows_on_one_thread_and_on_two() {
    let setup = Setup { warm_up_ns: 2 * MS, measured_ns: 5 * MS, ..Setup::new(fixed_host()).with_queues(2) };
    let point = |text: &str, load| Point { mode: mode(text), load, seed: 11 };
    let points = [point("base", Load::Qps(100e3)), point("suspend20", Load::Max), point("suspend20", Load::Qps(100e3))];
    let rows = |threads| sweep(&setup, &points, threads, |_| ()).expect("it runs");
    assert_eq!(rows(1), rows(2));
}

#[test]
fn recording_a_run_does_not_change_it() {
    let setup = Setup { warm_up_ns: 2 * MS, measured_ns: MS, ..Setup::new(fixed_host()).with_queues(2) };
    let point = Point { mode: mode("suspend20"), load: Load::Qps(100e3), seed: 11 };
    let (row, trace) = setup.recorded_row(&point).expect("it runs");
    assert_eq!(row, setup.row(&point).expect("it runs"));
    let recorded = 2 * MS..=3 * MS;
    assert!(!trace.segments.is_empty() && trace.marks.iter().all(|mark| recorded.contains(&mark.at_ns)));
}

#[test]
fn below_saturation_no_packet_is_lost() {
    let result = Run::memcached(mode("suspend20"), Load::Qps(600e3), &fixed_host(), SCALE).simulate();
    assert_eq!(result.expect("it runs").drops(), 0);
}
