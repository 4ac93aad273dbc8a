//! Verdicts from observations of a queue.

use super::*;

fn seen(packets: u64, polls: u64, by_program: u64) -> EffectOnQueue {
    let napi = NapiId::from_kernel(9000).unwrap();
    EffectOnQueue {
        napi,
        for_ns: 1_000_000_000,
        packets,
        polls,
        by_program,
        by_program_last: 0,
        found_suspended: Some(0),
        by_thread: 0,
        interrupts: None,
        programs_cpu_ns: None,
        programs_cpu_wait_ns: None,
        programs_worked_ns: None,
        wait_p99_ns: None,
        wait_p90_ns: None,
        stalled_polls: 0,
        is_enabled: true,
        is_shared: false,
    }
}

fn unknown() -> NoPollCause {
    NoPollCause::Unknown { seen: "nothing".to_owned() }
}

fn verdict(mode: &str, seen: EffectOnQueue) -> ModeVerdict {
    judge(&mode.parse().unwrap(), &seen, unknown)
}

#[test]
fn a_queue_without_a_poll_is_suspect_if_its_program_runs_and_its_interrupt_is_not_known_to_be_enabled() {
    let for_ns = 200_000_000;
    let suspect = |sample: &QueueSample, programs_cpu_ns| {
        let napi = NapiId::from_kernel(9000).unwrap();
        super::suspect(&EffectOnQueue { programs_cpu_ns, ..EffectOnQueue::of(napi, for_ns, sample) })
    };
    let unpolled = QueueSample::default();
    assert!(suspect(&unpolled, Some(150_000_000)).is_some_and(|why| why.contains("150 ms")));
    assert_eq!(suspect(&unpolled, Some(1_000_000)), None, "an idle program");
    assert_eq!(suspect(&unpolled, None), None);
    let enabled = QueueSample { enabled_ns: for_ns, ..unpolled };
    assert_eq!(suspect(&enabled, Some(for_ns)), None);
    let mut polled = unpolled;
    polled.polls.timer = 1;
    assert_eq!(suspect(&polled, Some(for_ns)), None);
}

#[test]
fn no_packets_give_no_verdict() {
    for mode in ["base", "defer20", "suspend200", "fullbusy", "threaded"] {
        assert!(matches!(verdict(mode, seen(7, 7, 0)), ModeVerdict::CannotTell(_)), "{mode}");
    }
}

#[test]
fn a_polling_mode_is_not_in_effect_if_the_program_never_polls() {
    for mode in ["suspend200", "fullbusy", "napibusy"] {
        assert!(matches!(verdict(mode, seen(10_000, 900, 0)), ModeVerdict::NotInEffect(_)), "{mode}");
    }
}

#[test]
fn a_mode_with_a_poller_is_in_effect_if_the_poller_polls_however_often() {
    assert!(matches!(verdict("userbusy", seen(10_000, 900_000, 899_000)), ModeVerdict::InEffect(text)
        if text.ends_with("polls were by the poller")));
    assert!(matches!(verdict("userbusy", seen(10_000, 9_000, 900)), ModeVerdict::CannotTell(_)));
    assert!(matches!(verdict("userbusy", seen(10_000, 9_000, 0)), ModeVerdict::NotInEffect(_)));
}

#[test]
fn a_cause_is_asked_for_only_if_the_programs_ran_and_never_polled() {
    let of = |mode: &str, seen: EffectOnQueue, cause: NoPollCause| {
        let mut asked = false;
        let verdict = judge(&mode.parse().unwrap(), &seen, || {
            asked = true;
            cause
        });
        (asked, verdict)
    };
    let never = seen(10_000, 900, 0);
    let (asked, verdict) = of("suspend200", never, NoPollCause::NoEpoll);
    let ModeVerdict::NotInEffect(why) = verdict else { panic!("{verdict:?}") };
    assert!(asked && why.contains("(10,000 packets): no epoll of the program") && why.contains("; choose"), "{why}");
    let others = NoPollCause::TrafficOfOthers { names: ["dnsmasq".to_owned()].into() };
    let (_, verdict) = of("suspend200", never, others);
    assert!(matches!(&verdict, ModeVerdict::CannotTell(why) if why.ends_with("dnsmasq has")), "{verdict:?}");
    let idle = EffectOnQueue { programs_cpu_ns: Some(1_000), ..never };
    for (mode, seen) in
        [("suspend200", idle), ("sockpoll50", idle), ("defer20", never), ("fullbusy", seen(10_000, 900, 9))]
    {
        assert!(!of(mode, seen, NoPollCause::NoEpoll).0, "{mode}");
    }
    let polled = NapiId::from_kernel(9_001).unwrap();
    let (_, verdict) = of(
        "sockpoll50",
        never,
        NoPollCause::OfFirstDatagram { polled, is_gone: false, advice: "let the program open one socket" },
    );
    let first = "polls only that of its first datagram (NAPI 9001); let the program open one socket";
    assert!(matches!(&verdict, ModeVerdict::NotInEffect(why) if why.contains(first)), "{verdict:?}");
    let (_, verdict) = of("sockpoll50", never, NoPollCause::NoEpoll);
    let blocking = "its sockets poll in blocking receives, not while";
    assert!(matches!(&verdict, ModeVerdict::NotInEffect(why) if why.contains(blocking)), "{verdict:?}");
}

