//! `kill -9` at random times under load: of `quell attach`, `detach` or `run`, their keepers, the server, or all of
//! them. Afterwards no queue is stalled, no setting or journal remains, and only requests of a killed server are lost.
//!
//! The suspension timeout is so long that requests on a stalled queue time out. If all processes of `quell` were
//! killed, nobody restores the settings, and the next `quell detach` does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell_linux::Pid;
use quell_linux::epoll_params::EpollParams;
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::tcp::TcpConnection;
use quell_load::{ErrorCounts, Generator, KeyValues, LoadSpec, Polling, RunSpec, Schedule, Transport, Workload};
use quell_test_support::{Lacks, skip};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

use super::all_of_it;
use super::lab::{Launch, Running, Server, ServersLab};
use super::program::Program;

/// A mode whose stalled queue holds packets for longer than the timeout of requests.
const MODE: &str = "suspend200,irq-suspend-timeout=10s";
/// The timeout of requests (`LoadSpec::new`).
const BOUND: Duration = Duration::from_secs(2);
const KILLS: u32 = 200;
const KILLS_OF_AN_ORDINARY_TEST: u32 = 6;
const WORKERS: u32 = 2;

/// Processes to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victims {
    /// The command, if it still runs.
    Command,
    /// All processes of `quell`.
    Quell,
    /// The server.
    Server,
    /// All processes of `quell` and the server, in this order.
    QuellAndServer,
    /// The server and all processes of `quell`, in this order.
    ServerAndQuell,
}

/// Command that runs at the time of the kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum During {
    /// `quell attach` and its keeper.
    Attach,
    /// `quell attach --follow`, which stays in the foreground.
    Follow,
    /// `quell detach`.
    Detach,
    /// `quell run`, which has started the server.
    Run,
}

/// One kill, determined by its seed.
#[derive(Debug, Clone, Copy)]
struct Kill {
    victims: Victims,
    during: During,
    after: Duration,
}

impl Kill {
    fn drawn(random: &mut Pcg64, usual: Duration) -> Self {
        let victims =
            [Victims::Command, Victims::Quell, Victims::Server, Victims::QuellAndServer, Victims::ServerAndQuell];
        Self {
            victims: victims[random.random_range(0..victims.len())],
            during: [During::Attach, During::Follow, During::Detach, During::Run][random.random_range(0..4)],
            // The range extends beyond the end of the command.
            after: usual.mul_f64(random.random_range(0.0..1.3)),
        }
    }

    fn spares_the_server(self) -> bool {
        matches!(self.victims, Victims::Command | Victims::Quell)
    }

    fn strike(self, command: Pid, quell: &[Pid], server: &[Pid]) {
        let victims: Vec<Pid> = match self.victims {
            Victims::Command => vec![command],
            Victims::Quell => quell.to_vec(),
            Victims::Server => server.to_vec(),
            Victims::QuellAndServer => [quell, server].concat(),
            Victims::ServerAndQuell => [server, quell].concat(),
        };
        let victims: Vec<PidFd> = victims.into_iter().filter_map(|pid| PidFd::open(pid).ok()).collect();
        for victim in &victims {
            // The process may have exited already.
            let _ = victim.signal(Signal::KILL);
        }
        // A killed process holds its journal until it has exited, and counts as running until then.
        assert!(victims.iter().all(|victim| victim.wait_for_exit(BOUND).unwrap()), "{self:?}");
    }
}

/// Sends requests continuously from another thread until stopped.
struct Load {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<(u64, ErrorCounts)>,
}

