//! Samples polls on the live kernel, in a veth lab: each delivery mode has its poller and its waits.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell_linux::NapiId;
use quell_linux::epoll_params::EpollParams;
use quell_linux::event::Trigger;
use quell_linux::io_uring::NapiPoller;
use quell_linux::netdev::{NapiThreading, PartialNapiSettings};
use quell_linux::proc::ProcRoot;
use quell_sampler::{QueueSample, STALLED_NS, Sampler, SamplerError, Unsampled};
use quell_test_support::lab::{ARRIVES_WITHIN, PREFER, TestLab, UdpProgram};
use quell_test_support::{Lacks, entry, skip, wait_until};

/// Attaches a sampler to these instances. Returns `None` and records the test as skipped if this is not possible here.
fn sampler_of(napis: &[NapiId]) -> Option<Sampler> {
    match Sampler::attach(Path::new("/sys")) {
        Err(error @ (SamplerError::Denied { .. } | SamplerError::Unsupported(_))) => {
            skip(Lacks::Root, &error);
            None
        }
        sampler => {
            let mut sampler = sampler.unwrap();
            sampler.select(napis.iter().copied().collect()).unwrap();
            Some(sampler)
        }
    }
}

fn sample(sampler: &Sampler, napi: NapiId) -> QueueSample {
    sampler.read().unwrap()[&napi].since(None)
}

/// Sends datagrams one by one. Each is sent after the previous one was received.
fn exchange(program: &UdpProgram, datagrams: u32) {
    for _ in 0..datagrams {
        program.send(1);
        assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(1));
    }
}

const DATAGRAMS: u32 = 50;
/// Address resolution and IPv6 add a few packets to the datagrams.
const OTHER_PACKETS: u64 = 20;

const DEFERRING: PartialNapiSettings = PartialNapiSettings {
    defer_hard_irqs: Some(1_000_000),
    gro_flush_timeout_ns: Some(2_000_000),
    irq_suspend_timeout_ns: Some(0),
    threaded: None,
};

const SUSPENDING: PartialNapiSettings =
    PartialNapiSettings { irq_suspend_timeout_ns: Some(1_000_000_000), ..DEFERRING };

#[test]
fn a_kernel_without_btf_is_unsupported() {
    let empty = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(matches!(Sampler::attach(empty), Err(SamplerError::Unsupported(_))));
}

#[test]
fn without_deferral_the_interrupt_polls_and_no_wait_is_bounded() {
    let Some(lab) = TestLab::raise("smp-base", 1) else { return };
    let Some(sampler) = sampler_of(&lab.napis) else { return };
    let program = UdpProgram::start(&lab, Trigger::Level);
    exchange(&program, DATAGRAMS);
    let seen = sample(&sampler, lab.napis[0]);
    assert!(seen.packets > DATAGRAMS.into(), "{seen:?}");
    assert_eq!(seen.polls.total(), seen.polls.interrupt + seen.polls.ksoftirqd + seen.polls.rescheduled, "{seen:?}");
    assert!(seen.polls.interrupt > 0 && seen.wait.interrupt_packets > seen.wait.packets, "{seen:?}");
    assert_eq!(seen.wait.interrupt_packets + seen.wait.packets, seen.packets, "{seen:?}");
    assert!(seen.enabled_ns > 0, "{seen:?}");
}

#[test]
fn with_deferral_the_timer_polls_and_packets_waited_up_to_its_period() {
    let Some(lab) = TestLab::raise("smp-defer", 1) else { return };
    let program = UdpProgram::start(&lab, Trigger::Level);
    lab.set_napi(&DEFERRING);
    // Its poll completes with the new settings.
    exchange(&program, 1);
    let Some(sampler) = sampler_of(&lab.napis) else { return };
    exchange(&program, DATAGRAMS);
    let seen = sample(&sampler, lab.napis[0]);
    assert!(seen.polls.timer > u64::from(DATAGRAMS) / 2, "{seen:?}");
    assert!(seen.wait.packets + OTHER_PACKETS > seen.packets && seen.wait.packets > 0, "{seen:?}");
    let period_ns = DEFERRING.gro_flush_timeout_ns.unwrap();
    assert!(seen.wait.p50_ns.unwrap() >= period_ns && seen.wait.mean_ns.unwrap() >= period_ns / 2, "{seen:?}");
    assert!(seen.masked_ns > seen.enabled_ns, "{seen:?}");
}

