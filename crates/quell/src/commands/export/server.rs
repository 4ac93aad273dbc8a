//! The HTTP server: `/metrics` and a page that links to it. Connections, request sizes and times are bounded.
//!
//! hyper, because it bounds the time of the header and the size of a request; servers with a thread per connection do not.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use quell_linux::kernel::host_name;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::Shared;
use crate::exit::{Failure, ListeningProtocol, listening};

/// Connections that are served at the same time. The oldest one is closed for another.
const CONNECTIONS_MAX: usize = 64;
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a connection, so that a reader that stops reading is dropped.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of the header of a request, in bytes; hyper's minimum.
const REQUEST_BYTES_MAX: usize = 8 * 1024;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const TOO_EARLY: &[u8] = b"no values yet: the first update has not ended\n";
const OTHER_HOST: &[u8] = b"the request names another host: allow it with --allow-host\n";
const PAGE: &str = "<!doctype html><title>quell export</title><a href=\"/metrics\">metrics</a>\n";

/// Hosts that a request may name. A page of another site can resolve its own name to this address (DNS rebinding) and then
/// read the responses; its requests name that site.
#[derive(Debug, Clone)]
pub(super) struct AllowedHosts {
    listen: IpAddr,
    names: Vec<String>,
}

impl AllowedHosts {
    /// The address, `localhost`, the name of this host, and `more`.
    pub(super) fn new(listen: IpAddr, more: &[String]) -> Self {
        let own = ["localhost".to_owned(), host_name()];
        Self { listen, names: own.into_iter().chain(more.iter().cloned()).collect() }
    }

    /// Whether the host of a `Host` header or URI is allowed. Behind a wildcard address it may be any address: only names
    /// can be rebound.
    fn allow(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.');
        let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_ours = literal.parse::<IpAddr>().is_ok_and(|ip| self.listen.is_unspecified() || ip == self.listen);
        is_ours || self.names.iter().any(|name| name.eq_ignore_ascii_case(host))
    }

    /// Only HTTP/1.0 lacks the header, which no browser speaks.
    fn allow_request<B>(&self, request: &Request<B>) -> bool {
        let named =
            |value: &HeaderValue| Authority::try_from(value.as_bytes()).is_ok_and(|host| self.allow(host.host()));
        request.headers().get_all(HOST).iter().all(named) && request.uri().host().is_none_or(|host| self.allow(host))
    }
}

/// Listens, and serves in another thread from then on. Returns the address with the port that the kernel chose for 0.
pub(super) fn start(address: SocketAddr, hosts: AllowedHosts, shared: Shared) -> Result<SocketAddr, Failure> {
    let choose = "select another address with --listen";
    let refused = |error: std::io::Error| listening(address, ListeningProtocol::Tcp, choose, &error);
    let runtime = Builder::new_current_thread().enable_io().enable_time().build().map_err(refused)?;
    let listener = runtime.block_on(TcpListener::bind(address)).map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    let serve = move || runtime.block_on(accept(listener, Arc::new(hosts), shared));
    thread::Builder::new().name("http".to_owned()).spawn(serve).map_err(refused)?;
    Ok(bound)
}

