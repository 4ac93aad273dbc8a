//! Subjects of `quell bench` and `quell tune`: their options, what they are made from, and how they are asked.

pub(super) mod args;
pub(super) mod asked;

use quell_host::attach::Targets;
use quell_load::{HttpGet, OfferedLoad, Workload};
use quell_sim::sweep::Setup;
use quell_subject::bench_load;
use quell_subject::experiment::judge::{Judge, Judges};
use quell_subject::experiment::model::ModelSpec;
use quell_subject::run::{LabRequest, LabSpec};
use quell_subject::server::ServerCommand;
use quell_subject::subjects::command::CommandSpec;
use quell_subject::subjects::programs::ProgramsSpec;
use quell_subject::subjects::{GuestSpec, LoadSource};

use super::attach::refuse_every_process;
use super::sim;
use crate::exit::Failure;
use args::{LabProtocol, SubjectArgs};

/// Where a measurement takes place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Programs,
    Command,
    Lab,
    Sim,
    Vm,
    /// The lab of a published experiment.
    Published,
    /// A guest in which a published experiment is played.
    PublishedGuest,
}

impl Place {
    /// Everywhere except for published experiments, which fix most options.
    pub(super) const OWN: [Self; 5] = [Self::Programs, Self::Command, Self::Lab, Self::Sim, Self::Vm];

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Programs => "--pid, --name, --unit, --cgroup",
            Self::Command => "-- COMMAND",
            Self::Lab => "--on lab",
            Self::Sim => "--on sim",
            Self::Vm => "--on vm",
            Self::Published => "--experiment",
            Self::PublishedGuest => "--experiment c --on vm",
        }
    }

    fn is_published(self) -> bool {
        matches!(self, Self::Published | Self::PublishedGuest)
    }
}

/// Parses the command of a judge.
pub(super) fn judge(command: Option<&str>) -> Result<Option<Judge>, Failure> {
    command.map(Judge::new).transpose().map_err(Failure::usage)
}

/// Returns the program and the arguments of a command, such as the load.
fn words(command: Option<&str>) -> Result<Option<Vec<String>>, Failure> {
    Ok(judge(command)?.map(|command| command.words().to_vec()))
}

/// The server command of an option.
pub(super) fn server_command(option: &str, command: &str) -> Result<ServerCommand, Failure> {
    let words = shell_words::split(command)
        .map_err(|error| Failure::usage(format!("{option} {command:?}: {error}; quote it as for a shell")))?;
    if words.is_empty() {
        return Err(Failure::usage(format!("{option}: specify a program and its arguments")));
    }
    Ok(ServerCommand::Other(words))
}

/// What the model has if no option says otherwise. Absent queues and connections are those of its host.
pub(super) struct ModelDefault {
    pub(super) queues: Option<u32>,
    pub(super) connections: Option<u32>,
    pub(super) irqs_apart: bool,
    pub(super) loads: Vec<OfferedLoad>,
}

impl ModelDefault {
    pub(super) fn of_host(loads: Vec<OfferedLoad>) -> Self {
        Self { queues: None, connections: None, irqs_apart: false, loads }
    }
}

impl SubjectArgs {
    pub(super) fn of_programs(
        &self,
        targets: Targets,
        judges: Judges,
        is_dry_run: bool,
    ) -> Result<ProgramsSpec, Failure> {
        refuse_every_process(&targets, "")?;
        let load = match (words(self.clients.as_deref())?, words(self.load.as_deref())?) {
            (Some(words), _) => LoadSource::Clients(words),
            (None, Some(words)) => LoadSource::Command(words),
            (None, None) => LoadSource::Live,
        };
        let (placement, accepts_stalls) = (self.placement.wanted(), self.accept_stalls);
        let slices_can_grow = self.slice.is_none();
        Ok(ProgramsSpec { targets, load, judges, placement, accepts_stalls, is_dry_run, slices_can_grow })
    }

    pub(super) fn of_command(&self, judges: Judges) -> Result<CommandSpec, Failure> {
        let (load, placement) = (words(self.load.as_deref())?, self.placement.wanted());
        Ok(CommandSpec { command: self.command().to_vec(), load, judges, placement })
    }

    pub(super) fn of_lab(&self, loads: Vec<OfferedLoad>, beside: Option<ServerCommand>) -> Result<LabRequest, Failure> {
        let server = self.server.as_deref().map(|command| server_command("--server", command)).transpose()?;
        Ok(LabRequest {
            loads: self.loads.clone().unwrap_or(loads),
            workload: match self.protocol.unwrap_or(LabProtocol::Memcached) {
                LabProtocol::Memcached => Workload::Memcached(bench_load::published_keys()),
                LabProtocol::Redis => Workload::Redis(bench_load::published_keys()),
                LabProtocol::Http => Workload::Http(HttpGet { path: "/".to_owned() }),
            },
            beside,
            lab: LabSpec {
                server: server.unwrap_or_else(ServerCommand::memcached),
                queues: self.queues.unwrap_or(1),
                generators: self.generators.unwrap_or(1),
                connections: self.connections.unwrap_or(bench_load::CONNECTIONS),
                interrupt_stand_in: !self.no_interrupt_stand_in,
                insist: self.insist,
                steer: self.placement.wanted().steer,
            },
        })
    }

    pub(super) fn of_model(&self, default: ModelDefault) -> Result<ModelSpec, Failure> {
        let mut setup = Setup::new(sim::profile(self.host.as_deref().unwrap_or(sim::DEFAULT_HOST))?);
        if let Some(queues) = self.queues.or(default.queues) {
            setup = setup.with_queues(sim::queues(queues)?);
        }
        if let Some(connections) = self.connections.or(default.connections) {
            setup.connections = connections as usize;
        }
        setup.irqs_apart = self.irqs_apart || default.irqs_apart;
        sim::check_connections(&setup)?;
        Ok(ModelSpec { setup, loads: self.loads.clone().unwrap_or(default.loads), threads: sim::threads() })
    }

    pub(super) fn of_guest(&self) -> GuestSpec {
        GuestSpec { kernel: self.kernel.clone(), nic: self.nic.unwrap_or_default().into() }
    }
}
