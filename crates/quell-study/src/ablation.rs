//! Ablation: simulates the same cells without one part of the model, and shows how much each column changes. If
//! disabling a part changes no column, the part does not belong in the model.

use quell_mode::DeliveryMode;
use quell_sim::sweep::in_parallel;
use quell_sim::{Column, Figures, HostProfile, Load, PacketSizes, Run, RunError, RunScale};
use serde::Serialize;

/// A part of the model that can be disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ablation {
    /// The final poll of a busy-poll loop.
    FinalPoll,
    /// Higher cost per request in large batches.
    BatchCost,
    /// Cost for the application when packet processing interrupts it.
    Interference,
    /// Delays of replies in the client.
    ClientTail,
    /// Execution around idle states that CPU accounting does not include.
    UnaccountedIdle,
    /// Adaptive interrupt coalescing (DIM).
    AdaptiveModeration,
    /// Sizes of packets, which adaptive coalescing compares first.
    PacketSizes,
    /// Interrupts of one direction while a poll runs after an interrupt of the other.
    SeparateArming,
    /// Higher cost of crossing CPUs on a busy host.
    Contention,
    /// Workers that are not pinned, so that softirqs may run on a different CPU than the worker.
    FloatingWorkers,
}

impl Ablation {
    pub const ALL: [Self; 10] = [
        Self::FinalPoll,
        Self::BatchCost,
        Self::Interference,
        Self::ClientTail,
        Self::UnaccountedIdle,
        Self::AdaptiveModeration,
        Self::PacketSizes,
        Self::SeparateArming,
        Self::Contention,
        Self::FloatingWorkers,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FinalPoll => "final poll",
            Self::BatchCost => "batch cost",
            Self::Interference => "interference",
            Self::ClientTail => "client tail",
            Self::UnaccountedIdle => "unaccounted idle",
            Self::AdaptiveModeration => "adaptive moderation",
            Self::PacketSizes => "packet sizes",
            Self::SeparateArming => "separate arming",
            Self::Contention => "contention",
            Self::FloatingWorkers => "floating workers",
        }
    }

    pub fn apply(self, run: &mut Run) {
        let constants = &mut run.host.constants;
        match self {
            Self::FinalPoll => run.rules.final_poll = false,
            Self::BatchCost => (constants.batch_extra_ns, constants.batch_packet_ns) = (0.0, 0.0),
            Self::Interference => constants.interference_ns = 0.0,
            Self::ClientTail => (constants.client_tail_share, constants.client_tail_slope) = (0.0, 0.0),
            // The latency is unchanged. Only the execution that is not accounted is removed.
            Self::UnaccountedIdle => constants.idle_entry_ns = 0.0,
            Self::AdaptiveModeration => {
                (run.host.coalescing.adaptive_rx, run.host.coalescing.adaptive_tx) = (false, false);
            }
            // Byte rates are then in proportion to packet rates.
            Self::PacketSizes => run.sizes = PacketSizes::ONE_BYTE,
            Self::SeparateArming => run.host.coalescing.separate_arming = false,
            Self::Contention => (constants.contention_ns, constants.contention_packet_ns) = (0.0, 0.0),
            Self::FloatingWorkers => run.floating = false,
        }
    }
}

/// Change of the columns of one cell when one part is disabled.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AblatedCell {
    pub without: Ablation,
    pub mode: DeliveryMode,
    pub load: Load,
    /// Change of each column relative to the complete model. 0.1 means 10 % more.
    pub changes: Vec<(Column, f64)>,
}

/// Simulates each cell without each of the parts. Any thread may call `progress` with the number of finished runs and
/// the number of all runs.
pub fn ablate(
    cells: &[(DeliveryMode, Load)],
    host: &HostProfile,
    scale: RunScale,
    threads: usize,
    progress: impl Fn(usize, usize) + Sync,
) -> Result<Vec<AblatedCell>, RunError> {
    let variants: Vec<Option<Ablation>> = std::iter::once(None).chain(Ablation::ALL.map(Some)).collect();
    let jobs: Vec<_> = cells.iter().flat_map(|cell| variants.iter().map(move |variant| (cell, *variant))).collect();
    let figures = in_parallel(
        jobs.len(),
        threads,
        |index| {
            let ((mode, load), variant) = jobs[index];
            let mut run = Run::memcached(*mode, *load, host, scale);
            if let Some(ablation) = variant {
                ablation.apply(&mut run);
            }
            run.simulate().map(|result| result.figures(host.cpus))
        },
        |done| progress(done, jobs.len()),
    );
    let figures: Vec<Figures> = figures.into_iter().collect::<Result<_, _>>()?;
    let mut ablated = Vec::new();
    for (cell, figures) in cells.iter().zip(figures.chunks(variants.len())) {
        for (without, changed) in Ablation::ALL.into_iter().zip(&figures[1..]) {
            let changes = changes(&figures[0], changed);
            ablated.push(AblatedCell { without, mode: cell.0, load: cell.1, changes });
        }
    }
    Ok(ablated)
}

fn changes(whole: &Figures, without: &Figures) -> Vec<(Column, f64)> {
    let change = |column: Column| {
        let (whole, without) = (column.of(whole), column.of(without));
        (whole > 0.0).then(|| (column, without / whole - 1.0))
    };
    Column::ALL.into_iter().filter_map(change).collect()
}
