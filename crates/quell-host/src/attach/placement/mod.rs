//! Places an attachment's workers on request: filters on their reuseport groups, and CPU affinity of their threads.
//! [`crate::steer`] decides. This module observes, applies decisions through the attachment's journal, and verifies
//! them, once or for as long as the programs run.

mod bound;
mod filters;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{Discriminant, discriminant};
use std::thread;
use std::time::{Duration, Instant};

use quell_change::change::{Change, ReuseportFilter};
use quell_change::journal::Journal;
use quell_change::settings::SettingsError;
use quell_change::target::Targets;
use quell_change::transaction::{ChangeError, ChangeStage, Transaction};
use quell_linux::Pid;
use tracing::{debug, info, warn};

use self::bound::Bound;
use self::filters::Filters;
use super::attached::attachments;
use super::attachment::AttachObserver;
use super::error::AttachError;
use crate::behavior::ReadQueues;
use crate::findings::workers_can_be_pinned;
use crate::snapshot::{Snapshot, SnapshotScope, TakeError, queues_of, take};
use crate::steer::{
    CannotSteer, GroupKey, LookError, NotPinned, Pin, Shown, ShownGroup, SteerRequest, Steering, Verification,
    WhyNotPinned, connections, groups, look, mark_steered, pins, plan,
};

/// Interval between snapshots of the workers while waiting for their connections.
const LOOKED_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    pub steer: Option<SteerRequest>,
    /// Bind workers to the CPUs of the queues that deliver their connections.
    pub pin: bool,
}

impl Wanted {
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.steer.is_none() && !self.pin
    }

    /// Whether this changes something for these programs. Workers are pinned only to the CPUs of queues that have some.
    #[must_use]
    pub fn changes(&self, now: &Snapshot, programs: &BTreeSet<Pid>) -> bool {
        self.steer.is_some() || self.pin && workers_can_be_pinned(now, programs)
    }

    /// Options of `quell attach` and `quell run` that request this.
    #[must_use]
    pub fn options(&self) -> Vec<String> {
        let mut options = Vec::new();
        if let Some(SteerRequest { devices, udp, replace_filter }) = &self.steer {
            let devices = if devices.is_empty() { String::new() } else { format!("={}", devices.join(",")) };
            options.push(format!("--steer{devices}"));
            options.extend(udp.then(|| "--steer-udp".to_owned()));
            options.extend(replace_filter.then(|| "--replace-filter".to_owned()));
        }
        options.extend(self.pin.then(|| "--pin".to_owned()));
        options
    }
}

/// Programs whose workers are placed, and the journal of the changes: those of an attachment or of an experiment.
#[derive(Debug)]
pub struct PlacedPrograms<'a> {
    pub(crate) transaction: &'a mut Transaction,
    pub(crate) targets: &'a Targets,
    /// Sockets with a filter, and the number of queues that it selects for each.
    pub(crate) steered: &'a mut BTreeMap<u64, u32>,
    /// Number of changes so far, for the observer.
    pub(crate) changes: &'a mut usize,
}

impl PlacedPrograms<'_> {
    fn steer(&mut self, steering: &Steering, observer: &mut AttachObserver<'_>) -> Result<(), ChangeError> {
        self.observed(observer, |transaction| transaction.steer(steering))?;
        self.steered.extend(steering.queues_of_sockets());
        Ok(())
    }

    fn observed<T>(
        &mut self,
        observer: &mut AttachObserver<'_>,
        act: impl FnOnce(&mut Transaction) -> Result<T, ChangeError>,
    ) -> Result<T, ChangeError> {
        let number = *self.changes;
        *self.changes += 1;
        if observer(number, ChangeStage::Before).is_break() {
            return Err(ChangeError::Stopped);
        }
        act(self.transaction)
    }
}

/// Takes a snapshot of programs and the devices in their namespaces, with the sockets that have a filter.
pub(super) fn look_at_programs(targets: &Targets, steered: &BTreeMap<u64, u32>) -> Result<Snapshot, TakeError> {
    let pids = targets.pids().into_iter().collect();
    let (mut snapshot, _) = take(&SnapshotScope { pids, ..SnapshotScope::default() })?;
    mark_steered(&mut snapshot, steered);
    Ok(snapshot)
}

/// Reuseport groups of programs, each with its filter or with the reason why it gets none.
#[derive(Debug, Default)]
pub struct Groups {
    pub steerings: Vec<Steering>,
    pub refused: Vec<CannotSteer>,
}

