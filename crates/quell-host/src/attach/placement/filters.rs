//! The filters of an attachment, and the observations of each. Pure: the caller reports attached filters and supplies
//! the list of connections.

use crate::snapshot::Snapshot;
use crate::steer::{Baseline, Connection, GroupKey, SteerVerdict, Steering, Verification, verify};

/// Filters in the order of attachment.
#[derive(Debug, Default)]
pub(super) struct Filters(Vec<Filter>);

#[derive(Debug)]
struct Filter {
    steering: Steering,
    /// Connections that predate the filter; absent until they are listed.
    baseline: Option<Baseline>,
    verification: Verification,
    is_reported: bool,
}

impl Filters {
    /// Records an attached filter. Returns whether its group had one before.
    pub(super) fn replace(&mut self, steering: Steering) -> bool {
        let before = self.0.len();
        self.0.retain(|filter| filter.steering.group.key != steering.group.key);
        self.0.push(Filter::new(steering));
        self.0.len() <= before
    }

    /// Whether the group already has this filter. If so, updates the other data of the group. Discards the observations
    /// if other NAPI instances poll the queues now, because they are not comparable.
    pub(super) fn has(&mut self, steering: &Steering) -> bool {
        let Some(filter) = self.0.iter_mut().find(|filter| filter.is(steering)) else { return false };
        match filter.steering.places == steering.places {
            true => filter.steering = steering.clone(),
            false => *filter = Filter::new(steering.clone()),
        }
        true
    }

    /// Drops the filters of all other groups.
    pub(super) fn keep(&mut self, groups: &[GroupKey]) {
        self.0.retain(|filter| groups.contains(&filter.steering.group.key));
    }

    pub(super) fn list_connections<E>(
        &mut self,
        list: impl Fn(&GroupKey) -> Result<Vec<Connection>, E>,
    ) -> Result<(), E> {
        for filter in self.0.iter_mut().filter(|filter| filter.baseline.is_none()) {
            filter.baseline = Some(Baseline::of(&list(&filter.steering.group.key)?));
        }
        Ok(())
    }

    /// Evaluates the new connections of each filter, from a snapshot that is newer than the list of existing
    /// connections. Ignores groups that have changed since their filter was decided, according to `as_it_was`.
    pub(super) fn see(&mut self, snapshot: &Snapshot, as_it_was: impl Fn(&GroupKey) -> bool) {
        let pending = self.0.iter_mut().filter(|filter| as_it_was(&filter.steering.group.key));
        pending.for_each(|filter| filter.see(snapshot));
    }

    pub(super) fn mixed(&self) -> Option<GroupKey> {
        let mixed = self.0.iter().find(|filter| filter.verification.verdict == SteerVerdict::Mixed);
        mixed.map(|filter| filter.steering.group.key)
    }

    /// Connections that predate the filters; `None` unless this is known for every filter.
    pub(super) fn baseline(&self) -> Option<Baseline> {
        let all: Option<Vec<&Baseline>> = self.0.iter().map(|filter| filter.baseline.as_ref()).collect();
        all.map(|all| Baseline::union(&all))
    }

    /// Whether connections of every worker of every filter were observed.
    pub(super) fn are_settled(&self) -> bool {
        self.0.iter().all(Filter::is_settled)
    }

    pub(super) fn verifications(&self) -> impl Iterator<Item = &Verification> {
        self.0.iter().map(|filter| &filter.verification)
    }

    /// Returns conclusive observations that were not reported yet.
    pub(super) fn news(&mut self) -> Vec<(Steering, Verification)> {
        let says_it_all = |filter: &&mut Filter| match filter.verification.verdict {
            SteerVerdict::NotYet => false,
            SteerVerdict::Mixed => !filter.is_reported,
            _ => !filter.is_reported && filter.is_settled(),
        };
        let tell = |filter: &mut Filter| {
            filter.is_reported = true;
            (filter.steering.clone(), filter.verification.clone())
        };
        self.0.iter_mut().filter(says_it_all).map(tell).collect()
    }

    pub(super) fn unverified(&self) -> impl Iterator<Item = (&Steering, &Verification)> {
        self.0.iter().filter(|filter| !filter.is_reported).map(|filter| (&filter.steering, &filter.verification))
    }
}

impl Filter {
    fn new(steering: Steering) -> Self {
        let verification = Verification { workers: Vec::new(), verdict: SteerVerdict::NotYet };
        Self { steering, baseline: None, verification, is_reported: false }
    }

    fn is(&self, steering: &Steering) -> bool {
        let inodes = |steering: &Steering| steering.group.members.iter().map(|member| member.inode).collect::<Vec<_>>();
        self.steering.group.key == steering.group.key
            && self.steering.filter == steering.filter
            && inodes(&self.steering) == inodes(steering)
    }

    /// Closed connections stay in the baseline if no new ones arrived.
    fn see(&mut self, snapshot: &Snapshot) {
        self.steering.group.look_for_workers(snapshot);
        let Some(baseline) = &self.baseline else { return };
        let verification = verify(&self.steering, baseline, snapshot);
        if verification.verdict != SteerVerdict::NotYet {
            self.verification = verification;
        }
    }

    fn is_settled(&self) -> bool {
        self.verification.verdict == SteerVerdict::CannotTell
            || self.verification.workers.len() >= self.steering.group.workers().len()
    }
}
