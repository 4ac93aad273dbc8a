//! The BPF programs in the kernel, and the selection of the instances that they sample.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

use aya::maps::{Array, MapData, MapError};
use aya::programs::{BtfTracePoint, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader, Endianness};
use quell_linux::bpf::{Btf as KernelTypes, BtfError};
use quell_linux::{NapiId, clock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::counters::{Abilities, NAPI, PollCounters, WORDS};

/// Compiled from `bpf/sampler.bpf.c` by `make bpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/sampler.bpf.o");
const SELECTING: &str = "selecting a NAPI instance";
const QUEUES: &str = "queues";
const SLOTS: &str = "slots";
/// A program and its tracepoint.
type Program = (&'static str, &'static str);
const POLLS: Program = ("quell_poll", "napi_poll");
/// Counts less than [`POLLS`].
const WATCH: Program = ("quell_watch", "napi_poll");
/// Runs for every timer of the host.
const TIMERS: Program = ("quell_timer", "hrtimer_expire_entry");

/// Runs for every softirq of the host.
const SOFTIRQS: Program = ("quell_softirq", "softirq_entry");

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SamplerError {
    #[error("sampling polls: {0}")]
    Unsupported(#[source] BtfError),
    #[error("sampling polls: {action}: {source}; needs CAP_BPF and CAP_PERFMON in the initial user namespace")]
    Denied { action: &'static str, source: io::Error },
    #[error("sampling polls: {action}: {said}")]
    Refused { action: &'static str, said: String },
}

/// Why one instance cannot be sampled beside the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, Error)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Unsampled {
    /// The low 16 bits of its ID are those of another selected instance.
    #[error("its ID and that of another instance have equal low 16 bits")]
    EqualSlots,
    /// As many instances are selected as the sampler has room for.
    #[error("4,096 other instances are sampled")]
    TooMany,
}

impl SamplerError {
    pub(crate) fn new(action: &'static str, error: &(dyn Error + 'static)) -> Self {
        let causes: Vec<&(dyn Error + 'static)> =
            std::iter::successors(Some(error), |error| (*error).source()).collect();
        let denied = causes.iter().find_map(|cause| {
            let number = cause.downcast_ref::<io::Error>()?.raw_os_error()?;
            let source = io::Error::from_raw_os_error(number);
            (source.kind() == io::ErrorKind::PermissionDenied).then_some(source)
        });
        match denied {
            // The verifier rejects with EACCES, and says why.
            Some(source) if !is_rejection(&causes) => Self::Denied { action, source },
            _ => {
                let said: Vec<String> = causes.iter().map(ToString::to_string).collect();
                Self::Refused { action, said: said.join(": ") }
            }
        }
    }
}

fn is_rejection(causes: &[&(dyn Error + 'static)]) -> bool {
    causes.iter().any(|cause| match cause.downcast_ref() {
        Some(ProgramError::LoadError { verifier_log, .. }) => !verifier_log.to_string().is_empty(),
        _ => false,
    })
}

/// Samples the selected instances until it is dropped.
pub struct Sampler {
    queues: Array<MapData, [u64; WORDS]>,
    /// Index in `queues` plus 1, by the low bits of the NAPI ID.
    slots: Array<MapData, u32>,
    /// Selected instances, each with its index in `queues`.
    selected: BTreeMap<NapiId, u32>,
    /// Unused indices. The one that was used last comes last, because a program may still be writing to it.
    free: VecDeque<u32>,
    can: Abilities,
    /// Keeps the programs attached.
    _programs: Ebpf,
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler").field("selected", &self.selected).finish_non_exhaustive()
    }
}

impl Sampler {
    /// Loads and attaches the programs. No instance is selected yet. The kernel's BTF is read below `sys`, normally
    /// `/sys`. [`SamplerError`] distinguishes an unsupported kernel from a missing capability.
    pub fn attach(sys: &Path) -> Result<Self, SamplerError> {
        Self::attach_programs(sys, &[POLLS, TIMERS, SOFTIRQS], None)
    }

    /// `room` is the number of instances that can be selected at the same time, if it is not the default.
    fn attach_programs(sys: &Path, attached: &[Program], room: Option<u32>) -> Result<Self, SamplerError> {
        let (kernel, btf) = kernel_types(sys)?;
        // By name: the numbers are those of this kernel, where a new state or softirq can have moved them.
        let enumerator = |name: &str| kernel.enumerator(name).map_err(SamplerError::Unsupported);
        let bit = |name: &str| enumerator(name).map(|bit| 1 << (bit & 63));
        let (sched, in_busy_poll): (u64, u64) = (bit("NAPI_STATE_SCHED")?, bit("NAPI_STATE_IN_BUSY_POLL")?);
        let net_rx = u64::from(enumerator("NET_RX_SOFTIRQ")?);
        let can = Abilities {
            sees_suspension: kernel.has_member("napi_struct", "irq_suspend_timeout").is_ok_and(|has| has),
            times_softirqs: attached.contains(&SOFTIRQS),
        };
        let mut loader = EbpfLoader::new();
        if let Some(room) = room {
            loader.map_max_entries(QUEUES, room);
        }
        let mut programs = loader
            .btf(Some(&btf))
            .override_global("SCHED", &sched, true)
            .override_global("IN_BUSY_POLL", &in_busy_poll, true)
            .override_global("NET_RX_SOFTIRQ", &net_rx, true)
            .override_global("TIMES_SOFTIRQS", &u64::from(can.times_softirqs), true)
            .load(OBJECT)
            .map_err(|error| SamplerError::new("loading the maps", &error))?;
        for &(name, tracepoint) in attached {
            let program: Option<Result<&mut BtfTracePoint, _>> = programs.program_mut(name).map(TryInto::try_into);
            let Some(program) = program else { return Err(missing(name)) };
            let attached = program.and_then(|program| {
                program.load(tracepoint, &btf)?;
                program.attach()
            });
            attached.map_err(|error| SamplerError::new("attaching the programs", &error))?;
        }
        let opening = |error: MapError| SamplerError::new("opening the maps", &error);
        let queues = programs.take_map(QUEUES).ok_or_else(|| missing(QUEUES))?;
        let queues: Array<_, [u64; WORDS]> = Array::try_from(queues).map_err(opening)?;
        let slots = programs.take_map(SLOTS).ok_or_else(|| missing(SLOTS))?;
        let slots = Array::try_from(slots).map_err(opening)?;
        let free = (0..queues.len()).collect();
        Ok(Self { queues, slots, selected: BTreeMap::new(), free, can, _programs: programs })
    }

    /// Samples these instances without the programs that run for every timer and every softirq of the host. Polls of
    /// the deferral timer then count as `rescheduled`, [`timer`](crate::PollsByPoller::timer) stays 0, suspensions that
    /// time out count as masked, and [`softirq_ns`](crate::QueueSample::softirq_ns) is absent.
    pub fn of(sys: &Path, napis: impl IntoIterator<Item = NapiId>) -> Result<Self, SamplerError> {
        let mut sampler = Self::attach_programs(sys, &[POLLS], None)?;
        sampler.select_all(napis.into_iter().collect())?;
        Ok(sampler)
    }

    /// Watches these instances at the lowest cost. Only the total of [`polls`](crate::QueueSample::polls),
    /// [`packets`](crate::QueueSample::packets) and [`interrupt_enabled`](PollCounters::interrupt_enabled) are counted.
    pub fn watching(sys: &Path, napis: BTreeSet<NapiId>) -> Result<Self, SamplerError> {
        let room = u32::try_from(napis.len().max(1)).unwrap_or(u32::MAX);
        let mut sampler = Self::attach_programs(sys, &[WATCH], Some(room))?;
        sampler.select_all(napis)?;
        Ok(sampler)
    }

    /// Selects these instances instead of the previous ones. Counters of those that stay selected go on; the others
    /// begin at zero. Returns the instances that cannot be sampled beside the others.
    pub fn select(&mut self, napis: BTreeSet<NapiId>) -> Result<BTreeMap<NapiId, Unsampled>, SamplerError> {
        let refused = |error: MapError| SamplerError::new(SELECTING, &error);
        let mut unsampled = BTreeMap::new();
        let gone: Vec<NapiId> = self.selected.keys().filter(|napi| !napis.contains(napi)).copied().collect();
        for napi in gone {
            // The slot first: from then on the programs do not find the index, which the next instance gets.
            self.slots.set(self.slot(napi), 0, 0).map_err(refused)?;
            self.free.extend(self.selected.remove(&napi));
        }
        for napi in napis {
            if self.selected.contains_key(&napi) {
                continue;
            }
            let slot = self.slot(napi);
            if self.slots.get(&slot, 0).map_err(refused)? != 0 {
                unsampled.insert(napi, Unsampled::EqualSlots);
                continue;
            }
            let Some(at) = self.free.pop_front() else {
                unsampled.insert(napi, Unsampled::TooMany);
                continue;
            };
            let mut words = [0; WORDS];
            words[NAPI] = napi.get().into();
            // The words before the slot: a poll that comes in between must not count into those of the previous
            // instance.
            self.queues.set(at, words, 0).map_err(refused)?;
            self.slots.set(slot, at + 1, 0).map_err(refused)?;
            self.selected.insert(napi, at);
        }
        Ok(unsampled)
    }

    /// Selects all of these instances instead of the previous ones. Fails also if one of them cannot be
    /// sampled beside the others.
    pub fn select_all(&mut self, napis: BTreeSet<NapiId>) -> Result<(), SamplerError> {
        match self.select(napis)?.first_key_value() {
            None => Ok(()),
            Some((napi, why)) => Err(SamplerError::Refused { action: SELECTING, said: format!("NAPI {napi}: {why}") }),
        }
    }

    fn slot(&self, napi: NapiId) -> u32 {
        napi.get() % self.slots.len()
    }

    pub fn read(&self) -> Result<BTreeMap<NapiId, PollCounters>, SamplerError> {
        let read = |(&napi, at): (&NapiId, &u32)| {
            let words = self.queues.get(at, 0);
            let words = words.map_err(|error| SamplerError::new("reading the counters", &error))?;
            Ok((napi, PollCounters::at(words, self.can, clock::monotonic_ns())))
        };
        self.selected.iter().map(read).collect()
    }
}

/// The types of the running kernel, for lookups of names and for the loader, from one reading of the file.
pub(crate) fn kernel_types(sys: &Path) -> Result<(KernelTypes, Btf), SamplerError> {
    let kernel = KernelTypes::of_kernel(sys).map_err(SamplerError::Unsupported)?;
    let btf = Btf::parse(kernel.as_bytes(), Endianness::default())
        .map_err(|error| SamplerError::new("reading the kernel's BTF", &error))?;
    Ok((kernel, btf))
}

pub(crate) fn missing(name: &'static str) -> SamplerError {
    SamplerError::Refused { action: "reading the compiled object", said: format!("it has no {name}") }
}

#[cfg(test)]
mod tests {
    use quell_linux::event::Trigger;
    use quell_test_support::lab::{ARRIVES_WITHIN, TestLab, UdpProgram};
    use quell_test_support::{Lacks, skip};

    use super::*;
    use crate::counters::{EMPTIED_AT, TIMED_AT};

    const HOUR_NS: u64 = 3_600_000_000_000;

    /// Polls overlap on different CPUs: the later program can have read the clock first.
    #[test]
    fn a_poll_that_ends_before_the_previous_one_found_no_packets_that_waited() {
        let Some(lab) = TestLab::raise("smp-overlap", 1) else { return };
        let mut sampler = match Sampler::attach(Path::new("/sys")) {
            Err(error @ (SamplerError::Denied { .. } | SamplerError::Unsupported(_))) => {
                return skip(Lacks::Root, &error);
            }
            sampler => sampler.unwrap(),
        };
        let program = UdpProgram::start(&lab, Trigger::Level);
        sampler.select([lab.napis[0]].into()).unwrap();
        let mut words = [0; WORDS];
        words[NAPI] = lab.napis[0].get().into();
        (words[TIMED_AT], words[EMPTIED_AT]) = (clock::monotonic_ns() + HOUR_NS, clock::monotonic_ns() + HOUR_NS);
        sampler.queues.set(sampler.selected[&lab.napis[0]], words, 0).unwrap();
        program.send(1);
        assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(1));
        let seen = sampler.read().unwrap()[&lab.napis[0]].since(None);
        assert!(seen.wait.packets > 0 && seen.wait.max_ns < Some(HOUR_NS / 60), "{seen:?}");
        assert!(!seen.wait.has_stalled() && seen.masked_ns < HOUR_NS, "{seen:?}");
    }
}
