//! Packets per second of one core, against a loop that only fills, receives, swaps addresses and sends.
//!
//! `cargo bench -p quell-xdp --bench minimal_loop [-- REPEATS [SECONDS]]`, as root. The lab is a private veth. Its server's
//! side is on CPU 1, its client's on CPU 0; both watch their rings, under `SCHED_FIFO`: other programs get what the kernel's
//! fair server leaves them. Three pairs take turns: minimal loops on both sides,
//! the load of this crate against a minimal loop, and a minimal loop against the responder of this crate. A ratio compares
//! neighbours in time.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a benchmark's output is its purpose"
)]

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_linux::af_xdp::{self, XdpReceiver, XdpSender, XdpSocketError, XdpSocketSpec};
use quell_linux::link::Links;
use quell_linux::netns::Namespace;
use quell_linux::sched::{Policy, Scheduling, set_affinity, set_scheduling};
use quell_linux::{CpuList, Ifindex, Pid};
use quell_sampler::XdpRedirect;
use quell_stats::Spread;
use quell_test_support::lab::{SERVER, TestLab};
use quell_xdp::{CopyMode, PollWay, XdpLoadSpec, XdpResponder, XdpResponderSpec, XdpSchedule, XdpSpec};

const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PORT: u16 = 7000;
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(SERVER), PORT);
const CLIENT_CPU: u32 = 0;
const SERVER_CPU: u32 = 1;
/// Frames on the way between the two sides.
const DEPTH: u32 = 64;
/// Priority of minimal loops. That of all other threads is higher, so that the one that ends a trial gets a CPU.
const FIFO_PRIORITY: u32 = 50;
const BATCH: u32 = 64;

/// A minimal loop in a thread, until it is dropped.
struct Minimal {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    _redirect: XdpRedirect,
}

impl Minimal {
    /// Starts a loop for frames to `local`, in the namespace of the calling thread.
    fn start(device: Ifindex, local: SocketAddr, cpu: u32) -> Self {
        let spec = XdpSocketSpec {
            interface: device,
            queue: 0,
            ring_entries: 2_048,
            batch: BATCH,
            copy_mode: CopyMode::Auto,
            need_wakeup: true,
        };
        let (mut receiver, mut sender, mut frames) = loop {
            match af_xdp::open(&spec) {
                Err(XdpSocketError::QueueInUse { .. }) => std::thread::sleep(Duration::from_millis(5)),
                opened => break opened.unwrap(),
            }
        };
        for frame in frames.drain(spec.ring_entries as usize..) {
            let _ = receiver.give(frame);
        }
        receiver.publish();
        let redirect = XdpRedirect::attach(device, 0, &receiver.handle(), local).unwrap();
        let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&received));
        let thread = std::thread::spawn(move || {
            set_affinity(Pid::of_this_thread(), &CpuList::from_iter([cpu])).unwrap();
            run_fifo(FIFO_PRIORITY);
            while !stopped.load(Ordering::Relaxed) {
                turn(&mut receiver, &mut sender, &count);
            }
        });
        Self { stop, received, thread: Some(thread), _redirect: redirect }
    }
}

impl Drop for Minimal {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

/// Runs the calling thread, and those that it starts, before all others of the machine.
fn run_fifo(priority: u32) {
    let scheduling = Scheduling { policy: Policy::Fifo { priority }, reset_on_fork: false };
    set_scheduling(Pid::of_this_thread(), scheduling).unwrap();
}

/// One turn of the loop.
fn turn(receiver: &mut XdpReceiver, sender: &mut XdpSender, count: &AtomicU64) {
    let mut taken = 0;
    while taken < BATCH
        && let Some(mut frame) = receiver.receive()
    {
        let bytes = receiver.content_mut(&mut frame);
        for (one, other, length) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
            let (head, tail) = bytes.split_at_mut(other);
            head[one..one + length].swap_with_slice(&mut tail[..length]);
        }
        let _ = sender.queue_received(frame);
        taken += 1;
    }
    if taken > 0 || sender.waiting() > 0 {
        sender.publish().unwrap();
    }
    while let Some(frame) = sender.completed() {
        let _ = receiver.give(frame);
    }
    receiver.publish();
    count.fetch_add(taken.into(), Ordering::Relaxed);
}