#[test]
fn a_watch_knows_the_state_of_the_interrupt_from_the_last_poll() {
    let Some(lab) = TestLab::raise("smp-watch", 1) else { return };
    let Some(sampler) = sampler_of(&lab.napis) else { return };
    let program = UdpProgram::start(&lab, Trigger::Level);
    let napi = lab.napis[0];
    let watch = Sampler::watching(Path::new("/sys"), lab.napis.iter().copied().collect()).unwrap();
    let becomes = |expected: bool| {
        wait_until(|| match watch.read().unwrap()[&napi].interrupt_enabled() {
            enabled if enabled == Some(expected) => Ok(()),
            other => Err(format!("{other:?}, not {expected}")),
        });
    };
    exchange(&program, DATAGRAMS);
    becomes(true);
    let seen = sample(&watch, napi);
    assert!(seen.packets >= DATAGRAMS.into() && seen.packets <= sample(&sampler, napi).packets, "{seen:?}");
    assert_eq!((seen.enabled_ns, seen.wait.packets), (0, 0), "it reads no clock");
    lab.set_napi(&DEFERRING);
    exchange(&program, 1);
    becomes(false);
    lab.set_napi(&PartialNapiSettings { defer_hard_irqs: Some(3), ..DEFERRING });
    exchange(&program, 1);
    becomes(true);
}

#[test]
fn polls_by_the_napi_thread_are_its_own() {
    let Some(lab) = TestLab::raise("smp-thread", 1) else { return };
    let program = UdpProgram::start(&lab, Trigger::Level);
    lab.set_napi(&PartialNapiSettings { threaded: Some(NapiThreading::Enabled), ..PartialNapiSettings::default() });
    let Some(sampler) = sampler_of(&lab.napis) else { return };
    exchange(&program, DATAGRAMS);
    let seen = sample(&sampler, lab.napis[0]);
    assert!(seen.packets >= DATAGRAMS.into() && seen.polls.thread == seen.polls.total(), "{seen:?}");
    assert_eq!(seen.softirq_ns, Some(0));
}

#[test]
fn the_cpu_time_of_softirqs_is_that_of_their_polls() {
    /// The sampler times one of so many softirqs.
    const PER_TIMED: u128 = 8;
    let Some(lab) = TestLab::raise("smp-softirq", 1) else { return };
    let program = UdpProgram::start(&lab, Trigger::Level);
    let began = Instant::now();
    let Some(sampler) = sampler_of(&lab.napis) else { return };
    let spent_ns = wait_until(|| {
        exchange(&program, DATAGRAMS);
        let seen = sample(&sampler, lab.napis[0]);
        seen.softirq_ns.filter(|&ns| ns > 0).ok_or_else(|| format!("{seen:?}"))
    });
    // One CPU polls a queue at a time.
    assert!(u128::from(spent_ns) < PER_TIMED * began.elapsed().as_nanos(), "{spent_ns} ns");
}

#[test]
fn without_the_program_at_softirqs_their_cpu_time_is_absent_and_the_interrupt_has_its_time() {
    let Some(lab) = TestLab::raise("smp-untimed", 1) else { return };
    if sampler_of(&[]).is_none() {
        return;
    }
    let program = UdpProgram::start(&lab, Trigger::Level);
    let began = Instant::now();
    let sampler = Sampler::of(Path::new("/sys"), lab.napis.clone()).unwrap();
    exchange(&program, DATAGRAMS);
    let seen = sample(&sampler, lab.napis[0]);
    assert_eq!((seen.packets > 0, seen.softirq_ns), (true, None));
    assert!(seen.enabled_ns > 0, "{seen:?}");
    // No time has two states.
    assert!(u128::from(seen.enabled_ns + seen.masked_ns) <= began.elapsed().as_nanos(), "{seen:?}");
}

