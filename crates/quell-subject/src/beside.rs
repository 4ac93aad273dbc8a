//! Measures how a delivery mode affects a second server on the same queues. Modes are set per queue, so they also delay
//! programs that did not request a mode.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_linux::netns::Namespace;
use quell_linux::sched::{self, Policy, SchedError, Scheduling};
use quell_linux::{CpuList, Pid};
use quell_stats::LatencyHistogram;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

/// A request in memcached's text protocol.
const REQUEST: &[u8] = b"version\r\n";
/// Mean interval between requests. At 1,000 requests per second, the client uses a few percent of its CPU.
const MEAN_GAP: Duration = Duration::from_millis(1);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Time limit for one response.
const RESPONSE_MAX: Duration = Duration::from_secs(2);
/// The client has a higher priority than the generator on the same CPU. Otherwise its scheduling delay would count as
/// latency.
const PRIORITY: Scheduling = Scheduling { policy: Policy::Fifo { priority: 1 }, reset_on_fork: false };

/// A client that sends one request at a time and sleeps in between. It measures latency from the time at which the
/// request was due. Dropping the value stops the client.
#[derive(Debug)]
pub struct BesideClient {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    recorded: Mutex<Recorded>,
    stop: AtomicBool,
    /// Reason why the client stopped without being asked to.
    failure: Mutex<Option<String>>,
}

/// Latencies of requests that were due after `from`.
#[derive(Debug)]
struct Recorded {
    from: Instant,
    latency: LatencyHistogram,
}

impl Recorded {
    fn begin() -> Self {
        Self { from: Instant::now(), latency: LatencyHistogram::new() }
    }
}

impl BesideClient {
    /// Connects to `address` from `namespace` and starts to send from the CPUs `cpus`.
    ///
    /// # Errors
    /// Fails if the thread cannot be started, pinned or connected.
    pub fn start(
        address: SocketAddr,
        namespace: Arc<Namespace>,
        cpus: CpuList,
        seed: u64,
    ) -> Result<Self, BesideError> {
        let (recorded, stop, failure) = (Mutex::new(Recorded::begin()), AtomicBool::new(false), Mutex::new(None));
        let shared = Arc::new(Shared { recorded, stop, failure });
        let (of_thread, (ready, is_ready)) = (Arc::clone(&shared), std::sync::mpsc::channel());
        let run = move || {
            let connected = connect(address, &namespace, &cpus);
            let outcome = connected.as_ref().map(|_| ()).map_err(ToString::to_string);
            if let (Ok(()), Ok(mut connection)) = (ready.send(outcome), connected)
                && let Err(error) = ask_until_stopped(&mut connection, &of_thread, seed)
            {
                *locked(&of_thread.failure) = Some(format!("the second server at {address} failed: {error}"));
            }
        };
        let thread =
            std::thread::Builder::new().name("quell-beside".to_owned()).spawn(run).map_err(BesideError::Thread)?;
        let client = Self { shared, thread: Some(thread) };
        match is_ready.recv() {
            Ok(Ok(())) => Ok(client),
            Ok(Err(why)) => Err(BesideError::Connect { address, why }),
            Err(_) => Err(BesideError::Connect { address, why: "the client's thread panicked".to_owned() }),
        }
    }

    /// Returns the latencies of requests that were due and answered since the last call.
    ///
    /// # Errors
    /// Fails if the client has stopped because the server closed the connection or did not respond.
    pub fn take(&self) -> Result<LatencyHistogram, BesideError> {
        if let Some(why) = locked(&self.shared.failure).clone() {
            return Err(BesideError::Ended(why));
        }
        Ok(std::mem::replace(&mut *locked(&self.shared.recorded), Recorded::begin()).latency)
    }
}

impl Drop for BesideClient {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reason why the second server could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BesideError {
    /// The client's thread could not be started.
    #[error("cannot start the client of the second server: {0}")]
    Thread(std::io::Error),
    /// The client's thread could not be pinned, or the client could not connect.
    #[error("the client of the second server at {address} failed: {why}")]
    Connect {
        /// Address of the second server.
        address: SocketAddr,
        /// Description of the error.
        why: String,
    },
    /// The second server has stopped responding.
    #[error("{0}")]
    Ended(String),
}

#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    Namespace(#[from] quell_linux::netns::NamespaceError),
    #[error(transparent)]
    Sched(#[from] SchedError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

fn connect(address: SocketAddr, namespace: &Namespace, cpus: &CpuList) -> Result<BufReader<TcpStream>, ConnectError> {
    let this = Pid::of_this_thread();
    sched::set_affinity(this, cpus)?;
    sched::set_scheduling(this, PRIORITY)?;
    let stream = namespace.run(|| TcpStream::connect_timeout(&address, CONNECT_MAX))??;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(RESPONSE_MAX))?;
    Ok(BufReader::new(stream))
}

fn ask_until_stopped(connection: &mut BufReader<TcpStream>, shared: &Shared, seed: u64) -> std::io::Result<()> {
    let mut random = Pcg64::seed_from_u64(seed);
    let mut due = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        connection.get_mut().write_all(REQUEST)?;
        if connection.skip_until(b'\n')? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let latency_ns = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut recorded = locked(&shared.recorded);
        if due >= recorded.from {
            recorded.latency.record(latency_ns);
        }
        drop(recorded);
        // Random intervals prevent the requests from running in phase with the kernel's timers. A late response does not
        // shift the schedule: the requests that it delays have its latency, too.
        due += MEAN_GAP.mul_f64(random.random_range(0.5..1.5));
    }
    Ok(())
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
