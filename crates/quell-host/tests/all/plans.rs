//! Checks that plans have the order that the kernel needs, that a second plan is empty, and that plans are reversible.

use crate::plan_model::{after, cpus, host, is_done_by_others, known, reverse};
use proptest::prelude::*;
use quell_host::plan::consequences::consequences_of_profile;
use quell_host::plan::{PlanInput, PlannedChange, ProfilePlan, as_profile};
use quell_host::snapshot::{Reading, UnknownReason};
use quell_mode::profile::{Profile, Source};

fn profile(text: &str) -> Profile {
    Profile::parse(&[Source::new("test.toml", text)]).unwrap_or_else(|error| panic!("{error}\n{}", error.caret()))
}

fn on_nic(text: &str) -> Profile {
    profile(&format!("[device.nic]\nname = 'eth*'\n{text}"))
}

fn lines(plan: &ProfilePlan) -> Vec<String> {
    let line = |change: &PlannedChange| match change.queue() {
        Some(queue) => format!("{queue}: {}", change.text()),
        None => change.text().to_string(),
    };
    plan.steps.iter().map(|step| line(&step.change)).collect()
}

fn comes_back(observed: &PlanInput, profile: &Profile) {
    let plan = ProfilePlan::of(observed, profile);
    let reached = after(&plan, observed);
    let again = ProfilePlan::of(&reached, profile);
    assert!(again.steps.is_empty(), "not idempotent: {:#?}\nafter {:#?}", lines(&again), lines(&plan));
    let back = after(&reverse(&plan), &reached);
    assert_eq!(&back, observed, "{:#?}", lines(&reverse(&plan)));
}

