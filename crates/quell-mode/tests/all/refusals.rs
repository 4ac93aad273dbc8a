//! Tests of invalid texts: the reason of the error, and the bytes that it refers to.

use quell_mode::{DeliveryMode, ModeRefusal, ParseModeError, SettingKey};

fn refused(text: &str) -> ParseModeError {
    match text.parse::<DeliveryMode>() {
        Ok(mode) => panic!("{text} is accepted as {mode}"),
        Err(error) => error,
    }
}

/// Asserts that a text is rejected for this reason, and that the error refers to `place`.
#[track_caller]
fn assert_refused(text: &str, place: &str, refusal: ModeRefusal) {
    let error = refused(text);
    assert_eq!(error.refusal(), &refusal);
    assert_eq!(&text[error.span()], place);
}

#[test]
fn an_empty_text_is_refused() {
    assert_refused("", "", ModeRefusal::Empty);
    assert_refused(",threaded=1", "", ModeRefusal::Empty);
}

#[test]
fn an_unknown_name_is_refused_with_the_most_similar_one() {
    let unknown = |word: &str, nearest: Option<&str>| ModeRefusal::UnknownMode {
        word: word.to_owned(),
        nearest: nearest.map(str::to_owned),
    };
    assert_refused("suspned20", "suspned", unknown("suspned", Some("suspend20")));
    assert_refused("suspen", "suspen", unknown("suspen", Some("suspend20")));
    assert_refused("bace20", "bace", unknown("bace", Some("base")));
    assert_refused("Base", "Base", unknown("Base", Some("base")));
    assert_refused("threadbusy", "threadbusy", unknown("threadbusy", Some("threadedbusy")));
    assert_refused("interrupts", "interrupts", unknown("interrupts", None));
    assert_refused("20", "", unknown("", None));
}

#[test]
fn a_missing_number_is_refused() {
    for mode in ["defer", "suspend", "sockpoll", "eventspin"] {
        assert_refused(mode, "", ModeRefusal::NumberMissing { mode });
        assert_eq!(refused(mode).span(), mode.len()..mode.len());
    }
}

#[test]
fn a_number_after_a_name_that_takes_none_is_refused() {
    for mode in ["base", "napibusy", "fullbusy", "threaded", "threadedbusy"] {
        assert_refused(&format!("{mode}20"), "20", ModeRefusal::NumberNotTaken { mode });
    }
}

#[test]
fn zero_microseconds_are_refused() {
    assert_refused("defer0", "0", ModeRefusal::NumberZero { mode: "defer" });
    assert_refused("suspend0.000", "0.000", ModeRefusal::NumberZero { mode: "suspend" });
    assert_refused("sockpoll0", "0", ModeRefusal::NumberZero { mode: "sockpoll" });
}

#[test]
fn a_malformed_number_is_refused() {
    for number in ["20us", "2e3", "1.", "1.2.3", "0.0001", "20 "] {
        let error = refused(&format!("defer{number}"));
        assert!(matches!(error.refusal(), ModeRefusal::NumberMalformed { .. }), "{error}");
        assert_eq!(error.span(), 5..5 + number.len());
    }
    let error = refused("eventspin0.5");
    assert!(matches!(error.refusal(), ModeRefusal::NumberMalformed { .. }), "{error}");
}

#[test]
fn a_number_above_the_limit_of_the_kernel_is_refused() {
    for text in ["defer18446744073709552", "defer99999999999999999999999", "sockpoll2147483648", "eventspin4294967296"]
    {
        let error = refused(text);
        assert!(matches!(error.refusal(), ModeRefusal::NumberTooLarge { .. }), "{error}");
    }
}

#[test]
fn an_unknown_setting_is_refused_with_the_most_similar_one() {
    let unknown = |word: &str, nearest| ModeRefusal::UnknownSetting { word: word.to_owned(), nearest };
    assert_refused("suspend20,defer-hard-irq=10", "defer-hard-irq", unknown("defer-hard-irq", Some("defer-hard-irqs")));
    assert_refused("base,defer_hard_irqs=1", "defer_hard_irqs", {
        unknown("defer_hard_irqs", Some("defer-hard-irqs"))
    });
    assert_refused("base,colour=1", "colour", unknown("colour", None));
    assert_refused("base,", "", unknown("", None));
}

