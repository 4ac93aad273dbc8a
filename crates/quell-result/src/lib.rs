//! Result documents of Quell: types that are written and read, their schemas, what follows from them without a
//! measurement, and the store. Renderers read documents and nothing else. This crate prints nothing.
//!
//! Most types are here. Those that a lower crate writes or reads stay there, and are registered here like the others:
//! snapshots, conformance reports, loads of many clients.

#![forbid(unsafe_code)]

pub mod conclusion;
mod document;
pub mod experiment;
pub mod facts;
pub mod figures;
pub mod guest_checks;
pub mod list;
pub mod load;
mod placement;
mod program_answers;
pub mod published;
pub mod published_xdp;
pub mod simulation;
mod standing;
pub mod store;
pub mod top;
pub mod tune;

pub use document::{Document, DocumentError, DocumentKind};
pub use placement::UNPLACED_SLICES;

document::documents! {
    /// Experiment of `quell bench`.
    Experiment(experiment::ExperimentResult),
    /// Search of `quell tune`.
    Tune(tune::TuneFile),
    /// Published experiment of `quell bench --experiment`.
    Published(published::PublishedRun),
    /// Published AF_XDP experiment of `quell bench --experiment c`.
    PublishedXdp(published_xdp::PublishedXdpRun),
    /// Report of `quell load`.
    Load(load::LoadRun),
    /// Report of `quell load --protocol xdp`.
    XdpLoad(load::XdpLoadRun),
    /// Report of `quell-mpi`.
    Clients(quell_load::cluster_run::ClusterRun),
    /// Rows of `quell sim run`.
    Simulation(simulation::SimulationRun),
    /// Rows of `quell sim run --server xsk`.
    Xsk(simulation::XskSimulationRun),
    /// Rows of `quell sim run --sweep`.
    Sweep(simulation::SweepRows),
    /// One report of `quell top`.
    Top(top::IntervalReport),
    /// Recording of `quell top --record`.
    Recording(top::TopRecording),
    /// Snapshot of `quell show`.
    Snapshot(quell_host::snapshot::Snapshot),
    /// Report of `quell conformance`.
    Conformance(quell_conformance::run::ConformanceReport),
    /// List of `quell results`.
    List(list::ResultsList),
}

mod registered {
    use super::Document;

    impl Document for quell_load::cluster_run::ClusterRun {
        const SCHEMA: &'static str = quell_load::cluster_run::SCHEMA;
    }

    impl Document for quell_host::snapshot::Snapshot {
        const SCHEMA: &'static str = quell_host::snapshot::SCHEMA;
    }

    impl Document for quell_conformance::run::ConformanceReport {
        const SCHEMA: &'static str = quell_conformance::run::SCHEMA;
    }
}
