//! One rank: its generator, and the orders that it follows.

use std::ops::Range;
use std::thread::sleep;
use std::time::Duration;

use quell_linux::clock::monotonic_ns;
use quell_load::{Generator, LoadReport, LoadSpec, RunningLoad, Schedule, Workload};
use serde::{Deserialize, Serialize};

use crate::plan::{ClusterPlan, RankShare};
use crate::world::World;

/// Time without an order after which a rank ends. Rank 0 sends one per second.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);

/// First message of a rank. Every version of Quell can read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub version: String,
    pub host: String,
}

/// Order of rank 0. Times are on the receiver's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankOrder {
    CompareClocks,
    Start {
        at_ns: u64,
    },
    Measure {
        window_ns: Range<u64>,
    },
    /// Go on. Shows that rank 0 is reachable.
    Stay,
    Stop,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RankReply {
    /// All connections are open, or the reason why not.
    Connected(Result<(), String>),
    Started {
        /// On the rank's clock.
        at_ns: u64,
    },
    /// The report of a window. `None` if the order came after the start of the window.
    Measured(Option<Box<LoadReport>>),
    Failed(String),
}

pub fn connect(share: &RankShare) -> Result<Generator, String> {
    check_memory(&share.spec)?;
    Generator::connect(share.spec.clone(), None).map_err(|error| error.to_string())
}

/// Memory that a generator needs beyond its program: stack, buffers and histograms of each thread, connections, and the
/// table of keys. An upper estimate.
fn memory_bytes(spec: &LoadSpec) -> usize {
    const PER_THREAD: usize = 4 << 20;
    const PER_CONNECTION: usize = 1 << 10;
    /// Longest key, and the key's part of the index ([`quell_load::KeyValues::KEYS_MAX`]).
    const PER_KEY: usize = 280;
    let keys = match &spec.workload {
        Workload::Memcached(keys) | Workload::Redis(keys) => keys.keys as usize,
        Workload::Http(_) | Workload::RequestResponse(_) => 0,
    };
    spec.threads as usize * PER_THREAD + spec.connections as usize * PER_CONNECTION + keys * PER_KEY
}

/// Fails with a sentence where an allocation would end the process later.
fn check_memory(spec: &LoadSpec) -> Result<(), String> {
    let bytes = memory_bytes(spec);
    let reserved = Vec::<u8>::new().try_reserve_exact(bytes);
    reserved.map_err(|_| {
        format!(
            "the generator needs {} MiB of memory, which the kernel does not grant; raise the limit (`ulimit -v`, or the \
             cgroup's memory.max), or use fewer keys",
            bytes.div_ceil(1 << 20)
        )
    })
}

/// Starts the load at a time on this rank's clock. Returns the load and the time of its start.
pub fn start(generator: Generator, schedule: Schedule, at_ns: u64) -> Result<(RunningLoad, u64), String> {
    sleep(Duration::from_nanos(at_ns.saturating_sub(monotonic_ns())));
    let started_ns = monotonic_ns();
    let load = generator.keep_running(schedule).map_err(|error| error.to_string())?;
    Ok((load, started_ns))
}

pub fn measure(load: &mut RunningLoad, window_ns: Range<u64>) -> Result<Option<LoadReport>, String> {
    load.measure_at(window_ns, &mut ()).map_err(|error| error.to_string())
}

/// Follows the orders of rank 0 until the load ends. Fails if rank 0 is silent. Other failures are sent to rank 0,
/// which ends the job.
pub fn follow(world: &World, version: &str) -> Result<(), String> {
    let sentence = |error: &dyn std::error::Error| error.to_string();
    let send = |reply: &RankReply| world.send(0, reply).map_err(|error| sentence(&error));
    let hello = Hello { version: version.to_owned(), host: world.host().to_owned() };
    world.send(0, &hello).map_err(|error| sentence(&error))?;
    let plan: ClusterPlan = world.broadcast(None).map_err(|error| sentence(&error))?;
    let share = plan.share(world.rank(), world.ranks()).map_err(|error| sentence(&error))?;
    let connected = connect(&share);
    send(&RankReply::Connected(connected.as_ref().map(drop).map_err(Clone::clone)))?;
    world.barrier();
    let (mut waiting, mut running) = (connected.ok(), None);
    loop {
        let order = world.receive::<RankOrder>(0, SILENCE_MAX);
        match order.map_err(|error| sentence(&error))? {
            RankOrder::CompareClocks => world.answer_clock().map_err(|error| sentence(&error))?,
            RankOrder::Start { at_ns } => {
                let Some(generator) = waiting.take() else { continue };
                let started = start(generator, share.schedule, at_ns);
                match started {
                    Ok((load, at_ns)) => {
                        running = Some(load);
                        send(&RankReply::Started { at_ns })?;
                    }
                    Err(why) => send(&RankReply::Failed(why))?,
                }
            }
            RankOrder::Measure { window_ns } => {
                let Some(load) = &mut running else { continue };
                let measured = measure(load, window_ns);
                send(&measured.map_or_else(RankReply::Failed, |report| RankReply::Measured(report.map(Box::new))))?;
            }
            RankOrder::Stay => {}
            RankOrder::Stop => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_load::{KeyValues, Transport};

    use super::*;

    #[test]
    fn memory_that_no_machine_has_is_refused_in_a_sentence() {
        let workload = Workload::Memcached(KeyValues { keys: u32::MAX, ..KeyValues::facebook() });
        let mut spec = LoadSpec::new(([192, 0, 2, 1], 7).into(), Transport::Tcp, workload);
        // Above any address space of 47 bits.
        spec.threads = u32::MAX;
        let why = check_memory(&spec).unwrap_err();
        assert!(why.starts_with("the generator needs "), "{why}");
    }
}
