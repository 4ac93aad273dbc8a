//! Tests of the rules of packet delivery on one RX queue. Each test checks one rule with a scenario.

use crate::common::*;
use quell_mode::{EpollParams, NapiSettings, Threaded};
use quell_sim::scenario::{Input, SimDescriptor, SimScenario};
use quell_sim::{KernelRules, PacketKind, ScriptStep};

#[test]
fn without_deferral_every_single_packet_interrupts_and_the_interrupt_is_enabled_again() {
    let observed = play(&server("base", 0).request(MS, 0).request(5 * MS, 0).request(9 * MS, 0));
    assert_eq!(observed.queues[0].irqs, 3);
    assert!(observed.queues[0].interrupt_enabled && !observed.queues[0].state.sched);
    assert_eq!(observed.reads.len(), 3);
}

#[test]
fn packets_accumulate_while_the_interrupt_is_masked() {
    // The first poll is deferred for 5 ms. Packets that arrive during that time wait for the timer.
    let observed = play(&server("defer5000", 0).request(MS, 0).request(2 * MS, 0).request(3 * MS, 0));
    assert_eq!(observed.queues[0].irqs, 1);
    let delays = delays(&observed);
    assert!(delays[0] < 50 * US, "{delays:?}");
    assert!(delays[1] > 3 * MS && delays[2] > 2 * MS, "{delays:?}");
}

#[test]
fn deferral_counts_empty_polls_and_then_enables_the_interrupt() {
    let observed = play(&server("defer200,defer-hard-irqs=10", 0).request(MS, 0));
    // The poll with the packet does not count. Nine empty polls defer the interrupt again, and the tenth does not.
    assert_eq!(observed.queues[0].empty_polls, 10);
    assert!(observed.queues[0].interrupt_enabled);
    let enabled = marks(&observed, "interrupt enabled");
    assert!((3 * MS..3 * MS + 50 * US).contains(&enabled[0]), "10 timeouts of 200 us: {enabled:?}");
}

#[test]
fn a_packet_refills_the_deferral_counter() {
    let observed = play(&server("defer200,defer-hard-irqs=10", 0).request(MS, 0).request(MS + 1_500 * US, 0));
    let enabled = marks(&observed, "interrupt enabled");
    assert!(enabled[0] > 4 * MS, "{enabled:?}");
    assert_eq!(observed.queues[0].irqs, 1);
}

#[test]
fn both_deferral_values_are_needed() {
    for settings in [
        NapiSettings { defer_hard_irqs: 100, ..NapiSettings::default() },
        NapiSettings { gro_flush_timeout_ns: 200_000, ..NapiSettings::default() },
    ] {
        let scenario = SimScenario { queues: vec![settings], ..server("base", 0) };
        let observed = play(&scenario.request(MS, 0).request(2 * MS, 0));
        assert_eq!(observed.queues[0].irqs, 2, "{settings:?}");
        assert!(observed.queues[0].interrupt_enabled);
    }
}

#[test]
fn under_deferral_a_single_packet_waits_for_the_gro_flush_timeout() {
    for timeout_us in [50, 200, 1000] {
        let first = MS;
        let second = first + timeout_us * US / 2;
        let observed = play(&server(&format!("defer{timeout_us}"), 0).request(first, 0).request(second, 0));
        let delay = delays(&observed)[1];
        let half = timeout_us * US / 2;
        assert!((half / 2..half + 60 * US).contains(&delay), "{timeout_us} us: {delay}");
    }
}

#[test]
fn packets_held_in_gro_wait_for_the_timer_although_the_interrupt_is_enabled() {
    let settings = NapiSettings { gro_flush_timeout_ns: 3 * MS, ..NapiSettings::default() };
    let mut scenario = SimScenario { queues: vec![settings], ..server("base", 0) };
    scenario.inputs.push((MS + 100 * US, Input::Packet { descriptor: 0, kind: PacketKind::HeldRequest }));
    let observed = play(&scenario);
    let delay = delays(&observed)[0];
    assert!((3 * MS..3 * MS + 100 * US).contains(&delay), "{delay}");
    let enabled = marks(&observed, "interrupt enabled");
    assert!(enabled[0] < 2 * MS, "{enabled:?}");
}

