//! The profile that a search hands over: the mode, and the evidence as comments.

use std::collections::{BTreeMap, BTreeSet};

use quell_host::attach::mode_command::starting;
use quell_host::plan::selects_device;
use quell_linux::shell;
use quell_linux::visible;
use quell_mode::{DeliveryMode, ProgramWait, Requirement, Threaded};
use quell_result::experiment::SubjectFacts;
use quell_result::facts::QueueFacts;

use quell_report::words::placement_options;

/// Text of the profile. `report` is the result as text, `show` the command that prints it again.
pub(super) fn text(report: &str, subject: &SubjectFacts, mode: DeliveryMode, show: &str) -> String {
    let on_queues = mode_of_queues(subject, mode);
    let queues = if on_queues.is_some() { queues(subject, mode) } else { BTreeMap::new() };
    let evidence = format!(
        "Found by `quell tune`.\n{}\n\
         All evidence: {show}\n\
         {}",
        report.trim_end(),
        usage(mode, &queues, (&placement_options(subject), netns_of(subject)))
    );
    let comments = evidence.lines().map(|line| format!("# {}", visible::name(line)));
    let comments: Vec<String> = comments.map(|line| line.trim_end().to_owned()).collect();
    let on_queues = on_queues.unwrap_or(mode);
    let devices = queues.iter().enumerate().map(|(at, (device, queues))| {
        let label = format!("device.found{}", at + 1);
        let queues: Vec<String> = queues.iter().map(ToString::to_string).collect();
        format!(
            "\n[{label}]\nname = {}\n\n[{label}.queues.found]\nqueues = [{}]\nmode = \"{on_queues}\"\n",
            selects_device(device),
            queues.join(", ")
        )
    });
    let elsewhere =
        found_elsewhere(subject).map(|place| format!("found-elsewhere = \"{place}\"\n")).unwrap_or_default();
    format!("{}\n\n[program]\nmode = \"{mode}\"\n{elsewhere}{}", comments.join("\n"), devices.collect::<String>())
}

/// Where a mode was found whose program was not measured.
fn found_elsewhere(subject: &SubjectFacts) -> Option<&'static str> {
    match subject {
        SubjectFacts::Programs(_) | SubjectFacts::Command(_) => None,
        SubjectFacts::Veth { .. } => Some("found in a private lab, under a load that Quell generated"),
        SubjectFacts::Guest(_) => Some("found in an emulated guest, whose times mean nothing"),
        SubjectFacts::Model(_) => Some("found on the model of another host; nothing was measured"),
    }
}

/// The mode as the queues had it: a mode without NAPI threads was measured with those of the administrator, which `quell
/// apply` removes unless the mode of the queue has them. `None` if no mode says so.
fn mode_of_queues(subject: &SubjectFacts, mode: DeliveryMode) -> Option<DeliveryMode> {
    let base = match subject {
        SubjectFacts::Programs(facts) => facts.base_is.unwrap_or_default(),
        _ => DeliveryMode::default(),
    };
    match (base.napi().threaded, mode.napi().threaded) {
        (Threaded::Off, _) | (_, Threaded::Thread | Threaded::BusyPoll) => Some(mode),
        (threads, Threaded::Off) => format!("{mode},threaded={}", threads.kernel_value()).parse().ok(),
    }
}

/// Whether a running program cannot get the mode.
fn needs_run(mode: DeliveryMode) -> bool {
    mode.requirements().contains(&Requirement::SpinBeforeSleep)
}

/// Queues on which the mode was found, by device. Empty if the queues do not exist on this host, or if the mode changes
/// the waits of the program: without them, the settings of its queues would delay packets.
fn queues(subject: &SubjectFacts, mode: DeliveryMode) -> BTreeMap<&str, BTreeSet<u32>> {
    let mut by_device: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    if let SubjectFacts::Programs(facts) = subject
        && mode.kind().program_wait() == ProgramWait::AsWritten
    {
        for QueueFacts { device, queues, .. } in facts.queues.iter().filter(|queue| !queue.queues.is_empty()) {
            by_device.entry(device).or_default().extend(queues);
        }
    }
    by_device
}

