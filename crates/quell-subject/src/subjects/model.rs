//! The model of a host as a subject, in virtual time.

use quell_linux::signal::Interruption;
use quell_load::OfferedLoad;
use quell_result::experiment::{ExperimentResult, SubjectFacts};
use quell_result::facts::ModelFacts;
use quell_result::tune::TuneFile;
use quell_sim::sweep::Setup;
use quell_sim::{Load, RunError};
use quell_tune::{ModelPrior, RankedMode, TunePlan};

use super::search::{refuse_userbusy, search};
use super::{Answer, Operator, Planned, PlannedSubject, Unanswered, metrics};
use crate::experiment::model::{Model, ModelSpec, base_reaches, run_model};
use crate::experiment::{ComparisonError, check_designs};
use crate::question::{Question, SubjectStep};

impl ModelSpec {
    /// The loads of a search. Measures on the model which rate `base` reaches if a load is a percentage of it.
    fn rates(&self, setup: &Setup, seed: u64) -> Result<Vec<Load>, ComparisonError> {
        let needs_reach = self.loads.iter().any(|load| matches!(load, OfferedLoad::Percent(_)));
        let reaches_per_s = if needs_reach { base_reaches(setup, seed)? } else { 0.0 };
        Ok(self.loads.iter().map(|load| load.rate_per_s(reaches_per_s).map_or(Load::Max, Load::Qps)).collect())
    }

    /// Completes the plan of a search: leaves out the mode whose polling threads would have no CPU.
    pub fn complete(&self, plan: &mut TunePlan) {
        if !self.setup.irqs_apart {
            refuse_userbusy(
                plan,
                "each queue needs a CPU for its polling thread, which all modes get with --irqs-apart",
            );
        }
    }

    /// Ranks modes for the goal of a plan by the model alone ([`ModelPrior::rank`]).
    ///
    /// # Errors
    /// When a metric is not of the model, or the model cannot run `base` or the present setting.
    pub fn rank(&self, plan: &TunePlan) -> Result<Vec<RankedMode>, Unanswered> {
        metrics::of_model().check(plan)?;
        let setup = self.slice(plan.slice_ms, plan.settle_ms);
        let (loads, present, seed) = (self.rates(&setup, plan.seed)?, plan.present, plan.seed);
        let base_is = plan.base_is;
        let space = plan.space.clone().unwrap_or_default();
        let ranked = ModelPrior { setup, loads, present, base_is, space, seed }.rank(&plan.goal, self.threads);
        let reference =
            |error: RunError| ComparisonError::Reference { mode: present.to_string(), why: error.to_string() };
        Ok(ranked.map_err(reference)?)
    }
}

/// Answers a question on the model.
pub(super) fn answer(
    spec: &ModelSpec,
    mut question: Question,
    operator: &mut dyn Operator,
) -> Result<Answer, Unanswered> {
    match &mut question {
        Question::Compare(comparison) => check_designs(&spec.loads, comparison)?,
        Question::Search(plan) => {
            spec.complete(plan);
            metrics::of_model().check(plan)?;
            plan.check().map_err(|error| Unanswered::Plan { error, plan: plan.clone() })?;
        }
    }
    if !operator.agrees(&Planned { question: &question, subject: PlannedSubject::Model(spec) }) {
        return Err(Unanswered::Declined);
    }
    let interruption = Interruption::listen().map_err(Unanswered::Signals)?;
    let flag = interruption.flag();
    let stopped = || flag.get().is_some();
    let mut follow = |step: SubjectStep<'_>| operator.follow(step);
    match question {
        Question::Compare(comparison) => {
            Ok(Answer::Compared(Box::new(run_model(spec, &comparison, &mut follow, &stopped)?)))
        }
        Question::Search(plan) => {
            let setup = spec.slice(plan.slice_ms, plan.settle_ms);
            let facts = SubjectFacts::Model(ModelFacts::of(&setup));
            let mut begun = ExperimentResult::begin(facts).map_err(ComparisonError::from)?;
            begun.not_a_measurement = Some(format!("simulated on the model of {}", setup.host.name));
            let loads = spec.rates(&setup, plan.seed)?;
            let mut subject = Model::new(setup, loads, plan.seed);
            let result = search(&mut subject, *plan, &mut follow, &stopped)?;
            Ok(Answer::Searched(Box::new(TuneFile::of(begun, result, Vec::new()))))
        }
    }
}
