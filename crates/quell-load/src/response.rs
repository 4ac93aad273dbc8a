//! Finds responses in a byte stream: their type, end and correctness. Parsers are pure functions of the bytes received
//! so far; [`ResponseReader`] stores an incomplete response.

use crate::spec::KeyValues;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A value or a fixed-size response, as expected.
    Right,
    Miss,
    /// Well formed, but the content differs from what was stored.
    WrongContent,
    ServerError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    Incomplete,
    /// The first `bytes` bytes are a response.
    Complete {
        bytes: usize,
        answer: Answer,
    },
    /// The same, and the server closes the connection after it.
    Last {
        bytes: usize,
        answer: Answer,
    },
    /// The bytes are not a response to this request. The rest of the stream cannot be parsed either.
    Malformed,
}

/// Maximum length of a line. A key of memcached with 250 bytes and two numbers fits, and so does every error text;
/// that of Redis about its protected mode has more than 1,000 bytes.
const LINE_BYTES_MAX: usize = 2_048;

/// The response to `get`: `VALUE <key> <flags> <bytes>`, the value, `END`; or `END` alone.
#[inline]
pub(crate) fn parse_get(bytes: &[u8], key: &[u8], value: &[u8]) -> Parsed {
    let line = match first_line(bytes) {
        Ok(line) => line,
        Err(parsed) => return parsed,
    };
    if line == b"END" {
        return complete(line, Answer::Miss);
    }
    let Some(rest) = line.strip_prefix(b"VALUE ") else { return parse_refusal(line) };
    let Some(length) = rest.strip_prefix(key).and_then(value_length) else { return Parsed::Malformed };
    if length > KeyValues::VALUE_BYTES_MAX as usize * 2 {
        return Parsed::Malformed;
    }
    let value_start = line.len() + 2;
    let value_end = value_start + length;
    let end = value_end + TRAILER.len();
    if bytes.len() < end {
        return Parsed::Incomplete;
    }
    if &bytes[value_end..end] != TRAILER {
        return Parsed::Malformed;
    }
    let answer = if &bytes[value_start..value_end] == value { Answer::Right } else { Answer::WrongContent };
    Parsed::Complete { bytes: end, answer }
}

const TRAILER: &[u8] = b"\r\nEND\r\n";

/// The response to `set`: `STORED`.
pub(crate) fn parse_set(bytes: &[u8]) -> Parsed {
    match first_line(bytes) {
        Ok(b"STORED") => complete(b"STORED", Answer::Right),
        Ok(line) => parse_refusal(line),
        Err(parsed) => parsed,
    }
}

/// A response of a fixed size. If `content` is given, it is compared.
#[inline]
pub(crate) fn parse_fixed(bytes: &[u8], length: usize, content: Option<&[u8]>) -> Parsed {
    let Some(response) = bytes.get(..length) else { return Parsed::Incomplete };
    let right = content.is_none_or(|content| response == content);
    Parsed::Complete { bytes: length, answer: if right { Answer::Right } else { Answer::WrongContent } }
}

/// The first line without its end, or the reason why there is no line.
#[inline]
pub(crate) fn first_line(bytes: &[u8]) -> Result<&[u8], Parsed> {
    let window = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    match window.iter().position(|&byte| byte == b'\n') {
        Some(end) => window[..end].strip_suffix(b"\r").ok_or(Parsed::Malformed),
        None if bytes.len() >= LINE_BYTES_MAX => Err(Parsed::Malformed),
        None => Err(Parsed::Incomplete),
    }
}

/// The length in ` <flags> <bytes>`.
fn value_length(fields: &[u8]) -> Option<usize> {
    let (flags, length) = std::str::from_utf8(fields).ok()?.strip_prefix(' ')?.split_once(' ')?;
    if !is_number(flags) || !is_number(length) {
        return None;
    }
    flags.parse::<u32>().ok()?;
    length.parse().ok()
}

pub(crate) fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `ERROR` and `SERVER_ERROR <text>` answer one request. `CLIENT_ERROR` means that the server did not understand the
/// data. Client and server then disagree about where requests begin.
fn parse_refusal(line: &[u8]) -> Parsed {
    if line == b"ERROR" || line.starts_with(b"SERVER_ERROR ") || line == b"NOT_STORED" {
        return complete(line, Answer::ServerError);
    }
    Parsed::Malformed
}

pub(crate) fn complete(line: &[u8], answer: Answer) -> Parsed {
    Parsed::Complete { bytes: line.len() + 2, answer }
}

/// The start of an incomplete response. It is at most as long as the largest response that the parsers accept; longer
/// data is malformed.
#[derive(Default)]
pub(crate) struct ResponseReader {
    kept: Vec<u8>,
}

impl ResponseReader {
    /// Processes newly `received` bytes. Passes the bytes so far to `each`, which parses them. Returns `false` if they
    /// are malformed.
    #[inline]
    pub(crate) fn feed(&mut self, received: &[u8], mut each: impl FnMut(&[u8]) -> Parsed) -> bool {
        if self.kept.is_empty() {
            return match consume(received, &mut each) {
                Some(used) => {
                    self.kept.extend_from_slice(&received[used..]);
                    true
                }
                None => false,
            };
        }
        self.kept.extend_from_slice(received);
        match consume(&self.kept, &mut each) {
            Some(used) => {
                self.kept.drain(..used);
                true
            }
            None => false,
        }
    }

    pub(crate) fn is_amid(&self) -> bool {
        !self.kept.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.kept.clear();
    }
}

