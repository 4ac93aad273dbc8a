//! A run allocates memory while it is set up, and not per event. A longer run therefore makes no additional
//! allocations. The test counts calls of the allocator in the run's own thread.

use crate::common::*;
use quell_sim::{Load, Run, RunScale};

const SCALE: RunScale = RunScale { queues: 2, warm_up_ns: 10 * MS, measured_ns: 10 * MS, hashed: true, seed: 3 };

/// Number of allocations in a run, and number of its events.
fn simulate(text: &str, load: Load, measured_ns: u64) -> (u64, u64) {
    let run = Run::memcached(mode(text), load, &host(), RunScale { measured_ns, ..SCALE });
    let mut events = 0;
    let counted = allocation_counter::measure(|| events = run.simulate().expect("it runs").events);
    (counted.count_total, events)
}

#[test]
fn the_steady_state_allocates_nothing_per_event() {
    for text in ["base", "defer20", "napibusy", "fullbusy", "suspend20"] {
        for load in [Load::Qps(600e3), Load::Max] {
            let (short, few_events) = simulate(text, load, 20 * MS);
            let (long, more_events) = simulate(text, load, 50 * MS);
            let (allocations, events) = (long.saturating_sub(short), more_events - few_events);
            assert_eq!(allocations, 0, "{text} {load}: in {events} events");
        }
    }
}
