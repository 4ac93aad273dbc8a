//! Kinds of mode that running programs cannot have, and problems of those that they can have.

use quell_host::attach::Targets;
use quell_host::findings::{Finding, LackingCpus};
use quell_host::switching::SwitchPlan;
use quell_linux::visible::counted;
use quell_linux::{CpuList, kernel};
use quell_mode::DeliveryMode;
use quell_result::facts::ProblemFacts;
use quell_tune::{RefusedMode, TuneMetric, TunePlan};

use super::search::{USERBUSY, refused_kinds};
use crate::experiment::{Preview, server_side};

/// Kinds of mode of which no value can be set, or that would stall the programs.
#[must_use]
pub fn refused_here(preview: &Preview, modes: &[DeliveryMode], stall: Option<&Finding>) -> Vec<RefusedMode> {
    let why = |mode: &DeliveryMode| {
        let at = modes.iter().position(|other| other == mode)?;
        preview.plan.impossible[at].first().map(ToString::to_string)
    };
    let mut refused = refused_kinds(modes, &why);
    if let Some(reason) = too_few_cpus(&preview.plan).filter(|_| refused.iter().all(|one| one.kind != USERBUSY)) {
        refused.push(RefusedMode { kind: USERBUSY.to_owned(), reason });
    }
    if let Some(finding) = stall {
        let reason = format!("{}; --accept-stalls searches it anyway", would_stall(finding));
        refused.push(RefusedMode { kind: "suspend".to_owned(), reason });
    }
    refused
}

/// The mode that the queues have under `base`, if `base` is the present setting: a search would compare it with itself.
pub(super) fn present_as_base(base_is: Option<DeliveryMode>, present: DeliveryMode) -> Option<RefusedMode> {
    let kind = base_is.filter(|_| present == DeliveryMode::default())?.kind().word();
    Some(RefusedMode { kind: kind.to_owned(), reason: "the present setting".to_owned() })
}

/// Whether polling threads would share the CPUs of the workers. All modes have the CPUs of the programs, and no other.
pub(super) fn lacking_cpus(plan: &SwitchPlan) -> Option<LackingCpus> {
    // The epoll of a thread that only accepts has no queue.
    let workers = plan.epolls.iter().filter(|epoll| !epoll.napis.is_empty()).count().max(1);
    LackingCpus::of(plan.poller_cpus.iter().count(), plan.queues.len(), workers)
}

fn too_few_cpus(plan: &SwitchPlan) -> Option<String> {
    let LackingCpus { queues, workers, .. } = lacking_cpus(plan)?;
    Some(format!(
        "its {} and {} would share CPUs {}, on which the programs run; they and other threads need {} CPUs",
        counted(queues, "polling thread"),
        counted(workers, "worker"),
        plan.poller_cpus,
        queues + workers + 1
    ))
}

fn would_stall(Finding { id, observed, .. }: &Finding) -> String {
    format!("would stall these programs: {observed} (`quell doctor --explain {id}`)")
}

/// Leaves out the modes that would stall the programs, except the reference and `attached`, which they have. Returns them
/// with the reason: none if nothing would be left to compare.
pub(super) fn leave_out_stalls(
    modes: &mut Vec<DeliveryMode>,
    serious: &[(DeliveryMode, Finding)],
    attached: Option<DeliveryMode>,
) -> Vec<(DeliveryMode, String)> {
    let why = |mode: &DeliveryMode| {
        let is_its = |(of, finding): &&(DeliveryMode, Finding)| of == mode && finding.predicts_stall();
        Some((*mode, would_stall(&serious.iter().find(is_its)?.1)))
    };
    let others = modes.iter().skip(1).filter(|mode| Some(**mode) != attached);
    let left_out: Vec<(DeliveryMode, String)> = others.filter_map(why).collect();
    if left_out.len() + 1 >= modes.len() {
        return Vec::new();
    }
    modes.retain(|mode| left_out.iter().all(|(out, _)| out != mode));
    left_out
}