#[test]
fn a_poll_takes_at_most_64_packets_and_continues_in_another_round() {
    let mut scenario = server("base", 0);
    for index in 0..200 {
        scenario = scenario.request(MS + index, 0);
    }
    let observed = play(&scenario);
    assert_eq!(observed.reads.len(), 200);
    assert!(observed.queues[0].polls >= 4);
}

#[test]
fn work_beyond_the_limits_of_a_softirq_is_left_to_ksoftirqd() {
    let mut scenario = server("base", 0);
    for index in 0..900 {
        scenario = scenario.request(MS + index, 0);
    }
    let observed = play(&scenario);
    assert_eq!(observed.reads.len(), 900);
    assert!(observed.trace.segments.iter().any(|segment| segment.what == "ksoftirqd") || observed.queues[0].polls > 14);
}

#[test]
fn a_full_ring_drops_packets() {
    let mut scenario = server("defer5000", 0).request(MS, 0);
    for index in 0..3000 {
        scenario = scenario.request(2 * MS + index, 0);
    }
    assert_eq!(play(&scenario).queues[0].drops, 3000 - scenario.host.ring_size as u64);
}

#[test]
fn the_end_of_a_busy_poll_without_deferral_clears_missed_and_loses_no_packet() {
    // The interrupt is still enabled while the busy-poll loop owns the instance.
    let epoll = EpollParams { busy_poll_usecs: 2000, busy_poll_budget: 64, prefer_busy_poll: true };
    let mut scenario = known(server("base", 0));
    scenario.epolls[0].settings = epoll;
    for index in 0..20 {
        scenario = scenario.request(500 * US + index * 300 * US, 0);
    }
    let observed = play(&scenario);
    assert_eq!(observed.reads.len(), 20);
    assert!(delays(&observed).iter().all(|&delay| delay < 100 * US));
}

#[test]
fn with_the_final_poll_one_epoll_wait_delivers_128_packets_at_a_budget_of_64() {
    let wait = ScriptStep::Wait { max_events: 256, timeout_ns: None };
    let descriptors = vec![SimDescriptor::on_queue(0); 200];
    let with = |final_poll| {
        let rules = KernelRules { final_poll, ..KernelRules::default() };
        let mut scenario = scenario("suspend20", &[wait, ScriptStep::Work(10 * MS), ScriptStep::ReadAll]);
        (scenario.descriptors, scenario.rules) = (descriptors.clone(), rules);
        scenario.epolls[0].napi_known = true;
        // One request starts the application's work. The others arrive during that work.
        scenario = scenario.request(MS, 199);
        for descriptor in 0..150 {
            scenario = scenario.request(3 * MS, descriptor);
        }
        play(&scenario).waits[1].events
    };
    assert_eq!(with(true), 128);
    assert_eq!(with(false), 64);
}

#[test]
fn a_budget_of_zero_polls_eight_packets() {
    let wait = ScriptStep::Wait { max_events: 256, timeout_ns: None };
    let mut scenario =
        scenario("suspend20,busy-poll-budget=0", &[wait, ScriptStep::Work(10 * MS), ScriptStep::ReadAll]);
    scenario.descriptors = vec![SimDescriptor::on_queue(0); 100];
    scenario.epolls[0].napi_known = true;
    scenario = scenario.request(MS, 99);
    for descriptor in 0..90 {
        scenario = scenario.request(3 * MS, descriptor);
    }
    assert_eq!(play(&scenario).waits[1].events, 16);
}

#[test]
fn a_timer_that_fires_while_the_instance_is_owned_has_no_effect() {
    // The busy-poll loop owns the instance for 2 ms. A timer that was armed before fires during that time.
    let epoll = EpollParams { busy_poll_usecs: 2000, busy_poll_budget: 64, prefer_busy_poll: true };
    let mut scenario = server("defer200", 0);
    scenario.epolls[0].settings = epoll;
    let observed = play(&scenario.request(MS, 0).request(20 * MS, 0));
    assert!(observed.queues[0].lost_timers > 0);
    assert_eq!(observed.reads.len(), 2);
}

