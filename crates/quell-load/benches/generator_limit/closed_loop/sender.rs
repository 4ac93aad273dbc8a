//! The senders to compare, and how each one runs a trial.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_linux::Pid;
use quell_linux::process::{Output, Spawn};
use quell_load::{Distribution, Generator, KeyValues, LoadSpec, RunSpec, Schedule, Transport, Workload};

use super::Options;
use super::server::{KEY_BYTES, Server, VALUE_BYTES, cpu_time};
use crate::flooder::flood;
use crate::lab::{CLIENT_CPU, Lab};

const CONNECTIONS: u32 = 128;
const WARM_UP: Duration = Duration::from_millis(500);
/// Maximum output of another program that is searched for its result, bytes.
const OUTPUT_BYTES: usize = 64 * 1024;

pub(crate) enum Sender {
    /// Level-triggered epoll, receive, send; no clock, no check.
    Blind,
    /// `quell-load` with the next request after each response.
    EachResponse,
    /// `quell-load` with all available responses read before it sends.
    Batched,
    /// Another program.
    Beside(String),
}

/// Result of a trial.
#[derive(Clone)]
pub(crate) struct Reached {
    pub(crate) per_s: f64,
    /// CPU time of the sender as a share of one CPU, if it could be read.
    pub(crate) sender_share: Option<f64>,
    /// CPU time of memcached as a share of one CPU over the whole trial, if it could be read.
    pub(crate) server_share: Option<f64>,
}

impl Sender {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Blind => "blind sender",
            Self::EachResponse => "quell load",
            Self::Batched => "quell load --batch",
            Self::Beside(command) => command.split_whitespace().next().unwrap_or(command),
        }
    }

    pub(crate) fn load(&self, lab: &Lab, server: &Server, options: &Options) -> Result<Reached, Box<dyn Error>> {
        let (start, before) = (Instant::now(), server.cpu_time());
        let (per_s, sender_share) = match self {
            Self::Blind => blind(lab, options)?,
            Self::EachResponse => generate(lab, options, false)?,
            Self::Batched => generate(lab, options, true)?,
            Self::Beside(command) => (run(command, lab, options)?, None),
        };
        Ok(Reached { per_s, sender_share, server_share: share(before, server.cpu_time(), start.elapsed()) })
    }
}

/// CPU time between two readings, as a share of `elapsed`.
fn share(before: Option<Duration>, after: Option<Duration>, elapsed: Duration) -> Option<f64> {
    Some((after? - before?).as_secs_f64() / elapsed.as_secs_f64())
}

fn blind(lab: &Lab, options: &Options) -> Result<(f64, Option<f64>), Box<dyn Error>> {
    let request = format!("get {}\r\n", Server::blind_key());
    let duration = Duration::from_secs(options.seconds.into());
    let work = || {
        let (start, before) = (Instant::now(), cpu_time(Pid::of_this_process()));
        let per_s = flood(Server::address(), CONNECTIONS as usize, request.as_bytes(), WARM_UP, duration)?;
        Ok((per_s, share(before, cpu_time(Pid::of_this_process()), start.elapsed())))
    };
    let outcome: std::io::Result<_> = lab.client.run(work)?;
    Ok(outcome?)
}

fn generate(lab: &Lab, options: &Options, batched_sends: bool) -> Result<(f64, Option<f64>), Box<dyn Error>> {
    let memcached = KeyValues {
        key_bytes: Distribution::fixed(KEY_BYTES),
        value_bytes: Distribution::fixed(VALUE_BYTES),
        ..KeyValues::facebook()
    };
    let spec = LoadSpec {
        connections: CONNECTIONS,
        cpus: vec![CLIENT_CPU],
        batched_sends,
        ..LoadSpec::new(Server::address(), Transport::Tcp, Workload::Memcached(memcached))
    };
    let mut generator = Generator::connect(spec, Some(Arc::clone(&lab.client)))?;
    generator.preload(Generator::PRELOAD_LIMIT, &mut ())?;
    let warm_up_ms = u32::try_from(WARM_UP.as_millis())?;
    let run = RunSpec { schedule: Schedule::Closed, warm_up_ms, measure_ms: options.seconds * 1_000 };
    let report = generator.run(&run, &mut ())?;
    if !report.errors.is_empty() {
        return Err(format!("the generator reported errors: {}", report.errors).into());
    }
    let share = report.cpu.map(|cpu| cpu.run_ns as f64 / report.duration_ns as f64);
    Ok((report.qps, share))
}

/// Runs another program. Returns its requests per second.
fn run(command: &str, lab: &Lab, options: &Options) -> Result<f64, Box<dyn Error>> {
    let mut child = Spawn::new("sh")
        .args(["-c", command])
        .env("HOST", Server::address().ip().to_string())
        .env("PORT", Server::address().port().to_string())
        .env("CONNECTIONS", CONNECTIONS.to_string())
        .env("SECONDS", options.seconds.to_string())
        .netns(&*lab.client)
        .cpus([CLIENT_CPU].into_iter().collect())
        .stdout(Output::Tail(OUTPUT_BYTES))
        .stderr(Output::Tail(OUTPUT_BYTES))
        .dies_with_this_thread()
        .start()?;
    let limit = Duration::from_secs(60 + u64::from(options.seconds));
    let status = child.wait(limit)?.ok_or_else(|| format!("{command:?} did not end within {limit:?}"))?;
    let text = |bytes: Option<Vec<u8>>| String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
    let (stdout, stderr) = (text(child.stdout_tail()), text(child.stderr_tail()));
    let figure = stdout.split_once("QPS = ").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    match figure {
        Some(per_s) if status.success() => Ok(per_s),
        _ => Err(format!("{command:?} ended with {status} and printed no `QPS = NUMBER`: {stdout}{stderr}").into()),
    }
}
