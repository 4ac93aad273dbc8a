//! HTTP/1.1: one `GET` request, and responses with a length or in chunks.

use std::net::SocketAddr;

use httparse::{Response, Status};

use crate::response::{Answer, Parsed};
use crate::spec::HttpGet;

/// Maximum size of the head of a response, and of the line at the start of a chunk, bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
const BODY_BYTES_MAX: u64 = 64 << 20;

pub(crate) fn request(get: &HttpGet, server: Option<&SocketAddr>) -> Vec<u8> {
    let host = server.map_or_else(String::new, ToString::to_string);
    format!("GET {} HTTP/1.1\r\nHost: {host}\r\n\r\n", get.path).into_bytes()
}

/// How the end of a body is found (RFC 9112, section 6.3). A body that ends with its connection is not supported.
enum Body {
    Bytes(u64),
    Chunks,
}

#[inline]
pub(crate) fn parse_http(bytes: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = Response::new(&mut headers);
    let head = match response.parse(bytes) {
        Ok(Status::Complete(head)) => head,
        Ok(Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Parsed::Incomplete,
        _ => return Parsed::Malformed,
    };
    let code = response.code.unwrap_or_default();
    let end = match body(code, response.headers) {
        None => return Parsed::Malformed,
        Some(Body::Bytes(length)) => usize::try_from(length).ok().map(|length| head + length),
        Some(Body::Chunks) => match chunks_end(bytes, head) {
            Ok(end) => end,
            Err(parsed) => return parsed,
        },
    };
    match end.filter(|end| *end <= bytes.len()) {
        Some(end) => {
            let answer = if (200..300).contains(&code) { Answer::Right } else { Answer::ServerError };
            match value(response.headers, "connection").is_some_and(|option| option.eq_ignore_ascii_case(b"close")) {
                true => Parsed::Last { bytes: end, answer },
                false => Parsed::Complete { bytes: end, answer },
            }
        }
        None => Parsed::Incomplete,
    }
}

fn value<'a>(headers: &[httparse::Header<'a>], name: &str) -> Option<&'a [u8]> {
    headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

/// `None` if the end of the body cannot be found.
fn body(code: u16, headers: &[httparse::Header<'_>]) -> Option<Body> {
    // An informational response precedes the final one, which no request of the generator asks for.
    if code < 200 {
        return None;
    }
    if code == 204 || code == 304 {
        return Some(Body::Bytes(0));
    }
    if let Some(coding) = value(headers, "transfer-encoding") {
        return coding.eq_ignore_ascii_case(b"chunked").then_some(Body::Chunks);
    }
    let length = std::str::from_utf8(value(headers, "content-length")?).ok()?;
    let length = length.bytes().all(|byte| byte.is_ascii_digit()).then(|| length.parse().ok()).flatten();
    length.filter(|length| *length <= BODY_BYTES_MAX).map(Body::Bytes)
}

/// End of a body in chunks, whose trailer must be empty. `None` if the rest of a chunk has not arrived.
fn chunks_end(bytes: &[u8], start: usize) -> Result<Option<usize>, Parsed> {
    let mut at = start;
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let (line, size) = match httparse::parse_chunk_size(rest) {
            Ok(Status::Complete(chunk)) => chunk,
            Ok(Status::Partial) if rest.len() < HEAD_BYTES_MAX => return Ok(None),
            _ => return Err(Parsed::Malformed),
        };
        if size > BODY_BYTES_MAX {
            return Err(Parsed::Malformed);
        }
        let Ok(size_bytes) = usize::try_from(size) else { return Err(Parsed::Malformed) };
        at += line + size_bytes;
        match bytes.get(at..at + 2) {
            None => return Ok(None),
            Some(b"\r\n") => at += 2,
            Some(_) => return Err(Parsed::Malformed),
        }
        if size == 0 {
            return Ok(Some(at));
        }
        if (at - start) as u64 > BODY_BYTES_MAX {
            return Err(Parsed::Malformed);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NGINX: &[u8] = b"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Tue, 24 Nov 2026 06:00:00 GMT\r\n\
        Content-Type: text/html\r\ncontent-length: 5\r\nConnection: keep-alive\r\n\r\nhello";
    const CHUNKED: &[u8] =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n";

    fn whole(bytes: &[u8], answer: Answer) -> Parsed {
        Parsed::Complete { bytes: bytes.len(), answer }
    }

    #[test]
    fn a_request_has_the_path_and_the_host() {
        let server = SocketAddr::from(([192, 0, 2, 1], 80));
        let request = request(&HttpGet { path: "/a?b".to_owned() }, Some(&server));
        assert_eq!(request, b"GET /a?b HTTP/1.1\r\nHost: 192.0.2.1:80\r\n\r\n");
    }

    #[test]
    fn a_response_ends_at_its_length_or_after_its_last_chunk() {
        for response in [NGINX, CHUNKED] {
            let two = [response, NGINX].concat();
            assert_eq!(parse_http(&two), whole(response, Answer::Right));
            for end in 0..response.len() {
                assert_eq!(parse_http(&response[..end]), Parsed::Incomplete, "{end}");
            }
        }
    }

    #[test]
    fn a_server_announces_that_it_closes_the_connection_after_a_response() {
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close\r\n\r\n";
        assert_eq!(parse_http(response), Parsed::Last { bytes: response.len(), answer: Answer::Right });
    }

    #[test]
    fn a_status_above_299_is_an_error_of_the_server() {
        for head in
            ["404 Not Found\r\nContent-Length: 0", "304 Not Modified\r\nETag: 1", "503 Busy\r\nContent-Length: 0"]
        {
            let response = format!("HTTP/1.1 {head}\r\n\r\n");
            assert_eq!(parse_http(response.as_bytes()), whole(response.as_bytes(), Answer::ServerError));
        }
    }

    #[test]
    fn responses_without_a_known_end_are_malformed() {
        let heads = ["Content-Length: -1", "Content-Length: +5", "Content-Length: 99999999999", "Server: x"];
        let heads = heads.into_iter().chain(["Transfer-Encoding: gzip"]);
        for response in heads.map(|head| format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n")) {
            assert_eq!(parse_http(response.as_bytes()), Parsed::Malformed, "{response}");
        }
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        for chunks in ["x\r\n", "FFFFFFFFFFFFFFFF\r\n", "2\r\nabc\r\n", "0\r\nX: y\r\n\r\n"] {
            assert_eq!(parse_http(format!("{chunked}{chunks}").as_bytes()), Parsed::Malformed, "{chunks}");
        }
        assert_eq!(parse_http(b"VALUE key 0 3\r\nabc\r\nEND\r\n"), Parsed::Malformed);
        assert_eq!(parse_http(b"HTTP/1.1 100 Continue\r\n\r\n"), Parsed::Malformed);
        let endless = [&b"HTTP/1.1 200 OK\r\nX: "[..], &[b'x'; HEAD_BYTES_MAX]].concat();
        assert_eq!(parse_http(&endless), Parsed::Malformed);
    }

    proptest! {
        #[test]
        fn a_complete_response_is_never_longer_than_the_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for stream in [bytes.clone(), [CHUNKED, &bytes].concat(), [&NGINX[..60], &bytes].concat()] {
                if let Parsed::Complete { bytes: length, .. } = parse_http(&stream) {
                    prop_assert!(length <= stream.len() && length > 0);
                }
            }
        }
    }
}
