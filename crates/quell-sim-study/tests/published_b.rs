//! Experiment (b): the 2013 table.

use quell_sim::HostProfile;
use quell_sim_study::published::{Transport, low_latency_rows, low_latency_sockets};

#[test]
fn throughput_is_within_ten_percent_in_the_median() {
    let rows = low_latency_rows().expect("the data ships");
    let host = HostProfile::shipped("xeon-e5-2680-82599").expect("it ships");
    let cells = low_latency_sockets(&rows, &host, 2, |_| ()).expect("it runs");
    let mut errors: Vec<f64> = cells.iter().map(|cell| cell.error().abs()).collect();
    errors.sort_by(f64::total_cmp);
    let median = (errors[10] + errors[11]) / 2.0;
    assert!(median < 0.10, "median {median:.3}");
}

#[test]
fn rows_whose_cpu_column_contradicts_their_service_demand_are_listed() {
    let rows = low_latency_rows().expect("the data ships");
    let of = |transport| rows.iter().filter(|row| row.contradiction(transport).is_some()).count();
    assert_eq!((of(Transport::Tcp), of(Transport::Udp)), (4, 2));
}

#[test]
fn busy_polling_is_faster_than_interrupts_in_every_configuration() {
    let rows = low_latency_rows().expect("the data ships");
    let host = HostProfile::shipped("xeon-e5-2680-82599").expect("it ships");
    let cells = low_latency_sockets(&rows, &host, 2, |_| ()).expect("it runs");
    let tps = |kernel: &str, config: &str| {
        let of = cells.iter().filter(|cell| cell.row.kernel == kernel && cell.row.config == config);
        of.map(|cell| cell.modelled_tps).collect::<Vec<_>>()
    };
    for config in ["optimized", "typical"] {
        let slowest = tps("patched", config).into_iter().fold(f64::INFINITY, f64::min);
        let fastest = tps("3.9", config).into_iter().fold(0.0, f64::max);
        assert!(slowest > fastest, "{config}: {slowest} {fastest}");
    }
}
