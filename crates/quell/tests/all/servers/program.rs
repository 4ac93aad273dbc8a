//! The servers under test, as packaged by the distribution or provided by a standard library: their command lines,
//! their real clients, and their requirements. The commands contain nothing about delivery modes.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

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
    /// The HTTP server of Go's standard library: one epoll for all threads.
    GoHttp,
    /// An echo server on tokio: one epoll for all threads.
    TokioEcho,
}

impl Program {
    /// All servers.
    pub(crate) const ALL: [Self; 7] =
        [Self::Memcached, Self::Redis, Self::Nginx, Self::NginxReuseport, Self::Haproxy, Self::GoHttp, Self::TokioEcho];

    /// Name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memcached => "memcached",
            Self::Redis => "redis-server",
            Self::Nginx => "nginx",
            Self::NginxReuseport => "nginx, reuseport",
            Self::Haproxy => "HAProxy",
            Self::GoHttp => "Go net/http",
            Self::TokioEcho => "tokio echo",
        }
    }

    /// Its real client.
    pub(crate) fn client(self) -> Client {
        match self {
            Self::Memcached => Client::QuellLoadMemcached,
            Self::Redis => Client::RedisBenchmark,
            Self::Nginx | Self::NginxReuseport | Self::Haproxy | Self::GoHttp => Client::Wrk,
            Self::TokioEcho => Client::QuellLoadEcho,
        }
    }

    /// Whether its workers have a reuseport group, so that a filter can select among them.
    pub(crate) fn has_a_socket_for_each_worker(self) -> bool {
        matches!(self, Self::NginxReuseport | Self::Haproxy)
    }

    /// Reason why it cannot be tested on this machine. Builds it first if its source is in this repository.
    pub(crate) fn missing(self) -> Option<String> {
        let server = match self {
            Self::Memcached => installed("memcached"),
            Self::Redis => installed("redis-server"),
            Self::Nginx | Self::NginxReuseport => installed("nginx"),
            Self::Haproxy => installed("haproxy"),
            Self::GoHttp => fixtures::go_http().map(drop),
            Self::TokioEcho => fixtures::tokio_echo().map(drop),
        };
        let client = self.client().program().map_or(Ok(()), installed);
        server.and(client).err()
    }

    /// Command line that starts it at `address` with `workers` threads or processes, if it supports several. Its files
    /// are in `dir`.
    pub(crate) fn command(self, address: SocketAddr, workers: u32, dir: &Path) -> Vec<String> {
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
                let configuration = dir.join("nginx.conf");
                std::fs::write(&configuration, self.nginx_conf(address, &workers, dir)).unwrap();
                return ["nginx", "-e", "stderr", "-c"]
                    .map(str::to_owned)
                    .into_iter()
                    .chain([path(&configuration)])
                    .collect();
            }
            Self::Haproxy => {
                let configuration = dir.join("haproxy.cfg");
                std::fs::write(&configuration, haproxy_cfg(address, &workers)).unwrap();
                return ["haproxy", "-db", "-f"].map(str::to_owned).into_iter().chain([path(&configuration)]).collect();
            }
            Self::GoHttp => return vec![path(&fixtures::go_http().unwrap()), address.to_string()],
            Self::TokioEcho => return vec![path(&fixtures::tokio_echo().unwrap()), address.to_string(), workers],
        };
        words.into_iter().map(str::to_owned).collect()
    }

    /// Serves a file of one kilobyte over persistent connections.
    fn nginx_conf(self, address: SocketAddr, workers: &str, dir: &Path) -> String {
        let reuseport = if self == Self::NginxReuseport { " reuseport" } else { "" };
        let root = dir.join("www");
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("index.html"), vec![b'x'; 1_024]).unwrap();
        let (dir, root) = (dir.display(), root.display());
        format!(
            "daemon off;\nuser root;\nworker_processes {workers};\npid {dir}/nginx.pid;\n\
             events {{ worker_connections 1024; }}\n\
             http {{\n  access_log off;\n  keepalive_requests 1000000000;\n\
             \x20 server {{ listen {address}{reuseport}; root {root}; }}\n}}\n"
        )
    }
}

/// Answers with a kilobyte by itself, like nginx; it has no backend server.
fn haproxy_cfg(address: SocketAddr, threads: &str) -> String {
    let body = "x".repeat(1_024);
    format!(
        "global\n  nbthread {threads}\n  maxconn 1024\n\
         defaults\n  mode http\n  timeout client 60s\n  timeout connect 10s\n  timeout server 60s\n\
         frontend web\n  bind {address} shards by-thread\n\
         \x20 http-request return status 200 content-type text/plain string {body}\n"
    )
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

fn installed(program: &str) -> Result<(), String> {
    let found = Command::new(program).arg("--version").output();
    found.map(drop).map_err(|error| format!("could not start {program} ({error}): tools/install-missing {program}"))
}