#[test]
fn busy_poll_usecs_are_units_of_1024_ns() {
    let epoll = EpollParams { busy_poll_usecs: 1000, busy_poll_budget: 64, prefer_busy_poll: true };
    let mut scenario = known(server("defer200", 0));
    scenario.epolls[0].settings = epoll;
    let observed = play(&scenario);
    let polling: u64 = observed
        .trace
        .segments
        .iter()
        .filter(|segment| segment.what == "busy poll")
        .map(|segment| segment.to_ns - segment.from_ns)
        .sum();
    assert!((1_024_000..1_030_000).contains(&polling), "{polling}");
}

#[test]
fn with_zero_usecs_and_prefer_exactly_one_iteration_polls() {
    let scenario = known(server("suspend20", 0));
    let observed = play(&scenario);
    // One iteration and the final poll.
    assert_eq!(observed.queues[0].busy_polls, 2);
}

#[test]
fn suspension_holds_packets_for_its_timeout_when_the_application_stalls() {
    let observed = play(&server("suspend20", 50 * MS).request(MS, 0).request(2 * MS, 0));
    // The timer's softirq receives the second request 20 ms after the events were returned.
    let delivered = marks(&observed, "delivered");
    assert!((21 * MS..21 * MS + 200 * US).contains(&delivered[1]), "{delivered:?}");
}

#[test]
fn suspension_ends_at_once_when_epoll_wait_finds_no_events() {
    let observed = play(&server("suspend20", 100 * US).request(MS, 0).request(3 * MS, 0));
    assert_eq!(observed.trace.suspensions().len(), 2);
    for (_, from_ns, to_ns) in observed.trace.suspensions() {
        assert!(to_ns - from_ns < 200 * US, "{from_ns} {to_ns}");
    }
    assert!(delays(&observed)[1] < 300 * US);
}

#[test]
fn suspension_ends_with_the_last_reference_to_the_epoll() {
    let close = [FOREVER, ScriptStep::ReadAll, ScriptStep::CloseEpoll, ScriptStep::Work(80 * MS)];
    let observed = play(&scenario("suspend20", &close).request(MS, 0).request(2 * MS, 0));
    let delivered = marks(&observed, "delivered");
    assert!(delivered[1] < 3 * MS, "{delivered:?}");
}

#[test]
fn suspension_alone_does_not_mask_the_interrupt() {
    // Without deferral, the interrupt is enabled when events are returned, and stays enabled.
    let settings = NapiSettings { irq_suspend_timeout_ns: 20 * MS, ..NapiSettings::default() };
    let scenario = SimScenario { queues: vec![settings], ..server("suspend20", 5 * MS) };
    let observed = play(&scenario.request(MS, 0).request(2 * MS, 0));
    let delivered = marks(&observed, "delivered");
    assert!(delivered[1] < 2 * MS + 100 * US, "{delivered:?}");
}

#[test]
fn a_busy_poller_that_fails_to_get_the_queue_makes_its_owner_release_it() {
    // The softirq processes a full ring while the application tries to busy poll.
    let mut scenario = known(server("suspend20", 0));
    for index in 0..400 {
        scenario = scenario.request(MS + index * 100, 0);
    }
    let observed = play(&scenario);
    assert_eq!(observed.reads.len(), 400);
    assert!(observed.queues[0].busy_polls > 0);
}

#[test]
fn threaded_napi_polls_in_its_own_thread() {
    let scenario = server("threaded", 0);
    let observed = play(&scenario.request(MS, 0));
    assert_eq!(observed.reads.len(), 1);
    assert!(observed.trace.segments.iter().any(|segment| segment.what == "NAPI thread"));
    assert!(!observed.trace.segments.iter().any(|segment| segment.what == "NET_RX softirq"));
}

#[test]
fn threaded_busy_poll_never_completes_and_never_interrupts() {
    let settings = NapiSettings { threaded: Threaded::BusyPoll, ..NapiSettings::default() };
    let mut scenario = SimScenario { queues: vec![settings], ..server("base", 0) };
    scenario.applications[0].cpu = 1;
    let observed = play(&scenario.request(MS, 0).request(50 * MS, 0));
    assert_eq!(observed.reads.len(), 2);
    assert!(observed.queues[0].state.sched);
    let polling: u64 = observed
        .trace
        .segments
        .iter()
        .filter(|segment| segment.cpu == 0 && matches!(segment.what, "busy poll" | "NAPI thread"))
        .map(|segment| segment.to_ns - segment.from_ns)
        .sum();
    assert!(polling > 98 * MS, "the NAPI thread must use a whole CPU: {polling}");
}

