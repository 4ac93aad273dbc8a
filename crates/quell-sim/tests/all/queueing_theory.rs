//! Limits of the model that queueing theory knows in closed form. The hosts here have no costs but those that a formula
//! has, and packets arrive as a Poisson process. Each test compares the mean of independent runs with the formula, within
//! four standard errors of that mean, and checks that the standard error is small enough to be a test.

use crate::common::*;
use quell_sim::{CONSTANTS, CoalescingPeriod, Constants, Counters, HostProfile, Run, SimCoalescing, TrafficKind};
use rand_core::Rng as _;
use rand_pcg::Pcg32;

const RUNS: u64 = 50;
const PACKETS_PER_RUN: f64 = 20_000.0;
/// Packets before those, until the queue has forgotten that it began empty.
const WARM_UP_PACKETS: f64 = 2_000.0;
/// Standard errors by which a mean may differ from its expectation: one of 30,000 normal ones differs by more.
const STANDARD_ERRORS: f64 = 4.0;

/// A host whose CPUs do everything in no time, with a NIC that interrupts at every packet. Profiles cannot have such costs.
fn ideal_host() -> HostProfile {
    let free = CONSTANTS.iter().map(|constant| (constant.name.to_owned(), 0.0.into())).collect();
    let free: Constants = serde_json::from_value(serde_json::Value::Object(free)).expect("all constants");
    let constants = Constants { batch_half: 1.0, ..free };
    HostProfile { coalescing: SimCoalescing::NONE, idle_states: Vec::new(), ring_size: 1 << 16, constants, ..host() }
}

/// Mean of independent runs.
#[derive(Debug)]
struct Estimate {
    mean: f64,
    standard_error: f64,
}

impl Estimate {
    fn agrees_with(&self, expected: f64, what: &str) {
        let Self { mean, standard_error } = *self;
        let text = format!("{what}: {mean:.5} ± {standard_error:.5}, expected {expected:.5}");
        println!("{text}");
        assert!(standard_error < 0.025 * expected, "too uncertain for a test: {text}");
        assert!((mean - expected).abs() <= STANDARD_ERRORS * standard_error, "{text}");
    }
}

fn exponential(random: &mut Pcg32, mean_ns: f64) -> f64 {
    -mean_ns * libm::log((f64::from(random.next_u32()) + 0.5) / 4_294_967_296.0)
}

/// Simulates Poisson arrivals on one queue. The server's thread has a CPU of its own.
fn estimate(text: &str, host: &HostProfile, per_us: f64, value: fn(&Counters, f64) -> f64) -> Estimate {
    let (warm_up_ns, measured_ns) = (WARM_UP_PACKETS / per_us * 1e3, PACKETS_PER_RUN / per_us * 1e3);
    let run = |seed| {
        let mut random = Pcg32::new(seed, 0);
        let mut now_ns = 0.0;
        let next = || {
            now_ns += exponential(&mut random, 1e3 / per_us);
            (now_ns < warm_up_ns + measured_ns).then_some(now_ns as u64)
        };
        let moments: Vec<u64> = std::iter::from_fn(next).collect();
        let connections = moments.len();
        let traffic = TrafficKind::Listed(moments);
        let run = Run {
            connections,
            irqs_apart: true,
            warm_up_ns: warm_up_ns as u64,
            measured_ns: measured_ns as u64,
            ..Run::new(mode(text), host.clone(), traffic, 1)
        };
        value(&run.simulate().expect("it runs").counters, measured_ns)
    };
    let values: Vec<f64> = (1..=RUNS).map(run).collect();
    let mean = values.iter().sum::<f64>() / RUNS as f64;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (RUNS - 1) as f64;
    Estimate { mean, standard_error: (variance / RUNS as f64).sqrt() }
}

fn irqs_per_us(counters: &Counters, measured_ns: f64) -> f64 {
    counters.irqs as f64 / measured_ns * 1e3
}

/// Probabilities that 0, 1, … events of a Poisson process with this mean occur.
fn poisson(mean: f64) -> impl Iterator<Item = f64> {
    (1..).scan(libm::exp(-mean), move |p, k| Some(std::mem::replace(p, *p * mean / f64::from(k))))
}

