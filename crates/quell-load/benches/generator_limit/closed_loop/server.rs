//! The benchmark's memcached, and how a mode is attached to it.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use quell_linux::Pid;
use quell_linux::proc::ProcRoot;
use quell_linux::process::{Child, Output, Spawn};
use quell_linux::tcp::TcpConnection;
use quell_test_support::wait_until;

use crate::lab::{CLIENT_CPU, Lab, SERVER_CPU};

/// Size of every sender's values, bytes.
pub(crate) const VALUE_BYTES: u32 = 200;
/// Size of every sender's keys, bytes.
pub(crate) const KEY_BYTES: u32 = 30;
const PORT: u16 = 7_110;
/// Time limit for attaching or detaching.
const BOUND: Duration = Duration::from_secs(60);

/// A memcached with one worker, and an idle connection to it, from which `quell attach` finds the queue.
pub(crate) struct Server {
    child: Child,
    _idle: TcpConnection,
}

/// A mode attached to the server. Dropping this detaches it.
pub(crate) struct Attached<'a> {
    quell: &'a str,
    pid: Pid,
    journal: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start(lab: &Lab) -> Result<Self, Box<dyn Error>> {
        let address = Self::address();
        let arguments = ["-u", "root", "-U", "0", "-t", "1", "-c", "1024", "-m", "64", "-l"];
        let child = Spawn::new("memcached")
            .args(arguments)
            .args([address.ip().to_string(), "-p".to_owned(), address.port().to_string()])
            .netns(&*lab.server)
            .cpus([SERVER_CPU].into_iter().collect())
            .dies_with_this_thread()
            .start()?;
        let connect = || TcpConnection::connect(address, BOUND).map_err(|error| error.to_string());
        let idle = lab.client.run(|| wait_until(connect))?;
        let key = Self::blind_key();
        let value = "v".repeat(VALUE_BYTES as usize);
        idle.send(format!("set {key} 0 0 {VALUE_BYTES}\r\n{value}\r\n").as_bytes())?;
        let mut response = [0; 64];
        let length = wait_until(|| idle.receive(&mut response).map_err(|error| error.to_string()));
        if &response[..length] != b"STORED\r\n" {
            return Err(format!("memcached answered {:?} to a set", &response[..length]).into());
        }
        Ok(Self { child, _idle: idle })
    }

    pub(crate) fn address() -> SocketAddr {
        Lab::server_address(PORT)
    }

    /// Key that the blind sender requests.
    pub(crate) fn blind_key() -> String {
        "k".repeat(KEY_BYTES as usize)
    }

    /// CPU time of all threads since they started. `None` if /proc could not be read.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        cpu_time(self.child.pid())
    }

    /// Attaches `mode` to the server until the returned guard is dropped. Fails if this does not change the settings of
    /// the server's queue.
    pub(crate) fn attach<'a>(&self, lab: &Lab, quell: &'a str, mode: &str) -> Result<Attached<'a>, Box<dyn Error>> {
        let before = lab.server_napi()?;
        let attached = Attached { quell, pid: self.child.pid(), journal: tempfile::tempdir()? };
        attached.run(&["attach", mode, &attached.pid.to_string(), "--yes", "--seconds", "0"])?;
        match lab.server_napi()? == before {
            true => Err(format!("{mode} did not change the server's queue: {before:?}").into()),
            false => Ok(attached),
        }
    }
}

impl Attached<'_> {
    fn run(&self, arguments: &[&str]) -> Result<(), Box<dyn Error>> {
        let mut child = Spawn::new(self.quell)
            .args(arguments)
            .env("QUELL_JOURNAL_DIR", self.journal.path())
            .cpus([CLIENT_CPU].into_iter().collect())
            .stderr(Output::Tail(4096))
            .start()?;
        match child.wait(BOUND)? {
            Some(status) if status.success() => Ok(()),
            status => {
                let stderr = child.stderr_tail().unwrap_or_default();
                let stderr = String::from_utf8_lossy(&stderr);
                Err(format!("{} {}: {status:?}: {stderr}", self.quell, arguments.join(" ")).into())
            }
        }
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.run(&["detach", &self.pid.to_string()]) {
            eprintln!("{error}");
        }
    }
}

/// CPU time of a process. `None` if /proc could not be read.
pub(crate) fn cpu_time(pid: Pid) -> Option<Duration> {
    let stat = ProcRoot::default().process(pid).stat().ok()?;
    Some(stat.utime.duration() + stat.stime.duration())
}
