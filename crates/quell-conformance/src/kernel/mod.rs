//! Runs a scenario on the kernel: threads use real sockets between two network namespaces while the kernel's behaviour
//! is observed. The caller provides the device ([`veth`] and [`guest`] set up sites) and judges the observations.

mod application;
mod counting;
pub mod guest;
mod outside;
mod queues;
mod sockets;
mod start;
pub mod veth;

use quell_linux::io_uring::NapiPollError;
use quell_linux::visible::counted;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use quell_linux::epoll_params::{self, EpollParamsError};
use quell_linux::event::{Epoll, Trigger, WakeEvent};
use quell_linux::netlink::NetlinkError;
use quell_linux::netns::{Namespace, NamespaceError};
use quell_linux::proc::ProcError;
use quell_linux::sched::{self, Policy, SchedError, Scheduling};
use quell_linux::socket_options::SocketOptionError;
use quell_linux::sysfs::SysfsError;
use quell_linux::{CpuList, Ifindex, NapiId, Pid};
use quell_mode::{EpollParams, NapiSettings, Threaded};
use quell_sampler::SamplerError;

use crate::observe::{Observations, SentMessage};
use crate::scenario::{Need, Scenario};
use application::{Player, Read};
use counting::Counting;
use outside::Outside;
pub use queues::Control;
use queues::Queues;
use sockets::Sockets;
use start::{Start, wait_until};

/// A site to run scenarios on: a device with all its queues, and a peer that sends to it.
#[derive(Debug)]
pub struct Site {
    pub application: Side,
    pub peer: Side,
    /// CPUs of the site. Applications are pinned to the first ones, the sender to the last one.
    pub cpus: Vec<u32>,
    /// A CPU for a NAPI thread that polls continuously, if one is available.
    pub spare_cpu: Option<u32>,
    pub has: Vec<Need>,
    pub control: Control,
    /// Interrupt of the device's queue, for drivers that do not report it by netlink.
    pub rx_irq: Option<u32>,
    /// Whether epolls have busy-poll parameters (`EPIOCSPARAMS`).
    pub epoll_parameters: bool,
}