#[test]
fn packets_that_wait_for_longer_than_the_suspension_lasts_are_no_effect_whoever_polls() {
    // Polls of the watch for stalls count as polls of a program, and find the interrupt suspended.
    let freed = |packets, wait_ns, stalled_polls| EffectOnQueue {
        found_suspended: Some(300),
        programs_cpu_ns: Some(800_000_000),
        programs_cpu_wait_ns: Some(100_000_000),
        wait_p90_ns: Some(wait_ns),
        wait_p99_ns: Some(wait_ns),
        stalled_polls,
        ..seen(packets, 400, 300)
    };
    let not = |seen| match verdict("suspend200", seen) {
        ModeVerdict::NotInEffect(why) => why,
        other => panic!("{other:?}"),
    };
    let why = not(freed(10_000, 107_000_000, 0));
    assert!(why.starts_with("packets waited up to 107 ms (p99), longer than irq-suspend-timeout (20 ms)"), "{why}");
    assert!(why.contains("other findings of `quell doctor`"), "{why}");
    assert!(not(freed(12, 107_000_000, 2)).starts_with("packets waited up to"), "few packets, but again and again");
    let hiccup = freed(12, 107_000_000, 1);
    assert!(matches!(verdict("suspend200", hiccup), ModeVerdict::CannotTell(_)));
    let batches = freed(10_000, 22_500_000, 0);
    assert!(matches!(verdict("suspend200", batches), ModeVerdict::InEffect(_)), "the timer polls meanwhile");
    let spike = EffectOnQueue { wait_p90_ns: Some(90_000), ..freed(10_000, 60_000_000, 1) };
    assert!(matches!(verdict("suspend200", spike), ModeVerdict::InEffect(_)));
    let starved = EffectOnQueue { programs_cpu_wait_ns: Some(900_000_000), ..freed(10_000, 107_000_000, 9) };
    assert!(matches!(verdict("suspend200", starved), ModeVerdict::CannotTell(why) if why.contains("for a CPU")));
    let unknown = EffectOnQueue { programs_cpu_wait_ns: None, ..freed(10_000, 107_000_000, 9) };
    assert!(matches!(verdict("suspend200", unknown), ModeVerdict::CannotTell(_)));
    assert!(matches!(verdict("fullbusy", freed(10_000, 107_000_000, 9)), ModeVerdict::InEffect(_)));
}

#[test]
fn packets_that_wait_have_the_cause_that_explains_a_stall() {
    let overdue = EffectOnQueue {
        programs_cpu_ns: Some(800_000_000),
        programs_cpu_wait_ns: Some(0),
        wait_p99_ns: Some(107_000_000),
        stalled_polls: 5,
        ..seen(60, 5, 5)
    };
    let polled = NapiId::from_kernel(9_001).unwrap();
    let said = |cause| match judge(&"suspend200".parse().unwrap(), &overdue, || cause) {
        ModeVerdict::NotInEffect(why) => why,
        other => panic!("{other:?}"),
    };
    assert!(
        said(NoPollCause::OfFirstDatagram { polled, is_gone: false, advice: "let the program open one socket" })
            .contains("only that of its first datagram")
    );
    assert!(!said(NoPollCause::NoEpoll).contains("no epoll"), "threads at work are in no epoll");
}

#[test]
fn a_suspended_queue_without_a_poll_is_suspect_in_each_verdict() {
    let unpolled = EffectOnQueue { is_enabled: false, programs_cpu_ns: Some(800_000_000), ..seen(0, 0, 0) };
    assert!(matches!(verdict("suspend200", unpolled), ModeVerdict::CannotTell(why) if why.starts_with("suspect:")));
    assert!(matches!(verdict("defer200", unpolled), ModeVerdict::CannotTell(why) if why.starts_with("no packet")));
}

#[test]
fn suspension_is_judged_by_the_polls_of_the_program() {
    let found =
        |found_suspended| EffectOnQueue { found_suspended: Some(found_suspended), ..seen(10_000, 9_000, 1_000) };
    assert!(matches!(verdict("suspend200", found(990)), ModeVerdict::InEffect(_)));
    assert!(matches!(verdict("suspend200", found(3)), ModeVerdict::CannotTell(_)));
    assert!(matches!(verdict("suspend200", found(0)), ModeVerdict::NotInEffect(_)));
}

