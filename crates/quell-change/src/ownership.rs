//! Decides which value an attribute of an object has while several owners have set it, and after any of them ends. Pure.
//!
//! The value of the newest owner is in force. When an owner ends, the value of the newest owner that remains is in
//! force, and after the last one the value from before the first. A value that no owner has set belongs to another
//! program. Earlier owners keep it when they end. A later owner restores it.
//!
//! The rules hold without a common state, so that any process can apply them from the journals: each [`Claim`] knows
//! the first claim since the last foreign write (`since`), and the value before that one (`before`).

/// What an owner has set for one attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim<T> {
    /// Time of setting, unique among the claims of one object.
    pub(crate) at: u64,
    /// Time of the first claim since the last foreign write, possibly this one.
    pub(crate) since: u64,
    /// Value before the claim `since`; absent if there was none to restore.
    pub(crate) before: Option<T>,
    /// Values that the owner sets: several for an experiment.
    pub(crate) values: Vec<T>,
    /// Whether the value was set. Without it, the owner died in between and may have set it.
    pub(crate) made: bool,
}

/// Claims of one attribute, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims<T>(Vec<Claim<T>>);

impl<T> Default for Claims<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End<T> {
    Nothing,
    Covered,
    Set(T),
    /// Another program has set the value in force. It is kept; before the owner the value was this one.
    Foreign {
        /// Value that is not restored.
        before: Option<T>,
    },
}

impl<T: Clone + PartialEq> Claim<T> {
    fn is_in_force(&self, now: &T) -> bool {
        self.values.contains(now)
    }
}

impl<T: Clone + PartialEq> Claims<T> {
    pub(crate) fn new(claims: impl IntoIterator<Item = Claim<T>>) -> Self {
        let mut claims: Vec<Claim<T>> = claims.into_iter().collect();
        claims.sort_by_key(|claim| claim.at);
        Self(claims)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the claim of a new owner that finds the value `now` and sets `values`.
    pub fn take(&self, at: u64, now: Option<&T>, values: Vec<T>) -> Claim<T> {
        let mut claim = Claim { at, since: at, before: now.cloned(), values, made: false };
        // From the newest claim downwards: the first whose value is in force is the one that this claim covers, and
        // both share the value from before the first owner.
        for below in self.0.iter().rev() {
            if now.is_some_and(|now| below.is_in_force(now)) {
                claim.since = below.since;
                claim.before.clone_from(&below.before);
                break;
            }
            // Its owner did set it, and the value is another one now: a program other than Quell has written since. A
            // claim that was perhaps not made proves nothing, so the search goes on below it.
            if below.made {
                break;
            }
        }
        claim
    }

    /// Whether a newer owner has set the attribute. One that died while it set it counts only if its value is in force.
    pub fn cover(&self, own: &Claim<T>, now: &T) -> bool {
        self.0.iter().any(|claim| claim.at > own.at && (claim.made || claim.is_in_force(now)))
    }

    /// Decides what to do when the owner of the claim `own`, which is not among these, ends.
    pub(crate) fn end(&self, own: &Claim<T>, now: &T) -> End<T> {
        if self.cover(own, now) {
            return End::Covered;
        }
        // The newest owner below gets its value back. Below the last owner it is the value from before the first one.
        let target = self.below(own).or(own.before.as_ref());
        match target {
            None => End::Nothing,
            Some(target) if target == now => End::Nothing,
            // Only a value that this owner has set is replaced. Anything else was written by another program, and is
            // kept.
            Some(target) if own.is_in_force(now) => End::Set(target.clone()),
            // A driver that recreates a queue resets it to the value from before the first owner.
            Some(_) if own.before.as_ref() == Some(now) => End::Nothing,
            Some(_) => End::Foreign { before: own.before.clone() },
        }
    }

    /// Value of the newest owner, if it set only one.
    pub(crate) fn newest(&self) -> Option<&T> {
        self.0.iter().rev().find(|claim| claim.made).and_then(|claim| claim.values.first())
    }

    /// Value of the newest claim below `own`, unless another program has written in between.
    fn below(&self, own: &Claim<T>) -> Option<&T> {
        let is_below = |claim: &&Claim<T>| claim.made && claim.at < own.at && claim.since == own.since;
        self.0.iter().rev().find(is_below).and_then(|claim| claim.values.first())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(at: u64, since: u64, before: u8, value: u8) -> Claim<u8> {
        Claim { at, since, before: Some(before), values: vec![value], made: true }
    }

    #[test]
    fn a_value_of_another_program_is_kept_and_named_with_the_value_before() {
        let ended = Claims::new([]).end(&owned(1, 1, 0, 10), &20);
        assert_eq!(ended, End::Foreign { before: Some(0) });
    }

    #[test]
    fn an_owner_that_ends_below_another_one_changes_nothing_even_after_a_foreign_write() {
        let above = Claims::new([owned(2, 1, 0, 11)]);
        assert_eq!(above.end(&owned(1, 1, 0, 10), &11), End::Covered);
        assert_eq!(above.end(&owned(1, 1, 0, 10), &20), End::Covered);
    }

    #[test]
    fn an_experiment_owns_each_of_its_values() {
        let experiment = Claim { values: vec![10, 11, 12], ..owned(2, 1, 0, 10) };
        let below = Claims::new([owned(1, 1, 0, 9)]);
        for now in [10, 11, 12] {
            assert_eq!(below.end(&experiment, &now), End::Set(9));
        }
    }
}
