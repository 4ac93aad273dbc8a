//! Counts the calls in which programs wait for files and sockets. The BPF programs run at every system call of the host,
//! so they are attached only for the time of an observation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use aya::maps::{HashMap, MapData, MapError};
use aya::programs::RawTracePoint;
use aya::{Ebpf, EbpfLoader};
use quell_linux::kernel::threads_are_in_sight;
use quell_linux::proc::ProcRoot;
use quell_linux::wait_calls::WaitCalls;
use quell_linux::{NapiId, Pid};

use crate::sampler::{SamplerError, kernel_types, missing};

/// Compiled from `bpf/waits.bpf.c` by `make bpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/waits.bpf.o");
const PROGRAMS: [(&str, &str); 2] = [("quell_enter", "sys_enter"), ("quell_exit", "sys_exit")];
/// `enum kind` (`bpf/waits.bpf.c`).
const EPOLL: u32 = 0;
const POLL: u32 = 1;
const IO_URING: u32 = 2;
const SOCKET: u32 = 3;
const READ: u32 = 5;
/// `struct place` and `struct calls`.
type Key = [u32; 4];
type Words = [u64; 8];
/// `struct pending`.
type Pending = [u32; 12];
/// `struct descriptor`.
type Descriptor = [u32; 2];
const READ_MAX: usize = 16_384;
const CALL_WORDS: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitPlace {
    /// In `epoll_wait` on the epoll with this descriptor in the process.
    Epoll(i32),
    Poll,
    IoUring,
    /// In `poll` or another call that slept for a TCP or UDP socket: its NAPI ID. A socket without a queue can have the
    /// number of a CPU instead, which no queue has as its ID.
    Socket(Option<NapiId>),
    /// In a `poll` that slept for the file with this descriptor, which is not a socket.
    Polled(i32),
    /// Nowhere: in a call that read a file which an epoll watches. The NAPI ID of a TCP or UDP socket that has one.
    /// Listening sockets do not count.
    Read(Option<NapiId>),
}

/// Calls of one thread that wait at one place, during an observation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitCounts {
    pub calls: u64,
    /// Calls with timeout 0.
    pub zero: u64,
    /// Calls with timeout 0 that returned nothing.
    pub zero_empty: u64,
    pub with_events: u64,
    /// Largest number of events that a call asked for.
    pub max_events: u64,
    /// Ended calls in which the thread slept.
    pub slept: u64,
    /// Calls of `epoll_wait` that began after a read which left data in its TCP connection.
    pub after_partial_read: u64,
    /// Time in which the events before these calls were handled, in nanoseconds.
    pub partial_read_ns: u64,
}

impl WaitCounts {
    /// Calls with a timeout above 0.
    #[must_use]
    pub fn sleeping(&self) -> u64 {
        self.calls.saturating_sub(self.zero)
    }
}

/// A process, one of its threads, and where the thread waits.
pub type WaitKey = (Pid, Pid, WaitPlace);

/// Counts the waits of programs until it is dropped.
pub struct WaitSampler {
    waits: HashMap<MapData, Key, Words>,
    pending: HashMap<MapData, u32, Pending>,
    reads: HashMap<MapData, Descriptor, u64>,
    /// Keeps the programs attached.
    _programs: Ebpf,
}

impl fmt::Debug for WaitSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitSampler").finish_non_exhaustive()
    }
}