#[derive(Debug, Default)]
pub struct PlacementResult {
    pub verifications: Vec<Verification>,
    pub pinned: Vec<Pin>,
    pub in_place: BTreeSet<Pid>,
    pub not_pinned: Vec<NotPinned>,
}

/// Result of one [`Placement::keep_up`] pass: what changed since the previous pass.
#[derive(Debug, Default)]
pub struct PlacementPass {
    pub steered: Vec<Steered>,
    pub refused: Vec<CannotSteer>,
    pub not_steered: Vec<(GroupKey, ChangeError)>,
    pub unread: Option<LookError>,
    /// Filters whose verification is now conclusive.
    pub verifications: Vec<(Steering, Verification)>,
    pub pinned: Vec<Pin>,
    /// Threads that could not be bound; not retried.
    pub not_bound: Vec<(Pid, ChangeError)>,
    pub not_pinned: Vec<NotPinned>,
    /// Sockets, workers or queues appeared or vanished. Decisions wait until two passes in a row see the same state, so
    /// the next pass should follow soon.
    pub is_changing: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steered {
    pub steering: Steering,
    /// It replaced the filter for an earlier state of the group.
    pub is_replacement: bool,
}

#[derive(Debug, Default)]
pub struct Placement {
    wanted: Wanted,
    filters: Filters,
    bound: Bound,
    shown: Shown,
    /// State that the current filters were decided from.
    made_of: MadeOf,
    refused: BTreeMap<GroupKey, Discriminant<CannotSteer>>,
    was_unread: bool,
}

/// Groups that were decided, with their state and the queues at that time.
#[derive(Debug, Default)]
struct MadeOf {
    groups: BTreeMap<GroupKey, ShownGroup>,
    queues: Shown,
}

pub fn decide(snapshot: &Snapshot, targets: &BTreeSet<Pid>, request: &SteerRequest) -> Result<Groups, LookError> {
    let pids: Vec<Pid> = targets.iter().copied().collect();
    let surroundings = look(snapshot, &pids)?;
    let mut decided = Groups::default();
    for group in groups(snapshot, &surroundings, &pids) {
        match plan(&group, snapshot, &surroundings, request) {
            Ok(steering) => {
                let (sockets, queues) = (steering.filter.sockets(), steering.filter.places());
                info!(group = %group.key, sockets, queues, devices = ?steering.devices(), "group gets a filter");
                steering.notes.iter().for_each(|note| info!(group = %group.key, %note, "note about the filter"));
                decided.steerings.push(steering);
            }
            Err(why) => {
                info!(%why, "group gets no filter");
                decided.refused.push(why);
            }
        }
    }
    Ok(decided)
}

/// Records in a snapshot which sockets have a filter of an attachment. A filter distributes the queues evenly over the
/// sockets of its group.
pub fn mark_attached_filters(snapshot: &mut Snapshot, journal: &Journal) {
    let Ok(attached) = attachments(journal) else { return };
    let mut steered = BTreeMap::new();
    let index = snapshot.index();
    for (_, entry) in attached.iter().flat_map(|attached| attached.history.pending()) {
        let Change::ReuseportFilter(ReuseportFilter { sockets, .. }) = &entry.change else { continue };
        for socket in sockets.iter().filter_map(|inode| index.socket(*inode)) {
            let queues = queues_of(snapshot, &index, socket).len().div_ceil(sockets.len()).max(1);
            steered.extend(u32::try_from(queues).ok().map(|queues| (socket.inode, queues)));
        }
    }
    mark_steered(snapshot, &steered);
}

impl Placement {
    #[must_use]
    pub fn new(wanted: Wanted) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Attaches filters that were decided for the current state of the programs.
    ///
    /// # Errors
    /// On the first filter that cannot be attached; the end of the transaction detaches the earlier ones.
    pub fn steer<'a>(
        &mut self,
        groups: &Groups,
        programs: impl Into<PlacedPrograms<'a>>,
        observer: &mut AttachObserver<'_>,
    ) -> Result<(), AttachError> {
        let mut programs = programs.into();
        for steering in &groups.steerings {
            let failed = |source| AttachError::Steer { group: steering.group.key, source: Box::new(source) };
            programs.steer(steering, observer).map_err(failed)?;
            self.filters.replace(steering.clone());
        }
        self.refused = groups.refused.iter().map(|why| (why.key(), discriminant(why))).collect();
        // Before the caller lets clients reconnect: later connections came through the filters.
        self.filters.list_connections(connections).map_err(AttachError::Connections)
    }

