//! Names in the tree of `quell show`: number ranges, NAPI instances by device and queue, times.

use std::collections::{BTreeSet, HashMap};

use quell_host::snapshot::{Reading, Snapshot, Unknown, UnknownReason};
use quell_linux::{NapiId, Pid};

/// Number ranges such as `1-3,7`; empty without numbers.
pub(super) fn ranges(numbers: impl IntoIterator<Item = u32>) -> String {
    let sorted: BTreeSet<u32> = numbers.into_iter().collect();
    let mut numbers = sorted.into_iter().peekable();
    let mut parts = Vec::new();
    while let Some(first) = numbers.next() {
        let mut last = first;
        while let Some(next) = numbers.next_if(|next| next.checked_sub(1) == Some(last)) {
            last = next;
        }
        parts.push(if first == last { first.to_string() } else { format!("{first}-{last}") });
    }
    parts.join(",")
}

pub(super) struct NapiNames<'a> {
    by_id: HashMap<NapiId, (&'a str, Option<u32>)>,
}

impl<'a> NapiNames<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        let mut by_id = HashMap::new();
        for device in &snapshot.devices {
            for napi in device.napis.known_elements() {
                by_id.insert(napi.id, (device.name.as_str(), None));
            }
            for queue in device.rx_queues.known_elements() {
                if let Reading::Known(Some(napi)) = &queue.napi {
                    by_id.insert(napi.to, (device.name.as_str(), Some(queue.id)));
                }
            }
        }
        Self { by_id }
    }

    /// `NAPI 8193-8196 (eth0 rx 0-3)`; only the IDs if they are not in the snapshot.
    pub(super) fn name(&self, napis: &BTreeSet<NapiId>) -> String {
        let ids = ranges(napis.iter().map(|id| id.get()));
        let known = napis.iter().filter_map(|id| self.by_id.get(id));
        let mut queues: std::collections::BTreeMap<&str, Vec<u32>> = std::collections::BTreeMap::new();
        known.for_each(|(device, queue)| queues.entry(device).or_default().extend(*queue));
        let of = |(device, queues): (&str, Vec<u32>)| match ranges(queues) {
            none if none.is_empty() => device.to_owned(),
            queues => format!("{device} rx {queues}"),
        };
        let places: Vec<String> = queues.into_iter().map(of).collect();
        if places.is_empty() { format!("NAPI {ids}") } else { format!("NAPI {ids} ({})", places.join(", ")) }
    }
}

pub(super) fn reason(unknown: &Unknown) -> String {
    match unknown.reason {
        UnknownReason::Absent => "not present".to_owned(),
        UnknownReason::UnsupportedByKernel => "not supported by this kernel".to_owned(),
        UnknownReason::UnsupportedByDriver => "not supported by the driver".to_owned(),
        UnknownReason::Denied { needs: Some(needs) } => format!("needs {needs}"),
        UnknownReason::Denied { needs: None } => "needs root".to_owned(),
        UnknownReason::NotAsked => "not queried".to_owned(),
        _ => "could not be read".to_owned(),
    }
}

/// `nginx 7`, or `process 7` without a name.
pub(super) fn process(name: &str, pid: Pid) -> String {
    if name.is_empty() { format!("process {pid}") } else { format!("{name} {pid}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_numbers_become_a_range() {
        assert_eq!(ranges([7, 1, 2, 3, 3, u32::MAX]), format!("1-3,7,{}", u32::MAX));
        assert_eq!(ranges([]), "");
    }
}
