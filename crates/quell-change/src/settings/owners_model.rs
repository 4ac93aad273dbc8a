//! Random owners of the queues of a simulated host, compared with the rules as an operator would state them: a stack of
//! owners upon what other programs have set. Uses the decisions of the real host, without a kernel.

#![cfg(test)]

use std::path::PathBuf;

use proptest::prelude::*;
use quell_linux::Ifindex;
use quell_mode::{NapiAttribute, PartialNapiSettings};

use super::napi::{Ending, WantedQueue, drift, plan};
use crate::change::{NapiSettingsChange, QueueInPlan};
use crate::journal::claims::QueueOwners;

/// A profile, two attachments, and an experiment on the programs of the first attachment.
const OWNERS: usize = 4;
const PROFILE: usize = 0;
const MEASURED: usize = 1;
const EXPERIMENT: usize = 3;
const QUEUES_MAX: usize = 4;

#[derive(Debug, Clone, Copy)]
enum Event {
    Take(usize),
    /// The owner is killed after it has recorded this number of queues, before or after the last write.
    Kill(usize, usize, bool),
    End(usize),
    Switch(usize),
    Foreign(usize, NapiAttribute),
    /// The driver recreates a queue; irq-suspend-timeout may survive.
    Reset(usize, bool),
}

fn event(queues: usize) -> impl Strategy<Value = Event> {
    let attribute = proptest::sample::select(NapiAttribute::ALL.to_vec());
    prop_oneof![
        6 => (0..OWNERS).prop_map(Event::Take),
        2 => (0..OWNERS, 1..=queues, any::<bool>()).prop_map(|(owner, at, written)| Event::Kill(owner, at, written)),
        6 => (0..OWNERS).prop_map(Event::End),
        2 => (0..3_usize).prop_map(Event::Switch),
        2 => (0..queues, attribute).prop_map(|(queue, of)| Event::Foreign(queue, of)),
        1 => (0..queues, any::<bool>()).prop_map(|(queue, survives)| Event::Reset(queue, survives)),
    ]
}

fn values(defer: u64, gro: u64, suspend: u64, threaded: u64) -> PartialNapiSettings {
    NapiAttribute::ALL.into_iter().zip([defer, gro, suspend, threaded]).collect()
}

/// The modes of an owner: the first is set when it begins.
fn modes(owner: usize) -> Vec<PartialNapiSettings> {
    match owner {
        PROFILE => vec![values(100, 50, 0, 0)],
        1 => vec![values(100, 200, 20_000, 0)],
        2 => vec![values(10, 200, 10_000, 0)],
        _ => vec![values(0, 0, 0, 0), values(100, 20, 20_000, 0), values(0, 0, 0, 1)],
    }
}

/// Queues of an owner: the profile sets all, the others some.
fn queues_of(owner: usize, queues: usize) -> Vec<usize> {
    match owner {
        1 => (0..queues.div_ceil(2)).collect(),
        2 => (queues / 2..queues).collect(),
        _ => (0..queues).collect(),
    }
}

/// Name of the journal of an owner.
fn name(owner: usize) -> PathBuf {
    owner.to_string().into()
}

fn found(queue: usize, now: PartialNapiSettings) -> NapiSettingsChange {
    let queue = u32::try_from(queue).unwrap();
    NapiSettingsChange {
        namespace_cookie: 1,
        device: "eth0".to_owned(),
        ifindex: Ifindex::new(2).unwrap(),
        sysfs_inode: Some(5),
        napi_id: queue + 100,
        place: queue,
        rx_queue: Some(queue),
        old: now,
        new: PartialNapiSettings::NONE,
        alternatives: Vec::new(),
        set_at_boot_ns: 0,
        since_boot_ns: std::collections::BTreeMap::new(),
        in_plan: None,
    }
}

#[derive(Debug, Clone)]
struct Stack {
    value: u64,
    bottom: u64,
    /// Owners whose value nobody has replaced, the newest last, with their value.
    owners: Vec<(usize, u64)>,
}

