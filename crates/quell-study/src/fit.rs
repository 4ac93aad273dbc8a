//! Fits the constants of a host profile to published cells. The method is least squares of relative errors
//! (Levenberg–Marquardt) on training cells only. Every evaluation uses the same random numbers, so that finite
//! differences are meaningful.

use std::cell::RefCell;

use levenberg_marquardt::{LeastSquaresProblem, LevenbergMarquardt};
use nalgebra::{DMatrix, DVector, Dyn, Owned};
use quell_published::PublishedCell;
use quell_sim::sweep::in_parallel;
use quell_sim::{Column, Constant, HostProfile, RunScale};

use crate::published::{ComparedCell, figures_as_published, run_of_cell};

/// Step of a finite difference, in the logarithm of a constant. It is large enough to exceed the variance of a short
/// run.
const LOG_STEP: f64 = 0.06;
/// Error, in units of the tolerance, above which an error gains little additional weight.
const PULL_LIMIT: f64 = 5.0;

/// Factor on the tolerance of latencies under adaptive interrupt moderation: runs differ by up to 7 %.
const WALK_TOLERANCE: f64 = 1.5;

/// Names of the constants that are fitted. In the published profile, five of them were chosen by hand, and
/// four more constants come directly from training cells, as its file explains.
pub const FITTED: [&str; 21] = [
    "device_irq_ns",
    "preempting_irq_ns",
    "napi_poll_ns",
    "busy_poll_ns",
    "busy_stop_ns",
    "rx_request_ns",
    "wake_ns",
    "epoll_wait_ns",
    "request_ns",
    "batch_extra_ns",
    "batch_packet_ns",
    "batch_half",
    "interference_ns",
    "cross_cpu_ns",
    "contention_ns",
    "contention_packet_ns",
    "network_ns",
    "client_tail_share",
    "client_tail_slope",
    "client_tail_ns",
    "client_outlier_share",
];

#[derive(Debug, Clone)]
pub struct Fit<'a> {
    /// Profile with the initial values of the constants, and all values that are not fitted.
    pub host: HostProfile,
    pub training: Vec<&'a PublishedCell>,
    pub constants: Vec<&'static str>,
    pub scale: RunScale,
    /// Maximum number of restarts of the solver from the best point so far. The fit ends earlier if a restart improves
    /// the objective by less than 1 %.
    pub rounds: usize,
    /// Number of cells that are simulated in parallel.
    pub threads: usize,
}

#[derive(Debug, Clone)]
pub struct Fitted {
    pub host: HostProfile,
    /// Sum of squared weighted errors before and after the fit.
    pub objective: (f64, f64),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot fit `{0}`: unknown constant")]
pub struct FitError(String);

/// Relative error of a column that has weight 1. `None` for columns that are not fitted.
fn tolerance(column: Column) -> Option<f64> {
    match column {
        Column::Mean | Column::P50 => Some(0.04),
        Column::P95 => Some(0.06),
        Column::Cpu | Column::Cycles => Some(0.03),
        Column::Qps => Some(0.02),
        Column::Softirq => Some(0.08),
        Column::EpollEvents => Some(0.2),
        Column::Polls => Some(0.25),
        Column::Irqs | Column::P99 | Column::PollWork => None,
    }
}

type Progress<'a> = dyn FnMut(f64, &HostProfile) + 'a;

struct Problem<'a> {
    fit: &'a Fit<'a>,
    constants: Vec<&'static Constant>,
    logs: DVector<f64>,
    best: &'a RefCell<(f64, DVector<f64>)>,
    progress: &'a RefCell<Progress<'a>>,
}

impl Problem<'_> {
    fn host(&self, logs: &DVector<f64>) -> HostProfile {
        let mut host = self.fit.host.clone();
        for (constant, log) in self.constants.iter().zip(logs) {
            constant.set(&mut host.constants, libm::exp(*log));
        }
        host
    }

    fn errors(&self, logs: &DVector<f64>) -> Option<DVector<f64>> {
        let host = self.host(logs);
        let simulate = |index: usize| weighted_errors(self.fit.training[index], &host, self.fit.scale);
        let errors = in_parallel(self.fit.training.len(), self.fit.threads, simulate, |_| ());
        let errors: Vec<[f64; Column::ALL.len()]> = errors.into_iter().collect::<Option<_>>()?;
        Some(DVector::from_iterator(errors.len() * Column::ALL.len(), errors.into_iter().flatten()))
    }
}