#[test]
fn a_real_time_napi_thread_preempts_the_application_and_a_fair_one_may_wait() {
    let polled_after = |priority| {
        let mut scenario = server("threaded", 20 * MS).request(MS, 0).request(2 * MS, 0);
        scenario.napi_thread_priority = priority;
        marks(&play(&scenario), "delivered")[1] - 2 * MS
    };
    assert!(polled_after(Some(50)) < 50 * US);
    assert!(polled_after(Some(50)) <= polled_after(None));
}

#[test]
fn an_application_with_a_higher_priority_delays_the_napi_thread() {
    let mut scenario = server("threaded", 20 * MS).request(MS, 0).request(2 * MS, 0);
    (scenario.applications[0].priority, scenario.napi_thread_priority) = (Some(60), Some(50));
    assert!(marks(&play(&scenario), "delivered")[1] > 20 * MS);
}

#[test]
fn settings_changed_during_suspension_apply_from_the_next_arming_of_the_timer() {
    let mut scenario = server("suspend20", 50 * MS).request(MS, 0).request(2 * MS, 0);
    scenario.inputs.push((3 * MS, Input::SetNapi { queue: 0, settings: napi("suspend20,irq-suspend-timeout=5ms") }));
    let delivered = marks(&play(&scenario), "delivered");
    assert!(delivered[1] > 20 * MS, "the armed timer does not move: {delivered:?}");
}

#[test]
fn finite_zero_and_infinite_timeouts_of_epoll_wait() {
    let finite = ScriptStep::Wait { max_events: 8, timeout_ns: Some(MS) };
    let zero = ScriptStep::Wait { max_events: 8, timeout_ns: Some(0) };
    let observed = play(&scenario("base", &[zero, finite, FOREVER, ScriptStep::ReadAll]).request(10 * MS, 0));
    assert_eq!((observed.waits[0].events, observed.waits[1].events, observed.waits[2].events), (0, 0, 1));
    assert!(observed.waits[0].returned_ns < 20 * US);
    assert!((MS..MS + 50 * US).contains(&observed.waits[1].returned_ns), "{:?}", observed.waits);
}

#[test]
fn an_epoll_learns_the_napi_id_from_a_packet_and_forgets_it_without_events() {
    // After an attach, the epoll knows no NAPI ID. The first wait therefore sleeps without polling.
    let observed = play(&server("suspend20", 0).request(10 * MS, 0));
    let first_poll = observed.trace.segments.iter().find(|segment| segment.what == "busy poll").map(|s| s.from_ns);
    assert!(first_poll.is_some_and(|at_ns| at_ns > 10 * MS), "{first_poll:?}");
}

#[test]
fn maxevents_limits_a_wait_and_the_remaining_events_are_ready_at_once() {
    let wait = ScriptStep::Wait { max_events: 3, timeout_ns: None };
    let mut scenario = scenario("base", &[wait, ScriptStep::ReadAll]);
    scenario.descriptors = vec![SimDescriptor::on_queue(0); 8];
    for descriptor in 0..8 {
        scenario = scenario.request(MS, descriptor);
    }
    let observed = play(&scenario);
    assert_eq!(observed.reads.len(), 8);
    assert!(observed.waits.iter().all(|wait| wait.events <= 3));
}

#[test]
fn two_queues_with_a_worker_each_do_not_disturb_each_other() {
    use quell_sim::{Load, Run, RunScale};
    let scale = RunScale { queues: 2, warm_up_ns: MS, measured_ns: 20 * MS, hashed: false, seed: 3 };
    let result = Run::memcached(mode("suspend20"), Load::Qps(400e3), &host(), scale).simulate().expect("it runs");
    let figures = result.figures(8);
    assert!((figures.qps / 400e3 - 1.0).abs() < 0.05, "{}", figures.qps);
}

#[test]
fn the_same_scenario_gives_the_same_observations() {
    let scenario = server("suspend20", 100 * US).request(MS, 0).request(3 * MS, 0);
    assert_eq!(play(&scenario).digest, play(&scenario).digest);
}
