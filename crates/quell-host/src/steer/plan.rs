//! Decides the filter of a group and the notes to show before attaching it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use quell_change::reuseport_group::{GroupFilter, GroupKey, ServersFilter};
use quell_linux::reuseport::{InvalidSteering, QueueSteering, SeenQueues};
use quell_linux::visible::counted;

use super::groups::{Group, SteerWorker, has_accepted};
use super::programs::{PresentFilter, SteerRequest};
use super::queues::{LeftOut, SteerQueue, Ways};
use super::surroundings::Surroundings;
use crate::snapshot::{Protocol, Snapshot};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steering {
    pub group: Group,
    pub filter: QueueSteering,
    /// Queues, in the order of their index in the filter.
    pub places: Vec<SteerQueue>,
    pub replaces: Option<ServersFilter>,
    /// Notes to show before the filter is attached.
    pub notes: Vec<Note>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CannotSteer {
    #[error(
        "{key}: it has only one socket, {}; a filter selects among the sockets of a reuseport group. {advice}",
        match workers { 0 => "which no epoll watches".to_owned(), 1 => "with one worker".to_owned(), n => format!("shared by {n} workers") }
    )]
    OneSocket { key: GroupKey, workers: usize, advice: &'static str },
    #[error("{key}: no receive queue that a filter can distinguish delivers to it{}", listed(left_out))]
    NoQueues { key: GroupKey, left_out: Vec<LeftOut> },
    #[error("{key}: there is no device {name} in its namespace")]
    NoSuchDevice { key: GroupKey, name: String },
    #[error(
        "{key}: UDP groups are steered only with --steer-udp; a server that expects the datagrams of a flow on one \
         socket (QUIC) would lose them"
    )]
    Udp { key: GroupKey },
    #[error("{key}: the server has its own filter ({filter}); {}", replacing(filter))]
    OwnFilter { key: GroupKey, filter: ServersFilter },
    #[error("{key}: {source}")]
    TooLarge { key: GroupKey, source: InvalidSteering },
}

/// Why no group of listening sockets can get a filter.
#[derive(Debug, thiserror::Error)]
#[error("nothing can be steered: {}", why(.0))]
pub struct NothingSteered(pub Vec<CannotSteer>);

fn why(refused: &[CannotSteer]) -> String {
    match refused {
        [] => "the programs have no TCP listener, and no UDP sockets with SO_REUSEPORT".to_owned(),
        refused => refused.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    }
}

impl CannotSteer {
    #[must_use]
    pub fn key(&self) -> GroupKey {
        match self {
            Self::OneSocket { key, .. }
            | Self::NoQueues { key, .. }
            | Self::NoSuchDevice { key, .. }
            | Self::Udp { key }
            | Self::OwnFilter { key, .. }
            | Self::TooLarge { key, .. } => *key,
        }
    }
}

fn one_socket(group: &Group) -> CannotSteer {
    let workers = group.workers();
    let advice = match workers.first().map(|worker| worker.process.as_str()) {
        Some("memcached") => {
            "memcached sorts its connections itself if it is started with `-t QUEUES -N QUEUES`: leave out --steer"
        }
        Some("nginx") => "Add `reuseport` to its `listen` directives",
        Some("haproxy") => "Add `shards by-thread` to its `bind` lines",
        _ => "If the server can open a socket per worker (SO_REUSEPORT), enable that",
    };
    CannotSteer::OneSocket { key: group.key, workers: workers.len(), advice }
}

fn replacing(filter: &ServersFilter) -> String {
    match &filter.lost {
        None => "--replace-filter replaces it until the end of the attachment".to_owned(),
        Some(why) => format!("--replace-filter replaces it for good, because it cannot be kept: {why}"),
    }
}

