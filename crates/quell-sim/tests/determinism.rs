//! The same run, bit for bit, however often and on however many threads.

mod common;

use common::*;
use quell_sim::published::{IrqSuspension, Load, RunScale};
use quell_sim::sweep::sweep;

const SCALE: RunScale = RunScale { queues: 2, warm_up_ns: 2 * MS, measured_ns: 5 * MS, hashed: true, seed: 11 };

/// Digests must not change with a new fit of the shipped profile: the costs are set here.
fn fixed_host() -> quell_sim::HostProfile {
    let mut host = host();
    host.constants = quell_sim::Constants::default();
    host
}

#[test]
fn another_seed_is_another_run() {
    let digest = |seed| {
        let run = IrqSuspension::run(mode("base"), Load::Qps(600e3), &fixed_host(), RunScale { seed, ..SCALE });
        run.simulate().expect("it runs").digest
    };
    assert_eq!(digest(1), digest(1));
    assert_ne!(digest(1), digest(2));
}

#[test]
fn a_sweep_gives_the_same_rows_on_one_thread_and_on_two() {
    let rows = |threads| {
        let modes = [mode("base"), mode("suspend20")];
        let rows = sweep(&modes, &[Load::Qps(400e3), Load::Max], &fixed_host(), SCALE, threads, |_| ());
        rows.into_iter().map(|row| row.expect("it runs").digest).collect::<Vec<_>>()
    };
    assert_eq!(rows(1), rows(2));
}

#[test]
fn nearly_nothing_is_lost_in_the_ring_as_published() {
    let result = IrqSuspension::run(mode("suspend20"), Load::Max, &fixed_host(), SCALE).simulate().expect("it runs");
    let packets = 2.0 * result.qps * SCALE.measured_ns as f64 / 1e9;
    assert!((result.drops() as f64) < 0.01 * packets, "{} of {packets}", result.drops());
}