impl WaitSampler {
    /// Counts the calls of these processes from now on, and those of them that read one of these descriptors (at most
    /// 16,384). Calls of 32-bit programs are not recognized. The kernel's BTF is read below `sys`, normally `/sys`.
    /// Fails in a PID namespace whose PIDs are not those of the kernel.
    pub fn attach(
        sys: &Path,
        programs: &BTreeSet<Pid>,
        descriptors: &BTreeSet<(Pid, i32)>,
    ) -> Result<Self, SamplerError> {
        const ATTACHING: &str = "counting waits";
        let refused = |said: &str| SamplerError::Refused { action: ATTACHING, said: said.to_owned() };
        let calls = WaitCalls::HERE.ok_or_else(|| refused("the registers of this architecture are not known"))?;
        if !threads_are_in_sight(&ProcRoot::default()) {
            return Err(refused("this PID namespace is not the initial one"));
        }
        // No thread makes call -1: it stands for those that the architecture lacks.
        let number = |call: Option<i64>| call.unwrap_or(-1);
        let numbers = [
            ("EPOLL_WAIT", number(calls.epoll_wait)),
            ("EPOLL_PWAIT", calls.epoll_pwait),
            ("EPOLL_PWAIT2", calls.epoll_pwait2),
            ("POLL_CALL", number(calls.poll)),
            ("PPOLL", calls.ppoll),
            ("SELECT", number(calls.select)),
            ("PSELECT6", calls.pselect6),
            ("IO_URING_ENTER", calls.io_uring_enter),
        ];
        let (_, btf) = kernel_types(sys)?;
        let mut loader = EbpfLoader::new();
        loader.btf(Some(&btf));
        numbers.iter().for_each(|(name, number)| _ = loader.override_global(name, number, true));
        let bit_sets = [
            ("SOCKET_CALLS", bit_set(calls.reading.iter().chain(calls.writing))),
            ("READ_CALLS", bit_set(calls.reading)),
            ("FLAGS_2_CALLS", bit_set(calls.flags_third)),
            ("FLAGS_3_CALLS", bit_set(calls.flags_fourth)),
        ];
        bit_sets.iter().for_each(|(name, calls)| _ = loader.override_global(name, calls.as_slice(), true));
        let [first, second, third, fourth, fifth] = &calls.arguments;
        loader
            .override_global("ARGUMENT_0", first, true)
            .override_global("ARGUMENT_1", second, true)
            .override_global("ARGUMENT_2", third, true)
            .override_global("ARGUMENT_3", fourth, true)
            .override_global("ARGUMENT_4", fifth, true);
        let mut loaded = loader.load(OBJECT).map_err(|error| SamplerError::new("loading the maps", &error))?;
        let map = loaded.take_map("programs").ok_or_else(|| missing("programs"))?;
        let opening = |error: MapError| SamplerError::new("opening the maps", &error);
        let mut selected: HashMap<_, u32, u32> = HashMap::try_from(map).map_err(opening)?;
        let map = loaded.take_map("reads").ok_or_else(|| missing("reads"))?;
        let mut reads: HashMap<_, Descriptor, u64> = HashMap::try_from(map).map_err(opening)?;
        // Before the programs are attached, so that they count all processes from one moment on.
        for pid in programs {
            let inserted = selected.insert(pid.get().unsigned_abs(), 1, 0);
            inserted.map_err(|error| SamplerError::new("selecting a process", &error))?;
        }
        for &(pid, fd) in descriptors.iter().take(READ_MAX) {
            let inserted = reads.insert([pid.get().unsigned_abs(), fd.cast_unsigned()], 0, 0);
            inserted.map_err(|error| SamplerError::new("selecting a descriptor", &error))?;
        }
        let waits = loaded.take_map("waits").ok_or_else(|| missing("waits"))?;
        let waits = HashMap::try_from(waits).map_err(opening)?;
        let pending = loaded.take_map("pending").ok_or_else(|| missing("pending"))?;
        let pending = HashMap::try_from(pending).map_err(opening)?;
        for (name, tracepoint) in PROGRAMS {
            let program: Option<Result<&mut RawTracePoint, _>> = loaded.program_mut(name).map(TryInto::try_into);
            let Some(program) = program else { return Err(missing(name)) };
            let attached = program.and_then(|program| {
                program.load()?;
                program.attach(tracepoint)
            });
            attached.map_err(|error| SamplerError::new(ATTACHING, &error))?;
        }
        Ok(Self { waits, pending, reads, _programs: loaded })
    }

    /// The calls since the beginning. A call counts when it begins; what it returned counts when it ends.
    pub fn read(&self) -> Result<BTreeMap<WaitKey, WaitCounts>, SamplerError> {
        let mut read = BTreeMap::new();
        for entry in self.waits.iter() {
            let ([tgid, tid, kind, of], words) =
                entry.map_err(|error| SamplerError::new("reading the counters", &error))?;
            let (Some(pid), Some(tid)) = (Pid::from_kernel(tgid), Pid::from_kernel(tid)) else { continue };
            let [calls, zero, zero_empty, with_events, max_events, slept, after_partial_read, partial_read_ns] = words;
            let counts = WaitCounts {
                calls,
                zero,
                zero_empty,
                with_events,
                max_events,
                slept,
                after_partial_read,
                partial_read_ns,
            };
            read.insert((pid, tid, place_of(kind, of)), counts);
        }
        Ok(read)
    }

    /// Calls that have read from one of the descriptors, or accepted a connection; absent without calls.
    pub fn descriptors_read(&self) -> Result<BTreeMap<(Pid, i32), u64>, SamplerError> {
        let mut read = BTreeMap::new();
        for entry in self.reads.iter() {
            let ([tgid, fd], calls) = entry.map_err(|error| SamplerError::new("reading the counters", &error))?;
            read.extend(Pid::from_kernel(tgid).filter(|_| calls > 0).map(|pid| ((pid, fd.cast_signed()), calls)));
        }
        Ok(read)
    }

    /// Epolls in which threads wait now, in calls with a timeout above 0 that began after [`attach`](Self::attach).
    #[must_use]
    pub fn asleep(&self) -> BTreeSet<(Pid, i32)> {
        // Entries change while they are read: a call that ends in the meantime is not an error.
        let calls = self.pending.iter().filter_map(|entry| Some(entry.ok()?.1));
        let of_epolls = calls.filter(|&[_, _, kind, _, is_zero, ..]| kind == EPOLL && is_zero == 0);
        of_epolls.filter_map(|[tgid, _, _, fd, ..]| Some((Pid::from_kernel(tgid)?, fd.cast_signed()))).collect()
    }
}

fn bit_set<'a>(calls: impl IntoIterator<Item = &'a i64>) -> [u64; CALL_WORDS] {
    let mut words = [0_u64; CALL_WORDS];
    for call in calls {
        if let Some(word) = usize::try_from(call / 64).ok().and_then(|word| words.get_mut(word)) {
            *word |= 1 << (call % 64);
        }
    }
    words
}

fn place_of(kind: u32, of: u32) -> WaitPlace {
    match kind {
        EPOLL => WaitPlace::Epoll(of.cast_signed()),
        POLL => WaitPlace::Poll,
        IO_URING => WaitPlace::IoUring,
        SOCKET => WaitPlace::Socket(NapiId::from_kernel(of)),
        READ => WaitPlace::Read(NapiId::from_kernel(of)),
        _ => WaitPlace::Polled(of.cast_signed()),
    }
}