/// An address of the lab's network that no device has.
const NOBODY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 99);

/// Makes both ends of the lab route datagrams to [`NOBODY`] to each other, until their TTL is used up.
fn route_in_circles(lab: &TestLab) {
    // Each end answers ARP requests of the other for `NOBODY`. The client accepts its own address as a source.
    let settings = ["forwarding", "proxy_arp_pvlan", "accept_local"];
    for namespace in [&lab.server, &lab.client] {
        for setting in settings {
            let name = format!("net.ipv4.conf.all.{setting}").parse().unwrap();
            namespace.run(|| ProcRoot::default().set_sysctl(&name, "1")).unwrap().unwrap();
        }
    }
}

#[test]
fn polls_of_softirqs_that_take_too_long_are_those_of_ksoftirqd() {
    let Some(lab) = TestLab::raise("smp-ksoftirqd", 1) else { return };
    let Some(sampler) = sampler_of(&lab.napis) else { return };
    route_in_circles(&lab);
    let sender = lab.client.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap().unwrap();
    sender.set_ttl(u8::MAX.into()).unwrap();
    wait_until(|| {
        // The softirqs of one CPU forward each of them 254 times. After 2 ms (MAX_SOFTIRQ_TIME), ksoftirqd goes on.
        for _ in 0..200 {
            sender.send_to(&[1], (NOBODY, 9)).unwrap();
        }
        let seen = sample(&sampler, lab.napis[0]);
        if seen.polls.ksoftirqd > 0 { Ok(()) } else { Err(format!("{seen:?}")) }
    });
}

/// Polls of a queue whose program waits with preferred busy polling. Each datagram arrives before the program waits.
fn of_a_waiting_program(test: &str, busy_poll_budget: u16, napi: PartialNapiSettings) -> Option<QueueSample> {
    let lab = TestLab::raise(test, 1)?;
    let mut program = UdpProgram::start(&lab, Trigger::Level);
    program.set_epoll(EpollParams { busy_poll_budget, ..PREFER });
    lab.set_napi(&napi);
    let sampler = sampler_of(&lab.napis)?;
    for _ in 0..DATAGRAMS {
        program.send(1);
        assert!(program.has_event_within(ARRIVES_WITHIN));
        assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(1));
        // Busy polls, because no event is ready.
        program.has_event_within(Duration::from_millis(1));
    }
    Some(sample(&sampler, lab.napis[0]))
}

#[test]
fn a_queue_that_nobody_polled_has_stalled_and_a_saturated_one_has_not() {
    /// More than the polls of this test find.
    const IN_THE_RING: u8 = 100;
    const STALLED: Duration = Duration::from_nanos(STALLED_NS);
    let Some(lab) = TestLab::raise("smp-stall", 1) else { return };
    let Some(mut sampler) = sampler_of(&lab.napis) else { return };
    let mut program = UdpProgram::start(&lab, Trigger::Edge);
    // Each poll of the program finds one packet, and leaves the others in the ring.
    program.set_epoll(EpollParams { busy_poll_budget: 1, ..PREFER });
    lab.set_napi(&PartialNapiSettings { irq_suspend_timeout_ns: Some(60_000_000_000), ..DEFERRING });
    wait_until(|| {
        sampler.select(BTreeSet::new()).unwrap();
        sampler.select(lab.napis.iter().copied().collect()).unwrap();
        // Ends after a time without a poll, with a datagram in the ring.
        program.hold();
        (0..IN_THE_RING).for_each(|word| program.send(word));
        assert!(program.has_event_within(ARRIVES_WITHIN));
        let (held, since) = (sampler.read().unwrap().remove(&lab.napis[0]).unwrap(), Instant::now());
        (0..5).for_each(|_| assert!(program.has_event_within(ARRIVES_WITHIN)));
        let saturated = sampler.read().unwrap()[&lab.napis[0]].since(Some(&held));
        let elapsed = since.elapsed();
        while program.receives_within(Duration::from_millis(1)).is_some() {}
        let held = held.since(None);
        assert!(held.wait.has_stalled(), "{held:?}");
        if elapsed >= STALLED || saturated.budget_exhausted < saturated.polls.total() {
            return Err(format!("the queue was not saturated: {elapsed:?}, {saturated:?}"));
        }
        assert_eq!(saturated.wait.max_ns, None, "it grew to {elapsed:?}, whatever a packet waited");
        assert!(!saturated.wait.has_stalled(), "{saturated:?}");
        Ok(())
    });
}