#[test]
fn the_plan_of_the_memcached_profile_has_the_order_that_the_kernel_needs() {
    let profile = profile(include_str!("../../../../profiles/memcached.toml"));
    let observed = host(4);
    let plan = ProfilePlan::of(&observed, &profile);
    assert_eq!(plan.impossible, []);
    let lines = lines(&plan);
    let at =
        |text: &str| lines.iter().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {lines:#?}"));
    assert!(at("rx-ntuple-filter: off → on") < at("flow rule tcp4 dst-port 11211: – → rss context memcached (new)"));
    assert!(at("channels: combined 4 → combined 8") < at("rss context memcached (new): – → queues 4-7"));
    assert!(at("rss context memcached") < at("flow rule tcp4"));
    assert!(at("channels") < at("4: napi: – → defer-hard-irqs 100, gro-flush-timeout 200 µs"));
    assert!(at("channels") < at("5: irq affinity: – → 1"));
    assert!(lines.contains(&"net.core.busy_poll: 50 → 0".to_owned()), "{lines:#?}");
    comes_back(&observed, &profile);
}

#[test]
fn xps_by_interrupt_replaces_xps_by_receive_queue_only_where_the_interrupt_is_known() {
    let mut observed = host(2);
    let nic = &mut observed.snapshot.devices[0];
    known(&mut nic.tx_queues).iter_mut().for_each(|tx| tx.xps_rxqs = Reading::Known(vec![tx.id]));
    known(&mut nic.napis)[1].irq = Reading::unknown(UnknownReason::UnsupportedByDriver, "no attribute irq");
    let wanted = on_nic("queues.all.xps = 'irq-cpu'");
    let plan = ProfilePlan::of(&observed, &wanted);
    assert_eq!(lines(&plan), ["0: xps_cpus: none → 0-7", "0: xps_rxqs: 0 → none"]);
    assert_eq!(plan.impossible.len(), 1, "{:?}", plan.impossible);
    let back = after(&reverse(&plan), &after(&plan, &observed));
    assert_eq!(back, observed, "undo restores xps_rxqs");
}

#[test]
fn findings_of_a_profile_consider_all_its_changes() {
    let mut observed = host(2);
    known(&mut observed.snapshot.devices[0].rx_queues)[0].rps_cpus = Reading::Known(cpus("1-3"));
    let found = |text: &str| {
        let plan = ProfilePlan::of(&observed, &on_nic(text));
        let findings = consequences_of_profile(&observed.snapshot, None, &plan, None);
        findings.iter().any(|finding| finding.id == "rps-on-polled-queue")
    };
    assert!(found("queues.all.mode = 'suspend20'"));
    assert!(!found("queues.all = { mode = 'suspend20', rps = false }"), "RPS is turned off, too");
    assert!(!found("queues.all.mode = 'base'"), "nothing polls the queue");
}

#[test]
fn every_shipped_profile_can_be_applied_and_undone() {
    for text in [
        include_str!("../../../../profiles/memcached.toml"),
        include_str!("../../../../profiles/redis.toml"),
        include_str!("../../../../profiles/nginx.toml"),
        include_str!("../../../../profiles/haproxy.toml"),
        include_str!("../../../../profiles/af-xdp.toml"),
        include_str!("../../../../profiles/defaults.toml"),
    ] {
        for queues in [4, 8, 16] {
            comes_back(&host(queues), &profile(text));
        }
    }
}

#[test]
fn each_change_names_its_line_in_the_profile() {
    let plan = ProfilePlan::of(&host(2), &on_nic("queues.a = { queues = 1, mode = 'defer20' }"));
    let [step] = plan.steps.as_slice() else { panic!("{:#?}", lines(&plan)) };
    assert_eq!(step.wanted_by.as_ref().unwrap().to_string(), "test.toml:3:33");
}

#[test]
fn a_table_shrinks_before_the_channels_and_grows_after_them() {
    let shrink = lines(&ProfilePlan::of(&host(8), &on_nic("channels.combined = 2\nrss.main.queues = 'all'")));
    assert_eq!(shrink, ["rss context 0: queues 0-7 → queues 0-1", "channels: combined 8 → combined 2"]);
    let grow = lines(&ProfilePlan::of(&host(2), &on_nic("channels.combined = 8\nrss.main.queues = 'all'")));
    assert_eq!(grow, ["channels: combined 2 → combined 8", "rss context 0: queues 0-1 → queues 0-7"]);
}

#[test]
fn settings_outside_the_profile_are_set_again_when_their_queue_is_recreated() {
    let mut observed = host(2);
    known(&mut observed.snapshot.devices[0].tx_queues)[1].xps_rxqs = Reading::Known(vec![0]);
    let wanted = on_nic("rings.rx = 1024");
    let plan = ProfilePlan::of(&observed, &wanted);
    assert_eq!(lines(&plan), ["rings: rx 512 → rx 1024", "1: xps_rxqs: 0 → 0"]);
    assert_eq!(plan.steps[1].wanted_by, None);
    comes_back(&observed, &wanted);
}

#[test]
fn a_thread_is_placed_after_its_creation_and_removed_without_a_step_of_its_own() {
    let wanted =
        on_nic("queues.a = { mode = 'threaded', thread-cpus = 'one-per-core', thread-scheduling = 'fifo:50' }");
    let plan = ProfilePlan::of(&host(1), &wanted);
    let [napi, affinity, class] = plan.steps.as_slice() else { panic!("{:#?}", lines(&plan)) };
    assert!(matches!(napi.change, PlannedChange::Napi { .. }));
    assert_eq!(affinity.change.text().to_string(), "thread affinity: – → 0");
    assert_eq!(class.change.text().to_string(), "thread scheduling: – → fifo:50");
    assert!(is_done_by_others(&affinity.change.inverse()));
    comes_back(&host(1), &wanted);
    comes_back(&after(&plan, &host(1)), &on_nic("queues.a.mode = 'base'"));
}

#[test]
fn a_cpu_policy_prefers_cores_near_the_device_and_wraps_around() {
    let plan = ProfilePlan::of(&host(6), &on_nic("queues.a = { queues = '0-5', irq-cpus = 'one-per-core' }"));
    let affinities: Vec<_> = lines(&plan).iter().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect();
    assert_eq!(affinities, ["0", "1", "2", "3", "0", "1"]);
    let plan = ProfilePlan::of(&host(6), &on_nic("queues.a = { queues = '0-5', irq-cpus = 'numa-local' }"));
    let affinities: Vec<_> = lines(&plan).iter().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect();
    assert_eq!(affinities, ["0", "1", "4", "5", "0", "1"]);
}

#[test]
fn impossible_settings_are_reported_with_reason_and_position() {
    let mut observed = host(2);
    let nic = &mut observed.snapshot.devices[0];
    nic.rings = Reading::unknown(UnknownReason::UnsupportedByDriver, "Operation not supported");
    nic.flow_rules = Reading::unknown(UnknownReason::Denied { needs: None }, "Operation not permitted");
    let wanted = on_nic(
        "channels.combined = 32\nrings.rx = 64\nfeatures = { tx-lockless = true, rx-gor = true }\n\
         coalescing.cqe-mode-rx = true\nqueues.a = { queues = 7, mode = 'base' }\nqueues.b = { queues = 1, irq-cpus = '9' }\n\
         flow.a = { protocol = 'tcp', port = 1, to-queue = 1 }\n[device.other]\nname = 'wlan0'",
    );
    let plan = ProfilePlan::of(&observed, &wanted);
    assert!(plan.steps.is_empty(), "{:#?}", lines(&plan));
    let mut said: Vec<_> =
        plan.impossible.iter().map(|no| (no.what.as_str(), no.reason, no.wanted_by.line())).collect();
    said.sort_by_key(|(what, _, line)| (*line, *what));
    assert_eq!(
        said,
        [
            ("channels of eth0 (combined)", UnknownReason::UnsupportedByDriver, 3),
            ("rings of eth0", UnknownReason::UnsupportedByDriver, 4),
            ("feature rx-gor of eth0", UnknownReason::UnsupportedByKernel, 5),
            ("feature tx-lockless of eth0", UnknownReason::UnsupportedByDriver, 5),
            ("coalescing of eth0: cqe-mode-rx", UnknownReason::UnsupportedByDriver, 6),
            ("queue 7 of eth0", UnknownReason::Absent, 7),
            ("interrupt of queue 1 of eth0", UnknownReason::Absent, 8),
            ("flow rule a of eth0", UnknownReason::Denied { needs: None }, 9),
            ("device.other", UnknownReason::Absent, 10),
        ]
    );
}

#[test]
fn a_device_that_two_sections_select_is_left_alone() {
    let wanted = profile("[device.a]\nname = 'eth0'\nrings.rx = 64\n[device.b]\ndriver = 'i*'\nrings.rx = 128");
    let plan = ProfilePlan::of(&host(1), &wanted);
    assert!(plan.steps.is_empty() && plan.impossible.len() == 1, "{plan:#?}");
}

fn any_device() -> impl Strategy<Value = String> {
    let part = |texts: &'static [&'static str]| prop::sample::select(texts);
    (
        part(&["", "channels.combined = 1", "channels.combined = 3", "channels.combined = 16"]),
        part(&["", "rings = { rx = 64 }", "rings = { rx = 512, tx = 4096 }"]),
        part(&["", "features = { rx-ntuple-filter = true }", "features.rx-gro = true"]),
        part(&["", "coalescing.adaptive-rx = false", "coalescing = { adaptive-rx = false, rx-usecs = 3 }"]),
        part(&[
            "",
            "rss.main.queues = 'all'",
            "rss.main.queues = 0\nrss.own.queues = 0\nonly-these-rss-contexts = true",
        ]),
        part(&["", "flow.a = { protocol = 'udp', port = 53, to-queue = 0 }\nonly-these-flow-rules = true"]),
        part(&["mode = 'base'", "mode = 'suspend20'", "mode = 'threaded'\nthread-cpus = '3'", "xps = 'irq-cpu'", ""]),
        part(&["", "irq-cpus = 'one-per-core'", "irq-cpus = '5'", "irq-cpus = 'default'"]),
        part(&[
            "",
            "rps = false",
            "xps = 'rx-queue'\nrps = false",
            "xps = 'off'",
            "coalescing.rx-usecs = 7\ncoalescing.adaptive-rx = false",
        ]),
    )
        .prop_filter_map("the same key twice", |(a, b, c, d, e, f, g, h, i)| {
            let text = [a, b, c, d, e, f, "[device.nic.queues.all]", g, h, i].join("\n");
            let text = format!("[device.nic]\nname = 'eth0'\n{text}");
            Profile::parse(&[Source::new("test.toml", &text)]).is_ok().then_some(text)
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn any_profile_is_idempotent_and_reversible(first in any_device(), second in any_device(), queues in 1_u32..9) {
        // The first plan creates a state in which no driver starts.
        let start = host(queues);
        let somewhere = after(&ProfilePlan::of(&start, &profile(&first)), &start);
        comes_back(&start, &profile(&first));
        comes_back(&somewhere, &profile(&second));
    }

    #[test]
    fn a_state_printed_as_a_profile_is_restored_by_it(
        first in any_device(), drift in any_device(), queues in 1_u32..9
    ) {
        let state = after(&ProfilePlan::of(&host(queues), &profile(&first)), &host(queues));
        let text = as_profile(&state.snapshot, |_| true).unwrap();
        let printed = profile(&text);
        let again = ProfilePlan::of(&state, &printed);
        prop_assert!(again.steps.is_empty() && again.impossible.is_empty(), "{again:?} {text}");
        let drifted = after(&ProfilePlan::of(&state, &profile(&drift)), &state);
        let back = after(&ProfilePlan::of(&drifted, &printed), &drifted);
        let settings = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(ToOwned::to_owned).collect()
        };
        prop_assert_eq!(settings(&as_profile(&back.snapshot, |_| true).unwrap()), settings(&text));
    }

    #[test]
    fn reversing_a_change_twice_yields_the_change(text in any_device(), queues in 1_u32..9) {
        for step in ProfilePlan::of(&host(queues), &profile(&text)).steps {
            prop_assert_eq!(step.change.inverse().inverse(), step.change.clone());
            let json = serde_json::to_string(&step.change).unwrap();
            prop_assert_eq!(serde_json::from_str::<PlannedChange>(&json).unwrap(), step.change);
        }
    }
}

#[test]
fn the_host_has_the_cpus_that_the_tests_assume() {
    assert_eq!(host(1).snapshot.cpus.housekeeping(), Some(cpus("0-7")));
}

#[test]
fn queues_of_a_link_that_is_down_are_impossible_and_awaited() {
    for queues in ["", "queues = '0-1'"] {
        let profile = on_nic(&format!("[device.nic.queues.some]\nmode = 'defer50'\n{queues}"));
        let mut observed = host(2);
        let nic = &mut observed.snapshot.devices[0];
        nic.is_up = false;
        (nic.rx_queues, nic.tx_queues, nic.napis) =
            (Reading::Known(vec![]), Reading::Known(vec![]), Reading::Known(vec![]));
        let plan = ProfilePlan::of(&observed, &profile);
        assert_eq!((plan.steps.len(), plan.awaited), (0, vec!["eth0".to_owned()]));
        assert!(plan.impossible[0].message.contains("the link is down"), "{:?}", plan.impossible);
        let up = ProfilePlan::of(&host(2), &profile);
        assert_eq!((up.impossible, up.awaited), (vec![], vec![]));
    }
}