fn listed(left_out: &[LeftOut]) -> String {
    left_out.iter().map(|left| format!("; {left}")).collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// Some workers receive from several queues.
    FewerWorkersThanQueues {
        workers: u32,
        queues: u32,
    },
    /// Some queues have several workers, which poll them in turn.
    MoreWorkersThanQueues {
        workers: u32,
        queues: u32,
    },
    /// Several epolls watch one socket. The one that wakes up first accepts the connection.
    SharedSocket {
        inode: u64,
        workers: Vec<SteerWorker>,
    },
    /// No known epoll watches these sockets: they belong to processes that were not inspected, or are used without an
    /// epoll.
    Unwatched {
        inodes: Vec<u64>,
    },
    /// An epoll watches several sockets of the group and therefore receives from the queues of all of them.
    SeveralSockets {
        worker: SteerWorker,
        sockets: usize,
    },
    /// Existing connections stay with their worker.
    Established {
        connections: usize,
    },
    /// Datagrams of existing flows will reach other sockets than before.
    FlowsMove,
    ReplacesFilter(ServersFilter),
    /// Whether the server has a filter, which would be replaced, is unknown.
    FilterUnknown {
        why: String,
    },
    /// Connections from this device are still distributed randomly.
    LeftOut(LeftOut),
}

pub fn plan(
    group: &Group,
    snapshot: &Snapshot,
    surroundings: &Surroundings,
    request: &SteerRequest,
) -> Result<Steering, CannotSteer> {
    let (key, only) = (group.key, &request.devices);
    let is_there =
        |name: &String| snapshot.devices.iter().any(|one| one.namespace == key.namespace && one.name == *name);
    if let Some(name) = only.iter().find(|name| !is_there(name)) {
        return Err(CannotSteer::NoSuchDevice { key, name: name.clone() });
    }
    if group.members.len() < 2 {
        return Err(one_socket(group));
    }
    if key.protocol == Protocol::Udp && !request.udp {
        return Err(CannotSteer::Udp { key });
    }
    let present = surroundings.programs.of(group);
    if let PresentFilter::Servers(filter) = &present
        && !request.replace_filter
    {
        return Err(CannotSteer::OwnFilter { key, filter: filter.clone() });
    }
    let sockets = u32::try_from(group.members.len()).unwrap_or(u32::MAX);
    let choose = |only: &[String]| Ways::of(snapshot, key.namespace).choose(&key, only);
    let chosen = match choose(only) {
        all if only.is_empty() && all.places.len() > group.members.len() => {
            all.without_idle(choose(&devices_with_connections(&key, snapshot)))
        }
        chosen => chosen,
    };
    if chosen.interfaces.is_empty() {
        return Err(CannotSteer::NoQueues { key, left_out: chosen.left_out });
    }
    let seen = |&(ifindex, first, queues)| SeenQueues { ifindex, first, queues };
    let filter = QueueSteering::new(chosen.interfaces.iter().map(seen).collect(), sockets)
        .map_err(|source| CannotSteer::TooLarge { key, source })?;
    let mut notes = notes(group, &filter, snapshot);
    notes.extend(chosen.left_out.into_iter().map(Note::LeftOut));
    let replaces = match present {
        PresentFilter::NotServers => None,
        PresentFilter::Servers(filter) => {
            notes.push(Note::ReplacesFilter(filter.clone()));
            Some(filter)
        }
        PresentFilter::Unknown(why) => {
            notes.push(Note::FilterUnknown { why });
            None
        }
    };
    Ok(Steering { group: group.clone(), filter, places: chosen.places, replaces, notes })
}

/// Names of the devices from which present connections to the group came.
fn devices_with_connections(key: &GroupKey, snapshot: &Snapshot) -> Vec<String> {
    let index = snapshot.index();
    let connections = snapshot.sockets.iter().filter(|socket| has_accepted(key, socket));
    let napis = connections.filter_map(|socket| socket.napi.known().copied().flatten());
    let devices: BTreeSet<&str> =
        napis.filter_map(|napi| index.napi(napi)).map(|(device, _)| device.name.as_str()).collect();
    devices.into_iter().map(str::to_owned).collect()
}

/// Records in a snapshot which sockets have a filter, and how many queues it selects for each.
pub fn mark_steered(snapshot: &mut Snapshot, steered: &BTreeMap<u64, u32>) {
    for socket in &mut snapshot.sockets {
        socket.steered_queues = steered.get(&socket.inode).copied();
    }
}

