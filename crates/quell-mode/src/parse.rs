//! Parser for delivery modes: name, N and overrides. Every error has the range of bytes that it refers to.

use std::num::NonZeroU64;
use std::ops::Range;

use crate::check;
use crate::key::{SettingKey, Settings};
use crate::kind::{ModeKind, PollUsecs};
use crate::mode::DeliveryMode;
use crate::refusal::{ModeRefusal, ParseModeError};
use crate::settings::USECS_MAX;
use crate::suggestion::nearest;
use crate::timeout::{DurationError, parse_usecs_as_ns};

pub(crate) const WORDS: [&str; 10] = [
    "base",
    "defer",
    "napibusy",
    "fullbusy",
    "suspend",
    "threaded",
    "threadedbusy",
    "userbusy",
    "sockpoll",
    "eventspin",
];

/// Modes whose name ends with N.
pub(crate) const WITH_NUMBER: [&str; 4] = ["defer", "suspend", "sockpoll", "eventspin"];

/// A part of the input, with its position.
#[derive(Debug, Clone, Copy)]
struct Token<'a> {
    text: &'a str,
    start: usize,
}

impl<'a> Token<'a> {
    fn span(self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }

    fn split_at(self, at: usize) -> (Self, Self) {
        let (left, right) = self.text.split_at(at);
        let start = self.start + at;
        (Self { text: left, ..self }, Self { text: right, start })
    }

    fn split_once(self, separator: char) -> Option<(Self, Self)> {
        let (left, right) = self.split_at(self.text.find(separator)?);
        Some((left, right.split_at(separator.len_utf8()).1))
    }
}

/// An error and the range of input bytes that it refers to.
type Located = (Range<usize>, ModeRefusal);

pub(crate) fn mode(input: &str) -> Result<DeliveryMode, ParseModeError> {
    parse(Token { text: input, start: 0 }).map_err(|(span, refusal)| ParseModeError::new(input, span, refusal))
}

/// Parses a list of modes. An item with a `=` is an override.
pub(crate) fn modes(input: &str) -> Result<Vec<DeliveryMode>, ParseModeError> {
    let mut bounds: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    for item in input.split(',') {
        let end = start + item.len();
        match bounds.last_mut() {
            Some(mode) if item.contains('=') => mode.end = end,
            _ => bounds.push(start..end),
        }
        start = end + 1;
    }
    bounds
        .into_iter()
        .map(|range| parse(Token { text: &input[range.clone()], start: range.start }))
        .collect::<Result<_, _>>()
        .map_err(|(span, refusal)| ParseModeError::new(input, span, refusal))
}

fn parse(input: Token<'_>) -> Result<DeliveryMode, Located> {
    let (head, mut rest) = match input.split_once(',') {
        Some((head, rest)) => (head, Some(rest)),
        None => (input, None),
    };
    let kind = kind(head)?;
    let mut settings = kind.settings();
    let mut given: Vec<(SettingKey, Range<usize>)> = Vec::new();
    while let Some(list) = rest {
        let (item, after) = match list.split_once(',') {
            Some((item, after)) => (item, Some(after)),
            None => (list, None),
        };
        rest = after;
        let key = apply(item, kind, &mut settings)?;
        if given.iter().any(|(earlier, _)| *earlier == key) {
            return Err((item.span(), ModeRefusal::GivenTwice { key }));
        }
        given.push((key, item.span()));
    }
    match check::contradiction(kind, &settings) {
        None => Ok(DeliveryMode::checked(kind, settings)),
        Some((refusal, blamed)) => Err((blamed_span(&given, blamed, head), refusal)),
    }
}

fn blamed_span(given: &[(SettingKey, Range<usize>)], blamed: &[SettingKey], head: Token<'_>) -> Range<usize> {
    blamed
        .iter()
        .find_map(|key| given.iter().find(|(earlier, _)| earlier == key))
        .map_or_else(|| head.span(), |(_, span)| span.clone())
}

fn apply(item: Token<'_>, kind: ModeKind, settings: &mut Settings) -> Result<SettingKey, Located> {
    let (word, value) = match item.split_once('=') {
        Some((word, value)) => (word, Some(value)),
        None => (item, None),
    };
    let key = SettingKey::named(word.text).ok_or_else(|| (word.span(), unknown_setting(word)))?;
    let value =
        value.filter(|value| !value.text.is_empty()).ok_or_else(|| (item.span(), ModeRefusal::ValueMissing { key }))?;
    settings.set(kind.word(), key, value.text).map_err(|refusal| {
        let about_key = matches!(refusal, ModeRefusal::EpollNotUsed { .. } | ModeRefusal::PollerNotUsed { .. });
        (if about_key { word } else { value }.span(), refusal)
    })?;
    Ok(key)
}