/// Number of bytes in the complete responses at the start of `bytes`. `None` if one is malformed.
#[inline]
fn consume(bytes: &[u8], each: &mut impl FnMut(&[u8]) -> Parsed) -> Option<usize> {
    let mut used = 0;
    while used < bytes.len() {
        match each(&bytes[used..]) {
            Parsed::Complete { bytes, .. } | Parsed::Last { bytes, .. } => used += bytes,
            Parsed::Incomplete => break,
            Parsed::Malformed => return None,
        }
    }
    Some(used)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(bytes: &[u8], answer: Answer) -> Parsed {
        Parsed::Complete { bytes: bytes.len(), answer }
    }

    #[test]
    fn a_value_is_a_hit_and_end_alone_is_a_miss() {
        let hit = b"VALUE k1 0 3\r\nabc\r\nEND\r\n";
        assert_eq!(parse_get(hit, b"k1", b"abc"), whole(hit, Answer::Right));
        assert_eq!(parse_get(b"END\r\n", b"k1", b"abc"), whole(b"END\r\n", Answer::Miss));
    }

    #[test]
    fn another_value_or_another_length_is_wrong_content() {
        for hit in [&b"VALUE k1 0 3\r\nabd\r\nEND\r\n"[..], b"VALUE k1 0 4\r\nabcd\r\nEND\r\n"] {
            assert_eq!(parse_get(hit, b"k1", b"abc"), whole(hit, Answer::WrongContent));
        }
    }

    #[test]
    fn a_value_may_contain_an_end_marker() {
        let value = b"\r\nEND\r\n";
        let hit = b"VALUE k 0 7\r\n\r\nEND\r\n\r\nEND\r\n";
        assert_eq!(parse_get(hit, b"k", value), whole(hit, Answer::Right));
    }

    #[test]
    fn invalid_responses_are_malformed() {
        let lines: [&[u8]; 9] = [
            b"VALUE k2 0 3\r\nabc\r\nEND\r\n",
            b"VALUE k1 0 -3\r\n",
            b"VALUE k1 x 3\r\n",
            b"VALUE k1 0 99999999999999999999\r\n",
            b"VALUE k1 0 3000000\r\n",
            b"VALUE k1 0 3\r\nabcXXEND\r\n",
            b"HTTP/1.1 400 Bad Request\r\n",
            b"CLIENT_ERROR bad command line format\r\n",
            b"\n",
        ];
        for line in lines {
            assert_eq!(parse_get(line, b"k1", b"abc"), Parsed::Malformed, "{}", String::from_utf8_lossy(line));
        }
        assert_eq!(parse_get(&[b'x'; LINE_BYTES_MAX], b"k1", b"abc"), Parsed::Malformed);
    }

    #[test]
    fn a_server_error_answers_one_request_and_the_stream_continues() {
        let line = b"SERVER_ERROR out of memory storing object\r\n";
        assert_eq!(parse_set(line), whole(line, Answer::ServerError));
        assert_eq!(parse_get(b"ERROR\r\n", b"k", b"v"), whole(b"ERROR\r\n", Answer::ServerError));
        assert_eq!(parse_set(b"STORED\r\nEND"), whole(b"STORED\r\n", Answer::Right));
    }

    #[test]
    fn a_fixed_response_is_complete_at_its_length() {
        assert_eq!(parse_fixed(b"abc", 4, None), Parsed::Incomplete);
        assert_eq!(parse_fixed(b"abcde", 4, None), whole(b"abcd", Answer::Right));
        assert_eq!(parse_fixed(b"abcd", 4, Some(b"abce")), whole(b"abcd", Answer::WrongContent));
    }

    fn responses() -> impl Strategy<Value = Vec<u8>> {
        let one = prop_oneof![
            Just(b"END\r\n".to_vec()),
            Just(b"ERROR\r\n".to_vec()),
            Just(b"VALUE key 0 3\r\nabc\r\nEND\r\n".to_vec()),
            Just(b"VALUE key 7 5\r\n\r\nEND\r\nEND\r\n".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..40),
        ];
        proptest::collection::vec(one, 0..6).prop_map(|parts| parts.concat())
    }

    /// Reads `stream`, split at `cuts`. Returns every answer, and whether the whole stream was valid.
    fn read(stream: &[u8], cuts: &[usize]) -> (Vec<Answer>, bool) {
        let mut reader = ResponseReader::default();
        let mut answers = Vec::new();
        let mut start = 0;
        let ends = cuts.iter().map(|cut| cut % (stream.len() + 1)).chain([stream.len()]);
        for end in ends {
            let piece = &stream[start..end.max(start)];
            start = end.max(start);
            let understood = reader.feed(piece, |bytes| {
                let parsed = parse_get(bytes, b"key", b"abc");
                if let Parsed::Complete { answer, .. } = parsed {
                    answers.push(answer);
                }
                parsed
            });
            if !understood {
                return (answers, false);
            }
        }
        (answers, true)
    }

    proptest! {
        #[test]
        fn every_split_of_a_stream_reads_the_same(stream in responses(), mut cuts in proptest::collection::vec(any::<usize>(), 0..8)) {
            cuts.iter_mut().for_each(|cut| *cut %= stream.len() + 1);
            cuts.sort_unstable();
            prop_assert_eq!(read(&stream, &cuts), read(&stream, &[]));
        }

        #[test]
        fn a_complete_response_is_never_longer_than_the_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200), key in "[a-z]{1,4}") {
            for parsed in [parse_get(&bytes, key.as_bytes(), b"v"), parse_set(&bytes), parse_fixed(&bytes, 10, None)] {
                if let Parsed::Complete { bytes: length, .. } = parsed {
                    prop_assert!(length <= bytes.len() && length > 0);
                }
            }
        }
    }
}
