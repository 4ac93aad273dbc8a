//! The kernel's arm: a scenario played by threads on real sockets between two network namespaces, and
//! what the kernel did observed. Where the device comes from is the caller's business ([`veth`] and [`guest`] are
//! places), and so is judging: this only plays.

mod application;
mod counting;
pub mod guest;
mod outside;
mod queues;
mod sockets;
mod start;
pub mod veth;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use quell_linux::bpf::CounterError;
use quell_linux::epoll_params::{self, EpollParams, EpollParamsError};
use quell_linux::event::{Epoll, Event, Trigger};
use quell_linux::netlink::NetlinkError;
use quell_linux::netns::{Namespace, NamespaceError};
use quell_linux::proc::ProcError;
use quell_linux::sched::{self, Policy, SchedError, Scheduling};
use quell_linux::socket_options::SocketOptionError;
use quell_linux::sysfs::SysfsError;
use quell_linux::{CpuList, Ifindex, NapiId, Pid};
use quell_mode::{EpollSettings, NapiSettings, Threaded};

use crate::observe::{Message, Observations};
use crate::scenario::{Need, Scenario};
use application::{Player, Read};
use counting::Counting;
use outside::Outside;
pub use queues::Control;
use queues::Queues;
use sockets::Sockets;
use start::{Start, wait_until};

/// Where a scenario is played: a device with as many queues as it has, and a peer that sends to it.
#[derive(Debug)]
pub struct Site {
    /// Where the applications run.
    pub application: Side,
    /// Where packets are sent from.
    pub peer: Side,
    /// The CPUs: applications are pinned to them from the first on, the sender to the last.
    pub cpus: Vec<u32>,
    /// A CPU for a queue's thread that polls without end, if there is one to spare.
    pub spare_cpu: Option<u32>,
    /// What the device has.
    pub has: Vec<Need>,
    /// How its queues are told their settings.
    pub control: Control,
    /// The interrupt of its queue, for drivers that do not tell netlink.
    pub rx_irq: Option<u32>,
    /// Whether epolls have busy-poll parameters (`EPIOCSPARAMS`).
    pub epoll_parameters: bool,
}

/// One side of a site.
#[derive(Debug)]
pub struct Side {
    /// Its network.
    pub namespace: Arc<Namespace>,
    /// Its device.
    pub ifindex: Ifindex,
    /// Its address.
    pub address: IpAddr,
}