/// Leaves out the mode that `base` is on the queues, if something else is compared with it. Returns it with the reason.
pub(super) fn leave_out_base(
    modes: &mut Vec<DeliveryMode>,
    base_is: Option<DeliveryMode>,
) -> Option<(DeliveryMode, String)> {
    let same = base_is.filter(|_| modes.first() == Some(&DeliveryMode::default()))?;
    if modes.len() < 3 || !modes.contains(&same) {
        return None;
    }
    modes.retain(|mode| *mode != same);
    Some((same, "base is the same here, because the queues have NAPI threads".to_owned()))
}

/// Whether the goal or a guard uses CPU time, but the measured CPUs are not all on which a new NAPI thread can run.
pub(super) fn hides_napi_threads(plan: &TunePlan, preview: &Preview, targets: &Targets) -> bool {
    let limited = plan.goal.limits.iter().map(|limit| &limit.metric);
    let metrics = limited.chain([&plan.goal.objective]).chain(plan.guards.iter().map(|guard| &guard.metric));
    let uses_cpu = metrics.into_iter().any(|metric| matches!(metric, TuneMetric::Cpu | TuneMetric::Busy));
    let measured = server_side::watched(&preview.snapshot, &targets.pids(), &preview.plan.napis()).server_cpus;
    uses_cpu && CpuList::online(kernel::sysfs()).is_ok_and(|online| online != measured)
}

/// Findings under a mode of each kind, as findings under the arms of that kind. The first mode of a kind can be one that
/// only a later round tries.
pub(super) fn under_arms(serious: Vec<(DeliveryMode, Finding)>, arms: &[DeliveryMode]) -> Vec<(DeliveryMode, Finding)> {
    let of_kind = |(mode, finding): (DeliveryMode, Finding)| {
        let arms = arms.iter().filter(move |arm| arm.kind().word() == mode.kind().word());
        arms.map(move |arm| (*arm, finding.clone())).collect::<Vec<_>>()
    };
    serious.into_iter().flat_map(of_kind).collect()
}

