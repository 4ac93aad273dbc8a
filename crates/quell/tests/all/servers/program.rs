//! The servers under test, as packaged by the distribution or provided by a standard library: their command lines,
//! their real clients, and their requirements. The commands contain nothing about delivery modes.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::client::Client;
use super::fixtures;

/// A server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// memcached: an epoll per worker thread.
    Memcached,
    /// Redis: one thread.
    Redis,
    /// nginx: an epoll per worker process and one shared listening socket.
    Nginx,
    /// nginx with a listening socket per worker process.
    NginxReuseport,
    /// HAProxy, which answers by itself: an epoll and a listening socket per thread.
    Haproxy,
    /// HAProxy as a proxy: its connections to the backend are in the same epolls.
    HaproxyProxy,
    /// Envoy as a proxy: the same.
    EnvoyProxy,
    /// The HTTP server of Go's standard library: one epoll for all threads.
    GoHttp,
    /// An echo server on tokio: one epoll for all threads.
    TokioEcho,
    /// The HTTP server of Node.js: one thread.
    NodeHttp,
    /// Unbound, which answers from its configuration, over UDP: an epoll and a socket per thread.
    Unbound,
}

/// Addresses and directory of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site<'a> {
    /// Address on which it listens.
    pub(crate) address: SocketAddr,
    /// Address of the server behind a proxy.
    pub(crate) backend: SocketAddr,
    /// Directory for its files.
    pub(crate) dir: &'a Path,
}

impl Program {
    /// All servers.
    pub(crate) const ALL: [Self; 11] = [
        Self::Memcached,
        Self::Redis,
        Self::Nginx,
        Self::NginxReuseport,
        Self::Haproxy,
        Self::HaproxyProxy,
        Self::EnvoyProxy,
        Self::GoHttp,
        Self::TokioEcho,
        Self::NodeHttp,
        Self::Unbound,
    ];

    /// Name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memcached => "memcached",
            Self::Redis => "redis-server",
            Self::Nginx => "nginx",
            Self::NginxReuseport => "nginx, reuseport",
            Self::Haproxy => "HAProxy",
            Self::HaproxyProxy => "HAProxy, proxy",
            Self::EnvoyProxy => "Envoy, proxy",
            Self::GoHttp => "Go net/http",
            Self::TokioEcho => "tokio echo",
            Self::NodeHttp => "Node.js",
            Self::Unbound => "Unbound",
        }
    }

    /// Its real client.
    pub(crate) fn client(self) -> Client {
        match self {
            Self::Memcached => Client::QuellLoadMemcached,
            Self::Redis => Client::RedisBenchmark,
            Self::Nginx
            | Self::NginxReuseport
            | Self::Haproxy
            | Self::HaproxyProxy
            | Self::EnvoyProxy
            | Self::GoHttp
            | Self::NodeHttp => Client::Wrk,
            Self::TokioEcho => Client::QuellLoadEcho,
            Self::Unbound => Client::Dnsperf,
        }
    }

    /// Options that give each worker the packets of one queue; none if its workers have no reuseport group.
    pub(crate) fn steering(self) -> &'static [&'static str] {
        match self {
            Self::NginxReuseport | Self::Haproxy | Self::HaproxyProxy | Self::EnvoyProxy => &["--steer"],
            Self::Unbound => &["--steer", "--steer-udp"],
            _ => &[],
        }
    }

    /// Whether its workers also have connections to a server behind it, which cannot be steered.
    pub(crate) fn has_a_backend(self) -> bool {
        matches!(self, Self::HaproxyProxy | Self::EnvoyProxy)
    }

    /// Reason why it cannot be tested on this machine. Builds it first if its source is in this repository.
    pub(crate) fn missing(self) -> Option<String> {
        let server = match self {
            Self::Memcached => installed("memcached"),
            Self::Redis => installed("redis-server"),
            Self::Nginx | Self::NginxReuseport => installed("nginx"),
            Self::Haproxy => installed("haproxy"),
            Self::HaproxyProxy => installed("haproxy").and(installed("nginx")),
            Self::EnvoyProxy => installed("envoy").and(installed("nginx")),
            Self::NodeHttp => installed("node"),
            Self::Unbound => installed("unbound"),
            Self::GoHttp => fixtures::go_http().map(drop),
            Self::TokioEcho => fixtures::tokio_echo().map(drop),
        };
        let client = self.client().program().map_or(Ok(()), installed);
        server.and(client).err()
    }

    /// Command line that starts it with `workers` threads or processes, if it supports several.
    pub(crate) fn command(self, site: Site<'_>, workers: u32) -> Vec<String> {
        let Site { address, backend, dir } = site;
        let (ip, port, workers) = (address.ip().to_string(), address.port().to_string(), workers.to_string());
        let dir_text = dir.display().to_string();
        let words: Vec<&str> = match self {
            Self::Memcached => {
                vec!["memcached", "-u", "nobody", "-U", "0", "-l", &ip, "-p", &port, "-t", &workers, "-N", &workers]
            }
            Self::Redis => vec![
                "redis-server",
                "--bind",
                &ip,
                "--port",
                &port,
                "--protected-mode",
                "no",
                "--save",
                "",
                "--appendonly",
                "no",
                "--enable-debug-command",
                "yes",
                "--dir",
                &dir_text,
            ],
            Self::Nginx | Self::NginxReuseport => {
                let reuseport = if self == Self::NginxReuseport { " reuseport" } else { "" };
                return nginx(&format!("{address}{reuseport}"), &workers, dir);
            }
            Self::Haproxy => {
                return configured(
                    &["haproxy", "-db", "-f"],
                    dir,
                    "haproxy.cfg",
                    &haproxy(site, &workers, &by_itself()),
                );
            }
            Self::HaproxyProxy => {
                let to_backend = format!("  default_backend app\nbackend app\n  server app {backend}\n");
                return configured(
                    &["haproxy", "-db", "-f"],
                    dir,
                    "haproxy.cfg",
                    &haproxy(site, &workers, &to_backend),
                );
            }
            Self::EnvoyProxy => {
                let quiet = ["envoy", "--disable-hot-restart", "-l", "error", "--concurrency", &workers, "-c"];
                return configured(&quiet, dir, "envoy.json", &envoy(site));
            }
            Self::NodeHttp => return vec!["node".to_owned(), path(&fixtures::source("node-http.js")), ip, port],
            Self::Unbound => {
                return configured(&["unbound", "-d", "-c"], dir, "unbound.conf", &unbound(site, &workers));
            }
            Self::GoHttp => return vec![path(&fixtures::go_http().unwrap()), address.to_string()],
            Self::TokioEcho => return vec![path(&fixtures::tokio_echo().unwrap()), address.to_string(), workers],
        };
        words.into_iter().map(str::to_owned).collect()
    }

    /// Command line of the server behind it, if it has one.
    pub(crate) fn backend(self, site: Site<'_>) -> Option<Vec<String>> {
        let dir = site.dir.join("backend");
        self.has_a_backend().then(|| {
            std::fs::create_dir_all(&dir).unwrap();
            nginx(&site.backend.to_string(), "1", &dir)
        })
    }
}