#[test]
fn polls_by_a_program_with_suspended_interrupt_are_counted() {
    let Some(suspended) = of_a_waiting_program("smp-susp", 64, SUSPENDING) else { return };
    let found = suspended.program_found_suspended.unwrap();
    assert!(found > 0 && found <= suspended.polls.program && suspended.suspended_ns > 0, "{suspended:?}");
    let Some(deferred) = of_a_waiting_program("smp-prefer", 64, DEFERRING) else { return };
    assert!(deferred.polls.program > 0, "{deferred:?}");
    assert_eq!((deferred.program_found_suspended, deferred.suspended_ns), (Some(0), 0), "{deferred:?}");
}

#[test]
fn time_until_the_timeout_of_a_suspension_is_suspended_time() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let Some(lab) = TestLab::raise("smp-timeout", 1) else { return };
    let mut program = UdpProgram::start(&lab, Trigger::Level);
    program.set_epoll(PREFER);
    let irq_suspend_timeout_ns = Some(TIMEOUT.as_nanos() as u64);
    lab.set_napi(&PartialNapiSettings { irq_suspend_timeout_ns, ..DEFERRING });
    let Some(sampler) = sampler_of(&lab.napis) else { return };
    program.hold();
    let held = sampler.read().unwrap().remove(&lab.napis[0]).unwrap();
    // The timer polls, because the program does not wait again.
    assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(2));
    let seen = sampler.read().unwrap()[&lab.napis[0]].since(Some(&held));
    assert!(seen.polls.timer > 0 && seen.program_found_suspended == Some(0), "{seen:?}");
    assert!(seen.suspended_ns >= TIMEOUT.as_nanos() as u64, "{seen:?}");
}

#[test]
fn an_interrupt_without_deferral_is_not_suspended_although_the_timer_runs() {
    let undeferring = PartialNapiSettings { defer_hard_irqs: Some(0), ..SUSPENDING };
    let Some(undeferred) = of_a_waiting_program("smp-undefer", 64, undeferring) else { return };
    assert!(undeferred.polls.program > 0, "{undeferred:?}");
    assert_eq!((undeferred.program_found_suspended, undeferred.suspended_ns), (Some(0), 0), "{undeferred:?}");
}

#[test]
fn the_poll_after_a_loop_is_not_one_of_the_loop() {
    let Some(narrow) = of_a_waiting_program("smp-last", 32, DEFERRING) else { return };
    if narrow.polls.program_last == 0 {
        return skip(Lacks::Machine, "this kernel ends busy-poll loops without a final poll (Linux 7.3)");
    }
    // A loop has at least one poll before it.
    assert!(narrow.polls.program_last <= narrow.polls.program, "{narrow:?}");
}

#[test]
fn an_instance_that_does_not_exist_has_no_polls() {
    let absent = NapiId::from_kernel(u32::MAX).unwrap();
    let Some(sampler) = sampler_of(&[absent]) else { return };
    let seen = sample(&sampler, absent);
    assert_eq!((seen.polls.total(), seen.packets, seen.enabled_ns, seen.masked_ns), (0, 0, 0, 0), "{seen:?}");
}