    /// Observes new connections for at most `within`, until every filter is verified. If requested, binds workers to
    /// the CPUs of their queues as soon as these are known.
    ///
    /// # Errors
    /// When a filter does not hold or a thread cannot be bound; the end of the transaction undoes everything.
    pub fn watch<'a>(
        &mut self,
        programs: impl Into<PlacedPrograms<'a>>,
        within: Duration,
        observer: &mut AttachObserver<'_>,
    ) -> Result<PlacementResult, AttachError> {
        let mut programs = programs.into();
        let give_up = Instant::now() + within;
        let mut placed = PlacementResult::default();
        let mut reads: Option<ReadQueues> = None;
        loop {
            let mut snapshot = look_at_programs(programs.targets, programs.steered).map_err(AttachError::Look)?;
            if let Some(reads) = &reads {
                reads.add_to(&mut snapshot);
            }
            self.filters.see(&snapshot, |_| true);
            if let Some(group) = self.filters.mixed() {
                return Err(AttachError::Mixed { group });
            }
            let mut workers = self.bind(&mut programs, &snapshot, observer);
            if let Some((tid, source)) = workers.failed.pop() {
                return Err(AttachError::Pin { tid, source: Box::new(source) });
            }
            placed.add(workers);
            for verification in self.filters.verifications() {
                debug!(?verification, "connections since the filter was attached");
            }
            for not_pinned in &placed.not_pinned {
                debug!(%not_pinned, "worker is not pinned");
            }
            if self.filters.are_settled() && !placed.not_pinned.iter().any(|one| one.why.may_change()) {
                break;
            }
            if Instant::now() >= give_up {
                break;
            }
            if observer(*programs.changes, ChangeStage::Before).is_break() {
                return Err(AttachError::Stopped);
            }
            thread::sleep(LOOKED_EVERY);
            if reads.is_none() && placed.not_pinned.iter().any(|one| one.why == WhyNotPinned::NoConnection) {
                let placed = programs.targets.pids();
                reads = Some(ReadQueues::observe(&snapshot, |pid| placed.contains(&pid)));
            }
        }
        placed.verifications = self.filters.verifications().cloned().collect();
        self.filters.news();
        self.bound.news(placed.not_pinned.clone());
        Ok(placed)
    }

    /// Acts on a snapshot of [`Attachment::keep_up`](super::Attachment::keep_up). A group gets its filter once two passes in a row see it
    /// unchanged, and a new filter after it has changed. Makes no other observation while the snapshot shows the same
    /// state as the previous one.
    pub fn keep_up<'a>(
        &mut self,
        programs: impl Into<PlacedPrograms<'a>>,
        snapshot: &Snapshot,
        observer: &mut AttachObserver<'_>,
    ) -> PlacementPass {
        let mut programs = programs.into();
        let mut pass = PlacementPass::default();
        if let Some(request) = self.wanted.steer.clone() {
            let shown = Shown::of(snapshot, &programs.targets.pids());
            pass.is_changing = shown != self.shown;
            let due = self.made_of.what_is_due(&shown, &self.shown);
            self.shown = shown;
            self.filters.see(snapshot, |key| self.made_of.groups.get(key) == self.shown.group(key));
            pass.verifications = self.filters.news();
            if !due.is_empty() {
                self.make(due, &request, &mut programs, snapshot, observer, &mut pass);
            }
        }
        let workers = self.bind(&mut programs, snapshot, observer);
        pass.pinned = workers.pinned;
        pass.not_bound = workers.failed;
        pass.not_pinned = self.bound.news(workers.not_pinned);
        // Not earlier: the snapshot that identifies and binds workers predates the filters attached in this pass.
        if let Err(error) = self.filters.list_connections(connections) {
            self.is_unread(error, &mut pass);
        }
        pass
    }

    pub fn unverified(&self) -> impl Iterator<Item = (&Steering, &Verification)> {
        self.filters.unverified()
    }

    /// Whether groups are to be steered and no pass has found any, steerable or not.
    #[must_use]
    pub fn looked_in_vain(&self) -> bool {
        self.wanted.steer.is_some() && self.filters.verifications().next().is_none() && self.refused.is_empty()
    }

    /// Decides the `due` groups again and attaches missing filters.
    fn make(
        &mut self,
        due: BTreeMap<GroupKey, ShownGroup>,
        request: &SteerRequest,
        programs: &mut PlacedPrograms<'_>,
        snapshot: &Snapshot,
        observer: &mut AttachObserver<'_>,
        pass: &mut PlacementPass,
    ) {
        let decided = match decide(snapshot, &programs.targets.pids(), request) {
            Ok(decided) => decided,
            Err(error) => return self.is_unread(error, pass),
        };
        let mut moved_on = Vec::new();
        let keys: Vec<GroupKey> = decided.steerings.iter().map(|steering| steering.group.key).collect();
        self.filters.keep(&keys);
        for steering in decided.steerings.into_iter().filter(|steering| due.contains_key(&steering.group.key)) {
            if self.filters.has(&steering) {
                continue;
            }
            match programs.steer(&steering, observer) {
                Ok(()) => {
                    self.refused.remove(&steering.group.key);
                    let is_replacement = self.filters.replace(steering.clone());
                    pass.steered.push(Steered { steering, is_replacement });
                }
                Err(error) if has_moved_on(&error) => {
                    info!(group = %steering.group.key, %error, "could not attach the filter yet: the group is changing");
                    pass.is_changing = true;
                    moved_on.push(steering.group.key);
                }
                Err(error) => {
                    warn!(group = %steering.group.key, %error, "could not attach the filter");
                    pass.not_steered.push((steering.group.key, error));
                }
            }
        }
        let refused = decided.refused.into_iter().filter(|why| due.contains_key(&why.key()));
        let is_news = |why: &CannotSteer| self.refused.insert(why.key(), discriminant(why)) != Some(discriminant(why));
        pass.refused = refused.filter(is_news).collect();
        self.made_of.now_of(due.into_iter().filter(|(key, _)| !moved_on.contains(key)), &self.shown);
    }

    /// Reports the error once.
    fn is_unread(&mut self, error: LookError, pass: &mut PlacementPass) {
        if !std::mem::replace(&mut self.was_unread, true) {
            pass.unread = Some(error);
        }
    }

    /// Binds workers whose queue is known, if requested.
    fn bind(
        &mut self,
        programs: &mut PlacedPrograms<'_>,
        snapshot: &Snapshot,
        observer: &mut AttachObserver<'_>,
    ) -> Workers {
        let mut workers = Workers::default();
        if !self.wanted.pin {
            return workers;
        }
        let Some(baseline) = self.filters.baseline() else { return workers };
        let pids: Vec<Pid> = programs.targets.pids().into_iter().collect();
        let decided = pins(snapshot, &pids, &baseline);
        for pin in decided.pins.into_iter().filter(|pin| self.bound.may_be(pin)).collect::<Vec<_>>() {
            self.bound.is(&pin);
            match programs.observed(observer, |transaction| transaction.pin(&pin)) {
                Ok(_) => workers.pinned.push(pin),
                Err(ChangeError::Settings(error)) if error.is_absent() => {
                    info!(tid = pin.tid.get(), %error, "the thread no longer exists");
                }
                Err(error) => {
                    warn!(tid = pin.tid.get(), %error, "could not pin the thread");
                    workers.failed.push((pin.tid, error));
                }
            }
        }
        (workers.in_place, workers.not_pinned) = (decided.in_place, decided.not_pinned);
        workers
    }
}

