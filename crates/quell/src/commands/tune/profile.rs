//! The profile that a search hands over: the mode, and the evidence as comments.

use quell_mode::DeliveryMode;

/// Text of the profile. `report` is the result as text, `result_file` its quoted path.
pub(super) fn text(report: &str, mode: DeliveryMode, result_file: &str) -> String {
    let evidence = format!(
        "Found by `quell tune`.\n{}\n\
         All evidence: quell tune --show {result_file}\n\
         To use it: quell attach --profile THIS_FILE PID, or quell run --profile THIS_FILE -- COMMAND",
        report.trim_end()
    );
    let comments = evidence.lines().map(|line| format!("# {}", line.replace(char::is_control, " ")));
    let comments: Vec<String> = comments.map(|line| line.trim_end().to_owned()).collect();
    format!("{}\n\n[program]\nmode = \"{mode}\"\n", comments.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::tune as render;
    use quell_bench::experiment::SubjectFacts;
    use quell_bench::experiment::model::SearchedModel;
    use quell_bench::facts::{HostFacts, ModelFacts};
    use quell_mode::profile::{Profile, Source};
    use quell_sim::sweep::Setup;
    use quell_sim::{HostProfile, Load};
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
        let mut subject = SearchedModel::new(setup, vec![Load::Qps(20_000.0)], plan.seed);
        tune(&mut subject, plan, &mut |_, _| Ok(()), &mut |_| ControlFlow::Continue(())).unwrap().result
    }

    #[test]
    fn equal_seeds_give_equal_results() {
        assert_eq!(searched(), searched());
    }

    #[test]
    fn the_profile_parses_to_the_mode_whatever_the_evidence_contains() {
        let (profile, description) = ("host".to_owned(), String::new());
        let model = SubjectFacts::Model(ModelFacts { profile, description, queues: 1, connections: 560 });
        let report = render::render(&model, &HostFacts::default(), Some("simulated"), &searched());
        let mode = "suspend20,defer-hard-irqs=10".parse().unwrap();
        let text = text(&report, mode, "'/tmp/a\n[program]\nmode = \"fullbusy\"'");
        let profile = Profile::parse(&[Source::new("found.toml", text.clone())]).unwrap_or_else(|why| panic!("{why}"));
        let program = profile.program.unwrap();
        assert_eq!(program.mode.map(|mode| mode.value), Some(mode), "{text}");
        assert!(text.contains("NOT A MEASUREMENT") && text.contains("quell tune --show"), "{text}");
    }
}
