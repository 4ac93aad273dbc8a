//! Runs `quell bench` and `quell tune` on an attached memcached and ends them in every possible way. The attached mode must
//! be back, and `quell detach` must restore the settings from before it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use quell_linux::Pid;
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::process::Child;
use quell_test_support::wait_until;

use super::stage::{Stage, end};

const ATTACHED: &str = "suspend20";
/// A mode whose irq-suspend-timeout shows that a slice of it is measured.
const MODES: &str = "--modes=base,suspend200,irq-suspend-timeout=7ms";
const SWITCHED_NS: u64 = 7_000_000;
const TIMING: [&str; 3] = ["--slice=50", "--settle=5", "--yes"];

struct Attached {
    stage: Stage,
    /// Settings from before the attachment.
    before: BTreeMap<String, String>,
}

impl Attached {
    fn enter(test: &str) -> Option<Self> {
        let mut stage = Stage::enter(test)?;
        stage.says(0, &["attach", ATTACHED, &stage.server.pid().to_string(), "--yes", "--seconds", "0"]);
        let before = stage.begin_here();
        Some(Self { stage, before })
    }

    fn pid(&self) -> String {
        self.stage.server.pid().to_string()
    }

    fn bench(&self, options: &[&str]) -> Child {
        let output = self.stage.file();
        let fixed = ["bench", MODES, "--output", output.to_str().unwrap()];
        self.stage.start(&[&fixed[..], &TIMING, options].concat())
    }

    /// A long experiment that has set a mode of its own.
    fn long_bench(&self) -> Child {
        let bench = self.bench(&["--budget=600s"]);
        self.stage.wait_until_suspended_for(SWITCHED_NS);
        bench
    }

    fn journals(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.stage.dir.path().join("journal")).unwrap();
        files.map(|file| file.unwrap().path()).collect()
    }

    /// Checks that the attached mode is back, and that its end restores the settings from before it.
    fn assert_attached_until_detached(mut self) {
        self.stage.assert_settings_as_before();
        self.stage.says(0, &["detach", &self.pid()]);
        self.stage.expect(self.before);
        self.stage.assert_as_before();
    }
}

