//! Plan of a load: rank 0 makes it from the options and broadcasts it. Every rank derives its share.

use std::time::Duration;

use quell_load::{LoadError, LoadSpec, RunSpec, Schedule};
use serde::{Deserialize, Serialize};

/// Rank that measures only, if one does: the one that also conducts, because its machine has no load of its own.
pub const MEASURING_RANK: u32 = 0;

/// Length of a measured window of a run without an experiment. A failure is noticed at the end of a window.
pub const WINDOW: Duration = Duration::from_millis(500);

/// A load over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ClusterPlan {
    /// The whole load, without that of a measuring rank.
    pub spec: LoadSpec,
    pub run: RunSpec,
    /// Time limit for storing the keys, ms. `None` if they are not stored.
    pub preload_ms: Option<u64>,
    /// Load of the rank that measures only, if one does.
    pub measuring: Option<MeasuringLoad>,
}

/// Load of a rank that measures at a low rate while the others load the server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MeasuringLoad {
    /// Requests per second of its open loop.
    pub rate_per_s: f64,
    pub connections: u32,
}

/// Part of a load for one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RankShare {
    pub spec: LoadSpec,
    pub schedule: Schedule,
    pub measures_only: bool,
}

impl ClusterPlan {
    /// Derives the share of `rank` of `ranks`. The rate is divided in proportion to the connections.
    pub fn share(&self, rank: u32, ranks: u32) -> Result<RankShare, LoadError> {
        let (index, loading) = match self.measuring {
            None => (rank, ranks),
            Some(_) if ranks < 2 => {
                let problem = "one rank only measures, so at least two ranks are needed".to_owned();
                return Err(LoadError::Spec { field: "measure-rate", problem });
            }
            Some(measuring) if rank == MEASURING_RANK => return self.of_measuring(measuring, ranks),
            Some(_) => (rank - 1, ranks - 1),
        };
        let spec = self.spec.share(index, loading)?;
        let schedule = self.run.schedule.share(f64::from(spec.connections) / f64::from(self.spec.connections));
        checked(RankShare { spec, schedule, measures_only: false })
    }

    fn of_measuring(
        &self,
        MeasuringLoad { rate_per_s, connections }: MeasuringLoad,
        ranks: u32,
    ) -> Result<RankShare, LoadError> {
        let gaps = match self.run.schedule {
            Schedule::Open { gaps, .. } => gaps,
            Schedule::Closed => quell_load::Distribution::POISSON_GAPS,
        };
        // Its thread has a number after those of all others, so that it draws requests of its own.
        let first_thread = ranks * self.spec.threads;
        let spec = LoadSpec { connections, threads: 1, depth: 1, first_thread, ..self.spec.clone() };
        checked(RankShare { spec, schedule: Schedule::Open { rate_per_s, gaps }, measures_only: true })
    }

    /// Lengths of the measured windows of the run, ms.
    #[must_use]
    pub fn windows_ms(&self) -> Vec<u32> {
        let window_ms = u32::try_from(WINDOW.as_millis()).unwrap_or(u32::MAX);
        let whole = self.run.measure_ms / window_ms;
        let rest = self.run.measure_ms % window_ms;
        std::iter::repeat_n(window_ms, whole as usize).chain((rest > 0).then_some(rest)).collect()
    }
}

fn checked(share: RankShare) -> Result<RankShare, LoadError> {
    share.spec.check()?;
    share.schedule.check()?;
    Ok(share)
}

#[cfg(test)]
mod tests {
    use quell_load::{RequestResponse, Transport, Workload};

    use super::*;

    fn plan() -> ClusterPlan {
        let sizes = RequestResponse { request_bytes: 64, response_bytes: 64, check_content: false };
        let spec = LoadSpec::new(([192, 0, 2, 1], 7).into(), Transport::Tcp, Workload::RequestResponse(sizes));
        let schedule = Schedule::Open { rate_per_s: 900.0, gaps: quell_load::Distribution::POISSON_GAPS };
        let run = RunSpec { schedule, warm_up_ms: 0, measure_ms: 1_200 };
        ClusterPlan { spec: LoadSpec { connections: 9, ..spec }, run, preload_ms: None, measuring: None }
    }

    fn rate(share: &RankShare) -> f64 {
        match share.schedule {
            Schedule::Open { rate_per_s, .. } => rate_per_s,
            Schedule::Closed => 0.0,
        }
    }

    #[test]
    fn the_rate_is_divided_like_the_connections() {
        let shares: Vec<RankShare> = (0..4).map(|rank| plan().share(rank, 4).unwrap()).collect();
        assert_eq!(shares.iter().map(|share| share.spec.connections).collect::<Vec<_>>(), [3, 2, 2, 2]);
        assert_eq!(shares.iter().map(rate).collect::<Vec<_>>(), [300.0, 200.0, 200.0, 200.0]);
    }

    #[test]
    fn a_measuring_rank_has_a_load_of_its_own_and_the_others_the_whole() {
        let plan = ClusterPlan { measuring: Some(MeasuringLoad { rate_per_s: 50.0, connections: 4 }), ..plan() };
        let shares: Vec<RankShare> = (0..4).map(|rank| plan.share(rank, 4).unwrap()).collect();
        assert!(shares[0].measures_only && !shares[1].measures_only);
        assert_eq!(shares.iter().map(|share| share.spec.connections).collect::<Vec<_>>(), [4, 3, 3, 3]);
        assert_eq!(shares.iter().map(rate).collect::<Vec<_>>(), [50.0, 300.0, 300.0, 300.0]);
        let threads: Vec<u32> = shares.iter().map(|share| share.spec.first_thread).collect();
        assert_eq!(threads, [4, 0, 1, 2], "no two ranks draw the same requests");
    }

    #[test]
    fn a_load_that_cannot_be_divided_is_refused() {
        let few = plan().share(0, 10).unwrap_err().to_string();
        assert!(few.starts_with("load: connections: 9 is too few for 10 generators"), "{few}");
        let alone = ClusterPlan { measuring: Some(MeasuringLoad { rate_per_s: 50.0, connections: 4 }), ..plan() };
        assert!(alone.share(0, 1).unwrap_err().to_string().starts_with("load: measure-rate: "));
    }

    #[test]
    fn windows_add_up_to_the_measured_time() {
        assert_eq!(plan().windows_ms(), [500, 500, 200]);
    }
}
