//! Prints experiment (b), published beside modelled. `cargo bench -p quell-sim --bench low_latency_sockets`

#![allow(clippy::print_stdout, reason = "a benchmark's output is what it prints")]

use quell_sim::HostProfile;
use quell_sim::published::{low_latency_rows, low_latency_sockets};

fn main() {
    let host = HostProfile::shipped("xeon-e5-2680-82599").expect("it ships");
    let rows = low_latency_rows().expect("the data ships");
    for cell in low_latency_sockets(&rows, &host, 2, |_| ()).expect("it runs") {
        let row = &cell.row;
        println!(
            "{:8} {:10} {:4} {:9} {:?} {:7.0} {:7.0} {:+5.1} %{}",
            row.kernel,
            row.config,
            row.cstates,
            row.rx_usecs,
            cell.transport,
            cell.published_tps,
            cell.modelled_tps,
            100.0 * cell.error(),
            cell.contradiction_pct
                .map_or(String::new(), |implied| format!("  service demand implies {implied:.2} % CPU")),
        );
    }
}
