//! Rank 0: prepares all ranks, orders windows, collects the reports, and ends the run when a client fails.

use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

use quell_linux::clock::monotonic_ns;
use quell_load::clients::{ClientFacts, ClockOffset, combined};
use quell_load::cluster_run::{ClientRun, ClusterRun, SCHEMA, client_name, start_skew};
use quell_load::{Generator, LoadReport, RunningLoad};
use serde::de::DeserializeOwned;

use crate::plan::{ClusterPlan, MEASURING_RANK, RankShare};
use crate::rank::{self, Hello, RankOrder, RankReply};
use crate::validity::{SaturatedClients, slower_clients, why_invalid};
use crate::world::World;

/// Time limit for the first message of a rank, after MPI itself has connected all ranks.
const HELLO_WITHIN: Duration = Duration::from_secs(30);
const CONNECT_WITHIN: Duration = Duration::from_secs(120);
/// Time from the order to start to the start.
const START_LEAD: Duration = Duration::from_millis(100);
/// Time limit for a rank to report after the agreed start or the end of a window. With [`crate::plan::WINDOW`], a failure
/// is noticed within 2 s.
pub const REPORT_WITHIN: Duration = Duration::from_millis(1_400);
/// Time from the order of a window to its start. It is doubled when a rank receives the order too late.
const WINDOW_LEAD: Duration = Duration::from_millis(30);
/// Upper limit of the doubled lead.
const WINDOW_LEAD_MAX: Duration = Duration::from_secs(1);
const COMPARE_EVERY: Duration = Duration::from_secs(10);

/// Why a run ends without a result. The text is a sentence that names the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct RunFailure {
    /// That of `quell` for the same kind of failure.
    pub exit_code: i32,
    /// Names the client and the reason.
    pub why: String,
}

/// An option is invalid.
pub const USAGE: i32 = 1;
/// A client could not do what it had to.
pub const REFUSED: i32 = 2;
/// The run was not valid.
pub const INVALID: i32 = 3;

fn refused(why: String) -> RunFailure {
    RunFailure { exit_code: REFUSED, why }
}

fn invalid(why: String) -> RunFailure {
    RunFailure { exit_code: INVALID, why }
}

pub struct Conductor<'a> {
    world: &'a World,
    plan: ClusterPlan,
    load: RunningLoad,
    clients: Vec<ClientFacts>,
    clocks: Vec<ClockOffset>,
    compared: Instant,
    saturated: SaturatedClients,
    version: String,
}

impl<'a> Conductor<'a> {
    /// Prepares all ranks and starts the load: versions, plan, connections, keys, clocks, start. Returns after the
    /// warm-up. On an error the caller ends the job.
    pub fn start(world: &'a World, plan: ClusterPlan, version: &str) -> Result<Self, RunFailure> {
        let hosts = hosts(world, version)?;
        let shares = (0..world.ranks()).map(|rank| plan.share(rank, world.ranks()));
        let shares: Result<Vec<RankShare>, _> = shares.collect();
        let shares = shares.map_err(|error| RunFailure { exit_code: USAGE, why: error.to_string() })?;
        world.broadcast(Some(&plan)).map_err(|error| refused(format!("could not broadcast the plan: {error}")))?;
        let names: Vec<String> = (0..).zip(&hosts).map(|(rank, host)| client_name(rank, host)).collect();
        let mut generator = connected(world, &shares[0], &names)?;
        if let Some(limit_ms) = plan.preload_ms {
            let stored = generator.preload(Duration::from_millis(limit_ms), &mut ());
            stored.map_err(|error| refused(format!("{}: {error}", names[0])))?;
        }
        world.barrier();
        let mut clocks = vec![ClockOffset::SAME_CLOCK; hosts.len()];
        compare_clocks(world, &mut clocks, &names)?;
        let (load, skews_ns) = started(world, generator, &shares[0], &clocks, &names)?;
        let warm_up = Duration::from_millis(plan.run.warm_up_ms.into());
        let saturated = SaturatedClients::new(hosts.len());
        let facts = (0..).zip(hosts).zip(&shares).zip(clocks.iter().zip(skews_ns));
        let clients = facts.map(|(((rank, host), share), (clock, start_skew_ns))| ClientFacts {
            rank,
            host,
            measures_only: share.measures_only,
            connections: share.spec.connections,
            clock: *clock,
            start_skew_ns,
        });
        let clients = clients.collect();
        let version = version.to_owned();
        let mut conductor = Self { world, plan, load, clients, clocks, compared: Instant::now(), saturated, version };
        conductor.wait(warm_up)?;
        Ok(conductor)
    }

    #[must_use]
    pub fn clients(&self) -> &[ClientFacts] {
        &self.clients
    }