/// Simulates a cell. Returns the logarithmic error of each column in tolerances, which a fit squares and adds; 0 for
/// columns that are not fitted. `None` if the cell cannot be simulated.
#[must_use]
pub fn weighted_errors(cell: &PublishedCell, host: &HostProfile, scale: RunScale) -> Option<[f64; Column::ALL.len()]> {
    let modelled = figures_as_published(&run_of_cell(cell, host, scale).simulate().ok()?, host);
    let compared = ComparedCell::new(cell, vec![modelled])?;
    Some(Column::ALL.map(|column| weighted_error(&compared, column)))
}

fn weighted_error(cell: &ComparedCell, column: Column) -> f64 {
    let Some(mut tolerance) = tolerance(column).filter(|_| cell.counts(column)) else { return 0.0 };
    if !cell.mode.napi().defers() && matches!(column, Column::Mean | Column::P50 | Column::P95) {
        tolerance *= WALK_TOLERANCE;
    }
    let ratio = column.of(&cell.modelled).max(1e-9) / column.of(&cell.published).max(1e-9);
    let error = libm::log(ratio) / tolerance;
    error / libm::sqrt(1.0 + (error / PULL_LIMIT) * (error / PULL_LIMIT))
}

impl LeastSquaresProblem<f64, Dyn, Dyn> for Problem<'_> {
    type ResidualStorage = Owned<f64, Dyn>;
    type JacobianStorage = Owned<f64, Dyn, Dyn>;
    type ParameterStorage = Owned<f64, Dyn>;

    fn set_params(&mut self, logs: &DVector<f64>) {
        self.logs.copy_from(logs);
    }

    fn params(&self) -> DVector<f64> {
        self.logs.clone()
    }

    fn residuals(&self) -> Option<DVector<f64>> {
        let errors = self.errors(&self.logs)?;
        let objective = errors.norm_squared();
        if objective < self.best.borrow().0 {
            *self.best.borrow_mut() = (objective, self.logs.clone());
        }
        Some(errors)
    }

    fn jacobian(&self) -> Option<DMatrix<f64>> {
        let here = self.errors(&self.logs)?;
        (self.progress.borrow_mut())(self.best.borrow().0, &self.host(&self.best.borrow().1));
        let mut jacobian = DMatrix::zeros(here.len(), self.logs.len());
        for column in 0..self.logs.len() {
            let mut logs = self.logs.clone();
            logs[column] += LOG_STEP;
            let there = self.errors(&logs)?;
            jacobian.set_column(column, &((there - &here) / LOG_STEP));
        }
        Some(jacobian)
    }
}

impl Fit<'_> {
    /// Runs the fit. After each round, it calls `progress` with the objective and the best profile so far.
    pub fn find(&self, progress: impl FnMut(f64, &HostProfile)) -> Result<Fitted, FitError> {
        let constants = self
            .constants
            .iter()
            .map(|name| Constant::named(name).ok_or_else(|| FitError((*name).to_owned())))
            .collect::<Result<Vec<_>, _>>()?;
        let logs = constants.iter().map(|constant| libm::log(constant.of(&self.host.constants).max(1e-6)));
        let logs = DVector::from_iterator(constants.len(), logs);
        let best = RefCell::new((f64::INFINITY, logs.clone()));
        let progress = RefCell::new(progress);
        let mut problem = Problem { fit: self, constants, logs, best: &best, progress: &progress };
        let before = problem.residuals().map_or(f64::INFINITY, |errors| errors.norm_squared());
        for _ in 0..self.rounds {
            let was = best.borrow().0;
            let solver = LevenbergMarquardt::new().with_patience(1).with_stepbound(1.0).with_tol(1e-4);
            problem.logs = best.borrow().1.clone();
            (problem, _) = solver.minimize(problem);
            if best.borrow().0 > 0.99 * was {
                break;
            }
        }
        let after = best.borrow().0;
        let mut host = problem.host(&best.borrow().1);
        for name in &self.constants {
            host.sources.insert((*name).to_owned(), "fitted".to_owned());
        }
        Ok(Fitted { host, objective: (before, after) })
    }
}