impl Load {
    fn start(lab: &ServersLab, server: &Server) -> Self {
        let workload = Workload::Memcached(KeyValues::facebook());
        let spec = LoadSpec {
            connections: 16,
            cpus: lab.client_cpus().iter().take(1).collect(),
            polling: Polling::Epoll,
            ..LoadSpec::new(server.address, Transport::Tcp, workload)
        };
        let mut generator = Generator::connect(spec, Some(Arc::clone(&lab.veth.client.namespace))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let slice = RunSpec { schedule: Schedule::Closed, warm_up_ms: 0, measure_ms: 20 };
        let thread = std::thread::spawn(move || {
            let (mut answered, mut errors) = (0, ErrorCounts::default());
            while !is_over.load(Ordering::Relaxed) {
                let report = generator.run(&slice, &mut ()).unwrap();
                answered += report.answered_in_window;
                errors.requests_lost += report.errors.requests_lost + report.unanswered;
                errors.timed_out += report.errors.timed_out;
                errors.malformed += report.errors.malformed;
                errors.wrong_content += report.errors.wrong_content;
            }
            (answered, errors)
        });
        Self { stop, thread }
    }

    fn end(self) -> (u64, ErrorCounts) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Checks that the queue is not stalled: it answers at once, even if only with a refused connection.
fn assert_not_stalled(lab: &ServersLab, kill: Kill) {
    let address = lab.address();
    let connected = lab.veth.client.namespace.run(|| TcpConnection::connect(address, BOUND).map(drop)).unwrap();
    let timed_out = connected.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::TimedOut);
    assert!(!timed_out, "{kill:?}: the queue stalls: {connected:?}");
}

/// Starts a server and the `quell` command to be killed; the command is absent if it has started the server.
fn begin(lab: &ServersLab, during: During) -> (Server, Load, Option<Running>) {
    let launch = if during == During::Run { Launch::Under(&[MODE]) } else { Launch::Plain };
    let server = lab.serve(Program::Memcached, WORKERS, launch).unwrap();
    let load = Load::start(lab, &server);
    let pid = server.pid().to_string();
    let attach = ["attach", MODE, &pid, "--yes"];
    let command = match during {
        During::Attach => Some(lab.start_quell(&attach)),
        During::Follow => Some(lab.start_quell(&[&attach[..], &["--follow"]].concat())),
        During::Detach => {
            lab.quell(&attach).succeeded().unwrap();
            Some(lab.start_quell(&["detach", &pid]))
        }
        During::Run => None,
    };
    (server, load, command)
}

fn one_kill(lab: &ServersLab, kill: Kill) {
    let before = lab.queues();
    let (server, load, command) = begin(lab, kill.during);
    std::thread::sleep(kill.after);
    let pid = command.as_ref().map_or_else(|| server.launcher(), |command| command.0.pid());
    kill.strike(pid, &lab.quell_processes(), &server.processes());
    // Its success depends on the time of the kill, but it must exit.
    if let Some(command) = command {
        command.end();
    }
    // The command reports that nothing is attached if everything was restored already.
    let detached = (kill.victims != Victims::Server).then(|| lab.quell(&["detach", "--all"]));
    let said = format!("{kill:?}, {detached:?}");
    lab.wait_until_as_before(&before, &said);
    // A server that was launched with a mode keeps the parameters of its epolls.
    if kill.spares_the_server() && kill.during != During::Run {
        for epoll in server.epolls() {
            assert_eq!(epoll.params, EpollParams::default(), "{said}");
        }
    }
    assert_not_stalled(lab, kill);
    let (answered, errors) = load.end();
    if kill.spares_the_server() {
        assert!(answered > 0 && errors.is_empty(), "{kill:?}: {answered} answered, {errors}");
    }
    server.stop();
}

/// Duration of an undisturbed attach and detach on this machine.
fn usual(lab: &ServersLab) -> Duration {
    let server = lab.serve(Program::Memcached, WORKERS, Launch::Plain).unwrap();
    let load = Load::start(lab, &server);
    let pid = server.pid().to_string();
    let began = Instant::now();
    lab.quell(&["attach", MODE, &pid, "--yes"]).succeeded().unwrap();
    let attached = began.elapsed();
    lab.quell(&["detach", &pid]).succeeded().unwrap();
    load.end();
    server.stop();
    attached.max(began.elapsed() - attached)
}

#[test]
fn kills_at_any_time_cause_no_stall_no_leftovers_and_no_lost_request() {
    if let Some(why) = Program::Memcached.missing() {
        skip(Lacks::Server("memcached"), &why);
        return;
    }
    let Some(lab) = ServersLab::raise(WORKERS) else { return };
    let usual = usual(&lab);
    let (kills, seed) = (if all_of_it() { KILLS } else { KILLS_OF_AN_ORDINARY_TEST }, seed());
    eprintln!("{kills} kills, an attachment takes {usual:?}; QUELL_SEED={seed} repeats them");
    let mut random = Pcg64::seed_from_u64(seed);
    for _ in 0..kills {
        one_kill(&lab, Kill::drawn(&mut random, usual));
    }
}

fn seed() -> u64 {
    std::env::var("QUELL_SEED").ok().map_or_else(quell_linux::clock::boottime_ns, |seed| seed.parse().unwrap())
}
