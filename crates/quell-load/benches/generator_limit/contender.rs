//! The generators to compare, and how each one runs a trial: a closed loop at full speed, or an open loop at a given
//! rate.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quell_linux::Pid;
use quell_load::{
    Distribution, Generator, LoadReport, LoadSpec, RequestResponse, RunSpec, Schedule, Transport, Workload,
};
use quell_stats::LatencyHistogram;

use crate::lab::{CLIENT_CPU, Lab, pin_fifo};
use crate::{flooder, scheduled};

pub(crate) const SIZES: RequestResponse =
    RequestResponse { request_bytes: 64, response_bytes: 64, check_content: true };
pub(crate) const FIFO_PRIORITY: u32 = 10;
const CONNECTIONS: u32 = 64;
const WARM_UP: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    /// The blind flooder, which measures nothing.
    Flooder,
    /// `quell-load` on a NAPI with default settings.
    Plain,
    /// The same, with all available responses read before it sends.
    Batched,
    /// `quell-load` with deferral on the client's NAPI, so that the generator polls the device itself.
    Deferred,
    /// Sends in the order used by the generator of the published experiments.
    Scheduled,
}

/// A contender's result in a closed loop.
pub(crate) struct Reached {
    pub(crate) qps: f64,
    /// CPU time of its thread per request, µs. `None` if it could not be read.
    pub(crate) run_us: Option<f64>,
}

/// How late the sends were.
pub(crate) struct Lateness {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    pub(crate) within_10_us: f64,
}

/// A trial's lab, port and duration.
pub(crate) struct Trial<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) port: u16,
    pub(crate) seconds: f64,
}

impl Contender {
    /// All contenders: the flooder first, as the reference, then the plain generator.
    pub(crate) const ALL: [Self; 5] = [Self::Flooder, Self::Plain, Self::Batched, Self::Deferred, Self::Scheduled];
    /// Contenders with a schedule.
    pub(crate) const PUNCTUAL: [Self; 3] = [Self::Plain, Self::Deferred, Self::Scheduled];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Flooder => "blind flooder",
            Self::Plain => "quell-load",
            Self::Batched => "quell-load, in batches",
            Self::Deferred => "quell-load, client NAPI deferred",
            Self::Scheduled => "order of the published generator",
        }
    }
}

impl Trial<'_> {
    pub(crate) fn closed_loop(&self, contender: Contender) -> Result<Reached, Box<dyn Error>> {
        self.lab.defer_client(contender == Contender::Deferred)?;
        match contender {
            Contender::Flooder => {
                let flood = |address, request: &[u8]| {
                    flooder::flood(address, CONNECTIONS as usize, request, WARM_UP, self.duration())
                };
                Ok(Reached { qps: self.on_client_cpu(flood)?, run_us: None })
            }
            Contender::Scheduled => Ok(Reached { qps: self.scheduled(None)?.qps, run_us: None }),
            Contender::Plain | Contender::Batched | Contender::Deferred => {
                let report = self.generate(Schedule::Closed, contender == Contender::Batched)?;
                let run_us = report.cpu.map(|cpu| cpu.run_ns as f64 / 1e3 / report.answered_in_window as f64);
                Ok(Reached { qps: report.qps, run_us })
            }
        }
    }

    pub(crate) fn open_loop(&self, contender: Contender, rate_per_s: f64) -> Result<Lateness, Box<dyn Error>> {
        self.lab.defer_client(contender == Contender::Deferred)?;
        let lateness = match contender {
            Contender::Scheduled => self.scheduled(Some(rate_per_s))?.lateness,
            _ => self.generate(Schedule::Open { rate_per_s, gaps: Distribution::FACEBOOK_GAPS }, false)?.lateness,
        };
        Ok(Lateness::of(&lateness))
    }

    fn generate(&self, schedule: Schedule, batched_sends: bool) -> Result<LoadReport, Box<dyn Error>> {
        let address = Lab::server_address(self.port);
        let spec = LoadSpec {
            connections: CONNECTIONS,
            cpus: vec![CLIENT_CPU],
            batched_sends,
            ..LoadSpec::new(address, Transport::Tcp, Workload::RequestResponse(SIZES))
        };
        let mut generator = Generator::connect(spec, Some(Arc::clone(&self.lab.client)))?;
        for tid in generator.tids() {
            pin_fifo(tid, CLIENT_CPU, FIFO_PRIORITY)?;
        }
        let measure_ms = (self.seconds * 1e3) as u32;
        let report =
            generator.run(&RunSpec { schedule, warm_up_ms: WARM_UP.as_millis() as u32, measure_ms }, &mut ())?;
        if !report.errors.is_empty() {
            return Err(format!("the generator reported errors: {:?}", report.errors).into());
        }
        Ok(report)
    }

    fn scheduled(&self, rate_per_s: Option<f64>) -> Result<scheduled::Outcome, Box<dyn Error>> {
        self.on_client_cpu(|address, request| {
            scheduled::load(address, CONNECTIONS as usize, request, rate_per_s, WARM_UP, self.duration())
        })
    }

    fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Runs `work` in the client's namespace, on the client's CPU, at the generator's priority.
    fn on_client_cpu<T: Send>(
        &self,
        work: impl FnOnce(SocketAddr, &[u8]) -> std::io::Result<T> + Send,
    ) -> Result<T, Box<dyn Error>> {
        let address = Lab::server_address(self.port);
        let request = vec![b'r'; SIZES.request_bytes as usize];
        let done = self.lab.client.run(|| {
            pin_fifo(Pid::of_this_thread(), CLIENT_CPU, FIFO_PRIORITY).map_err(|error| error.to_string())?;
            work(address, &request).map_err(|error| error.to_string())
        })?;
        Ok(done?)
    }
}

impl Lateness {
    fn of(lateness: &LatencyHistogram) -> Self {
        let us = |duration: Option<Duration>| duration.map_or(f64::NAN, |duration| duration.as_nanos() as f64 / 1e3);
        Self {
            p50_us: us(lateness.p50()),
            p99_us: us(lateness.p99()),
            p99_9_us: us(lateness.p99_9()),
            within_10_us: share_within(lateness, Duration::from_micros(10)),
        }
    }
}

/// Share of the sends that were at most `limit` late.
fn share_within(lateness: &LatencyHistogram, limit: Duration) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..30 {
        let middle = f64::midpoint(low, high);
        match lateness.quantile(middle) {
            Some(at) if at <= limit => low = middle,
            _ => high = middle,
        }
    }
    low
}
