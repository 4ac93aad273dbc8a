//! Settings, requirements and concerns of each mode.

use std::time::Duration;

use quell_mode::{Concern, DeliveryMode, EpollParams, NapiSettings, ProgramWait, Requirement, Threaded};

fn mode(text: &str) -> DeliveryMode {
    text.parse().expect("a mode of the table")
}

fn napi(
    defer_hard_irqs: u32,
    gro_flush_timeout_us: u64,
    irq_suspend_timeout_ms: u64,
    threaded: Threaded,
) -> NapiSettings {
    NapiSettings {
        defer_hard_irqs,
        gro_flush_timeout_ns: gro_flush_timeout_us * 1_000,
        irq_suspend_timeout_ns: irq_suspend_timeout_ms * 1_000_000,
        threaded,
    }
}

fn epoll(busy_poll_usecs: u32, busy_poll_budget: u16, prefer: u8) -> Option<EpollParams> {
    Some(EpollParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll: prefer == 1 })
}

#[test]
fn each_mode_has_the_settings_of_its_row() {
    use Threaded::{BusyPoll, Off, Thread};
    let rows = [
        ("base", napi(0, 0, 0, Off), epoll(0, 0, 0)),
        ("defer20", napi(100, 20, 0, Off), epoll(0, 0, 0)),
        ("defer200", napi(100, 200, 0, Off), epoll(0, 0, 0)),
        ("napibusy", napi(100, 200, 0, Off), epoll(64, 64, 1)),
        ("fullbusy", napi(100, 5_000, 0, Off), epoll(1000, 64, 1)),
        ("suspend20", napi(100, 20, 20, Off), epoll(0, 64, 1)),
        ("threaded", napi(0, 0, 0, Thread), None),
        ("threadedbusy", napi(0, 0, 0, BusyPoll), None),
        ("userbusy", napi(100, 1_000, 0, Off), None),
        ("sockpoll50", napi(0, 0, 0, Off), None),
        ("eventspin50", napi(0, 0, 0, Off), None),
    ];
    for (text, napi, epoll) in rows {
        assert_eq!(mode(text).napi(), napi, "{text}");
        assert_eq!(mode(text).epoll(), epoll, "{text}");
        assert_eq!(mode(text).concerns(), [], "{text}");
    }
}

#[test]
fn fullbusy_shortens_waits_and_eventspin_spins() {
    assert_eq!(mode("fullbusy").program_wait(), ProgramWait::AtMost(Duration::from_millis(1)));
    assert_eq!(mode("eventspin50").program_wait(), ProgramWait::SpinBeforeSleep(Duration::from_micros(50)));
    for text in ["base", "defer20", "napibusy", "suspend20", "threaded", "sockpoll50"] {
        assert_eq!(mode(text).program_wait(), ProgramWait::AsWritten, "{text}");
    }
}

#[test]
fn only_sockpoll_sets_the_sockets() {
    let usecs = |text| mode(text).socket_busy_poll().map(|usecs| usecs.get());
    assert_eq!(usecs("sockpoll50"), Some(50));
    assert_eq!(usecs("fullbusy"), None);
}

#[test]
fn base_has_no_requirements() {
    assert_eq!(mode("base").requirements(), []);
    assert_eq!(DeliveryMode::default(), mode("base"));
}

#[test]
fn each_mode_requires_what_it_uses() {
    use Requirement::*;
    let rows: [(&str, &[Requirement]); 9] = [
        ("defer20", &[NapiDeferral, NetAdminForNapi]),
        ("napibusy", &[NapiDeferral, EpollParameters, NetAdminForNapi]),
        ("fullbusy", &[NapiDeferral, EpollParameters, NetAdminForNapi, ShorterWaits]),
        ("suspend20", &[NapiDeferral, IrqSuspension, EpollParameters, NetAdminForNapi]),
        ("threaded", &[ThreadedNapi, NetAdminForNapi]),
        ("threadedbusy", &[ThreadedBusyPoll, NetAdminForNapi]),
        ("userbusy", &[NapiDeferral, PollingByNapiId, NetAdminForNapi]),
        ("eventspin50", &[SpinBeforeSleep]),
        ("sockpoll50", &[SocketBusyPoll]),
    ];
    for (text, needed) in rows {
        assert_eq!(mode(text).requirements(), needed, "{text}");
    }
}

#[test]
fn a_budget_above_64_is_accepted_and_requires_a_capability() {
    let needs = |text| mode(text).requirements().contains(&Requirement::NetAdminForBudget);
    assert!(!needs("napibusy,busy-poll-budget=64"));
    assert!(needs("napibusy,busy-poll-budget=65"));
    assert!(needs("napibusy,busy-poll-budget=65535"));
}

#[test]
fn deferral_with_one_of_its_two_values_is_a_concern() {
    for text in ["base,defer-hard-irqs=100", "base,gro-flush-timeout=20us"] {
        assert_eq!(mode(text).concerns(), [Concern::DeferralIncomplete], "{text}");
    }
}

#[test]
fn prefer_without_deferral_is_a_concern() {
    assert_eq!(mode("base,prefer-busy-poll=1").concerns(), [Concern::PreferWithoutDeferral]);
}

#[test]
fn a_suspend_timeout_not_above_the_flush_timeout_is_a_concern() {
    let concern = [Concern::SuspendTimeoutNotAboveGroFlush];
    assert_eq!(mode("suspend20,irq-suspend-timeout=20us").concerns(), concern);
    assert_eq!(mode("suspend20000").concerns(), concern);
    assert_eq!(mode("suspend20,irq-suspend-timeout=20001").concerns(), []);
}

#[test]
fn settings_are_serialized_with_the_names_of_the_kernel() {
    let json = serde_json::to_string(&mode("suspend20").napi()).unwrap();
    assert_eq!(
        json,
        "{\"defer-hard-irqs\":100,\"gro-flush-timeout\":20000,\
         \"irq-suspend-timeout\":20000000,\"threaded\":\"off\"}"
    );
    assert_eq!(serde_json::from_str::<NapiSettings>(&json).unwrap(), mode("suspend20").napi());
}

#[test]
fn threaded_has_the_values_of_the_kernel() {
    for number in 0..3 {
        let threaded = Threaded::from_kernel_value(number).unwrap();
        assert_eq!(threaded.kernel_value(), number);
    }
    assert_eq!(Threaded::from_kernel_value(3), None);
}
