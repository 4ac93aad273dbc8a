//! The bound that `quell-sampler` computes for the waits of packets in the ring, against their true waits, which only
//! the model knows. `cargo test -p quell-sim --test all wait_bound:: -- --nocapture` prints the table of
//! `docs/results/wait-bound.md`.

use crate::common::*;
use quell_sim::{HostProfile, Load, Run, RunScale};

struct Waits {
    /// Share of packets whose wait is bounded, because the interrupt was masked while they waited.
    bounded: f64,
    mean_us: f64,
    bound_us: f64,
}

fn waits(text: &str, load: Load) -> Waits {
    waits_on(&host(), text, load)
}

fn waits_on(host: &HostProfile, text: &str, load: Load) -> Waits {
    let scale = RunScale { queues: 2, warm_up_ns: 20 * MS, measured_ns: 300 * MS, hashed: true, seed: 7 };
    let counters = Run::memcached(mode(text), load, host, scale).simulate().expect("it runs").counters;
    let per_packet_us = |ns: u64| ns as f64 / counters.bounded_packets as f64 / 1e3;
    Waits {
        bounded: counters.bounded_packets as f64 / counters.polled_packets as f64,
        mean_us: per_packet_us(counters.wait_ns),
        bound_us: per_packet_us(counters.wait_bound_ns),
    }
}

#[test]
fn the_mean_wait_is_a_fifth_to_two_thirds_of_the_bound() {
    for text in ["defer20", "defer50", "defer200", "suspend20", "suspend200", "napibusy", "fullbusy"] {
        for load in [Load::Qps(200e3), Load::Qps(400e3), Load::Qps(600e3), Load::Qps(800e3)] {
            let Waits { bounded, mean_us, bound_us } = waits(text, load);
            let share = mean_us / bound_us;
            println!("| {text} | {load} | {:.1} | {bound_us:.1} | {mean_us:.1} | {share:.2} |", 100.0 * bounded);
            assert!((0.2..0.67).contains(&share), "{text} {load}: {share}");
        }
    }
}

#[test]
fn without_deferral_waits_are_bounded_only_while_an_interrupt_of_the_other_direction_repeats_the_poll() {
    let mut host = host();
    let bounded = waits_on(&host, "base", Load::Qps(200e3)).bounded;
    assert!(bounded < 0.001, "{bounded}");
    host.coalescing.separate_arming = false;
    assert_eq!(waits_on(&host, "base", Load::Qps(200e3)).bounded, 0.0);
}

#[test]
fn if_every_poll_exhausts_its_budget_the_bound_says_nothing() {
    let Waits { mean_us, bound_us, .. } = waits("suspend20", Load::Max);
    assert!(bound_us > 20.0 * mean_us, "{mean_us} {bound_us}");
}
