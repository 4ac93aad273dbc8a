//! The table of the model's responses (`data/model.tsv`), which is the first belief of a search: it is what the model says
//! today. `cargo test --release -p quell-tune --test all model_table:: -- --ignored` writes it again after a change of the model
//! or of the grid.

use std::path::PathBuf;

use quell_mode::DeliveryMode;
use quell_sim::sweep::{Point, Setup, in_parallel};
use quell_sim::{HostProfile, Load};
use quell_tune::{TuneGoal, TuneSpace, observe_model};

/// Loads as shares of the maximum throughput of `base`.
const LOADS: [f64; 6] = [0.1, 0.3, 0.5, 0.7, 0.85, 0.95];
const METRICS: [&str; 3] = ["p50", "p99", "cpu"];
const SEED: u64 = 77;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/model.tsv")
}

/// Rows of a host at the loads with these indices: the logarithm of each mode's ratio to `base` with the same number of
/// CPUs, or a dash. Modes with polling threads have another CPU for them.
fn rows(host: &str, loads: &[usize], modes: &[DeliveryMode]) -> Vec<Vec<String>> {
    let profile = HostProfile::shipped(host).unwrap();
    let setup = Setup { warm_up_ns: 30_000_000, measured_ns: 150_000_000, ..Setup::new(profile).with_queues(1) };
    let apart = Setup { irqs_apart: true, ..setup.clone() };
    let base = DeliveryMode::default();
    let max = setup.run(&Point { mode: base, load: Load::Max, seed: SEED }).simulate().unwrap().qps;
    let references = [(&setup, base), (&apart, base)];
    let of_mode = |mode: &DeliveryMode| (if mode.poller().is_some() { &apart } else { &setup }, *mode);
    let jobs: Vec<(usize, (&Setup, DeliveryMode))> = loads
        .iter()
        .flat_map(|load| references.into_iter().chain(modes.iter().map(of_mode)).map(|run| (*load, run)))
        .collect();
    let run = |at: usize| {
        let (load, (setup, mode)) = jobs[at];
        observe_model(setup, &Point { mode, load: Load::Qps(max * LOADS[load]), seed: SEED }).ok()
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let slices = in_parallel(jobs.len(), threads, run, |_| ());
    let mut rows = Vec::new();
    for (load, slices) in loads.iter().zip(slices.chunks(modes.len() + references.len())) {
        for metric in METRICS {
            let quantity = format!("least {metric}").parse::<TuneGoal>().unwrap().objective;
            let values: Vec<Option<f64>> = slices.iter().map(|slice| quantity.value(slice.as_ref()?)).collect();
            let ratio = |(mode, value): (&DeliveryMode, &Option<f64>)| {
                let base = values[usize::from(mode.poller().is_some())];
                Some((value.as_ref()? / base?).ln())
            };
            let of_modes = modes.iter().zip(&values[references.len()..]);
            let cells = of_modes.map(|cell| ratio(cell).map_or("-".to_owned(), |log| format!("{log:.3}")));
            let head = [host.to_owned(), LOADS[*load].to_string(), metric.to_owned()];
            rows.push(head.into_iter().chain(cells).collect());
        }
    }
    rows
}

#[test]
fn the_table_is_what_the_model_says() {
    let table = std::fs::read_to_string(path()).unwrap();
    let table: Vec<Vec<&str>> = table.lines().map(|line| line.split('\t').collect()).collect();
    let names: Vec<String> = TuneSpace::default().all().iter().map(ToString::to_string).collect();
    assert_eq!(table[0][3..], names, "the grid has changed; write the table again");
    for (at, host) in HostProfile::shipped_names().enumerate() {
        // Every ninth mode at one load; another load and other modes for each host.
        let columns: Vec<usize> = (0..names.len()).filter(|column| column % 9 == at).collect();
        let modes: Vec<DeliveryMode> = columns.iter().map(|column| names[*column].parse().unwrap()).collect();
        for row in rows(host, &[at], &modes) {
            let written = table.iter().find(|written| written[..3] == row[..3]).unwrap();
            let cells = columns.iter().map(|column| written[3 + column]);
            assert_eq!(cells.collect::<Vec<_>>(), row[3..], "{:?}; write the table again", &row[..3]);
        }
    }
}

#[test]
#[ignore = "writes the table"]
fn write() {
    let modes = TuneSpace::default().all();
    let head = ["host", "load", "metric"].map(str::to_owned).into_iter().chain(modes.iter().map(ToString::to_string));
    let rows = HostProfile::shipped_names().flat_map(|host| rows(host, &[0, 1, 2, 3, 4, 5], &modes));
    let lines = std::iter::once(head.collect::<Vec<_>>()).chain(rows).map(|row| row.join("\t") + "\n");
    std::fs::write(path(), lines.collect::<String>()).unwrap();
}