fn unknown_setting(word: Token<'_>) -> ModeRefusal {
    if kind(word).is_ok() {
        return ModeRefusal::SecondMode { word: word.text.to_owned() };
    }
    let names = SettingKey::ALL.map(SettingKey::name);
    ModeRefusal::UnknownSetting { word: word.text.to_owned(), nearest: nearest(word.text, names) }
}

fn kind(head: Token<'_>) -> Result<ModeKind, Located> {
    if head.text.is_empty() {
        return Err((head.span(), ModeRefusal::Empty));
    }
    let digits_at = head.text.find(|c: char| c.is_ascii_digit()).unwrap_or(head.text.len());
    let (word, number) = head.split_at(digits_at);
    let Some(mode) = WORDS.into_iter().find(|known| *known == word.text) else {
        let nearest = nearest(word.text, WORDS);
        let example = if number.text.is_empty() { "20" } else { number.text };
        let number = |name| if WITH_NUMBER.contains(&name) { example } else { "" };
        let nearest = nearest.map(|name| format!("{name}{}", number(name)));
        return Err((word.span(), ModeRefusal::UnknownMode { word: word.text.to_owned(), nearest }));
    };
    let kind = match mode {
        "defer" => Ok(ModeKind::Defer { gro_flush_timeout_ns: usecs_as_ns(mode, number)? }),
        "suspend" => Ok(ModeKind::Suspend { gro_flush_timeout_ns: usecs_as_ns(mode, number)? }),
        "sockpoll" => Ok(ModeKind::SockPoll { usecs: whole_usecs(mode, number)? }),
        "eventspin" => Ok(ModeKind::EventSpin { usecs: whole_usecs(mode, number)? }),
        _ if !number.text.is_empty() => Err(ModeRefusal::NumberNotTaken { mode }),
        "napibusy" => Ok(ModeKind::NapiBusy),
        "fullbusy" => Ok(ModeKind::FullBusy),
        "threaded" => Ok(ModeKind::Threaded),
        "threadedbusy" => Ok(ModeKind::ThreadedBusy),
        "userbusy" => Ok(ModeKind::UserBusy),
        _ => Ok(ModeKind::Base),
    };
    kind.map_err(|refusal| (number.span(), refusal))
}

/// Parses N of `deferN` and `suspendN`: µs with up to three decimals.
fn usecs_as_ns(mode: &'static str, number: Token<'_>) -> Result<NonZeroU64, Located> {
    let refused = |refusal| Err((number.span(), refusal));
    if number.text.is_empty() {
        return refused(ModeRefusal::NumberMissing { mode });
    }
    match parse_usecs_as_ns(number.text).map(NonZeroU64::new) {
        Ok(Some(ns)) => Ok(ns),
        Ok(None) => refused(ModeRefusal::NumberZero { mode }),
        Err(DurationError::TooLarge) => refused(too_large(mode, number, u64::MAX / 1000)),
        Err(DurationError::Malformed) => refused(ModeRefusal::NumberMalformed {
            mode,
            number: number.text.to_owned(),
            expected: "a number of microseconds without a unit and with at most three decimals",
        }),
    }
}

/// Parses N of `sockpollN` and `eventspinN`: whole µs from 1 to [`USECS_MAX`].
fn whole_usecs(mode: &'static str, number: Token<'_>) -> Result<PollUsecs, Located> {
    let refused = |refusal| Err((number.span(), refusal));
    if number.text.is_empty() {
        return refused(ModeRefusal::NumberMissing { mode });
    }
    if !number.text.bytes().all(|byte| byte.is_ascii_digit()) {
        return refused(ModeRefusal::NumberMalformed {
            mode,
            number: number.text.to_owned(),
            expected: "a whole number of microseconds without a unit",
        });
    }
    match number.text.parse::<u32>() {
        Ok(0) => refused(ModeRefusal::NumberZero { mode }),
        Ok(usecs) => PollUsecs::new(usecs).ok_or_else(|| (number.span(), too_large(mode, number, USECS_MAX.into()))),
        Err(_) => refused(too_large(mode, number, USECS_MAX.into())),
    }
}

fn too_large(mode: &'static str, number: Token<'_>, max: u64) -> ModeRefusal {
    ModeRefusal::NumberTooLarge { mode, number: number.text.to_owned(), max }
}
