//! CPU time per request of memcached in the veth lab with the sampler of polls and without it, in alternating slices, at
//! half of the maximum load and at the maximum. Needs root and memcached.
//!
//! cargo bench -p quell-bench --bench sampler_cost

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]

mod common;

use std::path::Path;

use common::{MemcachedLab, cpu_ns_per_request};
use quell_load::{Distribution, Schedule};
use quell_sampler::Sampler;

const PAIRS: usize = 150;

fn main() {
    for mode in ["base", "defer200", "suspend200"] {
        let mut lab = MemcachedLab::raise(&mode.parse().unwrap());
        let most = (0..5).map(|_| lab.slice(Schedule::Closed).0.qps).fold(0.0, f64::max);
        let half = Schedule::Open { rate_per_s: most / 2.0, gaps: Distribution::FACEBOOK_GAPS };
        for (load, schedule) in [("50%", half), ("max", Schedule::Closed)] {
            println!("{mode} at {load}: {}", cost(&mut lab, schedule));
        }
        lab.take_down();
    }
}

fn cost(lab: &mut MemcachedLab, schedule: Schedule) -> String {
    let mut ratios = Vec::new();
    let mut without_ns = Vec::new();
    for pair in 0..PAIRS {
        let mut measure = |sampled: bool| {
            let ids = lab.lab.server.queues.ids().to_vec();
            let sampler = sampled.then(|| Sampler::of(Path::new("/sys"), ids).unwrap());
            let (load, counters) = lab.slice(schedule);
            if let Some(sampler) = sampler {
                assert!(
                    sampler.read().unwrap().values().any(|polls| polls.since(None).packets > 0),
                    "nothing was sampled"
                );
            }
            cpu_ns_per_request(&load, &counters) as f64
        };
        let first_sampled = pair % 2 == 0;
        let (first, second) = (measure(first_sampled), measure(!first_sampled));
        let (with, without) = if first_sampled { (first, second) } else { (second, first) };
        ratios.push(with / without);
        without_ns.push(without);
    }
    ratios.sort_by(f64::total_cmp);
    without_ns.sort_by(f64::total_cmp);
    // Distribution-free 95 % interval of the median: order statistics, by the binomial distribution.
    let half_width = (0.98 * (PAIRS as f64).sqrt()) as usize;
    let [low, middle, high] =
        [PAIRS / 2 - half_width, PAIRS / 2, PAIRS / 2 + half_width].map(|at| 100.0 * (ratios[at] - 1.0));
    let without = without_ns[PAIRS / 2] / 1e3;
    format!("{without:.1} µs per request; with the sampler {middle:+.2} % ({low:+.2} to {high:+.2}, 95 %)")
}
