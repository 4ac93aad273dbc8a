//! Each rank records every n-th sample of a fixed sequence and sends its report to rank 0. Rank 0 adds the reports and
//! prints whether the histogram is that of one process with all samples, bit for bit.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program of a test")]

use std::time::Duration;

use quell_load::LoadReport;
use quell_load::clients::combined;
use quell_mpi::rank::RankReply;
use quell_mpi::world::World;

const SAMPLES: u64 = 200_000;

/// Latencies from 1 µs to minutes, the last ones above the range of the histogram.
fn sample(number: u64) -> u64 {
    1_000 + number * number * 11 % (1 << (10 + number % 28))
}

fn report(numbers: impl Iterator<Item = u64>) -> LoadReport {
    let mut report = LoadReport::default();
    numbers.for_each(|number| report.latency.record(sample(number)));
    report
}

fn main() {
    let world = World::join().unwrap();
    let own = report((u64::from(world.rank())..SAMPLES).step_by(world.ranks() as usize));
    if world.rank() > 0 {
        world.send(0, &RankReply::Measured(Some(Box::new(own)))).unwrap();
        return;
    }
    let mut reports = vec![own];
    for rank in world.others() {
        match world.receive(rank, Duration::from_secs(60)).unwrap() {
            RankReply::Measured(Some(report)) => reports.push(*report),
            other => panic!("rank {rank} sent {other:?}"),
        }
    }
    let merged = combined(&reports, None).unwrap();
    let one = report(0..SAMPLES);
    let is_equal = merged.latency.to_string() == one.latency.to_string() && merged.latency.count() == SAMPLES;
    println!("{} ranks: {}", world.ranks(), if is_equal { "equal" } else { "different" });
}
