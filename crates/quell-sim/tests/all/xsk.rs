//! Two hosts that exchange packets over AF_XDP sockets: who polls, what it costs, and what is refused. The published
//! latencies are compared in `quell-study`.

use crate::common::*;
use quell_sim::{HostProfile, RunError, XskFigures, XskPolling, XskRoundTrips};

fn round_trips(polling: XskPolling) -> XskRoundTrips {
    let host = HostProfile::shipped("af-xdp-2025").expect("it ships");
    let (period_ns, delay_ns) = (40_000.0, 38 * US);
    XskRoundTrips { host, polling, period_ns, delay_ns, warm_up_ns: 5 * MS, measured_ns: 20 * MS }
}

fn figures(polling: XskPolling) -> XskFigures {
    round_trips(polling).simulate().expect("it runs").figures()
}

#[test]
fn every_way_to_poll_answers_the_offered_rate() {
    for polling in XskPolling::ALL {
        let figures = figures(polling);
        assert!((figures.qps / 25e3 - 1.0).abs() < 0.01 && figures.drops == 0, "{polling} {figures:?}");
        assert_eq!(polling.to_string().parse(), Ok(polling));
    }
}

#[test]
fn a_poller_on_a_cpu_of_its_own_has_the_lowest_latency_and_costs_a_cpu_on_each_host() {
    let [interrupts, inline, thread, napi_thread] = XskPolling::ALL.map(figures);
    let p50 = |figures: &XskFigures| figures.p50_us.expect("there were replies");
    assert!(p50(&thread).max(p50(&napi_thread)) < p50(&interrupts).min(p50(&inline)));
    for apart in [thread, napi_thread] {
        // The receiving thread never sleeps. The client's sender has another CPU.
        assert!(apart.client.busy_cpus > 2.95 && apart.server.busy_cpus > 1.95, "{apart:?}");
        assert!(apart.client.busy_cpus > inline.client.busy_cpus + 0.9, "{apart:?} {inline:?}");
        assert!(apart.server.busy_cpus > inline.server.busy_cpus + 0.9, "{apart:?} {inline:?}");
    }
}

#[test]
fn only_the_way_of_interrupts_has_interrupts() {
    for polling in XskPolling::ALL {
        let figures = figures(polling);
        let has_irqs = figures.client.irqs_per_s > 0.0;
        assert_eq!(has_irqs, polling == XskPolling::Interrupts, "{polling} {figures:?}");
    }
}

#[test]
fn a_client_that_falls_behind_without_end_is_refused() {
    let run = XskRoundTrips { delay_ns: 40 * US, ..round_trips(XskPolling::BusyPoll) };
    assert!(matches!(run.simulate(), Err(RunError::Setting(why)) if why.contains("below the period")));
    let run = XskRoundTrips { period_ns: 100.0, delay_ns: 0, ..run };
    assert!(matches!(run.simulate(), Err(RunError::Setting(why)) if why.contains("500 ns")));
}