impl Stack {
    fn end(&mut self, owner: usize) {
        let Some(place) = self.owners.iter().position(|(other, _)| *other == owner) else { return };
        self.owners.remove(place);
        if place == self.owners.len() {
            self.value = self.owners.last().map_or(self.bottom, |(_, below)| *below);
        }
    }

    fn replace(&mut self, value: u64) {
        // Writing the present value changes nothing.
        if self.value != value {
            *self = Self { value, bottom: value, owners: Vec::new() };
        }
    }
}

#[derive(Debug, Clone)]
struct Host {
    queues: Vec<PartialNapiSettings>,
    /// Journals of the owners: changes, and whether they were made.
    journals: Vec<Vec<(NapiSettingsChange, bool)>>,
    expected: Vec<[Stack; 4]>,
    clock: u64,
}

impl Host {
    fn new(initial: &[PartialNapiSettings]) -> Self {
        let stacks = |now: &PartialNapiSettings| {
            NapiAttribute::ALL.map(|attribute| {
                let value = now.get(attribute).unwrap();
                Stack { value, bottom: value, owners: Vec::new() }
            })
        };
        let expected = initial.iter().map(stacks).collect();
        Self { queues: initial.to_vec(), journals: vec![Vec::new(); OWNERS], expected, clock: 0 }
    }

    fn owners(&self, queue: usize, without: usize) -> QueueOwners {
        let of_queue = |(change, _): &&(NapiSettingsChange, bool)| change.place as usize == queue;
        let others = self.journals.iter().enumerate().filter(|(owner, _)| *owner != without);
        QueueOwners::of_test(others.flat_map(|(owner, journal)| {
            let serves_programs = owner != PROFILE;
            journal
                .iter()
                .filter(of_queue)
                .map(move |(change, made)| (serves_programs, name(owner), change.clone(), *made))
        }))
    }

    /// Sets a queue as an owner. Returns whether it is permitted.
    fn take(&mut self, owner: usize, queue: usize, made: bool, written: bool) -> bool {
        self.clock += 1;
        let now = self.queues[queue];
        let owners = self.owners(queue, owner);
        let modes = modes(owner);
        let mut alternatives = modes[1..].to_vec();
        if owner == EXPERIMENT {
            if owners.of_programs_besides(&[name(MEASURED)]).is_some() {
                return false;
            }
            alternatives.push(now);
        }
        let in_plan = (owner == PROFILE).then_some((QueueInPlan::Stays, now));
        let wanted = WantedQueue { values: modes[0], alternatives, in_plan };
        let Some(change) = plan(found(queue, now), &wanted, &owners, self.clock) else { return true };
        if owners.permit(&now, Some(&change.new)).is_err() {
            return false;
        }
        let new = change.new;
        self.journals[owner].push((change, made));
        if written {
            self.queues[queue] = now.changed_by(&new);
        }
        if made {
            for (stack, attribute) in self.expected[queue].iter_mut().zip(NapiAttribute::ALL) {
                if let Some(value) = new.get(attribute) {
                    stack.owners.push((owner, value));
                    stack.value = value;
                }
            }
        }
        true
    }

    fn begin(&mut self, owner: usize) {
        if self.journals[owner].is_empty() {
            for queue in queues_of(owner, self.queues.len()) {
                if !self.take(owner, queue, true, true) {
                    // It failed, and everything of it is restored.
                    return self.end(owner);
                }
            }
        }
    }

    fn kill(&mut self, owner: usize, at: usize, written: bool) {
        if !self.journals[owner].is_empty() {
            return;
        }
        let queues = queues_of(owner, self.queues.len());
        let last = at.min(queues.len()) - 1;
        for (place, queue) in queues.into_iter().enumerate().take(last + 1) {
            let is_last = place == last;
            if !self.take(owner, queue, !is_last, !is_last || written) {
                break;
            }
        }
        self.end(owner);
    }