#[test]
fn a_verdict_explains_many_polls_by_the_kernel() {
    let found = |packets, polls| EffectOnQueue {
        found_suspended: Some(990),
        by_program_last: 500,
        ..seen(packets, polls, 1_000)
    };
    let said = |seen| match verdict("suspend200", seen) {
        ModeVerdict::InEffect(text) => text,
        other => panic!("{other:?}"),
    };
    let (many, few) = (said(found(10_000, 9_000)), said(found(80_000, 9_000)));
    let of_all = "the kernel itself polled at least 7,500 times";
    assert!(many.contains("the queue runs empty at this load: ") && many.contains(of_all), "{many}");
    assert!(!few.contains("runs dry") && few.contains(of_all), "{few}");
}

#[test]
fn socket_polling_is_in_effect_unless_the_server_waits_in_an_epoll() {
    assert!(matches!(verdict("sockpoll50", seen(10_000, 9_000, 8_000)), ModeVerdict::InEffect(_)));
    assert!(matches!(verdict("sockpoll50", seen(10_000, 9_000, 80)), ModeVerdict::CannotTell(_)));
    let ModeVerdict::NotInEffect(why) = verdict("sockpoll50", seen(10_000, 9_000, 0)) else { panic!("it is not") };
    assert!(why.contains("not while a thread waits in epoll_wait"), "{why}");
}

#[test]
fn the_last_poll_of_a_busy_poll_is_one_of_the_program() {
    let each = EffectOnQueue { by_program_last: 3_000, ..seen(10_000, 9_000, 3_000) };
    for mode in ["fullbusy", "napibusy", "sockpoll50"] {
        assert!(matches!(verdict(mode, each), ModeVerdict::InEffect(_)), "{mode}");
    }
    let last = EffectOnQueue { by_program_last: 400, ..seen(10_000, 1_000, 0) };
    assert!(matches!(verdict("base", last), ModeVerdict::NotInEffect(_)));
}

#[test]
fn a_program_that_did_not_run_for_the_packets_of_its_queue_is_not_judged() {
    let with = |programs_cpu_ns, seen| EffectOnQueue { programs_cpu_ns, ..seen };
    for mode in ["suspend200", "fullbusy", "sockpoll50"] {
        let unpolled = |cpu_ns| verdict(mode, with(cpu_ns, seen(10_000, 900, 0)));
        let ModeVerdict::CannotTell(why) = unpolled(Some(3_200_000)) else { panic!("{mode}") };
        assert!(why.starts_with("other traffic on the queue: the program used 3.2 ms of CPU time for 10,000"), "{why}");
        assert!(matches!(unpolled(Some(10_000_000)), ModeVerdict::NotInEffect(_)), "{mode}");
        assert!(matches!(unpolled(None), ModeVerdict::NotInEffect(_)), "{mode}");
    }
    let idle = with(Some(50_000), seen(10_000, 9_000, 30));
    assert!(matches!(verdict("suspend200", idle), ModeVerdict::CannotTell(_)));
    assert!(matches!(
        suspension_of(&with(Some(0), seen(10_000, 900, 0)), 20_000_000, unknown).0,
        ModeVerdict::CannotTell(_)
    ));
    assert!(matches!(suspension_of(&seen(10_000, 900, 0), 20_000_000, unknown).0, ModeVerdict::NotInEffect(_)));
}

#[test]
fn socket_polling_is_not_judged_by_suspension() {
    let mode = "sockpoll50,defer-hard-irqs=100,gro-flush-timeout=20us";
    assert!(matches!(verdict(mode, seen(10_000, 9_000, 8_000)), ModeVerdict::InEffect(_)));
}

#[test]
fn suspension_without_enough_evidence_is_not_judged() {
    assert!(matches!(verdict("suspend200", seen(10_000, 9_000, 5)), ModeVerdict::CannotTell(_)));
    let blind = EffectOnQueue { found_suspended: None, ..seen(10_000, 9_000, 1_000) };
    assert!(matches!(verdict("suspend200", blind), ModeVerdict::CannotTell(_)));
}

#[test]
fn deferral_is_judged_by_interrupts_only() {
    assert!(matches!(verdict("defer20", seen(10_000, 300, 0)), ModeVerdict::CannotTell(_)));
    let few = EffectOnQueue { interrupts: Some(4), ..seen(10_000, 300, 0) };
    assert!(matches!(verdict("defer20", few), ModeVerdict::InEffect(_)));
    let many = EffectOnQueue { interrupts: Some(8_000), ..few };
    assert!(matches!(verdict("defer20", many), ModeVerdict::CannotTell(_)));
}

#[test]
fn threaded_delivery_is_judged_by_polls_of_the_thread() {
    let by_thread = EffectOnQueue { by_thread: 990, ..seen(10_000, 1_000, 0) };
    assert!(matches!(verdict("threaded", by_thread), ModeVerdict::InEffect(_)));
    assert!(matches!(verdict("threaded", seen(10_000, 1_000, 0)), ModeVerdict::NotInEffect(_)));
}

#[test]
fn base_is_in_effect_when_no_program_polls() {
    assert!(matches!(verdict("base", seen(10_000, 1_000, 0)), ModeVerdict::InEffect(_)));
    assert!(matches!(verdict("base", seen(10_000, 1_000, 400)), ModeVerdict::NotInEffect(_)));
}