impl MadeOf {
    /// Groups that are unchanged since the previous pass and have no decision for their current state.
    fn what_is_due(&self, now: &Shown, before: &Shown) -> BTreeMap<GroupKey, ShownGroup> {
        if !now.has_the_queues_of(before) {
            return BTreeMap::new();
        }
        let queues_are_others = !now.has_the_queues_of(&self.queues);
        let stayed = now.groups_as_in(before);
        let due = stayed.filter(|(key, group)| queues_are_others || self.groups.get(key) != Some(group));
        due.map(|(key, group)| (*key, group.clone())).collect()
    }

    fn now_of(&mut self, made: impl Iterator<Item = (GroupKey, ShownGroup)>, shown: &Shown) {
        self.groups.extend(made);
        self.groups.retain(|key, _| shown.group(key).is_some());
        self.queues = shown.clone();
    }
}

#[derive(Debug, Default)]
struct Workers {
    pinned: Vec<Pin>,
    failed: Vec<(Pid, ChangeError)>,
    in_place: Vec<Pid>,
    not_pinned: Vec<NotPinned>,
}

impl PlacementResult {
    fn add(&mut self, workers: Workers) {
        self.pinned.extend(workers.pinned);
        let was_bound = |tid: &Pid| self.pinned.iter().any(|pin| pin.tid == *tid);
        self.in_place.extend(workers.in_place.into_iter().filter(|tid| !was_bound(tid)));
        self.not_pinned = workers.not_pinned;
    }
}

/// Whether the group has changed since it was observed.
fn has_moved_on(error: &ChangeError) -> bool {
    matches!(error, ChangeError::Settings(SettingsError::GroupChanged { .. } | SettingsError::Gone { .. }))
}