#[test]
fn a_setting_without_a_value_is_refused() {
    let missing = ModeRefusal::ValueMissing { key: SettingKey::Threaded };
    assert_refused("base,threaded", "threaded", missing.clone());
    assert_refused("base,threaded=", "threaded=", missing);
}

#[test]
fn a_value_of_the_wrong_type_is_refused() {
    for (text, place) in [
        ("base,defer-hard-irqs=ten", "ten"),
        ("base,defer-hard-irqs=-1", "-1"),
        ("base,defer-hard-irqs=+1", "+1"),
        ("base,gro-flush-timeout=1.5ns", "1.5ns"),
        ("base,prefer-busy-poll=yes", "yes"),
        ("base,threaded=1=2", "1=2"),
    ] {
        let error = refused(text);
        assert!(matches!(error.refusal(), ModeRefusal::ValueMalformed { .. }), "{error}");
        assert_eq!(&text[error.span()], place);
    }
}

#[test]
fn a_value_above_the_limit_of_the_kernel_is_refused() {
    for (text, place) in [
        ("base,defer-hard-irqs=2147483648", "2147483648"),
        ("napibusy,busy-poll-usecs=2147483648", "2147483648"),
        ("napibusy,busy-poll-budget=65536", "65536"),
        ("napibusy,prefer-busy-poll=2", "2"),
        ("base,threaded=3", "3"),
        ("base,gro-flush-timeout=18446744073709551616", "18446744073709551616"),
        ("suspend20,irq-suspend-timeout=99999999999s", "99999999999s"),
    ] {
        let error = refused(text);
        assert!(matches!(error.refusal(), ModeRefusal::ValueTooLarge { .. }), "{error}");
        assert_eq!(&text[error.span()], place);
    }
}

#[test]
fn a_second_mode_is_refused_as_such() {
    let error = "suspend200,suspend50".parse::<DeliveryMode>().unwrap_err();
    assert_eq!(*error.refusal(), ModeRefusal::SecondMode { word: "suspend50".to_owned() });
    assert_eq!(error.caret(), "suspend200,suspend50\n           ^^^^^^^^^");
}

#[test]
fn a_setting_given_twice_is_refused_at_the_second() {
    let text = "suspend20,defer-hard-irqs=10,defer-hard-irqs=10";
    let error = refused(text);
    assert_eq!(error.refusal(), &ModeRefusal::GivenTwice { key: SettingKey::DeferHardIrqs });
    assert_eq!(error.span(), 29..text.len());
}

#[test]
fn a_flush_timeout_that_differs_from_the_name_is_refused() {
    for (text, mode) in [("defer20,gro-flush-timeout=30us", "defer"), ("suspend20,gro-flush-timeout=30us", "suspend")] {
        let refusal = ModeRefusal::GroFlushTimeoutInName { mode };
        assert_refused(text, "gro-flush-timeout=30us", refusal);
    }
}

#[test]
fn suspension_without_deferral_is_refused() {
    let refusal = ModeRefusal::SuspensionWithoutDeferral;
    for (text, place) in [
        ("suspend20,defer-hard-irqs=0", "defer-hard-irqs=0"),
        ("base,irq-suspend-timeout=20ms", "irq-suspend-timeout=20ms"),
        ("napibusy,irq-suspend-timeout=20ms,gro-flush-timeout=0", "gro-flush-timeout=0"),
    ] {
        assert_refused(text, place, refusal.clone());
    }
}

#[test]
fn suspension_without_prefer_is_refused() {
    let refusal = ModeRefusal::SuspensionWithoutPrefer;
    for (text, place) in [
        ("suspend20,prefer-busy-poll=0", "prefer-busy-poll=0"),
        ("defer20,irq-suspend-timeout=20ms", "irq-suspend-timeout=20ms"),
        ("threaded,defer-hard-irqs=1,gro-flush-timeout=1,irq-suspend-timeout=2", "irq-suspend-timeout=2"),
    ] {
        assert_refused(text, place, refusal.clone());
    }
}

