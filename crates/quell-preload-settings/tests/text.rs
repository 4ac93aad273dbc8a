//! What is written is read back as it was; what is not exactly that is refused, with the part that is wrong.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use proptest::prelude::*;
use quell_preload_settings::{BusyPoll, EventsMax, ParseError, PreloadSettings, Reason, SpinMicros, Wait, WaitMillis};

fn busy_poll() -> impl Strategy<Value = BusyPoll> {
    let parts = (0..=BusyPoll::USECS_MAX, any::<u16>(), any::<bool>());
    parts.prop_map(|(usecs, budget, prefer)| BusyPoll::new(usecs, budget, prefer).unwrap())
}

fn wait() -> impl Strategy<Value = Wait> {
    prop_oneof![
        Just(Wait::AsWritten),
        (1_u32..=1_000).prop_map(|millis| Wait::AtMost(WaitMillis::new(millis).unwrap())),
        (1..=i32::MAX as u32).prop_map(|micros| Wait::SpinBeforeSleep(SpinMicros::new(micros).unwrap())),
    ]
}

fn settings() -> impl Strategy<Value = PreloadSettings> {
    let events = (1..=i32::MAX as u32 / 12).prop_map(|events| EventsMax::new(events).unwrap());
    let parts =
        (prop::option::of(busy_poll()), prop::option::of(busy_poll()), any::<bool>(), wait(), prop::option::of(events));
    parts.prop_map(|(epoll, sockets, timed_zero_waits, wait, events_max)| PreloadSettings {
        epoll,
        sockets,
        timed_zero_waits,
        wait,
        events_max,
    })
}

fn refused(text: &str) -> (usize, Reason) {
    let ParseError { part, reason } = text.parse::<PreloadSettings>().unwrap_err();
    (part, reason)
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(settings in settings()) {
        prop_assert_eq!(settings.to_string().parse(), Ok(settings));
    }

    #[test]
    fn whatever_is_read_is_written_so_that_it_reads_the_same(text in "1(,[a-z-]{1,16}=[0-9/]{1,12}){0,4}") {
        if let Ok(settings) = text.parse::<PreloadSettings>() {
            prop_assert_eq!(settings.to_string().parse(), Ok(settings));
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in any::<String>()) {
        let _ = text.parse::<PreloadSettings>();
    }
}

#[test]
fn the_version_alone_is_to_do_nothing() {
    assert_eq!("1".parse(), Ok(PreloadSettings::default()));
    assert_eq!(PreloadSettings::default().to_string(), "1");
}

#[test]
fn another_version_is_not_understood() {
    assert_eq!(refused(""), (0, Reason::Version));
    assert_eq!(refused("2,epoll=0/64/1"), (0, Reason::Version));
    assert_eq!(refused("01"), (0, Reason::Version));
}

#[test]
fn what_no_setting_is_called_is_refused() {
    assert_eq!(refused("1,epol=0/64/1"), (1, Reason::Unknown));
    assert_eq!(refused("1,epoll"), (1, Reason::Unknown));
    assert_eq!(refused("1,"), (1, Reason::Unknown));
    assert_eq!(refused("1, epoll=0/64/1"), (1, Reason::Unknown));
}

#[test]
fn a_setting_is_given_once() {
    assert_eq!(refused("1,epoll=0/64/1,epoll=0/64/1"), (2, Reason::Twice));
    assert_eq!(refused("1,zero-waits=timed,zero-waits=timed"), (2, Reason::Twice));
    assert_eq!(refused("1,spin-usecs=5,wait-at-most-ms=1"), (2, Reason::Twice));
}

#[test]
fn values_out_of_range_are_refused() {
    for text in [
        "1,epoll=2147483648/64/1",
        "1,epoll=0/65536/1",
        "1,epoll=0/64/2",
        "1,epoll=0/64",
        "1,sockets=+5/64/1",
        "1,sockets=/64/1",
        "1,zero-waits=on",
        "1,wait-at-most-ms=0",
        "1,wait-at-most-ms=1001",
        "1,spin-usecs=0",
        "1,spin-usecs=99999999999",
        "1,events-max=0",
        "1,events-max=178956971",
    ] {
        assert_eq!(refused(text), (1, Reason::Value), "{text}");
    }
}
