//! Where the workers of an attachment get their connections and run, if that is asked for: the filters of their reuseport
//! groups, and the CPUs of their threads. What is decided is [`crate::steer`]'s; here it is looked at, made by the
//! attachment's journal, and looked at again, once or for as long as the programs run.

mod bound;
mod filters;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{Discriminant, discriminant};
use std::thread;
use std::time::{Duration, Instant};

use quell_linux::Pid;

use self::bound::{Bound, may_change};
use self::filters::Filters;
use super::attachment::{Attachment, LooksOn};
use super::error::AttachError;
use crate::picture::Picture;
use crate::settings::SettingsError;
use crate::steer::{
    CannotSteer, GroupKey, LookError, NotPinned, Pin, Shown, ShownGroup, Steering, Verification, connections, groups,
    look, pins, plan,
};
use crate::transaction::{ChangeError, Moment};

/// How often the workers are looked at while their connections are waited for.
const LOOKED_EVERY: Duration = Duration::from_millis(50);

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Filters on the groups, of the queues of these devices; none named: of all that lead there. Absent: no filters.
    pub steer: Option<Vec<String>>,
    /// Workers bound to the CPUs of the queues by which their connections come.
    pub pin: bool,
}

/// The groups of programs: what filter each gets, or why none.
#[derive(Debug, Default)]
pub struct Groups {
    /// Those that get a filter.
    pub steerings: Vec<Steering>,
    /// Those that get none.
    pub refused: Vec<CannotSteer>,
}

/// What was seen of the filters after they had been put on, and of the workers.
#[derive(Debug, Default)]
pub struct Placed {
    /// Of each filter, in the order in which they were put on.
    pub verifications: Vec<Verification>,
    /// Threads that were bound.
    pub pinned: Vec<Pin>,
    /// Threads that were where they belong.
    pub in_place: BTreeSet<Pid>,
    /// Workers that were left where they are.
    pub not_pinned: Vec<NotPinned>,
}

/// What one look of [`Placement::keep_up`] came to: what is new since the one before.
#[derive(Debug, Default)]
pub struct PlacementPass {
    /// Filters that were put on.
    pub steered: Vec<Steered>,
    /// Groups that get no filter.
    pub refused: Vec<CannotSteer>,
    /// Groups whose filter could not be put on.
    pub not_steered: Vec<(GroupKey, ChangeError)>,
    /// What the groups' namespaces list could not be read.
    pub unread: Option<LookError>,
    /// Filters of which it can be said whether they hold.
    pub seen: Vec<(Steering, Verification)>,
    /// Threads that were bound.
    pub pinned: Vec<Pin>,
    /// Threads that could not be bound; it is not tried again.
    pub not_bound: Vec<(Pid, ChangeError)>,
    /// Workers that are left where they are, for a reason that lasts.
    pub not_pinned: Vec<NotPinned>,
    /// Sockets, workers or queues came or went: what follows is decided when they stay as they are from one look to the
    /// next, so that it had better be soon.
    pub is_changing: bool,
}

/// A filter that was put on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steered {
    /// Which.
    pub steering: Steering,
    /// It took the place of one that was for the group as it was before.
    pub is_anew: bool,
}

/// Where the workers of one attachment are to get their connections and run, and what has been done for it.
#[derive(Debug, Default)]
pub struct Placement {
    wanted: Wanted,
    filters: Filters,
    bound: Bound,
    /// As it was at the last look.
    shown: Shown,
    /// What has been made was made of this.
    made_of: MadeOf,
    refused: BTreeMap<GroupKey, Discriminant<CannotSteer>>,
    was_unread: bool,
}

/// The groups for which something was decided, as they were then, and the queues.
#[derive(Debug, Default)]
struct MadeOf {
    groups: BTreeMap<GroupKey, ShownGroup>,
    queues: Shown,
}