#[test]
fn an_override_that_contradicts_the_name_is_refused() {
    for (text, key) in [
        ("suspend20,irq-suspend-timeout=0", SettingKey::IrqSuspendTimeout),
        ("defer20,defer-hard-irqs=0", SettingKey::DeferHardIrqs),
        ("threaded,threaded=0", SettingKey::Threaded),
        ("threadedbusy,threaded=1", SettingKey::Threaded),
        ("userbusy,threaded=1", SettingKey::Threaded),
        ("userbusy,defer-hard-irqs=0", SettingKey::DeferHardIrqs),
        ("userbusy,gro-flush-timeout=0", SettingKey::GroFlushTimeout),
        ("userbusy,gro-flush-timeout=1001us", SettingKey::GroFlushTimeout),
    ] {
        let error = refused(text);
        let is_key = matches!(error.refusal(), ModeRefusal::ContradictsName { key: k, .. } if *k == key);
        assert!(is_key, "{error}");
    }
}

#[test]
fn threaded_busy_polling_with_deferral_is_refused() {
    let refusal = ModeRefusal::ThreadedBusyPollWithDeferral;
    assert_refused("threadedbusy,defer-hard-irqs=1", "defer-hard-irqs=1", refusal.clone());
    assert_refused("threadedbusy,gro-flush-timeout=1us", "gro-flush-timeout=1us", refusal.clone());
    assert_refused("defer20,threaded=2", "threaded=2", refusal);
}

#[test]
fn threaded_busy_polling_with_epoll_polling_is_refused() {
    let refusal = ModeRefusal::ThreadedBusyPollWithEpoll;
    assert_refused("base,prefer-busy-poll=1,threaded=2", "threaded=2", refusal);
}

#[test]
fn an_epoll_setting_is_refused_in_a_mode_that_does_not_use_epoll() {
    for (text, mode) in [
        ("sockpoll50,prefer-busy-poll=1", "sockpoll"),
        ("eventspin50,prefer-busy-poll=1", "eventspin"),
        ("threaded,prefer-busy-poll=1", "threaded"),
        ("threadedbusy,prefer-busy-poll=1", "threadedbusy"),
    ] {
        let key = SettingKey::PreferBusyPoll;
        assert_refused(text, "prefer-busy-poll", ModeRefusal::EpollNotUsed { mode, key });
    }
}

#[test]
fn a_setting_of_pollers_is_refused_in_a_mode_without_pollers_and_if_it_is_out_of_range() {
    let key = SettingKey::PollerCpu;
    assert_refused("threadedbusy,poller-cpu=1", "poller-cpu", ModeRefusal::PollerNotUsed { mode: "threadedbusy", key });
    for value in ["fifo", "fifo:0", "fifo:100", "rr:+1", "deadline", "other:1"] {
        let error = refused(&format!("userbusy,poller-class={value}"));
        assert!(matches!(error.refusal(), ModeRefusal::ValueMalformed { .. }), "{error}");
    }
    assert!(matches!(refused("userbusy,poller-cpu=8192").refusal(), ModeRefusal::ValueTooLarge { .. }));
}

#[test]
fn the_message_names_the_text_the_reason_and_the_remedy() {
    assert_eq!(
        refused("suspend20,defer-hard-irq=10").to_string(),
        "delivery mode 'suspend20,defer-hard-irq=10': unknown setting 'defer-hard-irq'; did you mean defer-hard-irqs?"
    );
}

#[test]
fn the_carets_are_under_the_refused_bytes() {
    assert_eq!(refused("suspend20,defer-hard-irq=10").caret(), "suspend20,defer-hard-irq=10\n          ^^^^^^^^^^^^^^");
    assert_eq!(refused("defer").caret(), "defer\n     ^");
    assert_eq!(refused("bäse\n,x").caret(), "bäse?,x\n^^^^^");
}
