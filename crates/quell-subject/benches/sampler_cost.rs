//! CPU time per request of memcached in the veth lab without the sampler of polls, with its program of `quell attach`, and
//! with those of `quell top`, in alternating slices, at half of the maximum load and at the maximum. Needs root and
//! memcached.
//!
//! cargo bench --profile dev -p quell-subject --bench sampler_cost

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]

mod common;

use std::path::Path;

use common::{MemcachedLab, cpu_ns_per_request};
use quell_linux::NapiId;
use quell_load::{Distribution, Schedule};
use quell_sampler::Sampler;

const BLOCKS: usize = 100;

/// The BPF programs of a command, sampling these instances.
type Programs = fn(Vec<NapiId>) -> Option<Sampler>;

const ARMS: [(&str, Programs); 3] = [
    ("without", |_| None),
    ("attach", |napis| Some(Sampler::of(sys(), napis).unwrap())),
    ("top", |napis| {
        let mut sampler = Sampler::attach(sys()).unwrap();
        sampler.select_all(napis.into_iter().collect()).unwrap();
        Some(sampler)
    }),
];
const WITHOUT: usize = 0;

fn sys() -> &'static Path {
    Path::new("/sys")
}

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
    let mut blocks: Vec<[f64; ARMS.len()]> = Vec::new();
    for block in 0..BLOCKS {
        let mut ns = [0.0; ARMS.len()];
        for slice in 0..ARMS.len() {
            let arm = (block + slice) % ARMS.len();
            ns[arm] = cpu_ns(lab, schedule, ARMS[arm].1);
        }
        blocks.push(ns);
    }
    let mut text = format!("{:.1} µs per request", median(blocks.iter().map(|ns| ns[WITHOUT]).collect())[1] / 1e3);
    for (arm, (name, _)) in ARMS.iter().enumerate().skip(1) {
        let ratios = median(blocks.iter().map(|ns| ns[arm] / ns[WITHOUT]).collect());
        let [low, middle, high] = ratios.map(|ratio| 100.0 * (ratio - 1.0));
        text.push_str(&format!("; {name} {middle:+.2} % ({low:+.2} to {high:+.2}, 95 %)"));
    }
    text
}

fn cpu_ns(lab: &mut MemcachedLab, schedule: Schedule, programs: Programs) -> f64 {
    let sampler = programs(lab.lab.server.queues.ids().to_vec());
    let (load, counters) = lab.slice(schedule);
    if let Some(sampler) = sampler {
        let is_sampled = sampler.read().unwrap().values().any(|polls| polls.since(None).packets > 0);
        assert!(is_sampled, "nothing was sampled");
    }
    cpu_ns_per_request(&load, &counters) as f64
}

/// Median with its distribution-free 95 % interval: order statistics, by the binomial distribution.
fn median(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let half_width = (0.98 * (values.len() as f64).sqrt()) as usize;
    let middle = values.len() / 2;
    [middle - half_width, middle, middle + half_width].map(|at| values[at])
}
