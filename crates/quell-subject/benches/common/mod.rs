//! memcached in the veth lab, under one mode and one connection to the generator after the other.

use std::sync::Arc;

use quell_change::journal::{Journal, Purpose};
use quell_host::attach::{Selection, Targets};
use quell_host::switching::Switching;
use quell_linux::proc::ProcRoot;
use quell_load::{Generator, LoadReport, RunObserver, RunSpec, Schedule, Workload};
use quell_mode::{DeliveryMode, NapiSettings, Threaded};
use quell_subject::bench_load;
use quell_subject::counters::{CounterReading, Instruments, TrialCounters, Watched};
use quell_subject::cpus;
use quell_subject::experiment::Preview;
use quell_subject::lab::veth::{SERVER_DEVICE, VethLab, VethPlan, unique_name};
use quell_subject::server::{PORT, Server, ServerCommand};
use quell_test_support::LabTurn;
use tempfile::TempDir;

pub(crate) const SLICE_MS: u32 = 200;
const SETTLE_MS: u32 = 20;
const SEED: u64 = 1;
/// CPU of the server, and CPU of the generator.
pub(crate) const CPUS: [u32; 2] = [0, 1];

/// memcached in a lab with one queue, under a mode, and a generator with 16 connections.
pub(crate) struct MemcachedLab {
    pub(crate) lab: VethLab,
    pub(crate) server: Server,
    generator: Generator,
    switching: Switching,
    _journal: TempDir,
    _turn: LabTurn,
}

impl MemcachedLab {
    pub(crate) fn raise(mode: &DeliveryMode) -> Self {
        let turn = LabTurn::wait();
        let directory = tempfile::tempdir().unwrap();
        let mut lab = VethLab::raise(&Journal::in_dir(directory.path()), unique_name(), plan()).unwrap();
        let server = Server::start(&mut lab, &ServerCommand::memcached(), PORT, &|| false).unwrap();
        let workload = Workload::Memcached(bench_load::published_keys());
        let spec = bench_load::spec(server.address(), workload, 16, &lab.plan.cpus, SEED);
        let mut generator = Generator::connect(spec, Some(Arc::clone(&lab.client.namespace))).unwrap();
        generator.preload(Generator::PRELOAD_LIMIT, &mut ()).unwrap();
        let mut workers = server.workers().unwrap();
        Server::pin(&mut workers, lab.server.queues.ids(), &lab.plan.cpus.server).unwrap();
        let targets = Targets::find(Selection::Processes(server.processes().unwrap())).unwrap();
        let plan = Preview::of(&targets, &[*mode]).unwrap().plan;
        let mut switching =
            Switching::begin(&Journal::in_dir(directory.path()), Purpose::Lab, targets, &plan, None).unwrap();
        switching.switch_to(0).unwrap();
        Self { lab, server, generator, switching, _journal: directory, _turn: turn }
    }

    /// Loads the server, and returns what the generator and the counters measured.
    pub(crate) fn slice(&mut self, schedule: Schedule) -> (LoadReport, TrialCounters) {
        let watched = Watched {
            server: self.server.processes().unwrap(),
            server_napi: self.lab.server.napi_threads.clone(),
            pollers: Vec::new(),
            supervisors: Vec::new(),
            generator: self.generator.tids(),
            client_napi: self.lab.client.napi_threads.clone(),
            server_cpus: [CPUS[0]].into_iter().collect(),
            client_cpus: [CPUS[1]].into_iter().collect(),
            server_devices: vec![SERVER_DEVICE.to_owned()],
            irqs: Vec::new(),
        };
        let mut window = Window { watched, proc: ProcRoot::default(), from: None, to: None };
        let run = RunSpec { schedule, warm_up_ms: SETTLE_MS, measure_ms: SLICE_MS };
        let load = self.generator.run(&run, &mut window).unwrap();
        (load, window.watched.between(window.from.as_ref().unwrap(), window.to.as_ref().unwrap()))
    }

    pub(crate) fn take_down(self) {
        drop(self.generator);
        assert!(self.switching.end().unwrap().0.failed.is_empty());
        self.server.stop().unwrap();
        assert!(self.lab.take_down().unwrap().failed.is_empty());
    }
}

/// CPU time of the server and of its queue's NAPI thread per answered request, in nanoseconds.
pub(crate) fn cpu_ns_per_request(load: &LoadReport, counters: &TrialCounters) -> u64 {
    (counters.server_run_ns.unwrap() + counters.napi_run_ns.unwrap()) / load.answered_in_window.max(1)
}

fn plan() -> VethPlan {
    let client_napi = NapiSettings {
        threaded: Threaded::Thread,
        defer_hard_irqs: 100,
        gro_flush_timeout_ns: 1_000_000,
        ..NapiSettings::default()
    };
    let cpus = cpus::assign(&CPUS, 1, 1, false).unwrap();
    VethPlan { queues: 1, cpus, interrupt_stand_in: true, client_napi }
}

/// Reads the counters at the start and at the end of the measured time.
struct Window {
    watched: Watched,
    proc: ProcRoot,
    from: Option<CounterReading>,
    to: Option<CounterReading>,
}

impl RunObserver for Window {
    fn window_started(&mut self) {
        self.from = Some(self.watched.snapshot(&self.proc, &mut Instruments::default()));
    }

    fn window_ended(&mut self) {
        self.to = Some(self.watched.snapshot(&self.proc, &mut Instruments::default()));
    }
}