    fn end(&mut self, owner: usize) {
        for (change, made) in std::mem::take(&mut self.journals[owner]).iter().rev() {
            let queue = change.place as usize;
            let Ending { set, .. } = Ending::of(change, *made, &self.owners(queue, owner), &self.queues[queue]);
            self.queues[queue] = self.queues[queue].changed_by(&set);
        }
        self.expected.iter_mut().flatten().for_each(|stack| stack.end(owner));
    }

    fn switch(&mut self, mode: usize) {
        for (change, _) in self.journals[EXPERIMENT].clone() {
            let queue = change.place as usize;
            let wanted = modes(EXPERIMENT)[mode].where_present_in(&change.new);
            // An experiment ends when another program changes a value.
            let owners = self.owners(queue, EXPERIMENT);
            if !drift(&change, &owners, &self.queues[queue]).is_empty() {
                return self.end(EXPERIMENT);
            }
            self.queues[queue] = self.queues[queue].changed_by(&wanted);
            for (stack, attribute) in self.expected[queue].iter_mut().zip(NapiAttribute::ALL) {
                if let (Some(value), Some(last)) = (wanted.get(attribute), stack.owners.last_mut())
                    && last.0 == EXPERIMENT
                {
                    (last.1, stack.value) = (value, value);
                } else if let Some(value) = wanted.get(attribute) {
                    // A foreign write of a value of the experiment counts as its own.
                    stack.value = value;
                }
            }
        }
    }

    fn play(&mut self, event: Event) {
        match event {
            Event::Take(owner) => self.begin(owner),
            Event::Kill(owner, at, written) => self.kill(owner, at, written),
            Event::End(owner) => self.end(owner),
            Event::Switch(mode) => self.switch(mode),
            Event::Foreign(queue, attribute) => {
                self.clock += 1;
                self.write(queue, [(attribute, 200_000 + self.clock)].into_iter().collect());
            }
            Event::Reset(queue, survives) => {
                let suspend = self.queues[queue].get(NapiAttribute::IrqSuspendTimeout).filter(|_| survives);
                // New values each time: a value that an owner sets counts as that owner's.
                self.clock += 1;
                let value = 100_000 + self.clock;
                self.write(queue, values(value, value, suspend.unwrap_or(value), value));
            }
        }
    }

    fn write(&mut self, queue: usize, change: PartialNapiSettings) {
        self.queues[queue] = self.queues[queue].changed_by(&change);
        for (stack, attribute) in self.expected[queue].iter_mut().zip(NapiAttribute::ALL) {
            if let Some(value) = change.get(attribute) {
                stack.replace(value);
            }
        }
    }

    fn check(&self, after: &str) -> Result<(), TestCaseError> {
        for (queue, stacks) in self.expected.iter().enumerate() {
            let expected: PartialNapiSettings =
                NapiAttribute::ALL.into_iter().zip(stacks).map(|(attribute, stack)| (attribute, stack.value)).collect();
            prop_assert_eq!(self.queues[queue], expected, "queue {} after {}: {:#?}", queue, after, self);
        }
        Ok(())
    }
}

fn sequence() -> impl Strategy<Value = (Vec<PartialNapiSettings>, Vec<Event>)> {
    let initial = (0..2_u64, 0..2_u64).prop_map(|(defer, gro)| values(defer * 7, gro * 33, 0, 0));
    (1..=QUEUES_MAX).prop_flat_map(move |queues| {
        (proptest::collection::vec(initial.clone(), queues), proptest::collection::vec(event(queues), 0..24))
    })
}

/// Number of sequences: some that take few seconds, or `PROPTEST_CASES` (`make nightly`).
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(10_000)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn owners_in_any_order_agree_with_a_stack_of_owners((initial, events) in sequence()) {
        let mut host = Host::new(&initial);
        for event in events {
            host.play(event);
            host.check(&format!("{event:?}"))?;
        }
        for owner in [2, PROFILE, EXPERIMENT, 1] {
            host.end(owner);
            host.check(&format!("the end of {owner}"))?;
        }
        for stack in host.expected.iter().flatten() {
            prop_assert_eq!(stack.value, stack.bottom, "every value is the original or a foreign one");
        }
    }
}