/// Interrupt coalescing: K. Salah, "To coalesce or not to coalesce", AEU 61 (2007), and K. Salah, K. El-Badawi, F. Haidari,
/// "Performance analysis and comparison of interrupt-handling schemes in gigabit networks", Computer Communications 30
/// (2007). The cycle from one interrupt to the next is a renewal process. With λ for the rate and τ for the time it lasts,
/// in the mean, the first two of which they state and the others follow in the same way,
///
/// - τ from the first packet: 1/λ + τ;
/// - n packets: n/λ;
/// - the earlier of both: (1 + Σ P(N(τ) ≥ k), k = 1 … n − 1)/λ;
/// - τ of quiet, as in `cqe-mode-rx on`: e^λτ/λ, because each gap is longer than τ with probability e^−λτ;
/// - at least τ since the last interrupt (throttling): τ + e^−λτ/λ.
#[test]
fn coalesced_interrupts_of_poisson_arrivals_are_as_frequent_as_the_renewal_formulas_say() {
    use CoalescingPeriod::{FirstCompletion, LastCompletion, LastInterrupt};
    for per_us in [0.02, 0.1, 0.5] {
        let interrupts = |rx_period, rx_usecs, rx_frames| {
            let coalescing = SimCoalescing { rx_usecs, rx_frames, rx_period, ..SimCoalescing::NONE };
            estimate("base", &HostProfile { coalescing, ..ideal_host() }, per_us, irqs_per_us)
        };
        let tau = 10.0;
        let mean = per_us * tau;
        let what = |kind: &str| format!("{kind}, {per_us} packets/us");
        interrupts(FirstCompletion, 10, 0).agrees_with(per_us / (1.0 + mean), &what("10 us from the first packet"));
        interrupts(FirstCompletion, 1_000_000, 16).agrees_with(per_us / 16.0, &what("16 packets"));
        let at_least = |k: usize| 1.0 - poisson(mean).take(k).sum::<f64>();
        let packets = 1.0 + (1..4).map(at_least).sum::<f64>();
        interrupts(FirstCompletion, 10, 4).agrees_with(per_us / packets, &what("10 us or 4 packets"));
        interrupts(LastCompletion, 10, 0).agrees_with(per_us * libm::exp(-mean), &what("10 us of quiet"));
        let throttled = 1.0 / (tau + libm::exp(-mean) / per_us);
        interrupts(LastInterrupt, 10, 0).agrees_with(throttled, &what("10 us since the last interrupt"));
    }
}

/// NAPI against moderation: with NAPI, an interrupt occurs only at the start of a busy period, so its rate is that of busy
/// periods in an M/D/1 queue whose first packet pays a set-up time h (P. D. Welch, Operations Research 12, 1964; for NAPI,
/// Salah, El-Badawi, Haidari 2007): λ(1 − ρ)/(1 + λh). It approaches λ, an interrupt per packet, at low load, and 0,
/// polling, at saturation. A coalescing time τ from the first packet is a longer set-up, h + τ: the same limit at
/// saturation, and at most one interrupt in τ at low load.
#[test]
fn interrupts_with_napi_are_one_per_packet_at_low_load_and_end_at_saturation() {
    let (set_up_us, packet_us) = (1.5, 1.0);
    let mut napi = ideal_host();
    (napi.constants.device_irq_ns, napi.constants.rx_request_ns) = (1e3 * set_up_us, 1e3 * packet_us);
    let moderated = SimCoalescing { rx_usecs: 20, ..SimCoalescing::NONE };
    let moderated = HostProfile { coalescing: moderated, ..napi.clone() };
    for load in [0.02, 0.1, 0.3, 0.5, 0.7, 0.9] {
        let per_us = load / packet_us;
        for (host, set_up_us, name) in [(&napi, set_up_us, "NAPI"), (&moderated, set_up_us + 20.0, "20 us")] {
            let expected = per_us * (1.0 - load) / (1.0 + per_us * set_up_us);
            estimate("base", host, per_us, irqs_per_us).agrees_with(expected, &format!("{name} at load {load}"));
        }
    }
}

/// Loss probability and mean wait in the ring of a queue that is served in batches, with vacations.
struct VacationQueue {
    per_us: f64,
    vacation_us: f64,
    packet_us: f64,
    ring: usize,
}

