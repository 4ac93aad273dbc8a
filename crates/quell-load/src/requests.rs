//! Chooses requests, encodes them, and checks the responses. Each thread has one source.

use std::sync::Arc;

use crate::http::{self, parse_http};
use crate::key_table::{KeyTable, pattern};
use crate::random::{Purpose, Stream};
use crate::redis;
use crate::response::{Parsed, parse_fixed, parse_get, parse_set};
use crate::spec::{KeyValues, LoadSpec, Workload};

/// One request. It is small, because every connection stores its outstanding requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Get(u32),
    Set(u32),
    Fixed,
}

pub(crate) enum Content {
    Memcached(KeyValueContent),
    Redis(KeyValueContent),
    Http { request: Vec<u8> },
    Fixed { request: Vec<u8>, response_bytes: usize, response: Option<Vec<u8>> },
}

pub(crate) struct KeyValueContent {
    table: KeyTable,
    get_share: f64,
}

impl KeyValueContent {
    fn new(keys: &KeyValues, seed: u64) -> Self {
        Self { table: KeyTable::new(keys, seed), get_share: keys.get_share }
    }
}

impl Content {
    pub(crate) fn new(spec: &LoadSpec) -> Self {
        match &spec.workload {
            Workload::Memcached(keys) => Self::Memcached(KeyValueContent::new(keys, spec.seed)),
            Workload::Redis(keys) => Self::Redis(KeyValueContent::new(keys, spec.seed)),
            Workload::Http(get) => Self::Http { request: http::request(get, spec.addresses.first()) },
            Workload::RequestResponse(sizes) => {
                let response_bytes = sizes.response_bytes as usize;
                Self::Fixed {
                    request: pattern(sizes.request_bytes as usize),
                    response_bytes,
                    response: sizes.check_content.then(|| pattern(response_bytes)),
                }
            }
        }
    }

    pub(crate) fn keys(&self) -> u32 {
        match self {
            Self::Memcached(values) | Self::Redis(values) => values.table.len(),
            Self::Http { .. } | Self::Fixed { .. } => 0,
        }
    }

    #[inline]
    pub(crate) fn write(&self, request: Request, out: &mut Vec<u8>) {
        match (self, request) {
            (Self::Memcached(KeyValueContent { table, .. }), Request::Get(key)) => {
                out.extend_from_slice(b"get ");
                out.extend_from_slice(table.key(key));
                out.extend_from_slice(b"\r\n");
            }
            (Self::Memcached(KeyValueContent { table, .. }), Request::Set(key)) => {
                let value = table.value(key);
                out.extend_from_slice(b"set ");
                out.extend_from_slice(table.key(key));
                out.extend_from_slice(b" 0 0 ");
                write_decimal(value.len(), out);
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
            (Self::Redis(KeyValueContent { table, .. }), Request::Get(key)) => redis::write_get(table.key(key), out),
            (Self::Redis(KeyValueContent { table, .. }), Request::Set(key)) => {
                redis::write_set(table.key(key), table.value(key), out);
            }
            (Self::Http { request } | Self::Fixed { request, .. }, _) => out.extend_from_slice(request),
            (Self::Memcached(_) | Self::Redis(_), Request::Fixed) => {
                unreachable!("sources of requests with keys draw none without")
            }
        }
    }

    #[inline]
    pub(crate) fn parse(&self, request: Request, bytes: &[u8]) -> Parsed {
        match (self, request) {
            (Self::Memcached(KeyValueContent { table, .. }), Request::Get(key)) => {
                parse_get(bytes, table.key(key), table.value(key))
            }
            (Self::Memcached(_), _) => parse_set(bytes),
            (Self::Redis(KeyValueContent { table, .. }), Request::Get(key)) => {
                redis::parse_get(bytes, table.value(key))
            }
            (Self::Redis(_), _) => redis::parse_set(bytes),
            (Self::Http { .. }, _) => parse_http(bytes),
            (Self::Fixed { response_bytes, response, .. }, _) => {
                parse_fixed(bytes, *response_bytes, response.as_deref())
            }
        }
    }
}

/// Writes decimal digits without `core::fmt`, for the hot path.
pub(crate) fn write_decimal(number: usize, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    let mut rest = number;
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

pub(crate) enum Source {
    /// Endless: gets and sets in the workload's ratio.
    Drawn {
        keys: u32,
        get_share: f64,
        key_choice: Stream,
        get_or_set: Stream,
    },
    Fixed,
    /// Each key of a range once.
    Range {
        next: u32,
        end: u32,
        request: fn(u32) -> Request,
    },
}

impl Source {
    pub(crate) fn drawn(content: &Arc<Content>, seed: u64, thread: u32) -> Self {
        match &**content {
            Content::Memcached(values) | Content::Redis(values) => Self::Drawn {
                keys: values.table.len(),
                get_share: values.get_share,
                key_choice: Stream::new(seed, Purpose::KeyChoice, thread),
                get_or_set: Stream::new(seed, Purpose::GetOrSet, thread),
            },
            Content::Http { .. } | Content::Fixed { .. } => Self::Fixed,
        }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> Option<Request> {
        match self {
            Self::Fixed => Some(Request::Fixed),
            Self::Drawn { keys, get_share, key_choice, get_or_set } => {
                let key = key_choice.below(u64::from(*keys)) as u32;
                let get = *get_share >= 1.0 || get_or_set.unit() < *get_share;
                Some(if get { Request::Get(key) } else { Request::Set(key) })
            }
            Self::Range { next, end, request } => {
                if next == end {
                    return None;
                }
                *next += 1;
                Some(request(*next - 1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(get_share: f64) -> Arc<Content> {
        let keys = KeyValues { keys: 100, get_share, ..KeyValues::facebook() };
        Arc::new(Content::Memcached(KeyValueContent::new(&keys, 1)))
    }

    fn text(content: &Content, request: Request) -> String {
        let mut out = Vec::new();
        content.write(request, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn requests_are_encoded_as_the_protocol_requires() {
        let content = content(0.5);
        let get = text(&content, Request::Get(7));
        assert!(get.starts_with("get 000") && get.ends_with("07\r\n"), "{get}");
        let set = text(&content, Request::Set(7));
        let (command, rest) = set.split_once("\r\n").unwrap();
        let value = rest.strip_suffix("\r\n").unwrap();
        assert!(command.ends_with(&format!("07 0 0 {}", value.len())), "{command}");
    }

    #[test]
    fn gets_and_sets_have_the_requested_ratio() {
        let mut source = Source::drawn(&content(0.8), 3, 0);
        let gets = (0..10_000).filter(|_| matches!(source.next(), Some(Request::Get(_)))).count();
        assert!((7_800..8_200).contains(&gets), "{gets}");
    }

    #[test]
    fn a_range_yields_each_key_once() {
        let mut source = Source::Range { next: 3, end: 5, request: Request::Set };
        let requests: Vec<_> = std::iter::from_fn(|| source.next()).collect();
        assert_eq!(requests, [Request::Set(3), Request::Set(4)]);
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        for number in [0, 9, 10, 1_000_000] {
            let mut out = Vec::new();
            write_decimal(number, &mut out);
            assert_eq!(out, number.to_string().into_bytes());
        }
    }
}
