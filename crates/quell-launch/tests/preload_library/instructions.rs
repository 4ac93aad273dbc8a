//! Number of additional instructions per call with the preload library, counted by callgrind. The same program runs
//! with two numbers of waits, so that all other costs cancel out. `--nocapture` prints the table.

use std::process::Command;

use crate::programs::{Programs, Run};
use quell_test_support::{Lacks, skip};

const FEW: u64 = 1_000;
const MANY: u64 = 11_000;
/// Maximum number of additional instructions for a call that the settings do not change.
const TOO_MANY: f64 = 40.0;

fn instructions(programs: &Programs, run: &Run<'_>, waits: u64) -> u64 {
    let (out, waits) = (programs.path("callgrind.out"), waits.to_string());
    let option = format!("--callgrind-out-file={}", out.display());
    run.wrapped(&["valgrind", "--tool=callgrind", "--error-exitcode=9", &option], &["count", &waits]);
    let profile = std::fs::read_to_string(out).unwrap();
    profile.lines().find_map(|line| line.strip_prefix("totals: ")).unwrap().trim().parse().unwrap()
}

fn instructions_per_wait(programs: &Programs, run: &Run<'_>) -> f64 {
    (instructions(programs, run, MANY) - instructions(programs, run, FEW)) as f64 / (MANY - FEW) as f64
}

#[test]
fn an_unchanged_wait_costs_less_than_40_instructions() {
    let Some(programs) = Programs::compile() else { return };
    if let Err(error) = Command::new("valgrind").arg("--version").output() {
        skip(Lacks::Tool("valgrind"), format_args!("could not run valgrind: {error}"));
        return;
    }
    let bare = instructions_per_wait(programs, &programs.bare());
    eprintln!("{:6.1} instructions per wait and loop iteration without the library", bare);
    for settings in ["1", "1,epoll=0/64/1", "1,epoll=0/64/1,zero-waits=timed", "1,events-max=16", "1,wait-at-most-ms=1"]
    {
        let more = instructions_per_wait(programs, &programs.with(settings)) - bare;
        eprintln!("{more:+6.1} with {settings}");
        let is_touched = settings.contains("wait-at-most");
        assert!(is_touched || more < TOO_MANY, "{settings}: {more}");
    }
}