#[derive(Debug)]
pub struct Side {
    pub namespace: Arc<Namespace>,
    pub ifindex: Ifindex,
    pub address: IpAddr,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlayError {
    #[error(
        "the device has {}, but the scenario needs {}",
        counted(*found, "NAPI instance"), counted(*expected, "queue")
    )]
    Queues { found: usize, expected: usize },
    #[error("NAPI {0} is threaded, but its thread is not visible in this PID namespace")]
    NoThread(NapiId),
    #[error("a busy-polling NAPI thread needs a CPU of its own, but none is available")]
    NoSpareCpu,
    #[error("none of {tries} flows to `{socket}` arrived on queue {queue}")]
    NoFlow { socket: String, queue: usize, tries: u32 },
    #[error("a datagram to `{socket}` did not arrive within {waited:?}: is the device up?")]
    NoWay { socket: String, waited: Duration },
    #[error("could not {action}: {source}")]
    System { action: &'static str, source: io::Error },
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Sched(#[from] SchedError),
    #[error(transparent)]
    NapiPoll(#[from] NapiPollError),
    #[error(transparent)]
    EpollParams(#[from] EpollParamsError),
    #[error(transparent)]
    SocketOption(#[from] SocketOptionError),
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    #[error(transparent)]
    Proc(#[from] ProcError),
}

/// For `map_err`: adds the attempted action to the error returned by a system call.
fn failed(action: &'static str) -> impl FnOnce(io::Error) -> PlayError {
    move |source| PlayError::System { action, source }
}

/// Priorities: NAPI threads run above the sender, and the sender runs above the applications. All run above the other
/// programs on the machine, which therefore cannot delay them for long.
const NAPI_THREAD_PRIORITY: u32 = 50;
const SENDER_PRIORITY: u32 = 45;
const APPLICATION_PRIORITY: u32 = 40;

/// Runs a scenario. The device keeps the last settings.
pub fn play(site: &Site, scenario: &Scenario) -> Result<Observations, PlayError> {
    let mut queues = Queues::of(site)?;
    let napis = queues.ids().to_vec();
    if napis.len() != scenario.queues.len() && !scenario.past_napi {
        return Err(PlayError::Queues { found: napis.len(), expected: scenario.queues.len() });
    }
    // After an earlier run, the device may still be deferred or suspended. Without settings, the timer that is pending
    // now is the last one. The test datagrams of the flows arrive after it, and the interrupt is enabled then.
    (0..napis.len()).try_for_each(|queue| queues.set(queue, &NapiSettings::default()))?;
    let sockets = Sockets::open(site, scenario, &napis)?;
    for (index, settings) in scenario.queues.iter().enumerate().take(napis.len()) {
        set_queue(&mut queues, index, settings, site)?;
    }
    let stop = WakeEvent::new().map_err(failed("create an eventfd"))?;
    let epolls = epolls(scenario, &sockets, &stop)?;
    let counting = Counting::begin(site, &mut queues, scenario)?;
    let outside = Outside::new(scenario, &sockets, &epolls, queues)?;
    let players = players(scenario, &sockets, epolls)?;
    let (end, played) = run(site, players, |begins_ns| {
        let end = outside.happen(begins_ns).and_then(|sent| {
            wait_until(begins_ns + scenario.lasts.0);
            Ok((sent, counting.end(site)?))
        });
        // Stops all threads even after an error, so that no thread waits forever.
        stop.raise().map_err(failed("raise an eventfd"))?;
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
        // The thread has its own CPU and needs no real-time priority, which would starve kernel work on that CPU.
        Threaded::BusyPoll => {
            let cpu = site.spare_cpu.ok_or(PlayError::NoSpareCpu)?;
            Ok(sched::set_affinity(thread()?, &[cpu].into_iter().collect::<CpuList>())?)
        }
    }
}

fn pin(thread: Pid, cpu: u32, priority: u32) -> Result<(), PlayError> {
    sched::set_affinity(thread, &[cpu].into_iter().collect::<CpuList>())?;
    sched::set_scheduling(thread, Scheduling { policy: Policy::Fifo { priority }, reset_on_fork: false })?;
    Ok(())
}

/// Creates the epolls with their descriptors. Each also contains an event that ends the scenario.
fn epolls(scenario: &Scenario, sockets: &Sockets, stop: &WakeEvent) -> Result<Vec<Epoll>, PlayError> {
    let mut epolls: Vec<Epoll> = Vec::new();
    for (index, of) in scenario.epolls.iter().enumerate() {
        let users = scenario.applications.iter().filter(|application| application.epoll == index);
        let max_events = users.map(|application| application.max_events).max().unwrap_or(1);
        let epoll = Epoll::new(max_events).map_err(failed("create an epoll"))?;
        epoll.add(stop, application::STOP, Trigger::Level).map_err(failed("watch an eventfd"))?;
        // A new epoll already has the default parameters, and an older kernel supports no others.
        let has_parameters = of.settings != EpollParams::default();
        if of.napi_known && has_parameters {
            epoll_params::set(&epoll, of.settings)?;
        }
        sockets.add_to(&epoll, index, scenario)?;
        if has_parameters {
            epoll_params::set(&epoll, of.settings)?;
        }
        if let Some(outer) = of.inside {
            let token = application::NESTED + index as u64;
            epolls[outer].add(&epoll, token, Trigger::Level).map_err(failed("add a descriptor to an epoll"))?;
        }
        epolls.push(epoll);
    }
    Ok(epolls)
}

/// Creates one player per application. Each has its own reference to its epoll and to the nested epolls. No other
/// references remain.
fn players<'a>(scenario: &'a Scenario, sockets: &'a Sockets, epolls: Vec<Epoll>) -> Result<Vec<Player<'a>>, PlayError> {
    let player = |(index, application): (usize, &'a crate::scenario::Application)| {
        let duplicate = |of: &Epoll| of.duplicate().map_err(failed("duplicate an epoll"));
        let inside = |(_, of): &(&Epoll, &crate::scenario::ScenarioEpoll)| of.inside == Some(application.epoll);
        let inner = epolls.iter().zip(&scenario.epolls).filter(inside).map(|(epoll, _)| duplicate(epoll));
        let inner = inner.collect::<Result<_, PlayError>>()?;
        Ok(Player::new(scenario, index, sockets, duplicate(&epolls[application.epoll])?, inner))
    };
    scenario.applications.iter().enumerate().map(player).collect()
}

/// Runs the applications and the external events, each on its own thread. Applications keep their descriptors open
/// until the external events are done.
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

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn messages(scenario: &Scenario, sent: &[u64], reads: &[Read]) -> Vec<SentMessage> {
    let read: BTreeMap<u32, u64> = reads.iter().map(|read| (read.number, read.at_ns)).collect();
    let rows = scenario.packets.iter().enumerate();
    let places = rows.flat_map(|(packet, row)| (0..row.to.len()).map(move |index| (packet, index)));
    let numbered = places.zip(sent).zip(0u32..);
    numbered
        .map(|(((packet, index), &sent_ns), number)| SentMessage {
            packet,
            index,
            sent_ns,
            read_ns: read.get(&number).copied().filter(|&at_ns| at_ns < scenario.lasts.0),
        })
        .collect()
}
