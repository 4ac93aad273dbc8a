//! A rank that reports another version of Quell, for the tests.

#![allow(clippy::print_stderr, reason = "a program of a test")]

use quell_mpi::rank;
use quell_mpi::world::World;

fn main() {
    let Some(world) = World::join() else { return };
    if let Err(why) = rank::follow(&world, "0.0.0-other") {
        eprintln!("{why}");
    }
}
