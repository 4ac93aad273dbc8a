//! The answer of a result for the programs that it measured, at each load.

use quell_experiment::Treatment;
use quell_host::servers::{EarlierAnswer, EarlierMeasurement, EarlierVerdict, NamedProcess, OpenQuestion, OwnLoad};
use quell_linux::Pid;
use quell_linux::kernel::Kernel;
use quell_load::OfferedLoad;
use quell_mode::DeliveryMode;

use crate::ResultDocument;
use crate::conclusion::{Conclusion, LoadRange, WhyLonger, is_below};
use crate::experiment::{ExperimentResult, LoadExperiment, SubjectFacts, median};
use crate::facts::{CommandFacts, ProblemFacts, ProcessFacts};
use crate::figures;
use crate::tune::TuneFile;

impl ExperimentResult {
    /// Packets per second from the queues under the reference, by load. Absent if they were not counted.
    fn packet_rates(&self) -> Vec<(Option<OfferedLoad>, Option<f64>)> {
        let rate = |of: &LoadExperiment| (of.offered(), of.median(&of.record.design.reference.name, figures::PACKETS));
        self.experiments.iter().map(rate).collect()
    }
}

impl TuneFile {
    /// Packets per second from the queues, by load. Absent if they were not counted.
    fn packet_rates(&self) -> Vec<(Option<OfferedLoad>, Option<f64>)> {
        let rate = |(index, load): (usize, &String)| {
            let slices = self.search.slices.iter().filter(|slice| slice.load == index);
            let rates = slices.filter_map(|slice| slice.observation.metric(figures::PACKETS)).collect();
            (load.parse().ok(), median(rates))
        };
        self.search.plan.loads.iter().enumerate().map(rate).collect()
    }
}

impl SubjectFacts {
    /// The load of the measurement itself, beside that of clients. Absent without one.
    #[must_use]
    pub fn own_load(&self) -> Option<OwnLoad> {
        let (judged, loaded) = match self {
            Self::Programs(of) => {
                (of.latency.is_some() || of.beside.is_some(), of.load.is_some() || of.clients.is_some())
            }
            Self::Command(of) => (of.latency.is_some() || of.beside.is_some(), of.load.is_some()),
            _ => return None,
        };
        match (judged, loaded) {
            (_, true) => Some(OwnLoad::Generator),
            (true, false) => Some(OwnLoad::Judge),
            (false, false) => None,
        }
    }
}

impl LoadRange {
    fn contains(&self, load: OfferedLoad) -> bool {
        match self {
            Self::From(least) => !is_below(load, *least),
            Self::UpTo(most) => !is_below(*most, load),
            Self::At(loads) => loads.contains(&load),
        }
    }
}

impl ResultDocument {
    /// What was measured on this kernel.
    fn subject_here(&self) -> Option<&SubjectFacts> {
        let (host, subject) = match self {
            Self::Experiment(result) => (&result.host, &result.subject),
            Self::Tune(file) => (&file.host, &file.subject),
            _ => return None,
        };
        (host.kernel_release == Kernel::running().release).then_some(subject)
    }

    /// Processes that were measured on this kernel, with their names.
    #[must_use]
    pub fn measured_processes(&self) -> Vec<NamedProcess> {
        let process = |process: &ProcessFacts| Some((Pid::from_kernel(process.pid)?, process.name.clone()));
        match self.subject_here() {
            Some(SubjectFacts::Programs(programs)) => programs.processes.iter().filter_map(process).collect(),
            _ => Vec::new(),
        }
    }

    /// Command that was measured on this kernel. Its processes have ended; others may run it.
    #[must_use]
    pub fn measured_command(&self) -> Option<&CommandFacts> {
        match self.subject_here()? {
            SubjectFacts::Command(command) => Some(command),
            _ => None,
        }
    }