/// Why a scenario could not be played to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlayError {
    /// The device has another number of NAPI instances than the scenario has queues.
    #[error("the device has {found} NAPI instance(s), and the scenario {expected} queue(s)")]
    Queues {
        /// NAPI instances found.
        found: usize,
        /// Queues of the scenario.
        expected: usize,
    },
    /// The kernel says that the queue is threaded, and names no thread.
    #[error("NAPI {0} is set to be polled by a thread, and the kernel names none that this PID namespace has")]
    NoThread(NapiId),
    /// A queue is to be polled by a thread without end, and there is no CPU for it.
    #[error("a thread that polls without end takes a CPU of its own, and there is none to spare")]
    NoSpareCpu,
    /// No flow could be found that arrives by the queue that a socket is to have.
    #[error("of {tries} flows to `{socket}` none arrived by queue {queue}")]
    NoFlow {
        /// The socket.
        socket: String,
        /// The queue.
        queue: usize,
        /// How many were tried.
        tries: u32,
    },
    /// A datagram that was to find the way did not arrive.
    #[error("a datagram to `{socket}` did not arrive within {waited:?}: is the device up?")]
    NoWay {
        /// The socket.
        socket: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A system call on a socket, epoll or event failed.
    #[error("{action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused a queue's settings.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The kernel refused a device's settings.
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    /// A namespace could not be entered.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A thread could not be pinned or given its class.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// An epoll's parameters could not be set.
    #[error(transparent)]
    EpollParams(#[from] EpollParamsError),
    /// A socket option could not be set.
    #[error(transparent)]
    SocketOption(#[from] SocketOptionError),
    /// Polls could not be counted.
    #[error(transparent)]
    Counter(#[from] CounterError),
    /// A file of /proc could not be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
}

/// For `map_err`: what was tried when a system call failed.
fn failed(action: &'static str) -> impl FnOnce(io::Error) -> PlayError {
    move |source| PlayError::System { action, source }
}

/// NAPI threads come before the sender, the sender before the applications, all before the rest of the
/// machine: what else runs there can delay none of them for long.
const NAPI_THREAD_PRIORITY: u32 = 50;
const SENDER_PRIORITY: u32 = 45;
const APPLICATION_PRIORITY: u32 = 40;

/// Plays a scenario.
///
/// # Errors
/// See [`PlayError`]. The device keeps the settings that it got last.
pub fn play(site: &Site, scenario: &Scenario) -> Result<Observations, PlayError> {
    let mut queues = Queues::of(site)?;
    let napis = queues.ids().to_vec();
    if napis.len() != scenario.queues.len() && !scenario.past_napi {
        return Err(PlayError::Queues { found: napis.len(), expected: scenario.queues.len() });
    }
    // A device that was played on before may be deferred or suspended still. With nothing of it set the timer that is
    // under way is the last, and the datagrams that find the way come after it: the interrupt is enabled then.
    (0..napis.len()).try_for_each(|queue| queues.set(queue, &NapiSettings::default()))?;
    let sockets = Sockets::open(site, scenario, &napis)?;
    for (index, settings) in scenario.queues.iter().enumerate().take(napis.len()) {
        set_queue(&mut queues, index, settings, site)?;
    }
    let stop = Event::new().map_err(failed("making an eventfd"))?;
    let epolls = epolls(scenario, &sockets, &stop)?;
    let counting = Counting::begin(site, &mut queues, scenario)?;
    let outside = Outside::new(scenario, &sockets, &epolls, queues)?;
    let players = players(scenario, &sockets, epolls)?;
    let (end, played) = run(site, players, |begins_ns| {
        let end = outside.happen(begins_ns).and_then(|sent| {
            wait_until(begins_ns + scenario.lasts.0);
            Ok((sent, counting.end(site)?))
        });
        // Whatever came of it, nobody is to wait for ever.
        stop.raise().map_err(failed("raising an eventfd"))?;
        end
    })?;
    let (sent, (counted, busy_poll_rx_packets)) = end;
    let (waits, reads): (Vec<_>, Vec<_>) = played.into_iter().map(Player::observed).unzip();
    Ok(Observations {
        waits: waits.into_iter().flatten().collect(),
        messages: messages(scenario, &sent, &reads.concat()),
        queues: counted,
        busy_poll_rx_packets,
        incoming_napi: sockets.incoming_napi(&napis)?,
    })
}

fn set_queue(queues: &mut Queues, queue: usize, settings: &NapiSettings, site: &Site) -> Result<(), PlayError> {
    queues.set(queue, settings)?;
    let mut thread = || queues.thread(queue)?.ok_or_else(|| PlayError::NoThread(queues.ids()[queue]));
    match settings.threaded {
        Threaded::Off => Ok(()),
        Threaded::Thread => pin(thread()?, site.cpus[queue % site.cpus.len()], NAPI_THREAD_PRIORITY),
        // It shares its CPU with nobody, so it needs no priority, with which it would keep the kernel from its own work.
        Threaded::BusyPoll => {
            let cpu = site.spare_cpu.ok_or(PlayError::NoSpareCpu)?;
            Ok(sched::set_affinity(thread()?, &[cpu].into_iter().collect::<CpuList>())?)
        }
    }
}

/// Pins a thread under `SCHED_FIFO`.
fn pin(thread: Pid, cpu: u32, priority: u32) -> Result<(), PlayError> {
    sched::set_affinity(thread, &[cpu].into_iter().collect::<CpuList>())?;
    sched::set_scheduling(thread, Scheduling { policy: Policy::Fifo { priority }, reset_on_fork: false })?;
    Ok(())
}

fn params(settings: EpollSettings) -> EpollParams {
    let EpollSettings { busy_poll_usecs, busy_poll_budget, prefer_busy_poll } = settings;
    EpollParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll }
}

/// The epolls with everything in them. Each also has an event that ends the scenario and is quiet until then.
fn epolls(scenario: &Scenario, sockets: &Sockets, stop: &Event) -> Result<Vec<Epoll>, PlayError> {
    let mut epolls: Vec<Epoll> = Vec::new();
    for (index, of) in scenario.epolls.iter().enumerate() {
        let users = scenario.applications.iter().filter(|application| application.epoll == index);
        let max_events = users.map(|application| application.max_events).max().unwrap_or(1);
        let epoll = Epoll::new(max_events).map_err(failed("making an epoll"))?;
        epoll.add(stop, application::STOP, Trigger::Level).map_err(failed("watching an eventfd"))?;
        // A new one has them already, and an older kernel has no others.
        let has_parameters = of.settings != EpollSettings::default();
        if of.napi_known && has_parameters {
            epoll_params::set(&epoll, params(of.settings))?;
        }
        sockets.add_to(&epoll, index, scenario)?;
        if has_parameters {
            epoll_params::set(&epoll, params(of.settings))?;
        }
        if let Some(outer) = of.inside {
            let token = application::NESTED + index as u64;
            epolls[outer].add(&epoll, token, Trigger::Level).map_err(failed("adding to an epoll"))?;
        }
        epolls.push(epoll);
    }
    Ok(epolls)
}

/// One player an application, each with a reference of its own to its epoll and to those inside it; no other is left.
fn players<'a>(scenario: &'a Scenario, sockets: &'a Sockets, epolls: Vec<Epoll>) -> Result<Vec<Player<'a>>, PlayError> {
    let player = |(index, application): (usize, &'a crate::scenario::Application)| {
        let duplicate = |of: &Epoll| of.duplicate().map_err(failed("duplicating an epoll"));
        let inside = |(_, of): &(&Epoll, &crate::scenario::Epoll)| of.inside == Some(application.epoll);
        let inner = epolls.iter().zip(&scenario.epolls).filter(inside).map(|(epoll, _)| duplicate(epoll));
        let inner = inner.collect::<Result<_, PlayError>>()?;
        Ok(Player::new(scenario, index, sockets, duplicate(&epolls[application.epoll])?, inner))
    };
    scenario.applications.iter().enumerate().map(player).collect()
}

/// Lets everything happen: applications and the outside, each on a thread of its own. What applications hold is held until
/// the outside is done.
fn run<'a, T: Send>(
    site: &Site,
    players: Vec<Player<'a>>,
    outside: impl FnOnce(u64) -> Result<T, PlayError> + Send,
) -> Result<(T, Vec<Player<'a>>), PlayError> {
    let start = &Start::of_threads(players.len() + 1);
    std::thread::scope(|scope| {
        let play = |(index, player): (usize, Player<'a>)| {
            let cpu = site.cpus[index % site.cpus.len()];
            scope.spawn(move || {
                let pinned = pin(Pid::of_this_thread(), cpu, APPLICATION_PRIORITY);
                let begins_ns = start.together();
                pinned.and_then(|()| player.play(begins_ns))
            })
        };
        let players: Vec<_> = players.into_iter().enumerate().map(play).collect();
        let sender_cpu = site.cpus[site.cpus.len() - 1];
        let outside = scope.spawn(move || {
            let pinned = pin(Pid::of_this_thread(), sender_cpu, SENDER_PRIORITY);
            let begins_ns = start.together();
            let ended = outside(begins_ns);
            pinned.and(ended)
        });
        let played: Result<Vec<Player<'a>>, PlayError> = players.into_iter().map(joined).collect();
        Ok((joined(outside)?, played?))
    })
}

/// A panic of a thread goes on here.
fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Every message with the moment it was sent at and read at.
fn messages(scenario: &Scenario, sent: &[u64], reads: &[Read]) -> Vec<Message> {
    let read: BTreeMap<u32, u64> = reads.iter().map(|read| (read.number, read.at_ns)).collect();
    let rows = scenario.packets.iter().enumerate();
    let places = rows.flat_map(|(packet, row)| (0..row.to.len()).map(move |index| (packet, index)));
    let numbered = places.zip(sent).zip(0u32..);
    numbered
        .map(|(((packet, index), &sent_ns), number)| Message {
            packet,
            index,
            sent_ns,
            read_ns: read.get(&number).copied().filter(|&at_ns| at_ns < scenario.lasts.0),
        })
        .collect()
}