/// The modes that cause each problem. Its text begins with the object that has it.
pub(super) fn by_problem(serious: Vec<(DeliveryMode, Finding)>) -> Vec<ProblemFacts> {
    let mut problems: Vec<ProblemFacts> = Vec::new();
    for (mode, finding) in serious {
        let object = finding.nodes.first().map(|node| format!("{node}: ")).unwrap_or_default();
        let observed = format!("{object}{}", finding.observed);
        match problems.iter_mut().find(|known| known.id == finding.id && known.observed == observed) {
            Some(known) if known.modes.contains(&mode) => {}
            Some(known) => known.modes.push(mode),
            None => problems.push(ProblemFacts::new(&finding, observed, mode)),
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use quell_host::findings::Severity;
    use quell_host::switching::SwitchedQueue;
    use quell_linux::NapiId;
    use quell_mode::PartialNapiSettings;

    use super::*;

    fn finding(id: &'static str) -> Finding {
        Finding {
            id,
            severity: Severity::Serious,
            title: "",
            observed: "2 queues".to_owned(),
            nodes: Vec::new(),
            impact: "",
            source: "",
            fix: Vec::new(),
        }
    }

    #[test]
    fn the_mode_that_base_is_here_is_not_compared_with_it() {
        let left = |modes: &str, base_is: Option<&str>| {
            let mut modes = DeliveryMode::parse_list(modes).unwrap();
            let out = leave_out_base(&mut modes, base_is.map(|mode| mode.parse().unwrap()));
            assert_eq!(out.is_some(), !modes.contains(&"threaded".parse().unwrap()));
            modes.len()
        };
        assert_eq!(left("base,defer20,threaded", Some("threaded")), 2);
        assert_eq!(left("base,defer20,threaded", None), 3);
        assert_eq!(left("base,threaded", Some("threaded")), 2, "nothing else is compared");
        assert_eq!(left("suspend20,base,threaded", Some("threaded")), 3, "the reference is another mode");
    }

    #[test]
    fn a_problem_of_one_mode_of_a_kind_is_that_of_the_modes_of_this_kind_that_a_search_tries() {
        let [first, arms] = ["suspend10", "base,defer20,suspend20,suspend40"].map(DeliveryMode::parse_list);
        let (first, arms) = (first.unwrap()[0], arms.unwrap());
        let problems = by_problem(under_arms(vec![(first, finding("epoll-mixes-napis"))], &arms));
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        assert_eq!((problem.id.as_str(), &problem.modes[..]), ("epoll-mixes-napis", &arms[2..]));
        assert_eq!(by_problem(under_arms(Vec::new(), &arms)), [], "nothing is left after a placement that solves it");
    }

    #[test]
    fn a_problem_of_several_epolls_of_a_process_has_each_mode_once() {
        let mode: DeliveryMode = "suspend200".parse().unwrap();
        let problems = by_problem(vec![(mode, finding("epoll-mixes-napis")), (mode, finding("epoll-mixes-napis"))]);
        assert_eq!(problems.iter().map(|problem| &problem.modes[..]).collect::<Vec<_>>(), [[mode]]);
    }

    #[test]
    fn a_mode_that_the_queues_have_under_base_is_no_other_mode() {
        let [base, threaded] = ["base", "threaded"].map(|mode| mode.parse::<DeliveryMode>().unwrap());
        let refused = present_as_base(Some(threaded), base).unwrap();
        assert_eq!(refused.kind, "threaded");
        assert_eq!(present_as_base(Some(threaded), threaded), None, "base is the other mode then");
        assert_eq!(present_as_base(None, base), None);
    }

    #[test]
    fn modes_that_stall_are_left_out_unless_they_are_attached_or_nothing_would_be_left() {
        let modes = |text: &str| DeliveryMode::parse_list(text).unwrap();
        let left = |text: &str, attached: Option<&str>| {
            let mut compared = modes(text);
            let of_mode = |mode: &DeliveryMode| {
                let suspends = mode.napi().irq_suspend_timeout_ns > 0;
                suspends.then(|| (*mode, finding("udp-socket-on-several-queues")))
            };
            let mut serious: Vec<_> = compared.iter().filter_map(of_mode).collect();
            serious.push((modes("defer200")[0], finding("epoll-mixes-napis")));
            let out = leave_out_stalls(&mut compared, &serious, attached.map(|mode| modes(mode)[0]));
            (compared, out.len())
        };
        assert_eq!(left("base,suspend200,defer200,suspend20", None), (modes("base,defer200"), 2));
        assert_eq!(left("base,suspend200,defer200", Some("suspend200")).1, 0, "it is attached");
        assert_eq!(left("base,suspend200", None), (modes("base,suspend200"), 0), "refused instead");
    }

    #[test]
    fn polling_threads_need_cpus_beside_those_of_the_workers() {
        let queue = |id| SwitchedQueue {
            namespace_cookie: 1,
            device: "eth0".to_owned(),
            queues: vec![0],
            napi: NapiId::from_kernel(id).unwrap(),
            irq: None,
            old: PartialNapiSettings::default(),
            values: Vec::new(),
        };
        let plan = |cpus: &str| SwitchPlan {
            queues: vec![queue(8193), queue(8194)],
            poller_cpus: cpus.parse().unwrap(),
            ..SwitchPlan::default()
        };
        assert_eq!(too_few_cpus(&plan("0,2-4")), None);
        let why = too_few_cpus(&plan("2-4")).unwrap();
        assert!(why.contains("2 polling threads and 1 worker would share CPUs 2-4") && why.contains("4 CPUs"), "{why}");
    }
}