/// The command with the path of its configuration, which is written.
fn configured(command: &[&str], dir: &Path, file: &str, text: &str) -> Vec<String> {
    let file = dir.join(file);
    std::fs::write(&file, text).unwrap();
    command.iter().map(|word| (*word).to_owned()).chain([path(&file)]).collect()
}

/// Serves a file of one kilobyte over persistent connections.
fn nginx(listen: &str, workers: &str, dir: &Path) -> Vec<String> {
    let root = dir.join("www");
    std::fs::create_dir_all(&root).unwrap();
    std::fs::write(root.join("index.html"), vec![b'x'; 1_024]).unwrap();
    let (root, pid) = (root.display(), dir.display());
    let text = format!(
        "daemon off;\nuser root;\nworker_processes {workers};\npid {pid}/nginx.pid;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n  keepalive_requests 1000000000;\n\
         \x20 server {{ listen {listen}; root {root}; }}\n}}\n"
    );
    configured(&["nginx", "-e", "stderr", "-c"], dir, "nginx.conf", &text)
}

/// HAProxy's frontend; `then` is the rest of it.
fn haproxy(site: Site<'_>, threads: &str, then: &str) -> String {
    let address = site.address;
    format!(
        "global\n  nbthread {threads}\n  maxconn 1024\n\
         defaults\n  mode http\n  timeout client 60s\n  timeout connect 10s\n  timeout server 60s\n\
         frontend web\n  bind {address} shards by-thread\n{then}"
    )
}

/// A kilobyte, like nginx, without a backend.
fn by_itself() -> String {
    format!("  http-request return status 200 content-type text/plain string {}\n", "x".repeat(1_024))
}

fn envoy(site: Site<'_>) -> String {
    let at = |address: SocketAddr| json!({"socket_address": {"address": address.ip(), "port_value": address.port()}});
    let extension = |name: &str| format!("type.googleapis.com/envoy.extensions.filters.{name}");
    let router = json!({"name": "router", "typed_config": {"@type": extension("http.router.v3.Router")}});
    let manager = json!({
        "@type": extension("network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "web",
        "http_filters": [router],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
            {"match": {"prefix": "/"}, "route": {"cluster": "app"}}
        ]}]}
    });
    let endpoint = json!({"endpoint": {"address": at(site.backend)}});
    json!({"static_resources": {
        "listeners": [{
            "address": at(site.address),
            "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}]
        }],
        "clusters": [{
            "name": "app",
            "load_assignment": {"cluster_name": "app", "endpoints": [{"lb_endpoints": [endpoint]}]}
        }]
    }})
    .to_string()
}

/// Answers one name from its configuration. It also listens on TCP.
fn unbound(site: Site<'_>, threads: &str) -> String {
    let Site { address, dir, .. } = site;
    format!(
        "server:\n  num-threads: {threads}\n  interface: {ip}@{port}\n  access-control: 0.0.0.0/0 allow\n\
         \x20 username: \"\"\n  chroot: \"\"\n  directory: {dir}\n  pidfile: \"\"\n  use-syslog: no\n\
         \x20 module-config: iterator\n  local-zone: example static\n  local-data: \"www.example A 192.0.2.80\"\n\
         remote-control:\n  control-enable: no\n",
        ip = address.ip(),
        port = address.port(),
        dir = dir.display(),
    )
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

fn installed(program: &str) -> Result<(), String> {
    let found = Command::new(program).arg("--version").output();
    found.map(drop).map_err(|error| format!("could not start {program} ({error}): tools/install-missing {program}"))
}