    /// The answer for the measured programs, or those that run the measured command, at each load. `name` is that of the
    /// result. `advice` is the sentence and the command with which it ends: the answer of a result that decides nothing, and
    /// what another one leaves open. Absent without either. `reservation` is what speaks against it, in words. Results of a
    /// command have neither for programs that run it already.
    #[must_use]
    pub fn answers_for_programs(
        &self,
        name: &str,
        advice: Option<(String, String)>,
        reservation: Option<String>,
    ) -> Option<Vec<EarlierAnswer>> {
        let (subject, started_unix_s) = match self {
            Self::Experiment(result) => (&result.subject, result.started_unix_s),
            Self::Tune(file) => (&file.subject, file.started_unix_s),
            _ => return None,
        };
        let advice = match subject {
            SubjectFacts::Programs(_) => advice,
            // Its command starts the program again, which runs.
            SubjectFacts::Command(_) => None,
            _ => return None,
        };
        let (conclusion, present, compared, worse, loads) = match self {
            Self::Experiment(result) => {
                let design = &result.experiments.first()?.record.design;
                let treatments = design.treatments.iter().map(|treatment| treatment.setting);
                let compared = treatments.chain([design.reference.setting]).collect();
                let present = subject.present(design.reference.setting);
                let conclusion = result.conclusion()?;
                let is_worse =
                    |of: &&Treatment<DeliveryMode>| conclusion.only_costs().iter().any(|worse| worse.mode == of.name);
                let worse = design.treatments.iter().filter(is_worse).map(|one| one.setting).collect();
                (conclusion, present, compared, worse, result.packet_rates())
            }
            Self::Tune(file) => {
                let tried = file.search.arms.iter().filter(|arm| arm.slices > 0).map(|arm| arm.mode);
                let present = subject.present(file.search.plan.present);
                (file.conclusion(), present, tried.collect(), Vec::new(), file.packet_rates())
            }
            _ => return None,
        };
        let (compared, worse): (Vec<DeliveryMode>, Vec<DeliveryMode>) = (compared, worse);
        let reference = self.reference_of_answer(subject)?;
        let open = match &conclusion {
            Conclusion::Keep { .. } => advice.clone().map(|(advice, command)| OpenQuestion { advice, command }),
            _ => None,
        };
        let for_goal = match &conclusion {
            Conclusion::Use { mode, .. } if conclusion.holds_for_its_goal_only() => Some(*mode),
            _ => None,
        };
        // At other loads, a mode that is better at some of them is not the answer.
        let is_answer = |verdict: &EarlierVerdict| match conclusion {
            Conclusion::Keep { .. } => true,
            _ => for_goal.is_some() || matches!(verdict, EarlierVerdict::Better(_)),
        };
        let at_load = |(load, packets_per_s): (Option<OfferedLoad>, Option<f64>)| {
            let verdict = match &conclusion {
                // The delay by its timer is unknown, or its goal does not count what it costs.
                Conclusion::Use { .. }
                    if conclusion.unmeasured_delay_ns().is_some() || conclusion.holds_for_its_goal_only() =>
                {
                    let (advice, command) = advice.clone()?;
                    EarlierVerdict::Undecided { advice, command, unsteered: false }
                }
                Conclusion::Use { mode, split, .. } => {
                    match split.as_ref().zip(load).is_none_or(|(split, load)| split.pays.contains(load)) {
                        true => EarlierVerdict::Better(*mode),
                        false => EarlierVerdict::Keep(present),
                    }
                }
                Conclusion::Keep { mode, .. } | Conclusion::NotDecidable { mode, .. } => EarlierVerdict::Keep(*mode),
                Conclusion::MeasureLonger { because, .. } => {
                    let (advice, command) = advice.clone()?;
                    let unsteered = *because == WhyLonger::NotSteered;
                    EarlierVerdict::Undecided { advice, command, unsteered }
                }
            };
            let is_relevant = |problem: &&ProblemFacts| match &verdict {
                EarlierVerdict::Better(mode) => problem.modes.contains(mode),
                _ => true,
            };
            let measured = EarlierMeasurement {
                result: name.to_owned(),
                started_unix_s,
                packets_per_s: packets_per_s.map(|rate| rate.round() as u64),
                own_load: subject.own_load(),
                problem: subject.problems().iter().find(is_relevant).map(|problem| problem.id.clone()),
                reservation: reservation.clone().filter(|_| is_answer(&verdict)),
            };
            let (steered, open, compared, worse) = (subject.steers(), open.clone(), compared.clone(), worse.clone());
            Some(EarlierAnswer { measured, verdict, open, reference, compared, worse, steered, for_goal })
        };
        Some(loads.into_iter().filter_map(at_load).collect())
    }

    /// The reference of the result, without attachments.
    fn reference_of_answer(&self, subject: &SubjectFacts) -> Option<DeliveryMode> {
        let reference = match self {
            Self::Experiment(result) => result.experiments.first()?.record.design.reference.setting,
            Self::Tune(file) => file.search.plan.present,
            _ => return None,
        };
        // `base` is what an attachment was made on.
        let is_attached = matches!(subject, SubjectFacts::Programs(programs) if programs.attached == Some(reference));
        Some(subject.present(if is_attached { DeliveryMode::default() } else { reference }))
    }
}