    #[must_use]
    pub fn plan(&self) -> &ClusterPlan {
        &self.plan
    }

    /// Waits, and shows the ranks that this one is reachable.
    fn wait(&mut self, time: Duration) -> Result<(), RunFailure> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            sleep(left.min(Duration::from_secs(1)));
            self.stay()?;
        }
    }

    /// Shows the ranks that this one is reachable, and compares clocks if it is time. Call it every second while no
    /// window is measured.
    pub fn stay(&mut self) -> Result<(), RunFailure> {
        if self.compared.elapsed() >= COMPARE_EVERY {
            let names: Vec<String> = self.clients.iter().map(|client| client_name(client.rank, &client.host)).collect();
            compare_clocks(self.world, &mut self.clocks, &names)?;
            self.compared = Instant::now();
        }
        self.world.others().try_for_each(|rank| order(self.world, rank, &RankOrder::Stay))
    }

    /// Measures a window on all ranks. Returns their reports by rank, or `None` if an order came too late. The error
    /// names the client that failed, is late or is saturated.
    pub fn measure(&mut self, window_ns: &Range<u64>) -> Result<Option<Vec<LoadReport>>, RunFailure> {
        for rank in self.world.others() {
            let clock = self.clocks[rank as usize];
            let window_ns = clock.to_remote_ns(window_ns.start)..clock.to_remote_ns(window_ns.end);
            order(self.world, rank, &RankOrder::Measure { window_ns })?;
        }
        let own = rank::measure(&mut self.load, window_ns.clone());
        let own = own.map_err(|why| refused(format!("{}: {why}", self.name(0))))?;
        let deadline_ns = window_ns.end.saturating_add(u64::try_from(REPORT_WITHIN.as_nanos()).unwrap_or(u64::MAX));
        let mut reports = vec![own];
        for rank in self.world.others() {
            let left = Duration::from_nanos(deadline_ns.saturating_sub(monotonic_ns()));
            match reply(self.world, rank, left, &self.name(rank), "report the end of a window")? {
                RankReply::Measured(report) => reports.push(report.map(|report| *report)),
                RankReply::Failed(why) => return Err(refused(format!("{}: {why}", self.name(rank)))),
                _ => return Err(unexpected(&self.name(rank))),
            }
        }
        let reports: Option<Vec<LoadReport>> = reports.into_iter().collect();
        match reports.as_ref().and_then(|reports| self.saturated.add(reports, &self.clients)) {
            Some(why) => Err(invalid(why)),
            None => Ok(reports),
        }
    }

    /// Measures the windows of the plan and ends the load.
    pub fn run(mut self) -> Result<ClusterRun, RunFailure> {
        let mut totals: Vec<LoadReport> = Vec::new();
        let lengths_ms = self.plan.windows_ms();
        let mut lead = WINDOW_LEAD;
        for length_ms in &lengths_ms {
            let length_ns = u64::from(*length_ms) * 1_000_000;
            let reports = loop {
                if self.compared.elapsed() >= COMPARE_EVERY {
                    self.stay()?;
                }
                let start_ns = monotonic_ns() + u64::try_from(lead.as_nanos()).unwrap_or(u64::MAX);
                if let Some(reports) = self.measure(&(start_ns..start_ns + length_ns))? {
                    break reports;
                }
                if lead >= WINDOW_LEAD_MAX {
                    return Err(invalid(format!(
                        "a client received orders later than {WINDOW_LEAD_MAX:?} after they were sent"
                    )));
                }
                lead = (2 * lead).min(WINDOW_LEAD_MAX);
            };
            match totals.is_empty() {
                true => totals = reports,
                false => totals.iter_mut().zip(&reports).for_each(|(total, report)| total.add_window(report)),
            }
        }
        self.stop()?;
        self.result(totals, lengths_ms.len())
    }

    pub fn stop(&self) -> Result<(), RunFailure> {
        self.world.others().try_for_each(|rank| order(self.world, rank, &RankOrder::Stop))
    }

    fn result(self, totals: Vec<LoadReport>, windows: usize) -> Result<ClusterRun, RunFailure> {
        let measuring = self.plan.measuring.map(|_| MEASURING_RANK as usize);
        let report = combined(&totals, measuring).ok_or_else(|| refused("no window was measured".to_owned()))?;
        let (start_skew_ns, start_skew_error_ns) = start_skew(&self.clients);
        let nothing = (report.answered_in_window == 0).then(|| "the server answered no request".to_owned());
        Ok(ClusterRun {
            schema: SCHEMA.to_owned(),
            quell_version: self.version,
            spec: self.plan.spec,
            run: self.plan.run,
            windows: u32::try_from(windows).unwrap_or(u32::MAX),
            report,
            start_skew_ns,
            start_skew_error_ns,
            invalid: why_invalid(&totals, &self.clients).or(nothing),
            slower_clients: slower_clients(&totals, &self.clients),
            clients: self
                .clients
                .into_iter()
                .zip(totals)
                .map(|(client, report)| ClientRun { client, report })
                .collect(),
        })
    }

    fn name(&self, rank: u32) -> String {
        self.clients.get(rank as usize).map_or_else(|| format!("rank {rank}"), |client| client_name(rank, &client.host))
    }
}

