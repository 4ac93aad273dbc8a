//! Tests of experiment (b): the model compared with the table of 2013, and statements of the publication.

use quell_published::{CellTransport, low_latency_rows};
use quell_sim::HostProfile;
use quell_study::published::{LowLatencyCell, low_latency_sockets};

fn cells() -> Vec<LowLatencyCell> {
    let rows = low_latency_rows().expect("the data ships");
    let host = HostProfile::shipped("xeon-e5-2680-82599").expect("it ships");
    low_latency_sockets(&rows, &host, 2, |_| ()).expect("it runs")
}

fn tps(cells: &[LowLatencyCell], kernel: &str, config: &str, rx_usecs: &str, transport: CellTransport) -> Vec<f64> {
    let of = cells.iter().filter(|cell| {
        let row = &cell.row;
        row.kernel == kernel && row.config == config && row.rx_usecs == rx_usecs && cell.transport == transport
    });
    of.map(|cell| cell.modelled_tps).collect()
}

#[test]
fn with_busy_polling_immediate_interrupts_cost_round_trips() {
    let cells = cells();
    for config in ["optimized", "typical"] {
        for transport in [CellTransport::Tcp, CellTransport::Udp] {
            let of = |rx_usecs| tps(&cells, "patched", config, rx_usecs, transport)[0];
            let (long, none) = (of("100"), of("0"));
            assert!(long > 1.1 * none, "{config} {transport}: {long} {none}");
        }
    }
}

#[test]
fn without_busy_polling_every_microsecond_of_coalescing_costs_round_trips() {
    let cells = cells();
    for transport in [CellTransport::Tcp, CellTransport::Udp] {
        let none = tps(&cells, "3.9", "typical", "0", transport)[0];
        let adaptive = tps(&cells, "3.9", "typical", "adaptive", transport)[0];
        assert!(none > 1.2 * adaptive, "{transport}: {none} {adaptive}");
    }
}

#[test]
fn busy_polling_occupies_its_cpu_permanently() {
    let cells = cells();
    let pct = |kernel: &str| {
        let of = cells.iter().filter(|cell| cell.row.kernel == kernel).map(|cell| cell.modelled_cpu_pct);
        of.collect::<Vec<_>>()
    };
    // One of 32 hardware threads is 3.1 % of the CPU time.
    assert!(pct("patched").iter().all(|&pct| pct > 3.1));
    assert!(pct("3.9").iter().all(|&pct| pct < 3.1));
}

#[test]
fn deep_idle_states_cost_interrupts_a_quarter_of_the_round_trips() {
    let cells = cells();
    let optimized = tps(&cells, "3.9", "optimized", "adaptive", CellTransport::Tcp);
    let [with, without] = optimized[..] else { panic!("two rows: {optimized:?}") };
    assert!(with < 0.8 * without, "{with} {without}");
}

#[test]
fn udp_has_more_round_trips_than_tcp_in_every_row() {
    for pair in cells().chunks(2) {
        assert!(pair[1].modelled_tps > pair[0].modelled_tps, "{}", pair[0].row);
    }
}

#[test]
fn throughput_is_within_ten_percent_in_the_median() {
    let cells = cells();
    let mut errors: Vec<f64> = cells.iter().map(|cell| cell.error().abs()).collect();
    errors.sort_by(f64::total_cmp);
    let median = (errors[10] + errors[11]) / 2.0;
    assert!(median < 0.10, "median {median:.3}");
}

#[test]
fn rows_whose_cpu_column_contradicts_their_service_demand_are_listed() {
    let rows = low_latency_rows().expect("the data ships");
    let of = |transport| rows.iter().filter(|row| row.contradiction(transport).is_some()).count();
    assert_eq!((of(CellTransport::Tcp), of(CellTransport::Udp)), (4, 2));
}

#[test]
fn busy_polling_is_faster_than_interrupts_in_every_configuration() {
    let cells = cells();
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