/// Name of the network namespace in which the queues are; absent without one.
fn netns_of(subject: &SubjectFacts) -> Option<&str> {
    match subject {
        SubjectFacts::Programs(facts) => facts.queues.iter().find_map(|queue| queue.netns.as_deref()),
        SubjectFacts::Command(facts) => facts.netns.as_deref(),
        _ => None,
    }
}

fn usage(
    mode: DeliveryMode,
    queues: &BTreeMap<&str, BTreeSet<u32>>,
    (placement, netns): (&str, Option<&str>),
) -> String {
    let run = starting(netns, &format!("quell run --profile THIS_FILE{placement}"));
    let netns = netns.map_or_else(String::new, |netns| format!(" --netns {}", shell::word(netns)));
    match (needs_run(mode), queues.is_empty()) {
        (true, _) => format!("To use it: {run}. A running program cannot get this mode."),
        (false, true) => format!("To use it: quell attach --profile THIS_FILE{placement} PID, or {run}"),
        (false, false) => format!(
            "To use it: quell attach --profile THIS_FILE{placement} PID, or {run}\n\
             quell apply{netns} THIS_FILE sets only the queues below, for all programs. It sets no epoll of a program, and \
             removes\nNAPI threads where the mode below has no threaded=1; attach, bench and tune keep them."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::tune as render;
    use quell_mode::profile::{Profile, Source};
    use quell_result::facts::{HostFacts, ModelFacts, ProgramsFacts};
    use quell_result::tune::TuneFile;
    use quell_sim::sweep::Setup;
    use quell_sim::{HostProfile, Load};
    use quell_subject::experiment::model::Model;
    use quell_tune::{TunePlan, TuneResult, TuneSpace, tune};
    use std::ops::ControlFlow;

    fn searched() -> TuneResult {
        let host = HostProfile::shipped("epyc7662-cx5").unwrap();
        let setup = Setup { warm_up_ns: 20_000_000, measured_ns: 20_000_000, ..Setup::new(host).with_queues(1) };
        let plan = TunePlan {
            arms: vec!["suspend20".parse().unwrap()],
            space: None,
            loads: vec!["20K\nmode = \"fullbusy\"".to_owned()],
            slice_ms: 20,
            settle_ms: 20,
            budget_ms: 4_000,
            ..TunePlan::new("least cpu".parse().unwrap(), DeliveryMode::default(), TuneSpace::default(), 1)
        };
        let mut subject = Model::new(setup, vec![Load::Qps(20_000.0)], plan.seed);
        tune(&mut subject, plan, &mut |_, _| ControlFlow::Continue(())).unwrap().result
    }

    #[test]
    fn equal_seeds_give_equal_results() {
        assert_eq!(searched(), searched());
    }

    #[test]
    fn the_profile_parses_to_the_mode_whatever_the_evidence_contains() {
        let (profile, description) = ("host".to_owned(), String::new());
        let model =
            SubjectFacts::Model(ModelFacts { profile, description, queues: 1, irqs_apart: false, connections: 560 });
        let file = TuneFile {
            schema: String::new(),
            quell_version: String::new(),
            started_unix_s: 0,
            host: HostFacts::default(),
            subject: model,
            not_a_measurement: Some("simulated".to_owned()),
            left_alone: Vec::new(),
            settings: None,
            other_programs: None,
            profile: None,
            search: searched(),
        };
        let mode = "suspend20,defer-hard-irqs=10".parse().unwrap();
        let text = text(
            &render::render(&file, false),
            &file.subject,
            mode,
            "quell results show '/tmp/a\n[program]\nmode = \"fullbusy\"'",
        );
        let profile = Profile::parse(&[Source::new("found.toml", text.clone())]).unwrap_or_else(|why| panic!("{why}"));
        let program = profile.program.unwrap();
        assert_eq!(program.mode.map(|mode| mode.value), Some(mode), "{text}");
        assert!(program.found_elsewhere.is_some_and(|place| place.value.contains("model")), "{text}");
        assert!(text.contains("NOT A MEASUREMENT") && text.contains("quell results show"), "{text}");
    }

    fn on_queues(queues: Vec<QueueFacts>) -> SubjectFacts {
        SubjectFacts::Programs(Box::new(ProgramsFacts { queues, epolls: 1, ..ProgramsFacts::default() }))
    }

    fn queue(device: &str, queues: &[u32]) -> QueueFacts {
        QueueFacts { device: device.to_owned(), queues: queues.to_vec(), napi: 8_193, irq: None, netns: None }
    }

    #[test]
    fn the_profile_has_the_mode_of_the_queues_on_which_it_was_found() {
        let subject = on_queues(vec![queue("eth*0\"", &[2]), queue("eth1", &[]), queue("eth*0\"", &[0, 1])]);
        let mode: DeliveryMode = "suspend20".parse().unwrap();
        let text = text("", &subject, mode, "found.json");
        let profile = Profile::parse(&[Source::new("found.toml", text.clone())]).unwrap_or_else(|why| panic!("{why}"));
        let [device] = &profile.devices[..] else { panic!("{text}") };
        assert!(text.contains("name = \"eth[*]0\\\"\"") && text.contains("queues = [0, 1, 2]"), "{text}");
        assert_eq!(profile.program.unwrap().found_elsewhere, None);
        assert_eq!(device.queues[0].mode.as_ref().map(|mode| mode.value), Some(mode), "{text}");
        assert!(text.contains("quell apply THIS_FILE sets only the queues below"), "{text}");
    }

    #[test]
    fn the_profile_is_applied_in_the_network_namespace_of_its_queues() {
        let subject = on_queues(vec![QueueFacts { netns: Some("shop one".to_owned()), ..queue("eth0", &[0]) }]);
        let text = text("", &subject, "suspend20".parse().unwrap(), "found.json");
        assert!(text.contains("# quell apply --netns 'shop one' THIS_FILE sets only"), "{text}");
    }

    #[test]
    fn the_queues_keep_the_napi_threads_with_which_the_mode_was_measured() {
        let on_queues = |mode: &str, base: &str| {
            let SubjectFacts::Programs(mut facts) = on_queues(vec![queue("eth0", &[0])]) else { unreachable!() };
            facts.base_is = Some(base.parse().unwrap());
            let text = text("", &SubjectFacts::Programs(facts), mode.parse().unwrap(), "found.json");
            let profile = Profile::parse(&[Source::new("found.toml", text)]).unwrap_or_else(|why| panic!("{why}"));
            assert_eq!(profile.program.unwrap().mode.map(|mode| mode.value.to_string()).as_deref(), Some(mode));
            profile.devices.first().and_then(|device| Some(device.queues[0].mode.as_ref()?.value.to_string()))
        };
        assert_eq!(on_queues("defer200", "threaded").as_deref(), Some("defer200,threaded=1"));
        assert_eq!(on_queues("threaded", "threaded").as_deref(), Some("threaded"));
        assert_eq!(on_queues("defer200", "defer20").as_deref(), Some("defer200"));
        assert_eq!(on_queues("defer200", "threadedbusy"), None, "no mode has both");
    }

    #[test]
    fn a_mode_that_needs_the_preload_library_is_only_for_run() {
        let text = |mode: &str| text("", &on_queues(vec![queue("eth0", &[0])]), mode.parse().unwrap(), "found.json");
        let spins = text("eventspin20");
        assert!(spins.contains("To use it: quell run --profile THIS_FILE -- COMMAND"), "{spins}");
        assert!(!spins.contains("quell attach") && !spins.contains("[device"), "{spins}");
        let polls = text("fullbusy");
        assert!(polls.contains("quell attach") && !polls.contains("[device"), "{polls}");
    }
}
