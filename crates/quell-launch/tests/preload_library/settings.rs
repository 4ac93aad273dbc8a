//! Tests of the preload library's parser. It must read back every line that `preload_settings` writes, and ignore a
//! line that it does not understand completely.

use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use quell_launch::preload_settings::{EventsMax, PreloadSettings, SpinMicros, WaitChange, WaitMillis};
use quell_mode::{EpollParams, PollUsecs, USECS_MAX};

use crate::programs::Programs;

/// Parses each line with the library. Returns `None` and prints the reason to stderr if there is no C compiler.
fn read_back(lines: &[String]) -> Option<Vec<String>> {
    let reader = Programs::compile()?.path("settings");
    let mut reader = Command::new(reader).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = reader.stdin.take().unwrap();
    let text = lines.join("\n") + "\n";
    std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success(), "{}: {lines:?}", output.status);
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

fn epoll() -> impl Strategy<Value = EpollParams> {
    let parts = (0..=USECS_MAX, any::<u16>(), any::<bool>());
    parts.prop_map(|(busy_poll_usecs, busy_poll_budget, prefer_busy_poll)| EpollParams {
        busy_poll_usecs,
        busy_poll_budget,
        prefer_busy_poll,
    })
}

fn wait() -> impl Strategy<Value = WaitChange> {
    prop_oneof![
        Just(WaitChange::AsWritten),
        (1_u32..=1_000).prop_map(|millis| WaitChange::AtMost(WaitMillis::new(millis).unwrap())),
        (1..=i32::MAX as u32).prop_map(|micros| WaitChange::SpinBeforeSleep(SpinMicros::new(micros).unwrap())),
    ]
}

fn settings() -> impl Strategy<Value = PreloadSettings> {
    let events = (1..=i32::MAX as u32 / 12).prop_map(|events| EventsMax::new(events).unwrap());
    let sockets = (1..=USECS_MAX).prop_map(|usecs| PollUsecs::new(usecs).unwrap());
    let parts = (prop::option::of(epoll()), prop::option::of(sockets), any::<bool>(), wait(), prop::option::of(events));
    parts.prop_map(|(epoll, sockets, timed_zero_waits, wait, events_max)| PreloadSettings {
        epoll,
        sockets,
        timed_zero_waits,
        wait,
        events_max,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn written_settings_parse_back(all in prop::collection::vec(settings(), 100)) {
        let lines: Vec<String> = all.iter().map(ToString::to_string).collect();
        let Some(read) = read_back(&lines) else { return Ok(()) };
        prop_assert_eq!(read, lines);
    }

    #[test]
    fn accepted_settings_survive_a_round_trip(
        lines in prop::collection::vec("1(,[a-z-]{1,16}=[0-9/]{1,12}|,(epoll|sockets|events-max)=[0-9/]{1,12}){0,4}", 100)
    ) {
        let Some(read) = read_back(&lines) else { return Ok(()) };
        prop_assert_eq!(read_back(&read).unwrap(), read);
    }

    #[test]
    fn no_line_makes_it_crash(lines in prop::collection::vec("[^\n\0]{0,60}", 100)) {
        read_back(&lines);
    }
}

#[test]
fn a_line_that_is_not_fully_understood_is_ignored() {
    let lines = [
        "",
        "2,epoll=0/64/1",
        "01",
        "1x",
        "1,",
        "1,epol=0/64/1",
        "1,epoll",
        "1, epoll=0/64/1",
        "1,epoll=0/64/1x",
        "1,epoll=0/64/1,",
        "1,epoll=0/64/1,epoll=0/64/1",
        "1,zero-waits=timed,zero-waits=timed",
        "1,spin-usecs=5,wait-at-most-ms=1",
        "1,events-max=5,events-max=5",
        "1,epoll=2147483648/64/1",
        "1,epoll=0/65536/1",
        "1,epoll=0/64/2",
        "1,epoll=0/64",
        "1,sockets=+5/64/1",
        "1,sockets=/64/1",
        "1,zero-waits=on",
        "1,zero-waits=timedx",
        "1,wait-at-most-ms=0",
        "1,wait-at-most-ms=1001",
        "1,spin-usecs=0",
        "1,spin-usecs=99999999999999999999999",
        "1,events-max=0",
        "1,events-max=178956971",
    ];
    let Some(read) = read_back(&lines.map(str::to_owned)) else { return };
    assert_eq!(read, ["1"; 28]);
}