fn notes(group: &Group, filter: &QueueSteering, snapshot: &Snapshot) -> Vec<Note> {
    let mut notes = Vec::new();
    let (workers, queues) = (filter.sockets(), filter.places());
    match workers.cmp(&queues) {
        std::cmp::Ordering::Less => notes.push(Note::FewerWorkersThanQueues { workers, queues }),
        std::cmp::Ordering::Equal => {}
        std::cmp::Ordering::Greater => notes.push(Note::MoreWorkersThanQueues { workers, queues }),
    }
    let shared = group.members.iter().filter(|member| member.workers.len() > 1);
    notes.extend(shared.map(|member| Note::SharedSocket { inode: member.inode, workers: member.workers.clone() }));
    let unwatched: Vec<u64> =
        group.members.iter().filter(|member| member.workers.is_empty()).map(|member| member.inode).collect();
    if !unwatched.is_empty() {
        notes.push(Note::Unwatched { inodes: unwatched });
    }
    for worker in group.workers() {
        let sockets = group.members.iter().filter(|member| member.workers.contains(worker)).count();
        if sockets > 1 {
            notes.push(Note::SeveralSockets { worker: worker.clone(), sockets });
        }
    }
    if group.key.protocol == Protocol::Udp {
        notes.push(Note::FlowsMove);
    }
    let connections = snapshot.sockets.iter().filter(|socket| has_accepted(&group.key, socket)).count();
    if connections > 0 {
        notes.push(Note::Established { connections });
    }
    notes
}

impl Steering {
    /// Whether there are connections that the filter does not move.
    #[must_use]
    pub fn leaves_established(&self) -> bool {
        self.notes.iter().any(|note| matches!(note, Note::Established { .. }))
    }

    /// Removes the note about existing connections.
    pub fn forget_established(&mut self) {
        self.notes.retain(|note| !matches!(note, Note::Established { .. }));
    }

    /// Number of NAPI instances that the connections of one worker may use. It is one if there are as many workers as
    /// queues.
    #[must_use]
    pub fn queues_of_a_worker(&self) -> u32 {
        self.filter.places().div_ceil(self.filter.sockets())
    }

    /// Sockets of the group, each with the number of queues that the filter selects for it.
    pub fn queues_of_sockets(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.group.members.iter().map(|member| (member.inode, self.queues_of_a_worker()))
    }

    /// Names of the devices whose queues the filter distinguishes, each once.
    #[must_use]
    pub fn devices(&self) -> BTreeSet<&str> {
        self.places.iter().map(|place| place.device.as_str()).collect()
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FewerWorkersThanQueues { workers, queues } => write!(
                f,
                "{} for {}: workers receive connections from several queues, but an epoll \
                 polls only one; use more workers, fewer queues (`ethtool -L`), or \
                 --steer=DEVICE for the devices that clients use",
                counted(*workers, "socket"),
                counted(*queues, "queue")
            ),
            Self::MoreWorkersThanQueues { workers, queues } => write!(
                f,
                "{} for {}: each worker has one queue, but several workers share a queue \
                 and poll it in turn",
                counted(*workers, "socket"),
                counted(*queues, "queue")
            ),
            Self::SharedSocket { inode, workers } => write!(
                f,
                "socket {inode} is watched by {}: the filter does not select among them",
                counted(workers.len(), "epoll")
            ),
            Self::Unwatched { inodes } => write!(
                f,
                "no visible epoll watches {} of the sockets; connections on their queues wait until the owning \
                 process accepts them",
                inodes.len()
            ),
            Self::SeveralSockets { worker, sockets } => write!(
                f,
                "epoll {} of {} {} watches {sockets} of the sockets and receives from all their queues",
                worker.epoll_fd, worker.process, worker.pid
            ),
            Self::Established { connections } => {
                let connections = counted(*connections, "existing connection");
                write!(f, "{connections} not moved to other workers; the filter applies to new ones")
            }
            Self::FlowsMove => f.write_str("datagrams of existing flows will reach other sockets"),
            Self::ReplacesFilter(filter) => match &filter.lost {
                None => write!(f, "replaces the server's own filter ({filter}); undo attaches it again"),
                Some(why) => write!(f, "replaces the server's own filter ({filter}) for good: {why}"),
            },
            Self::FilterUnknown { why } => {
                write!(
                    f,
                    "if the server has its own filter, it is replaced for good; the present one is unknown: {why}"
                )
            }
            Self::LeftOut(left) => write!(f, "{left}; its connections go to any worker, as without a filter"),
        }
    }
}

impl From<&Steering> for GroupFilter {
    fn from(steering: &Steering) -> Self {
        let Steering { group, filter, replaces, .. } = steering;
        let sockets = group.members.iter().map(|member| member.inode).collect();
        Self { group: group.key, sockets, filter: filter.clone(), replaces: replaces.clone() }
    }
}