/// Decides the filters of the groups of these processes. `only` names the devices that are meant; none: all.
///
/// # Errors
/// When what their namespaces list cannot be read.
pub fn decide(picture: &Picture, targets: &BTreeSet<Pid>, only: &[String]) -> Result<Groups, LookError> {
    let pids: Vec<Pid> = targets.iter().copied().collect();
    let surroundings = look(picture, &pids)?;
    let mut decided = Groups::default();
    for group in groups(picture, &surroundings, &pids) {
        match plan(&group, picture, &surroundings, only) {
            Ok(steering) => decided.steerings.push(steering),
            Err(why) => decided.refused.push(why),
        }
    }
    Ok(decided)
}

impl Placement {
    /// Nothing is done yet.
    #[must_use]
    pub fn new(wanted: Wanted) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Puts filters on that were decided for the programs as they are.
    ///
    /// # Errors
    /// With the first that cannot be; [`Attachment::end`] takes those before it off.
    pub fn steer(
        &mut self,
        groups: &Groups,
        attachment: &mut Attachment,
        looks_on: &mut LooksOn<'_>,
    ) -> Result<(), AttachError> {
        for steering in &groups.steerings {
            let failed = |source| AttachError::Steer { group: steering.group.key, source: Box::new(source) };
            attachment.heard(looks_on, |transaction| transaction.steer(steering)).map_err(failed)?;
            self.filters.put_on(steering.clone());
        }
        self.refused = groups.refused.iter().map(|why| (why.key(), discriminant(why))).collect();
        Ok(())
    }

    /// Looks at the connections that come for at most `within`, until it can be said of every filter whether it holds;
    /// if asked for, binds the workers to the CPUs of their queues as soon as these are known.
    ///
    /// # Errors
    /// When a filter does not hold, or a thread cannot be bound; [`Attachment::end`] undoes it all.
    pub fn watch(
        &mut self,
        attachment: &mut Attachment,
        within: Duration,
        looks_on: &mut LooksOn<'_>,
    ) -> Result<Placed, AttachError> {
        let give_up = Instant::now() + within;
        let mut placed = Placed::default();
        loop {
            self.filters.list_connections(connections).map_err(AttachError::Connections)?;
            let picture = attachment.look_at_programs().map_err(AttachError::Look)?;
            self.filters.see(&picture, |_| true);
            if let Some(group) = self.filters.mixed() {
                return Err(AttachError::Mixed { group });
            }
            let mut workers = self.bind(attachment, &picture, looks_on);
            if let Some((tid, source)) = workers.failed.pop() {
                return Err(AttachError::Pin { tid, source: Box::new(source) });
            }
            placed.add(workers);
            if self.filters.are_settled() && !placed.not_pinned.iter().any(|one| may_change(&one.why)) {
                break;
            }
            if Instant::now() >= give_up {
                break;
            }
            if looks_on(attachment.changes(), Moment::Before).is_break() {
                return Err(AttachError::Stopped);
            }
            thread::sleep(LOOKED_EVERY);
        }
        placed.verifications = self.filters.seen().cloned().collect();
        self.filters.news();
        self.bound.news(placed.not_pinned.clone());
        Ok(placed)
    }

    /// Makes of a picture that [`Attachment::keep_up`] took what is to be done for it. A group gets its filter when it has
    /// stayed as it is from one look to the next, and another one when it has changed since. Nothing but the picture is
    /// looked at where it shows what the one before did.
    pub fn keep_up(
        &mut self,
        attachment: &mut Attachment,
        picture: &Picture,
        looks_on: &mut LooksOn<'_>,
    ) -> PlacementPass {
        let mut pass = PlacementPass::default();
        if let Some(devices) = self.wanted.steer.clone() {
            let shown = Shown::of(picture, &attachment.targets().pids());
            pass.is_changing = shown != self.shown;
            let due = self.made_of.what_is_due(&shown, &self.shown);
            self.shown = shown;
            self.filters.see(picture, |key| self.made_of.groups.get(key) == self.shown.group(key));
            pass.seen = self.filters.news();
            if !due.is_empty() {
                self.make(due, &devices, attachment, picture, looks_on, &mut pass);
            }
        }
        let workers = self.bind(attachment, picture, looks_on);
        pass.pinned = workers.pinned;
        pass.not_bound = workers.failed;
        pass.not_pinned = self.bound.news(workers.not_pinned);
        // Not before: the picture, by which workers are seen and bound, is from before the filters that were put on now.
        if let Err(error) = self.filters.list_connections(connections) {
            self.is_unread(error, &mut pass);
        }
        pass
    }