/// Receives the first messages of all ranks and compares versions. Returns the names of the machines by rank.
fn hosts(world: &World, version: &str) -> Result<Vec<String>, RunFailure> {
    let mut hosts = vec![world.host().to_owned()];
    let mut others = Vec::new();
    for rank in world.others() {
        let hello: Hello = receive(world, rank, HELLO_WITHIN, &format!("rank {rank}"), "report its version")?;
        if hello.version != version {
            others.push(format!("{} has {}", client_name(rank, &hello.host), hello.version));
        }
        hosts.push(hello.host);
    }
    if others.is_empty() {
        return Ok(hosts);
    }
    let own = client_name(0, &hosts[0]);
    Err(refused(format!(
        "the clients have different versions of Quell: {own} has {version}, {}; install one version on all of them",
        others.join(", ")
    )))
}

/// Opens the connections of rank 0 while the others open theirs, and waits for all.
fn connected(world: &World, share: &RankShare, names: &[String]) -> Result<Generator, RunFailure> {
    let generator = rank::connect(share);
    let mut failed: Vec<String> =
        generator.as_ref().err().map(|why| format!("{}: {why}", names[0])).into_iter().collect();
    for rank in world.others() {
        let name = &names[rank as usize];
        match reply(world, rank, CONNECT_WITHIN, name, "connect to the server")? {
            RankReply::Connected(Ok(())) => {}
            RankReply::Connected(Err(why)) => failed.push(format!("{name}: {why}")),
            _ => return Err(unexpected(name)),
        }
    }
    match generator {
        Ok(generator) if failed.is_empty() => Ok(generator),
        _ => Err(refused(failed.join("; "))),
    }
}

fn compare_clocks(world: &World, clocks: &mut [ClockOffset], names: &[String]) -> Result<(), RunFailure> {
    for rank in world.others() {
        order(world, rank, &RankOrder::CompareClocks)?;
        let compared = world.compare_clock(rank);
        clocks[rank as usize] =
            compared.map_err(|error| invalid(format!("{} is late: {error}", names[rank as usize])))?;
    }
    Ok(())
}

/// Starts the load on all ranks. Returns the load of rank 0, and by rank the time from the agreed to the actual start.
fn started(
    world: &World,
    generator: Generator,
    share: &RankShare,
    clocks: &[ClockOffset],
    names: &[String],
) -> Result<(RunningLoad, Vec<i64>), RunFailure> {
    let at_ns = monotonic_ns() + u64::try_from(START_LEAD.as_nanos()).unwrap_or(0);
    for rank in world.others() {
        order(world, rank, &RankOrder::Start { at_ns: clocks[rank as usize].to_remote_ns(at_ns) })?;
    }
    let own = rank::start(generator, share.schedule, at_ns);
    let (load, own_ns) = own.map_err(|why| refused(format!("{}: {why}", names[0])))?;
    let mut starts_ns = vec![own_ns];
    for rank in world.others() {
        let name = &names[rank as usize];
        match reply(world, rank, REPORT_WITHIN, name, "start its load")? {
            RankReply::Started { at_ns } => starts_ns.push(clocks[rank as usize].to_local_ns(at_ns)),
            RankReply::Failed(why) => return Err(refused(format!("{name}: {why}"))),
            _ => return Err(unexpected(name)),
        }
    }
    Ok((load, starts_ns.iter().map(|start_ns| start_ns.saturating_sub(at_ns).cast_signed()).collect()))
}

fn order(world: &World, rank: u32, order: &RankOrder) -> Result<(), RunFailure> {
    world.send(rank, order).map_err(|error| refused(format!("could not send an order to rank {rank}: {error}")))
}

fn reply(world: &World, rank: u32, within: Duration, name: &str, action: &str) -> Result<RankReply, RunFailure> {
    receive(world, rank, within, name, action)
}

fn receive<T: DeserializeOwned>(
    world: &World,
    rank: u32,
    within: Duration,
    name: &str,
    action: &str,
) -> Result<T, RunFailure> {
    world.receive(rank, within).map_err(|error| {
        invalid(format!("{name} is late: it did not {action} in time ({error}); the client hangs or is not reachable"))
    })
}

fn unexpected(name: &str) -> RunFailure {
    refused(format!("{name} sent an unexpected message"))
}