async fn accept(listener: TcpListener, hosts: Arc<AllowedHosts>, shared: Shared) {
    let mut served: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                served.retain(|one| !one.is_finished());
                // Silent clients must not keep others out. A response takes far less time than this many new connections.
                if served.len() == CONNECTIONS_MAX {
                    served.pop_front().inspect(JoinHandle::abort);
                }
                let (hosts, shared) = (Arc::clone(&hosts), Arc::clone(&shared));
                served.push_back(tokio::spawn(async move {
                    let _ = timeout(CONNECTION_TIMEOUT, serve(connection, &hosts, shared)).await;
                }));
            }
            // Too many open files, for example: the oldest connection gives one back.
            Err(_) => {
                served.pop_front().inspect(JoinHandle::abort);
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(connection: TcpStream, hosts: &AllowedHosts, shared: Shared) {
    let respond = service_fn(|request| {
        let response = respond(&request, hosts, &shared);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(REQUEST_BYTES_MAX).keep_alive(false);
    // Invalid requests are answered by hyper, and everything else about this connection concerns the other side.
    let _ = http.serve_connection(TokioIo::new(connection), respond).await;
}

fn respond<B>(request: &Request<B>, hosts: &AllowedHosts, shared: &Shared) -> Response<Full<Bytes>> {
    if !hosts.allow_request(request) {
        return plain(StatusCode::MISDIRECTED_REQUEST, TEXT, Bytes::from_static(OTHER_HOST));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, TEXT, Bytes::from_static(b"only GET and HEAD\n"));
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => {
            let latest = shared.read().unwrap_or_else(PoisonError::into_inner).clone();
            let Some(exposition) = latest else {
                return plain(StatusCode::SERVICE_UNAVAILABLE, TEXT, Bytes::from_static(TOO_EARLY));
            };
            let accepts = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.contains("openmetrics-text"));
            match request.headers().get_all(ACCEPT).iter().any(accepts) {
                true => plain(StatusCode::OK, OPEN_METRICS, exposition.open_metrics),
                false => plain(StatusCode::OK, TEXT, exposition.text),
            }
        }
        "/" => plain(StatusCode::OK, HTML, Bytes::from_static(PAGE.as_bytes())),
        _ => plain(StatusCode::NOT_FOUND, TEXT, Bytes::from_static(b"only / and /metrics\n")),
    }
}

fn plain(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::sync::RwLock;

    use quell_test_support::{PATIENCE, wait_until};

    use super::super::Served;
    use super::*;

    fn hosts() -> AllowedHosts {
        AllowedHosts::new("127.0.0.1".parse().unwrap(), &["metrics.example".to_owned()])
    }

    #[test]
    fn a_request_that_names_another_host_is_refused() {
        let allows = |listen: &str, host: &str| {
            let hosts = AllowedHosts::new(listen.parse().unwrap(), &["metrics.example".to_owned()]);
            hosts.allow_request(&Request::builder().uri("/metrics").header(HOST, host).body(()).unwrap())
        };
        let own = [host_name(), format!("{}:9955", host_name())];
        let named =
            ["localhost", "LocalHost.:9955", "metrics.example", "Metrics.Example:80", "127.0.0.1", "127.0.0.1:9955"];
        assert!(named.into_iter().chain(own.iter().map(String::as_str)).all(|host| allows("127.0.0.1", host)));
        for other in
            ["evil.example", "evil.example:9955", "localhost.evil.example", "192.0.2.7", "[::1]", "", "a@b", "a b"]
        {
            assert!(!allows("127.0.0.1", other), "{other:?}");
        }
        assert!(allows("::1", "[::1]:9955") && !allows("::1", "[::2]:9955"));
        assert!(allows("0.0.0.0", "192.0.2.7:9955") && allows("::", "[2001:db8::1]"));
        assert!(!allows("0.0.0.0", "evil.example"));
        let absolute =
            Request::builder().uri("http://evil.example/metrics").header(HOST, "localhost").body(()).unwrap();
        assert!(!hosts().allow_request(&absolute));
        let refused = respond(&absolute, &hosts(), &Shared::default());
        assert_eq!(refused.status(), StatusCode::MISDIRECTED_REQUEST);
    }

    fn scrape(shared: &Shared) -> (StatusCode, Option<HeaderValue>) {
        let request = Request::builder().uri("/metrics").header(ACCEPT, OPEN_METRICS).body(()).unwrap();
        let response = respond(&request, &hosts(), shared);
        (response.status(), response.headers().get(CONTENT_TYPE).cloned())
    }

    fn serving(text: Bytes) -> (SocketAddr, Shared) {
        let shared = Arc::new(RwLock::new(Some(Served { open_metrics: text.clone(), text })));
        (start("127.0.0.1:0".parse().unwrap(), hosts(), Arc::clone(&shared)).unwrap(), shared)
    }

    fn requesting(address: SocketAddr, path: &str) -> TcpStream {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        connection.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
        connection
    }

    #[test]
    fn readers_that_stop_reading_do_not_stop_the_others_and_are_dropped() {
        // More than the largest socket buffers.
        let text = Bytes::from(vec![b'#'; 32 * 1024 * 1024]);
        let (address, shared) = serving(text.clone());
        let mut readers: Vec<TcpStream> = (0..8).map(|_| requesting(address, "/metrics")).collect();
        let mut first = [0; 8];
        readers.iter_mut().for_each(|reader| reader.read_exact(&mut first).unwrap());
        let mut page = String::new();
        requesting(address, "/").read_to_string(&mut page).unwrap();
        assert!(page.ends_with(PAGE), "{page}");
        // Without the latest exposition, only the responses to these readers refer to the text.
        *shared.write().unwrap() = None;
        assert!(!text.is_unique());
        wait_until(|| if text.is_unique() { Ok(()) } else { Err("still sending".to_owned()) });
        for mut reader in readers {
            let mut rest = Vec::new();
            let _ = reader.read_to_end(&mut rest);
            assert!(rest.len() < text.len(), "the whole text has arrived");
        }
    }

    #[test]
    fn a_scrape_before_the_first_update_fails_instead_of_being_empty() {
        let shared: Shared = Arc::default();
        assert_eq!(scrape(&shared), (StatusCode::SERVICE_UNAVAILABLE, Some(HeaderValue::from_static(TEXT))));
        *shared.write().unwrap() = Some(Served { open_metrics: Bytes::from_static(b"# EOF\n"), text: Bytes::new() });
        assert_eq!(scrape(&shared), (StatusCode::OK, Some(HeaderValue::from_static(OPEN_METRICS))));
    }
}