#[test]
#[ignore = "entry point of the process that the test of missing capabilities starts"]
fn the_process_without_capabilities() {
    match Sampler::attach(Path::new("/sys")) {
        Err(error @ SamplerError::Denied { .. }) => assert!(error.to_string().contains("CAP_BPF"), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_capabilities_the_error_names_them() {
    if sampler_of(&[]).is_none() {
        return;
    }
    let mut command = Command::new("setpriv");
    command.args(["--inh-caps=-all", "--bounding-set=-all"]).arg(std::env::current_exe().unwrap());
    command.args(entry(the_process_without_capabilities));
    match command.output() {
        Err(error) => skip(Lacks::Tool("setpriv"), &error),
        Ok(said) => assert!(said.status.success(), "{said:?}"),
    }
}

#[test]
fn only_selected_instances_are_counted_and_a_new_selection_begins_at_zero() {
    let Some(lab) = TestLab::raise("smp-select", 2) else { return };
    let Some(mut sampler) = sampler_of(&lab.napis) else { return };
    let program = UdpProgram::start(&lab, Trigger::Level);
    exchange(&program, DATAGRAMS);
    let all = sampler.read().unwrap();
    assert_eq!(all.keys().copied().collect::<Vec<_>>(), lab.napis);
    let busiest = *lab.napis.iter().max_by_key(|napi| all[napi].since(None).packets).unwrap();
    sampler.select(BTreeSet::new()).unwrap();
    assert!(sampler.read().unwrap().is_empty());
    exchange(&program, 1);
    sampler.select([busiest].into()).unwrap();
    exchange(&program, 1);
    let seen = sample(&sampler, busiest);
    assert!(seen.packets >= 1 && seen.packets < all[&busiest].since(None).packets, "{seen:?}");
}

#[test]
fn instances_that_do_not_fit_are_left_out_with_the_reason_and_the_others_are_counted() {
    let Some(lab) = TestLab::raise("smp-fit", 1) else { return };
    let Some(mut sampler) = sampler_of(&lab.napis) else { return };
    let napi = lab.napis[0];
    let id = |number: u32| NapiId::from_kernel(number).unwrap();
    let same_slot = id(napi.get() + (1 << 16));
    let unsampled = sampler.select([napi, same_slot].into()).unwrap();
    assert_eq!(unsampled, [(same_slot, Unsampled::EqualSlots)].into());
    let program = UdpProgram::start(&lab, Trigger::Level);
    exchange(&program, DATAGRAMS);
    assert!(sample(&sampler, napi).packets > 0);
    // The selected instance keeps its place among many.
    let many: BTreeSet<NapiId> = (napi.get()..napi.get() + 4_100).map(id).collect();
    let unsampled = sampler.select(many.clone()).unwrap();
    assert_eq!(unsampled.len(), 4, "{unsampled:?}");
    assert!(unsampled.values().all(|why| *why == Unsampled::TooMany) && !unsampled.contains_key(&napi));
    assert_eq!(sampler.read().unwrap().len(), 4_096);
    assert!(sampler.select_all(many).unwrap_err().to_string().contains("4,096 other instances"));
    assert!(sampler.select([napi].into()).unwrap().is_empty(), "room again");
}

#[test]
fn a_poller_by_napi_id_polls_instead_of_the_timer_and_polls_are_those_of_a_program() {
    let Some(lab) = TestLab::raise("smp-poller", 1) else { return };
    let napi = lab.napis[0];
    let program = UdpProgram::start(&lab, Trigger::Level);
    lab.set_napi(&DEFERRING);
    exchange(&program, 1);
    let Some(sampler) = sampler_of(&lab.napis) else { return };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let polls = scope.spawn(|| {
            let poller = NapiPoller::new(Duration::from_micros(200)).unwrap();
            poller.add(napi).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                poller.poll().unwrap();
            }
            poller.remove(napi).unwrap();
        });
        wait_until(|| if sample(&sampler, napi).polls.program > 0 { Ok(()) } else { Err("no poll yet".to_owned()) });
        exchange(&program, DATAGRAMS);
        is_over.store(true, Ordering::Relaxed);
        polls.join().unwrap();
    });
    let with = sample(&sampler, napi);
    assert!(with.polls.program > with.packets && with.polls.timer < with.packets / 2, "{with:?}");

    exchange(&program, DATAGRAMS);
    let without = sampler.read().unwrap()[&napi].since(None);
    assert_eq!(without.polls.program, with.polls.program, "nobody polls any more: {without:?}");
    assert!(without.polls.timer >= with.polls.timer + u64::from(DATAGRAMS) / 2, "{without:?}");
}
