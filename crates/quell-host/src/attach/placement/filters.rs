//! The filters that an attachment has put on, each with what was seen of it since. Pure: whoever puts one on says so here,
//! and lists the connections that are there then.

use crate::picture::Picture;
use crate::steer::{Baseline, Connection, GroupKey, Steering, Verdict, Verification, verify};

/// In the order in which they were put on.
#[derive(Debug, Default)]
pub(super) struct Filters(Vec<Filter>);

/// A filter that is on.
#[derive(Debug)]
struct Filter {
    steering: Steering,
    /// Absent until the connections that it did not choose for are listed.
    baseline: Option<Baseline>,
    seen: Verification,
    /// What was seen has been told, and says it all.
    is_told: bool,
}

impl Filters {
    /// Says that a filter was put on, and whether its group had one before.
    pub(super) fn put_on(&mut self, steering: Steering) -> bool {
        let before = self.0.len();
        self.0.retain(|filter| filter.steering.group.key != steering.group.key);
        self.0.push(Filter::new(steering));
        self.0.len() <= before
    }

    /// Whether its group has this filter already. Then only what else there is to know of the group is taken over; where
    /// queues are polled by other NAPIs than before, what was seen is not to be compared with what comes.
    pub(super) fn has(&mut self, steering: &Steering) -> bool {
        let Some(filter) = self.0.iter_mut().find(|filter| filter.is(steering)) else { return false };
        match filter.steering.places == steering.places {
            true => filter.steering = steering.clone(),
            false => *filter = Filter::new(steering.clone()),
        }
        true
    }

    /// Forgets those of other groups than these.
    pub(super) fn keep(&mut self, groups: &[GroupKey]) {
        self.0.retain(|filter| groups.contains(&filter.steering.group.key));
    }

    /// Has the connections listed that are there, for each filter of which that was not done since it was put on.
    ///
    /// # Errors
    /// With the first that cannot be.
    pub(super) fn list_connections<E>(
        &mut self,
        list: impl Fn(&GroupKey) -> Result<Vec<Connection>, E>,
    ) -> Result<(), E> {
        for filter in self.0.iter_mut().filter(|filter| filter.baseline.is_none()) {
            filter.baseline = Some(Baseline::of(&list(&filter.steering.group.key)?));
        }
        Ok(())
    }

    /// Looks at the connections that came since each was put on, in a picture from after they were listed. Of a group that
    /// is not `as_it_was` when its filter was decided nothing can be said.
    pub(super) fn see(&mut self, picture: &Picture, as_it_was: impl Fn(&GroupKey) -> bool) {
        let seen = self.0.iter_mut().filter(|filter| as_it_was(&filter.steering.group.key));
        seen.for_each(|filter| filter.see(picture));
    }

    /// The first that does not hold.
    pub(super) fn mixed(&self) -> Option<GroupKey> {
        let mixed = self.0.iter().find(|filter| filter.seen.verdict == Verdict::Mixed);
        mixed.map(|filter| filter.steering.group.key)
    }

    /// The connections that none of them chose for; `None` while that cannot be told of every one.
    pub(super) fn baseline(&self) -> Option<Baseline> {
        let all: Option<Vec<&Baseline>> = self.0.iter().map(|filter| filter.baseline.as_ref()).collect();
        all.map(|all| Baseline::union(&all))
    }

    /// Whether every worker of every one has been seen.
    pub(super) fn are_settled(&self) -> bool {
        self.0.iter().all(Filter::is_settled)
    }

    /// What was last seen of each.
    pub(super) fn seen(&self) -> impl Iterator<Item = &Verification> {
        self.0.iter().map(|filter| &filter.seen)
    }

    /// What has come to be known and was not told yet.
    pub(super) fn news(&mut self) -> Vec<(Steering, Verification)> {
        let says_it_all = |filter: &&mut Filter| match filter.seen.verdict {
            Verdict::NotYet => false,
            Verdict::Mixed => !filter.is_told,
            _ => !filter.is_told && filter.is_settled(),
        };
        let tell = |filter: &mut Filter| {
            filter.is_told = true;
            (filter.steering.clone(), filter.seen.clone())
        };
        self.0.iter_mut().filter(says_it_all).map(tell).collect()
    }

    /// What is known of those of which not everything could be told.
    pub(super) fn untold(&self) -> impl Iterator<Item = (&Steering, &Verification)> {
        self.0.iter().filter(|filter| !filter.is_told).map(|filter| (&filter.steering, &filter.seen))
    }
}

impl Filter {
    fn new(steering: Steering) -> Self {
        let seen = Verification { workers: Vec::new(), verdict: Verdict::NotYet };
        Self { steering, baseline: None, seen, is_told: false }
    }

    fn is(&self, steering: &Steering) -> bool {
        let inodes = |steering: &Steering| steering.group.members.iter().map(|member| member.inode).collect::<Vec<_>>();
        self.steering.group.key == steering.group.key
            && self.steering.filter == steering.filter
            && inodes(&self.steering) == inodes(steering)
    }

    /// Connections that have gone are not forgotten for none that came.
    fn see(&mut self, picture: &Picture) {
        self.steering.group.look_for_workers(picture);
        let Some(baseline) = &self.baseline else { return };
        let seen = verify(&self.steering, baseline, picture);
        if seen.verdict != Verdict::NotYet {
            self.seen = seen;
        }
    }

    fn is_settled(&self) -> bool {
        self.seen.verdict == Verdict::CannotTell || self.seen.workers.len() >= self.steering.group.workers().len()
    }
}