#[test]
fn the_attached_mode_is_a_row_of_the_result_and_is_back_at_the_end() {
    let Some(attached) = Attached::enter("bpa-end") else { return };
    let (code, stdout, stderr) = end(attached.bench(&["--budget=4s"]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("the programs are attached (suspend20)"), "{stderr}");
    assert!(stdout.contains("attached: suspend20") && stdout.contains("present"), "{stdout}");
    let result = attached.stage.result();
    assert_eq!(result["subject"]["attached"], ATTACHED);
    let treatments = result["experiments"][0]["record"]["design"]["treatments"].as_array().unwrap();
    let rows: Vec<(&str, &str)> =
        treatments.iter().map(|row| (row["name"].as_str().unwrap(), row["setting"].as_str().unwrap())).collect();
    assert_eq!(rows[1..], [("present", ATTACHED)], "{rows:?}");
    attached.assert_attached_until_detached();
}

#[test]
fn an_attached_mode_that_is_one_of_the_given_ones_has_no_second_row() {
    let Some(attached) = Attached::enter("bpa-same") else { return };
    let output = attached.stage.file();
    let bench = ["bench", "--modes=base,suspend20", "--budget=3s", "--output", output.to_str().unwrap()];
    let (code, _, stderr) = end(attached.stage.start(&[&bench[..], &TIMING].concat()));
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(attached.stage.result()["experiments"][0]["record"]["design"]["treatments"][0]["name"], ATTACHED);
    attached.assert_attached_until_detached();
}

#[test]
fn base_is_the_state_from_before_the_attachment() {
    let Some(mut stage) = Stage::enter("bpa-base") else { return };
    let path = stage.dir.path().join("defer50.toml");
    let text = "[device.lab]\nname = \"server0\"\n[device.lab.queues.all]\nmode = \"defer50\"\n";
    std::fs::write(&path, text).unwrap();
    stage.says(0, &["apply", "--netns", &stage.lab.server_name, path.to_str().unwrap()]);
    stage.begin_here();
    stage.says(0, &["attach", ATTACHED, &stage.server.pid().to_string(), "--yes", "--seconds", "0"]);
    let before = stage.begin_here();
    let attached = Attached { stage, before };
    let (code, _, stderr) = end(attached.bench(&["--budget=4s"]));
    assert_eq!(code, Some(0), "{stderr}");
    let reference = &attached.stage.result()["experiments"][0]["record"]["design"]["reference"];
    assert_eq!(reference["name"], "defer50");
    attached.stage.assert_settings_as_before();
    attached.stage.says(0, &["detach", &attached.pid()]);
    let Attached { mut stage, before } = attached;
    stage.expect(before);
    stage.assert_settings_as_before();
    stage.says(0, &["revert"]);
}

#[test]
fn after_a_signal_or_a_kill_the_attached_mode_is_back() {
    for (test, signal) in [("bpa-int", Signal::INT), ("bpa-kill", Signal::KILL)] {
        let Some(attached) = Attached::enter(test) else { return };
        let bench = attached.long_bench();
        bench.pidfd().signal(signal).unwrap();
        let _ = end(bench);
        attached.assert_attached_until_detached();
    }
}

#[test]
fn the_attachment_shows_no_drift_and_its_follower_says_nothing_during_an_experiment() {
    let Some(mut stage) = Stage::enter("bpa-follow") else { return };
    let pid = stage.server.pid().to_string();
    let follower = stage.start_without_pid(&["attach", ATTACHED, &pid, "--yes", "--seconds", "0", "--follow"]);
    let said = || String::from_utf8(follower.stderr_tail().unwrap()).unwrap();
    wait_until(|| if said().contains("following: ") { Ok(()) } else { Err(said()) });
    let before = stage.begin_here();
    let attached = Attached { stage, before };
    let bench = attached.long_bench();
    let status = attached.stage.says(0, &["status"]);
    assert!(!status.contains("drift") && status.contains("experiment"), "{status}");
    attached.stage.wait_until_slices_of_the_present_setting_were_measured();
    bench.pidfd().signal(Signal::INT).unwrap();
    let _ = end(bench);
    attached.stage.assert_settings_as_before();
    let Attached { mut stage, before } = attached;
    stage.says(0, &["detach", &pid]);
    let (_, stdout, stderr) = end(follower);
    for said in ["changed by another program", "could not set", "in effect", "stall"] {
        assert!(!stderr.contains(said) && !stdout.contains(said), "{stdout}{stderr}");
    }
    stage.expect(before);
    stage.assert_as_before();
}

#[test]
fn detach_ends_the_experiment_and_the_attachment() {
    let Some(mut attached) = Attached::enter("bpa-detach") else { return };
    let bench = attached.long_bench();
    let detached = attached.stage.says(0, &["detach", &attached.pid()]);
    assert!(detached.contains("(experiment)") && detached.contains("(suspend20)"), "{detached}");
    let (code, _, stderr) = end(bench);
    assert_eq!(code, Some(130), "{stderr}");
    attached.stage.expect(attached.before);
    attached.stage.assert_as_before();
}

#[test]
fn the_experiment_outlives_the_keeper_of_the_attachment_whose_mode_the_next_command_undoes() {
    let Some(mut attached) = Attached::enter("bpa-keeper") else { return };
    let [journal] = &attached.journals()[..] else { panic!("one journal") };
    let bench = attached.long_bench();
    let text = std::fs::read_to_string(journal).unwrap();
    let maintained_by = text.lines().rfind(|line| line.contains("maintained-by")).unwrap();
    let record: serde_json::Value = serde_json::from_str(maintained_by.split_once(' ').unwrap().1).unwrap();
    let keeper = PidFd::open(Pid::new(record["pid"].as_i64().unwrap().try_into().unwrap()).unwrap()).unwrap();
    keeper.signal(Signal::KILL).unwrap();
    attached.stage.wait_until_slices_of_the_present_setting_were_measured();
    bench.pidfd().signal(Signal::INT).unwrap();
    let (code, _, stderr) = end(bench);
    assert_eq!(code, Some(130), "{stderr}");
    attached.stage.assert_settings_as_before();
    attached.stage.says(0, &["revert"]);
    attached.stage.expect(attached.before);
    attached.stage.assert_as_before();
}

#[test]
fn a_search_compares_with_the_attached_mode_and_does_not_replace_it() {
    let Some(attached) = Attached::enter("bpa-tune") else { return };
    let output = attached.stage.file();
    let tune = ["tune", "--goal=least cpu", "--budget=20s", "--output", output.to_str().unwrap()];
    let tune = [&tune[..], &TIMING].concat();
    let (_, stdout, stderr) = end(attached.stage.start(&tune));
    assert_eq!(attached.stage.result()["search"]["plan"]["present"], ATTACHED, "{stdout}{stderr}");
    let (code, _, stderr) = end(attached.stage.start(&[&tune[..], &["--keep"]].concat()));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("is already attached (attach suspend20)"), "{stderr}");
    attached.assert_attached_until_detached();
}
