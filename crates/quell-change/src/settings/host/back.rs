//! Decides which parts of a value to restore, and which parts another program has changed since. Pure.

use quell_linux::CpuList;
use quell_linux::ethtool::Coalescing;
use quell_linux::sched::Scheduling;

use crate::change::{ChannelCounts, Diff, RingSizes, text};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Back<T> {
    pub(crate) set: Option<T>,
    /// Current value, if it is neither the old nor the new one.
    pub(crate) others: Option<T>,
}

/// A value that a plan can change.
pub(crate) trait Value: Clone + PartialEq {
    /// Decides the restoration from the old, the applied and the current value. Restores an unchanged applied value.
    /// Ignores a value that is the old one again, and leaves any other value alone. Treats each part of a composite
    /// value separately.
    fn back(old: &Self, new: &Self, current: &Self) -> Back<Self> {
        let is = |other: &Self| current == other;
        Back {
            set: (!is(old) && is(new)).then(|| old.clone()),
            others: (!is(old) && !is(new)).then(|| current.clone()),
        }
    }

    fn in_words(&self) -> String;
}

impl Value for bool {
    fn in_words(&self) -> String {
        text::switch(*self)
    }
}

impl Value for String {
    fn in_words(&self) -> String {
        self.clone()
    }
}

impl Value for CpuList {
    fn in_words(&self) -> String {
        text::cpu_list(self)
    }
}

impl Value for Vec<u32> {
    fn in_words(&self) -> String {
        text::numbers(self)
    }
}

impl Value for Scheduling {
    fn in_words(&self) -> String {
        text::class(self)
    }
}

impl Value for Coalescing {
    fn back(old: &Self, new: &Self, current: &Self) -> Back<Self> {
        let differs = |one: &Self, other: &Self, parameter| one.get(parameter) != other.get(parameter);
        let not_old = || current.iter().filter(|(parameter, _)| differs(current, old, *parameter));
        let back = not_old().filter(|(parameter, _)| !differs(current, new, *parameter));
        let set: Self = back.filter_map(|(parameter, _)| Some((parameter, old.get(parameter)?))).collect();
        let others: Self = not_old().filter(|(parameter, _)| differs(current, new, *parameter)).collect();
        let present = |values: Self| (!values.is_empty()).then_some(values);
        Back { set: present(set), others: present(others) }
    }

    fn in_words(&self) -> String {
        text::coalescing(self)
    }
}

impl Value for ChannelCounts {
    fn in_words(&self) -> String {
        text::channels(self)
    }
}

impl Value for RingSizes {
    fn in_words(&self) -> String {
        text::rings(self)
    }
}

/// Keeps only the parameters that the change contains.
pub(super) fn only(values: &Coalescing, spoken_of: &Diff<Coalescing>) -> Coalescing {
    let is_spoken_of = |parameter| {
        let in_one =
            |values: &Option<Coalescing>| values.as_ref().is_some_and(|values| values.get(parameter).is_some());
        in_one(&spoken_of.old) || in_one(&spoken_of.new)
    };
    values.iter().filter(|(parameter, _)| is_spoken_of(*parameter)).collect()
}

impl ChannelCounts {
    /// Keeps only the kinds that the change contains.
    pub(super) fn where_present_in(self, spoken_of: &Diff<Self>) -> Self {
        let pick = |kind: fn(&Self) -> Option<u32>| {
            let in_one = |counts: &Option<Self>| counts.as_ref().and_then(kind).is_some();
            kind(&self).filter(|_| in_one(&spoken_of.old) || in_one(&spoken_of.new))
        };
        Self { combined: pick(|counts| counts.combined), rx: pick(|counts| counts.rx), tx: pick(|counts| counts.tx) }
    }
}

impl RingSizes {
    /// Keeps only the directions that the change contains.
    pub(super) fn where_present_in(self, spoken_of: &Diff<Self>) -> Self {
        let pick = |side: fn(&Self) -> Option<u32>| {
            let in_one = |sizes: &Option<Self>| sizes.as_ref().and_then(side).is_some();
            side(&self).filter(|_| in_one(&spoken_of.old) || in_one(&spoken_of.new))
        };
        Self { rx: pick(|sizes| sizes.rx), tx: pick(|sizes| sizes.tx) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_linux::ethtool::CoalesceParameter;

    #[test]
    fn a_value_is_restored_only_if_it_is_the_applied_one() {
        let cpus = |list: &str| list.parse::<CpuList>().unwrap();
        let back = |current: &str| CpuList::back(&cpus("0"), &cpus("1"), &cpus(current));
        assert_eq!(back("1"), Back { set: Some(cpus("0")), others: None });
        assert_eq!(back("0"), Back { set: None, others: None });
        assert_eq!(back("2"), Back { set: None, others: Some(cpus("2")) });
    }

    #[test]
    fn coalescing_is_restored_parameter_by_parameter() {
        use CoalesceParameter::{RxMaxFrames, RxUsecs};
        let values = |usecs, frames| Coalescing::from_iter([(RxUsecs, usecs), (RxMaxFrames, frames)]);
        let plan = Coalescing::back(&values(8, 32), &values(50, 64), &values(50, 99));
        assert_eq!(plan.set, Some(Coalescing::from_iter([(RxUsecs, 8)])));
        assert_eq!(plan.others, Some(Coalescing::from_iter([(RxMaxFrames, 99)])));
    }
}
