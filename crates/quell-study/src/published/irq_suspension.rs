//! Published experiment (a), 2024: IRQ suspension, measured with memcached and 11 modes at 6 loads. This module
//! compares it with runs of the model.

use quell_mode::DeliveryMode;
use quell_published::PublishedCell;
use quell_sim::sweep::in_parallel;
use quell_sim::{Figures, HostProfile, Run, RunError, RunResult, RunScale};

use super::score::{ComparedCell, RatioCell, Scored, held_out, ratios_to_base, score, score_ratios};

/// Factor on the duration of a run under adaptive moderation.
const MODERATED_FACTOR: u64 = 5;

/// Run of a cell. Under adaptive moderation it is longer: moderation stays in one profile for up to hundreds of ms, and
/// the tail of a short run is that of one profile. Published runs last for seconds.
#[must_use]
pub fn run_of_cell(cell: &PublishedCell, host: &HostProfile, scale: RunScale) -> Run {
    let factor = if cell.mode.napi().defers() { 1 } else { MODERATED_FACTOR };
    let scale = RunScale { measured_ns: factor * scale.measured_ns, ..scale };
    Run::memcached(cell.mode, cell.load, host, scale)
}

#[derive(Debug, Clone, PartialEq)]
pub struct SuspensionComparison {
    pub cells: Vec<ComparedCell>,
    /// Ratios of all modes to `base` at the same load.
    pub ratios: Vec<RatioCell>,
    pub training: Scored,
    pub held_out: Scored,
    /// Scores of `base`, to which every other mode is compared.
    pub base: Scored,
    /// Scores of the ratios to `base`, over all modes.
    pub to_base: Scored,
    pub events: u64,
}

/// Simulates every cell with `seeds` consecutive seeds, on up to `threads` threads, and compares the medians. Calls
/// `progress` with the number of finished runs.
pub fn irq_suspension(
    cells: &[PublishedCell],
    host: &HostProfile,
    scale: RunScale,
    seeds: u64,
    threads: usize,
    progress: impl Fn(usize) + Sync,
) -> Result<SuspensionComparison, RunError> {
    let seeds = seeds.max(1);
    let simulate = |index: usize| {
        let scale = RunScale { seed: scale.seed + index as u64 % seeds, ..scale };
        run_of_cell(&cells[index / seeds as usize], host, scale).simulate()
    };
    let runs = cells.len() * seeds as usize;
    let results: Vec<RunResult> =
        in_parallel(runs, threads, simulate, progress).into_iter().collect::<Result<_, _>>()?;
    let events = results.iter().map(|result| result.events).sum();
    let figures: Vec<Figures> = results.iter().map(|result| result.figures(host.cpus)).collect();
    let pairs = cells.iter().zip(figures.chunks(seeds as usize));
    let cells: Vec<_> = pairs.filter_map(|(published, runs)| ComparedCell::new(published, runs.to_vec())).collect();
    let ratios = ratios_to_base(&cells);
    Ok(SuspensionComparison {
        training: score(&cells, |cell| !held_out(&cell.mode)),
        held_out: score(&cells, |cell| held_out(&cell.mode)),
        base: score(&cells, |cell| cell.mode == DeliveryMode::default()),
        to_base: score_ratios(&ratios),
        cells,
        ratios,
        events,
    })
}
