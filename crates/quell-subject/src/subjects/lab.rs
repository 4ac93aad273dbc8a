//! A server in a private lab as a subject, under loads that Quell generates.

use quell_linux::signal::Interruption;
use quell_mode::{DeliveryMode, Requirement};
use quell_result::experiment::ExperimentResult;
use quell_result::tune::TuneFile;
use quell_tune::{TunePlan, TuneSpace};

use super::search::{refused_kinds, search};
use super::{Answer, Operator, Planned, PlannedSubject, Tools, Unanswered, metrics};
use crate::experiment::{ComparisonError, check_designs, check_settable};
use crate::question::{Question, SubjectStep};
use crate::run::{LabRequest, NO_CPU_FOR_POLLERS, check_possible, in_lab, run, why_not_here};

/// Answers a question in a lab.
pub(super) fn answer(
    request: &LabRequest,
    mut question: Question,
    tools: &Tools<'_>,
    operator: &mut dyn Operator,
) -> Result<Answer, Unanswered> {
    match &mut question {
        Question::Compare(comparison) => {
            check_designs(&request.loads, comparison)?;
            let why_not = |at: usize| why_not_here(request.lab.interrupt_stand_in, &comparison.modes[at]);
            check_settable(&comparison.modes, why_not)?;
        }
        Question::Search(plan) => {
            let space = space();
            (plan.arms, plan.space) = (space.coarse(), Some(space));
            plan.check().map_err(|error| Unanswered::Plan { error, plan: plan.clone() })?;
            metrics::of_generator().check(plan)?;
        }
    }
    check_possible(&request.lab)?;
    if !operator.agrees(&Planned { question: &question, subject: PlannedSubject::Lab(request) }) {
        return Err(Unanswered::Declined);
    }
    let interruption = Interruption::listen().map_err(Unanswered::Signals)?;
    let flag = interruption.flag();
    let stopped = || flag.get().is_some();
    operator.follow(SubjectStep::Doing("setting up the lab"));
    match question {
        Question::Compare(comparison) => {
            let mut follow = |step: SubjectStep<'_>| operator.follow(step);
            Ok(Answer::Compared(Box::new(run(request, &comparison, tools.journal, &mut follow, &stopped)?)))
        }
        Question::Search(plan) => {
            let found = search_in_lab(request, *plan, tools, operator, &stopped)?;
            Ok(Answer::Searched(Box::new(found)))
        }
    }
}

fn search_in_lab(
    request: &LabRequest,
    mut plan: TunePlan,
    tools: &Tools<'_>,
    operator: &mut dyn Operator,
    stopped: &dyn Fn() -> bool,
) -> Result<TuneFile, Unanswered> {
    let modes = TuneSpace::default().all();
    let mut follow = |step: SubjectStep<'_>| operator.follow(step);
    let found = in_lab(request, plan.seed, tools.journal, &mut follow, stopped, |server, follow| {
        let mut begun = ExperimentResult::begin(server.subject.clone()).map_err(ComparisonError::from)?;
        begun.not_a_measurement = server.not_a_measurement.clone();
        let mut subject = server.under_load(&modes)?;
        let space = TuneSpace { refused: refused_kinds(&modes, &|mode| subject.why_impossible(mode)) };
        (plan.arms, plan.space) = (space.coarse(), Some(space));
        Ok(search(&mut subject, plan, follow, stopped).map(|result| {
            let (settings, other_programs) = (subject.reported, subject.other_programs);
            TuneFile { settings, other_programs, ..TuneFile::of(begun, result, Vec::new()) }
        }))
    });
    found?
}

/// Modes that can be set on a server that was not started by `quell run`, as far as this is known before the lab is up.
fn space() -> TuneSpace {
    let why = |mode: &DeliveryMode| {
        let launch = |requirement: &Requirement| *requirement == Requirement::SpinBeforeSleep;
        let requirement = mode.requirements().into_iter().find(launch).map(|requirement| requirement.to_string());
        requirement.or_else(|| mode.poller().map(|_| NO_CPU_FOR_POLLERS.to_owned()))
    };
    TuneSpace { refused: refused_kinds(&TuneSpace::default().all(), &why) }
}