    /// The filters of which not everything could be said while they were on, with what is known of each.
    pub fn untold(&self) -> impl Iterator<Item = (&Steering, &Verification)> {
        self.filters.untold()
    }

    /// Whether groups are to be steered, and none was found so far, also none that cannot be.
    #[must_use]
    pub fn looked_in_vain(&self) -> bool {
        self.wanted.steer.is_some() && self.filters.seen().next().is_none() && self.refused.is_empty()
    }

    /// Decides anew about the groups that are `due`, and puts on what is not on yet.
    fn make(
        &mut self,
        due: BTreeMap<GroupKey, ShownGroup>,
        devices: &[String],
        attachment: &mut Attachment,
        picture: &Picture,
        looks_on: &mut LooksOn<'_>,
        pass: &mut PlacementPass,
    ) {
        let decided = match decide(picture, &attachment.targets().pids(), devices) {
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
            match attachment.heard(looks_on, |transaction| transaction.steer(&steering)) {
                Ok(()) => {
                    self.refused.remove(&steering.group.key);
                    let is_anew = self.filters.put_on(steering.clone());
                    pass.steered.push(Steered { steering, is_anew });
                }
                Err(error) if has_moved_on(&error) => {
                    pass.is_changing = true;
                    moved_on.push(steering.group.key);
                }
                Err(error) => pass.not_steered.push((steering.group.key, error)),
            }
        }
        let refused = decided.refused.into_iter().filter(|why| due.contains_key(&why.key()));
        let is_news = |why: &CannotSteer| self.refused.insert(why.key(), discriminant(why)) != Some(discriminant(why));
        pass.refused = refused.filter(is_news).collect();
        self.made_of.now_of(due.into_iter().filter(|(key, _)| !moved_on.contains(key)), &self.shown);
    }

    /// Told once.
    fn is_unread(&mut self, error: LookError, pass: &mut PlacementPass) {
        if !std::mem::replace(&mut self.was_unread, true) {
            pass.unread = Some(error);
        }
    }

    /// Binds the workers whose queue is known, if that is asked for.
    fn bind(&mut self, attachment: &mut Attachment, picture: &Picture, looks_on: &mut LooksOn<'_>) -> Workers {
        let mut workers = Workers::default();
        if !self.wanted.pin {
            return workers;
        }
        let Some(baseline) = self.filters.baseline() else { return workers };
        let pids: Vec<Pid> = attachment.targets().pids().into_iter().collect();
        let decided = pins(picture, &pids, &baseline);
        for pin in decided.pins.into_iter().filter(|pin| self.bound.may_be(pin)).collect::<Vec<_>>() {
            self.bound.is(&pin);
            match attachment.heard(looks_on, |transaction| transaction.pin(&pin)) {
                Ok(_) => workers.pinned.push(pin),
                Err(ChangeError::Settings(error)) if error.is_absent() => {}
                Err(error) => workers.failed.push((pin.tid, error)),
            }
        }
        (workers.in_place, workers.not_pinned) = (decided.in_place, decided.not_pinned);
        workers
    }
}

impl MadeOf {
    /// The groups that stayed as they are from one look to the next, and for which nothing has been decided as they are.
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

/// What binding the workers came to.
#[derive(Debug, Default)]
struct Workers {
    pinned: Vec<Pin>,
    failed: Vec<(Pid, ChangeError)>,
    in_place: Vec<Pid>,
    not_pinned: Vec<NotPinned>,
}

impl Placed {
    fn add(&mut self, workers: Workers) {
        self.pinned.extend(workers.pinned);
        let was_bound = |tid: &Pid| self.pinned.iter().any(|pin| pin.tid == *tid);
        self.in_place.extend(workers.in_place.into_iter().filter(|tid| !was_bound(tid)));
        self.not_pinned = workers.not_pinned;
    }
}

/// Whether a group is another one than that which was looked at just now.
fn has_moved_on(error: &ChangeError) -> bool {
    matches!(error, ChangeError::Settings(SettingsError::GroupChanged { .. } | SettingsError::Gone { .. }))
}