/// Number of packets that a poll takes from the ring at once (`gro_normal_batch`).
const BATCH: usize = 8;

impl VacationQueue {
    /// Probability of each number of packets after `us` that begin with `before` packets.
    fn after(&self, before: usize, us: f64) -> Vec<f64> {
        let mut after = vec![0.0; self.ring + 1];
        let mut rest = 1.0;
        for (place, p) in after[before..self.ring].iter_mut().zip(poisson(self.per_us * us)) {
            *place = p;
            rest -= p;
        }
        after[self.ring] = rest;
        after
    }

    /// Step from a state: packets that stay in the ring, and duration. An empty ring is left for a vacation.
    fn step(&self, packets: usize) -> (usize, f64) {
        let taken = packets.min(BATCH);
        (packets - taken, if taken == 0 { self.vacation_us } else { taken as f64 * self.packet_us })
    }

    /// Stationary distribution of the number of packets at the ends of services and vacations.
    fn stationary(&self) -> Vec<f64> {
        let step = |packets| {
            let (stay, us) = self.step(packets);
            self.after(stay, us)
        };
        let steps: Vec<Vec<f64>> = (0..=self.ring).map(step).collect();
        let mut states = vec![1.0 / steps.len() as f64; steps.len()];
        let next = |states: &[f64]| {
            let mut next = vec![0.0; states.len()];
            for (p, step) in states.iter().zip(&steps) {
                next.iter_mut().zip(step).for_each(|(place, share)| *place += p * share);
            }
            next
        };
        for _ in 0..1_000 {
            states = next(&states);
        }
        states
    }

    /// Loss probability and mean wait in µs. Packets that are not lost: those that services take. The wait follows from
    /// the mean number in the ring by Little's law.
    fn loss_and_wait(&self) -> (f64, f64) {
        let (mut time_us, mut accepted, mut packet_us) = (0.0, 0.0, 0.0);
        for (packets, p) in self.stationary().into_iter().enumerate() {
            let (stay, us) = self.step(packets);
            time_us += p * us;
            accepted += p * (packets - stay) as f64;
            // Midpoint rule; the error is below the standard error of any simulation.
            const PIECES: usize = 200;
            for piece in 0..PIECES {
                let at_us = us * (piece as f64 + 0.5) / PIECES as f64;
                let mean: f64 = self.after(stay, at_us).iter().enumerate().map(|(count, p)| count as f64 * p).sum();
                packet_us += p * mean * us / PIECES as f64;
            }
        }
        (1.0 - accepted / (time_us * self.per_us), packet_us / accepted)
    }
}

/// A finite queue with vacations: a queue whose interrupt stays masked, by deferral or suspension, is polled until its ring
/// is empty, and then left until the timer fires. This is T. T. Lee's M/G/1/N queue with vacations and exhaustive service
/// (Operations Research 32, 1984), with deterministic vacations and services, and with service in batches, because a poll
/// takes up to 8 packets at once. The embedded Markov chain at the ends of services and vacations gives the loss.
#[test]
fn a_queue_without_interrupts_loses_and_delays_packets_as_a_finite_queue_with_vacations() {
    for (per_us, ring) in [(0.3, 64), (0.5, 64), (0.7, 128), (0.9, 64)] {
        let queue = VacationQueue { per_us, vacation_us: 200.0, packet_us: 0.6, ring };
        let mut host = HostProfile { ring_size: ring, ..ideal_host() };
        host.constants.rx_request_ns = 1e3 * queue.packet_us;
        let (loss, wait_us) = queue.loss_and_wait();
        let what = |kind: &str| format!("{kind}, ring {ring}, {per_us} packets/us");
        let deferred = "defer200,defer-hard-irqs=1000000";
        let lost = |counters: &Counters, _| counters.drops as f64 / (counters.drops + counters.received) as f64;
        estimate(deferred, &host, per_us, lost).agrees_with(loss, &what("loss"));
        let wait = |counters: &Counters, _| counters.wait_ns as f64 / counters.bounded_packets as f64 / 1e3;
        estimate(deferred, &host, per_us, wait).agrees_with(wait_us, &what("wait"));
    }
}
