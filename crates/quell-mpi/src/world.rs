//! The ranks of an MPI job, and messages between them. Everything that waits sleeps between two looks, because the blocking
//! calls of MPI spin. Only the comparison of clocks spins, for a few milliseconds.

use std::thread::sleep;
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::environment::Universe;
use mpi::point_to_point::MatchedReceiveVec as _;
use mpi::request::StaticScope;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use quell_linux::clock::monotonic_ns;
use quell_load::clients::ClockOffset;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Interval at which a waiting rank looks for messages.
pub const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Number of exchanges of a comparison of clocks.
const EXCHANGES: usize = 64;
const EXCHANGE_MAX: Duration = Duration::from_secs(2);

const MESSAGE: mpi::Tag = 1;
const CLOCK: mpi::Tag = 2;

/// The ranks of this job, as seen from one of them.
pub struct World {
    comm: SimpleCommunicator,
    rank: u32,
    ranks: u32,
    host: String,
    /// Finalizes MPI when it is dropped.
    _universe: Universe,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    #[error("nothing arrived from rank {rank} within {within:.1?}")]
    Missing { rank: u32, within: Duration },
    #[error("a message from rank {rank} cannot be read: {source}")]
    Unreadable { rank: u32, source: serde_json::Error },
}

impl World {
    /// Joins the job. Without a launcher, the job has one rank. `None` if MPI was initialized before.
    #[must_use]
    pub fn join() -> Option<Self> {
        // Generator threads exist, but only the main thread calls MPI.
        let (universe, _) = mpi::initialize_with_threading(Threading::Funneled)?;
        let comm = universe.world();
        let number = |rank: mpi::Rank| u32::try_from(rank).unwrap_or(0);
        let (rank, ranks) = (number(comm.rank()), number(comm.size()));
        let host = mpi::environment::processor_name().unwrap_or_else(|_| "unknown host".to_owned());
        Some(Self { comm, rank, ranks, host, _universe: universe })
    }

    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// All ranks but 0.
    pub fn others(&self) -> impl Iterator<Item = u32> + use<> {
        1..self.ranks
    }

    fn process(&self, rank: u32) -> mpi::topology::Process<'_> {
        // Ranks are numbers of this job, which came from this type.
        self.comm.process_at_rank(mpi::Rank::try_from(rank).unwrap_or(0))
    }

    pub fn send(&self, to: u32, message: &impl Serialize) -> serde_json::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        self.process(to).send_with_tag(&bytes[..], MESSAGE);
        Ok(())
    }

    pub fn receive<T: DeserializeOwned>(&self, from: u32, within: Duration) -> Result<T, MessageError> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(probed) = self.process(from).immediate_matched_probe_with_tag(MESSAGE) {
                let (bytes, _) = probed.matched_receive_vec::<u8>();
                return serde_json::from_slice(&bytes)
                    .map_err(|source| MessageError::Unreadable { rank: from, source });
            }
            if Instant::now() >= deadline {
                return Err(MessageError::Missing { rank: from, within });
            }
            sleep(LOOK_EVERY);
        }
    }

    /// Broadcasts the value of rank 0, which alone passes one.
    pub fn broadcast<T: Serialize + DeserializeOwned>(&self, of_root: Option<&T>) -> serde_json::Result<T> {
        let mut bytes = of_root.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        let mut length = bytes.len() as u64;
        let root = self.process(0);
        root.broadcast_into(&mut length);
        bytes.resize(usize::try_from(length).unwrap_or(0), 0);
        root.broadcast_into(&mut bytes[..]);
        serde_json::from_slice(&bytes)
    }

    pub fn barrier(&self) {
        let mut request: mpi::request::Request<'static, (), StaticScope> = self.comm.immediate_barrier();
        while let Err(pending) = request.test() {
            request = pending;
            sleep(LOOK_EVERY);
        }
    }

    /// Rank 0: compares its clock with that of `rank`, which calls [`Self::answer_clock`]. The comparison spins.
    pub fn compare_clock(&self, rank: u32) -> Result<ClockOffset, MessageError> {
        let mut offsets = Vec::with_capacity(EXCHANGES);
        for _ in 0..EXCHANGES {
            let sent_ns = monotonic_ns();
            self.process(rank).send_with_tag(&sent_ns, CLOCK);
            let remote_ns = self.spin_for_clock(rank)?;
            offsets.extend(ClockOffset::from_exchange(sent_ns, remote_ns, monotonic_ns()));
        }
        ClockOffset::most_exact(offsets).ok_or(MessageError::Missing { rank, within: EXCHANGE_MAX })
    }

    pub fn answer_clock(&self) -> Result<(), MessageError> {
        for _ in 0..EXCHANGES {
            self.spin_for_clock(0)?;
            self.process(0).send_with_tag(&monotonic_ns(), CLOCK);
        }
        Ok(())
    }

    fn spin_for_clock(&self, from: u32) -> Result<u64, MessageError> {
        let deadline = Instant::now() + EXCHANGE_MAX;
        loop {
            if let Some((message, _)) = self.process(from).immediate_matched_probe_with_tag(CLOCK) {
                return Ok(message.matched_receive::<u64>().0);
            }
            if Instant::now() >= deadline {
                return Err(MessageError::Missing { rank: from, within: EXCHANGE_MAX });
            }
            // The other rank may be on this CPU.
            std::thread::yield_now();
        }
    }

    /// Ends all ranks of the job. The launcher returns `exit_code`.
    pub fn abort(&self, exit_code: i32) -> ! {
        self.comm.abort(exit_code)
    }
}
