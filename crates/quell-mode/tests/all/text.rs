//! The text form of modes: parsing, `Display`, and their round trip.

use std::num::NonZeroU64;

use proptest::option;
use proptest::prelude::*;
use quell_mode::{DEFER_HARD_IRQS_MAX, DeliveryMode, ModeKind, PollUsecs, SettingKey, USECS_MAX};

fn canonical(text: &str) -> String {
    match text.parse::<DeliveryMode>() {
        Ok(mode) => mode.to_string(),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_canonical_text_is_its_own_canonical_text() {
    for text in [
        "base",
        "defer20",
        "defer0.5",
        "napibusy",
        "fullbusy",
        "suspend20",
        "threaded",
        "threadedbusy",
        "userbusy",
        "userbusy,gro-flush-timeout=200us,poller-cpu=3,poller-class=fifo:50",
        "userbusy,poller-class=idle",
        "sockpoll50",
        "sockpoll50,defer-hard-irqs=100,gro-flush-timeout=20us",
        "eventspin50",
        "suspend20,defer-hard-irqs=10,irq-suspend-timeout=5ms",
        "fullbusy,gro-flush-timeout=1s,threaded=1,busy-poll-usecs=7,busy-poll-budget=8,prefer-busy-poll=0",
        "base,gro-flush-timeout=18446744073709551615ns",
    ] {
        assert_eq!(canonical(text), text);
    }
}

#[test]
fn canonical_text_omits_overrides_that_equal_the_default_of_the_name() {
    assert_eq!(
        canonical("suspend20,defer-hard-irqs=100,irq-suspend-timeout=20ms,gro-flush-timeout=20000"),
        "suspend20"
    );
    assert_eq!(canonical("threaded,threaded=1"), "threaded");
}

#[test]
fn order_and_units_of_overrides_do_not_matter() {
    assert_eq!(
        canonical("suspend20,irq-suspend-timeout=5000000,defer-hard-irqs=010"),
        "suspend20,defer-hard-irqs=10,irq-suspend-timeout=5ms"
    );
}

#[test]
fn decimals_of_a_microsecond_are_nanoseconds() {
    let gro_flush_timeout_ns = |text: &str| text.parse::<DeliveryMode>().unwrap().napi().gro_flush_timeout_ns;
    assert_eq!(gro_flush_timeout_ns("defer0.001"), 1);
    assert_eq!(gro_flush_timeout_ns("suspend20.5"), 20_500);
    assert_eq!(canonical("defer20.500"), "defer20.5");
    assert_eq!(canonical("defer020.0"), "defer20");
}

#[test]
fn display_pads_a_mode_to_the_width_of_a_column() {
    assert_eq!(format!("{:>9}|", DeliveryMode::default()), "     base|");
}

#[test]
fn the_name_omits_overrides() {
    let mode: DeliveryMode = "suspend20,defer-hard-irqs=10".parse().unwrap();
    assert_eq!(mode.name(), "suspend20");
}

#[test]
fn an_override_in_a_list_belongs_to_the_mode_before_it() {
    let modes = DeliveryMode::parse_list("base,suspend20,defer-hard-irqs=10,sockpoll50,threaded").unwrap();
    let texts: Vec<_> = modes.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["base", "suspend20,defer-hard-irqs=10", "sockpoll50", "threaded"]);
}

#[test]
fn an_error_in_a_list_points_into_the_list() {
    for (list, place) in [
        ("base,suspned20,fullbusy", 5..12),
        ("base,suspend20,defer-hard-irqs=ten,base", 31..34),
        ("base,,fullbusy", 5..5),
        ("base,", 5..5),
        ("threaded=1,base", 0..9),
    ] {
        let error = DeliveryMode::parse_list(list).unwrap_err();
        assert_eq!(error.span(), place, "{list}: {error}");
        assert_eq!(error.input(), list);
    }
}

fn kinds() -> impl Strategy<Value = ModeKind> {
    let ns = any::<u64>().prop_filter_map("above 0", NonZeroU64::new);
    let near_ns = (0..100_000_000u64).prop_filter_map("above 0", NonZeroU64::new);
    let gro_flush = prop_oneof![ns, near_ns];
    let usecs = (0..=USECS_MAX).prop_filter_map("above 0", PollUsecs::new);
    prop_oneof![
        Just(ModeKind::Base),
        Just(ModeKind::NapiBusy),
        Just(ModeKind::FullBusy),
        Just(ModeKind::Threaded),
        Just(ModeKind::ThreadedBusy),
        Just(ModeKind::UserBusy),
        gro_flush.clone().prop_map(|gro_flush_timeout_ns| ModeKind::Defer { gro_flush_timeout_ns }),
        gro_flush.prop_map(|gro_flush_timeout_ns| ModeKind::Suspend { gro_flush_timeout_ns }),
        usecs.clone().prop_map(|usecs| ModeKind::SockPoll { usecs }),
        usecs.prop_map(|usecs| ModeKind::EventSpin { usecs }),
    ]
}

/// Generates an optional value for each key, in random order.
fn overrides() -> impl Strategy<Value = Vec<String>> {
    let timeout = || {
        prop_oneof![
            any::<u64>().prop_map(|ns| ns.to_string()),
            any::<u32>().prop_map(|us| format!("{us}us")),
            (0..2000u32).prop_map(|ms| format!("{ms}ms")),
            (0..9u32).prop_map(|s| format!("{s}s")),
        ]
    };
    (
        option::of((0..=DEFER_HARD_IRQS_MAX).prop_map(|n| n.to_string())),
        option::of(timeout()),
        option::of(timeout()),
        option::of((0..=2u8).prop_map(|n| n.to_string())),
        option::of((0..=USECS_MAX).prop_map(|n| n.to_string())),
        option::of(any::<u16>().prop_map(|n| n.to_string())),
        option::of((0..=1u8).prop_map(|n| n.to_string())),
        option::of((0..=8_191u32).prop_map(|n| n.to_string())),
        option::of(prop_oneof![Just("batch".to_owned()), (1..=99u8).prop_map(|n| format!("rr:{n}"))]),
    )
        .prop_map(|(a, b, c, d, e, f, g, h, i)| {
            SettingKey::ALL
                .into_iter()
                .zip([a, b, c, d, e, f, g, h, i])
                .filter_map(|(key, value)| Some(format!("{key}={}", value?)))
                .collect()
        })
        .prop_shuffle()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_kind_parses_back(kind in kinds()) {
        let mode = DeliveryMode::from(kind);
        prop_assert_eq!(mode.to_string().parse::<DeliveryMode>(), Ok(mode));
        prop_assert!(mode.to_string().starts_with(kind.word()));
    }

    #[test]
    fn every_mode_with_overrides_parses_back(kind in kinds(), overrides in overrides()) {
        let name = DeliveryMode::from(kind).to_string();
        let mut text = name;
        for one in overrides {
            let longer = format!("{text},{one}");
            if longer.parse::<DeliveryMode>().is_ok() {
                text = longer;
            }
        }
        let mode: DeliveryMode = text.parse().unwrap();
        prop_assert_eq!(mode.to_string().parse::<DeliveryMode>(), Ok(mode));
        let json = serde_json::to_string(&mode).unwrap();
        prop_assert_eq!(serde_json::from_str::<DeliveryMode>(&json).unwrap(), mode);
    }

    #[test]
    fn any_text_is_a_mode_or_an_error_with_a_position_in_it(text in ".{0,40}") {
        if let Err(error) = text.parse::<DeliveryMode>() {
            prop_assert!(text.get(error.span()).is_some());
            prop_assert_eq!(error.caret().lines().count(), 2);
        }
    }

    #[test]
    fn text_similar_to_a_mode_is_a_mode_or_an_error_with_a_position_in_it(
        text in "(suspend|defer|base|sockpoll|threaded)[0-9.]{0,3}(,(threaded|gro-flush-timeout|prefer-busy-poll|x)=?[0-9a-z]{0,3}){0,3}"
    ) {
        match text.parse::<DeliveryMode>() {
            Ok(mode) => prop_assert_eq!(mode.to_string().parse::<DeliveryMode>(), Ok(mode)),
            Err(error) => prop_assert!(text.get(error.span()).is_some()),
        }
    }
}
