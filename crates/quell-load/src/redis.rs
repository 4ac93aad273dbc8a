//! Redis's protocol, RESP2: `GET` and `SET` as arrays of bulk strings, and their responses.

use crate::requests::write_decimal;
use crate::response::{Answer, Parsed, complete, first_line, is_number};
use crate::spec::KeyValues;

#[inline]
pub(crate) fn write_get(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
    write_bulk_string(key, out);
}

pub(crate) fn write_set(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
    write_bulk_string(key, out);
    write_bulk_string(value, out);
}

fn write_bulk_string(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'$');
    write_decimal(bytes.len(), out);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// The response to `GET`: a bulk string; `$-1` if the server does not have the key.
#[inline]
pub(crate) fn parse_get(bytes: &[u8], value: &[u8]) -> Parsed {
    let line = match first_line(bytes) {
        Ok(line) => line,
        Err(parsed) => return parsed,
    };
    if line == b"$-1" {
        return complete(line, Answer::Miss);
    }
    let Some(length) = line.strip_prefix(b"$") else { return parse_error(line) };
    let Some(length) = bulk_length(length) else { return Parsed::Malformed };
    let value_start = line.len() + 2;
    let value_end = value_start + length;
    match bytes.get(value_end..value_end + 2) {
        None => Parsed::Incomplete,
        Some(b"\r\n") => {
            let answer = if &bytes[value_start..value_end] == value { Answer::Right } else { Answer::WrongContent };
            Parsed::Complete { bytes: value_end + 2, answer }
        }
        Some(_) => Parsed::Malformed,
    }
}

pub(crate) fn parse_set(bytes: &[u8]) -> Parsed {
    match first_line(bytes) {
        Ok(b"+OK") => complete(b"+OK", Answer::Right),
        Ok(line) => parse_error(line),
        Err(parsed) => parsed,
    }
}

fn bulk_length(digits: &[u8]) -> Option<usize> {
    let digits = std::str::from_utf8(digits).ok().filter(|digits| is_number(digits))?;
    digits.parse().ok().filter(|length| *length <= KeyValues::VALUE_BYTES_MAX as usize * 2)
}

/// A simple error, such as `-OOM command not allowed`, answers one request.
fn parse_error(line: &[u8]) -> Parsed {
    if line.starts_with(b"-") { complete(line, Answer::ServerError) } else { Parsed::Malformed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8], answer: Answer) -> Parsed {
        Parsed::Complete { bytes: bytes.len(), answer }
    }

    #[test]
    fn requests_are_arrays_of_bulk_strings() {
        let mut out = Vec::new();
        write_get(b"key7", &mut out);
        write_set(b"key7", b"\r\n0", &mut out);
        let set = "*3\r\n$3\r\nSET\r\n$4\r\nkey7\r\n$3\r\n\r\n0\r\n";
        assert_eq!(out, format!("*2\r\n$3\r\nGET\r\n$4\r\nkey7\r\n{set}").into_bytes());
    }

    #[test]
    fn a_bulk_string_is_a_hit_a_null_string_a_miss_and_an_error_one_of_the_server() {
        let hit = b"$3\r\nabc\r\n";
        assert_eq!(parse_get(hit, b"abc"), whole(hit, Answer::Right));
        assert_eq!(parse_get(hit, b"abd"), whole(hit, Answer::WrongContent));
        assert_eq!(parse_get(b"$-1\r\n", b"abc"), whole(b"$-1\r\n", Answer::Miss));
        let oom = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n";
        assert_eq!(parse_get(oom, b"abc"), whole(oom, Answer::ServerError));
        assert_eq!(parse_set(oom), whole(oom, Answer::ServerError));
        let denied = format!("-DENIED Redis is running in protected mode {}\r\n", "x".repeat(1_200)).into_bytes();
        assert_eq!(parse_set(&denied), whole(&denied, Answer::ServerError));
        assert_eq!(parse_set(b"+OK\r\n$3"), whole(b"+OK\r\n", Answer::Right));
    }

    #[test]
    fn every_proper_prefix_is_incomplete() {
        let hit = b"$12\r\n0123456789\r\n\r\n";
        assert_eq!(parse_get(hit, b"0123456789\r\n"), whole(hit, Answer::Right));
        for end in 0..hit.len() {
            assert_eq!(parse_get(&hit[..end], b"0123456789\r\n"), Parsed::Incomplete, "{end}");
        }
    }

    #[test]
    fn invalid_responses_are_malformed() {
        for bytes in [&b"$3\r\nabcXX"[..], b"$x\r\n", b"$-2\r\n", b"$3000000\r\n", b"END\r\n", b"*1\r\n", b"\n"] {
            assert_eq!(parse_get(bytes, b"abc"), Parsed::Malformed, "{}", String::from_utf8_lossy(bytes));
        }
    }
}
