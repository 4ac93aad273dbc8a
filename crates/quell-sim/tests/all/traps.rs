//! Tests of settings and programs with which packet delivery stalls in the model, as it does in the kernel.

use crate::common::*;
use quell_mode::{EpollParams, NapiSettings};
use quell_sim::ScriptStep;
use quell_sim::scenario::{Input, SimDescriptor};

/// Adds a second request, which arrives during the suspension of 20 ms.
fn second_request(scenario: quell_sim::scenario::SimScenario) -> quell_sim::scenario::SimScenario {
    scenario.request(MS, 0).request(2 * MS, 0)
}

#[test]
fn a_permanently_ready_descriptor_prevents_polls_of_the_nic() {
    let mut scenario = server("suspend20", 100 * US);
    scenario.descriptors = vec![SimDescriptor::on_queue(0), SimDescriptor::without_napi()];
    scenario.until_ns = 500 * MS;
    scenario = scenario.request(MS, 0);
    scenario.inputs.push((MS + 10 * US, Input::AlwaysReady { descriptor: 1 }));
    let observed = play(&scenario.request(10 * MS, 0));
    // Every wait re-arms the suspension timer, so the second request is never delivered.
    assert_eq!(observed.reads.len(), 1, "{:?}", observed.reads);
    assert!(observed.waits.len() > 1000);
}

#[test]
fn a_spin_with_timeout_zero_stalls_for_the_whole_suspension_timeout() {
    let zero = ScriptStep::Wait { max_events: 64, timeout_ns: Some(0) };
    let observed = play(&second_request(scenario("suspend20", &[zero, ScriptStep::ReadAll])));
    let delay = delays(&observed)[1];
    assert!((18 * MS..20 * MS).contains(&delay), "{delay}");
}

#[test]
fn a_spin_with_timeout_one_millisecond_does_not_stall() {
    let one = ScriptStep::Wait { max_events: 64, timeout_ns: Some(MS) };
    let observed = play(&second_request(scenario("suspend20", &[one, ScriptStep::ReadAll])));
    assert!(delays(&observed)[1] < MS, "{:?}", delays(&observed));
}

#[test]
fn clearing_prefer_first_leaves_the_queue_stalled_for_the_old_timeout() {
    let cleared = EpollParams { prefer_busy_poll: false, ..epoll("suspend20") };
    let steps = [
        FOREVER,
        ScriptStep::ReadAll,
        ScriptStep::SetEpoll(cleared),
        FOREVER,
        ScriptStep::ReadAll,
        ScriptStep::Work(90 * MS),
    ];
    let observed = play(&second_request(scenario("suspend20", &steps)));
    assert!(delays(&observed)[1] > 18 * MS, "{:?}", delays(&observed));
}

#[test]
fn clearing_prefer_and_then_closing_the_epoll_stalls_as_well() {
    let cleared = EpollParams { prefer_busy_poll: false, ..epoll("suspend20") };
    let steps = [
        FOREVER,
        ScriptStep::ReadAll,
        ScriptStep::SetEpoll(cleared),
        ScriptStep::CloseEpoll,
        ScriptStep::Work(90 * MS),
    ];
    let observed = play(&second_request(scenario("suspend20", &steps)));
    assert!(marks(&observed, "delivered")[1] > 20 * MS);
}

#[test]
fn setting_the_suspend_timeout_to_zero_while_suspended_stalls_for_the_old_timeout() {
    let mut scenario = second_request(server("suspend20", 200 * US));
    let off = NapiSettings { irq_suspend_timeout_ns: 0, ..napi("suspend20") };
    scenario.inputs.push((MS + 50 * US, Input::SetNapi { queue: 0, settings: off }));
    let armed = marks(&play(&scenario), "suspended");
    assert!(armed[0] < MS + 50 * US, "suspended before the change: {armed:?}");
    // The single busy-poll iteration of an epoll without parameters still polls. An application that only works does
    // not.
    let mut working = second_request(scenario_that_works());
    working.inputs.push((MS + 50 * US, Input::SetNapi { queue: 0, settings: off }));
    assert!(marks(&play(&working), "delivered")[1] > 20 * MS);
}

fn scenario_that_works() -> quell_sim::scenario::SimScenario {
    server("suspend20", 90 * MS)
}

#[test]
fn setting_deferral_to_zero_while_suspended_stalls_for_the_old_timeout() {
    let mut scenario = second_request(scenario_that_works());
    let off = NapiSettings { defer_hard_irqs: 0, ..napi("suspend20") };
    scenario.inputs.push((MS + 50 * US, Input::SetNapi { queue: 0, settings: off }));
    assert!(marks(&play(&scenario), "delivered")[1] > 20 * MS);
}

#[test]
fn of_two_napi_instances_in_one_epoll_the_one_that_is_not_current_stalls() {
    let mut scenario = server("suspend20", 50 * US);
    scenario.queues = vec![napi("suspend20"); 2];
    scenario.descriptors = vec![SimDescriptor::on_queue(0), SimDescriptor::on_queue(1)];
    // The request on queue 1 makes the epoll learn that queue and suspends it. Afterwards, queue 0 is current and busy.
    scenario = scenario.request(MS, 1);
    for index in 0..300 {
        scenario = scenario.request(MS + 5 * US + index * 40 * US, 0);
    }
    let observed = play(&scenario.request(3 * MS, 1));
    let worst = delays(&observed).into_iter().max();
    assert!(worst.is_some_and(|delay| delay > 5 * MS), "{worst:?}");
}

#[test]
fn suspension_without_deferral_is_ineffective() {
    for settings in [
        NapiSettings { defer_hard_irqs: 0, ..napi("suspend20") },
        NapiSettings { gro_flush_timeout_ns: 0, ..napi("suspend20") },
    ] {
        let mut scenario = second_request(scenario_that_works());
        scenario.queues = vec![settings];
        let delivered = marks(&play(&scenario), "delivered");
        assert!(delivered[1] < 2 * MS + 100 * US, "{settings:?}: {delivered:?}");
    }
}

#[test]
fn prefer_without_deferral_leaves_the_interrupt_enabled() {
    let mut scenario = server("suspend20", 5 * MS);
    scenario.queues = vec![NapiSettings::default()];
    let observed = play(&second_request(scenario));
    assert!(observed.queues[0].irqs >= 2);
    assert!(observed.queues[0].interrupt_enabled);
}

#[test]
fn after_the_id_is_forgotten_under_fullbusy_a_packet_can_wait_for_the_gro_flush_timeout() {
    // The wait of 1 ms ends its busy-poll loop, forgets the NAPI ID, and sleeps for the rest of the time.
    let wait = ScriptStep::Wait { max_events: 64, timeout_ns: Some(2 * MS) };
    let mut scenario = scenario("fullbusy", &[wait, ScriptStep::ReadAll]);
    scenario.until_ns = 50 * MS;
    for index in 0..20 {
        scenario = scenario.request(MS + index * 2_300 * US, 0);
    }
    let worst = delays(&play(&scenario)).into_iter().max();
    assert!(worst.is_some_and(|delay| (MS..5 * MS + 100 * US).contains(&delay)), "{worst:?}");
}