struct Bench {
    lab: TestLab,
    client_index: Ifindex,
    seconds: f64,
}

/// Runs in a namespace and returns there what has to be dropped elsewhere.
fn within<T: Send>(namespace: &Namespace, work: impl FnOnce() -> T + Send) -> T {
    namespace.run(work).unwrap()
}

impl Bench {
    fn echo(&self) -> Minimal {
        within(&self.lab.server, || Minimal::start(self.lab.server_index, ADDRESS, SERVER_CPU))
    }

    /// Packets that a minimal loop on the client's side receives per second.
    fn minimal_client(&self) -> f64 {
        within(&self.lab.client, || {
            // Its first frames come through the stack; from then on they go to and fro.
            let stack = UdpSocket::bind((CLIENT, 0)).unwrap();
            let minimal = Minimal::start(self.client_index, stack.local_addr().unwrap(), CLIENT_CPU);
            for _ in 0..DEPTH {
                stack.send_to(&[0; 64], ADDRESS).unwrap();
                std::thread::sleep(Duration::from_micros(200));
            }
            std::thread::sleep(Duration::from_millis(100));
            let (before, began) = (minimal.received.load(Ordering::Relaxed), Instant::now());
            std::thread::sleep(Duration::from_secs_f64(self.seconds));
            (minimal.received.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64()
        })
    }

    fn minimal(&self) -> f64 {
        let _echo = self.echo();
        self.minimal_client()
    }

    fn load(&self) -> f64 {
        let _echo = self.echo();
        let spec = XdpLoadSpec {
            server: ADDRESS,
            socket: socket(CLIENT_CPU),
            schedule: XdpSchedule::Closed { depth: DEPTH },
            bytes: 64,
            delay_us: 0.0,
            warm_up_ms: 100,
            measure_ms: (self.seconds * 1e3) as u32,
        };
        within(&self.lab.client, || quell_xdp::run(&spec, &mut |_| ControlFlow::Continue(()))).unwrap().answered_per_s
    }

    fn responder(&self) -> f64 {
        let spec = XdpResponderSpec { address: ADDRESS, socket: socket(SERVER_CPU), work_us: 0.0 };
        let _responder = within(&self.lab.server, || XdpResponder::start(&spec)).unwrap();
        self.minimal_client()
    }
}

fn socket(cpu: u32) -> XdpSpec {
    XdpSpec { way: PollWay::Interrupts, spin: true, batch: BATCH, cpus: vec![cpu], ..XdpSpec::default() }
}

fn main() {
    let arguments: Vec<f64> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let repeats = arguments.first().map_or(10, |repeats| *repeats as usize);
    let seconds = arguments.get(1).copied().unwrap_or(1.0);
    let Some(lab) = TestLab::raise("xdp-bench", 1) else {
        eprintln!("skipped: needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN)");
        return;
    };
    run_fifo(FIFO_PRIORITY + 10);
    let links = Links::open_in(&lab.client).unwrap().list().unwrap();
    let client_index = links.into_iter().find(|link| link.kind.as_deref() == Some("veth")).unwrap().index;
    let bench = Bench { lab, client_index, seconds };
    let (mut minimal, mut load, mut responder) = (Vec::new(), Vec::new(), Vec::new());
    let (mut load_ratios, mut responder_ratios) = (Vec::new(), Vec::new());
    for _ in 0..repeats {
        let rates = [bench.minimal(), bench.load(), bench.minimal(), bench.responder(), bench.minimal()];
        let [before, with_load, between, with_responder, after] = rates;
        minimal.extend([before, between, after]);
        load.push(with_load);
        responder.push(with_responder);
        load_ratios.push(with_load / ((before + between) / 2.0));
        responder_ratios.push(with_responder / ((between + after) / 2.0));
    }
    for (name, values, digits) in [
        ("minimal loops, packets/s", minimal, 0),
        ("quell load, packets/s", load, 0),
        ("quell respond, packets/s", responder, 0),
        ("quell load / minimal loop", load_ratios, 3),
        ("quell respond / minimal loop", responder_ratios, 3),
    ] {
        let Spread { median, min, max, .. } = Spread::of(values.into_iter().map(Some)).unwrap();
        println!("{name:<30} {median:>10.digits$} ({min:.digits$} to {max:.digits$})");
    }
}
