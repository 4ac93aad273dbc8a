//! Applies a profile of about fifty changes to a 16-queue veth: verified, drifted, restored; stopped and killed after
//! every single write. Needs root and Linux 6.13.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;

use quell_change::drift::{condition, reassert};
use quell_change::journal::{Journal, Watchdog};
use quell_change::persistent;
use quell_change::recovery::{Found, recover};
use quell_change::transaction::ChangeStage;
use quell_host::apply::{self, ApplyError, ApplyRequest, observe};
use quell_host::plan::ProfilePlan;
use quell_host::snapshot::Device;
use quell_linux::netdev::{Netdev, PartialNapiSettings};
use quell_linux::netns::NamespaceName;
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::sysfs::Sysfs;
use quell_linux::{CpuList, InterfaceName, Pid};
use quell_mode::profile::{Profile, Source};
use quell_test_support::entry;
use quell_test_support::lab::{TestLab, go_on};

const QUEUES: u32 = 16;
const PROFILE: &str = r#"
[device.lab]
name = "server0"
[device.lab.queues.all]
mode = "suspend20"
xps = "off"
rps = false
[sysctl]
"net.core.somaxconn" = 1234
"net.ipv4.tcp_slow_start_after_idle" = 0
"#;
const STAGES: [ChangeStage; 3] = [ChangeStage::Before, ChangeStage::Journalled, ChangeStage::Made];

fn profile(text: &str) -> Profile {
    Profile::parse(&[Source::new("test.toml", text)]).unwrap()
}

/// A lab with RPS and XPS configured, so that the profile has to change them.
fn raise(test: &str) -> Option<(TestLab, NamespaceName)> {
    let lab = TestLab::raise(test, QUEUES)?;
    let sysfs = Sysfs::of(&lab.server).unwrap();
    let device = sysfs.net_class(&InterfaceName::new("server0").unwrap());
    let cpu: CpuList = "0".parse().unwrap();
    for queue in 0..QUEUES {
        device.set_rps_cpus(queue, &cpu).unwrap();
        device.set_xps_cpus(queue, &cpu).unwrap();
        device.set_xps_rxqs(queue, &[queue]).unwrap();
    }
    let name = NamespaceName::new(lab.server_name.clone()).unwrap();
    Some((lab, name))
}

/// State of the host that the profile covers, without counters and without IDs that are reassigned.
fn state(netns: &NamespaceName, profile: &Profile) -> (Vec<String>, String) {
    let observed = observe(Some(netns), profile).unwrap();
    let of_device = |device: &Device| {
        let napis = device.napis.known_elements().map(|napi| {
            let settings = (&napi.defer_hard_irqs, &napi.gro_flush_timeout_ns, &napi.irq_suspend_timeout_ns);
            format!("{settings:?} {:?}", napi.threading)
        });
        let rx = device.rx_queues.known_elements().map(|queue| format!("rps {:?}", queue.rps_cpus));
        let tx =
            device.tx_queues.known_elements().map(|queue| format!("xps {:?} {:?}", queue.xps_cpus, queue.xps_rxqs));
        napis.chain(rx).chain(tx).collect::<Vec<_>>().join("\n")
    };
    (observed.snapshot.devices.iter().map(of_device).collect(), format!("{:?}", observed.sysctls))
}

fn request<'a>(netns: &'a NamespaceName, profile: &'a Profile) -> ApplyRequest<'a> {
    ApplyRequest { netns: Some(netns), profile, name: "test.toml", content: 0, skip_impossible: false }
}

#[test]
fn an_applied_profile_lasts_until_its_release() {
    let Some((lab, netns)) = raise("apply") else { return };
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let profile = profile(PROFILE);
    let before = state(&netns, &profile);

    let applied = apply::apply(&journal, &request(&netns, &profile), None, &mut go_on).unwrap();
    assert!(applied.plan.steps.len() >= 40, "{} changes", applied.plan.steps.len());
    assert!(ProfilePlan::of(&observe(Some(&netns), &profile).unwrap(), &profile).steps.is_empty(), "no change is left");
    let again = apply::apply(&journal, &request(&netns, &profile), None, &mut go_on).unwrap();
    assert!(again.journal.is_none(), "applying twice changes nothing");

    let kept = persistent::list(&journal).unwrap();
    assert_eq!(kept[0].history.begin.purpose.profile(), Some("test.toml"));
    let drifted = || condition(&kept[0].path, &kept[0].history).unwrap().drifted;
    assert!(drifted().is_empty());
    let mut netdev = Netdev::open_in(&lab.server).unwrap();
    netdev
        .set_napi(
            lab.napis[3],
            &PartialNapiSettings { gro_flush_timeout_ns: Some(7), ..PartialNapiSettings::default() },
        )
        .unwrap();
    let changed = drifted();
    assert_eq!((changed.len(), changed[0].queue), (1, Some(3)), "{changed:?}");
    assert_eq!(reassert(&kept[0].path, &kept[0].history).unwrap().drifted, changed);
    assert!(drifted().is_empty());

    let reverted = persistent::release(&journal, &kept[0].path).unwrap().unwrap();
    assert_eq!((reverted.undone.len(), reverted.failed.len()), (applied.plan.steps.len(), 0), "{reverted:?}");
    assert_eq!(state(&netns, &profile), before);
}

#[test]
fn a_second_profile_is_refused_while_one_is_applied() {
    let Some((_lab, netns)) = raise("second") else { return };
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    apply::apply(&journal, &request(&netns, &profile(PROFILE)), None, &mut go_on).unwrap();
    let other = profile("[sysctl]\n\"net.core.somaxconn\" = 99\n");
    let before = state(&netns, &other);
    let refused = apply::apply(&journal, &request(&netns, &other), None, &mut go_on);
    assert!(matches!(refused, Err(ApplyError::AlreadyApplied { .. })), "{refused:?}");
    assert_eq!(state(&netns, &other), before);
    let kept = persistent::list(&journal).unwrap();
    persistent::release(&journal, &kept[0].path).unwrap();
}

#[test]
fn a_profile_whose_watchdog_has_exited_is_restored() {
    let Some((_lab, netns)) = raise("unwatched") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (journal, profile) = (Journal::in_dir(dir.path()), profile(PROFILE));
    let before = state(&netns, &profile);
    let mut exited = |_: &Path| {
        let mut watchdog = Command::new("true").spawn().unwrap();
        watchdog.wait().unwrap();
        Ok(Watchdog { pid: Pid::from_kernel(watchdog.id()).unwrap(), start_time_ticks: 1, deadline_unix_s: 0 })
    };
    let unwatched = apply::apply(&journal, &request(&netns, &profile), Some(&mut exited), &mut go_on);
    let Err(ApplyError::WatchdogEnded { reverted: Ok(reverted), .. }) = unwatched else { panic!("{unwatched:?}") };
    assert!(reverted.failed.is_empty() && reverted.partial.is_empty(), "{reverted:?}");
    assert_eq!(state(&netns, &profile), before);
    assert!(journal.list().unwrap().is_empty());
}

#[test]
fn a_profile_with_an_impossible_setting_is_refused_before_any_change() {
    let Some((_lab, netns)) = raise("cannot") else { return };
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let profile = profile(&format!("{PROFILE}\n[device.lab.rings]\nrx = 512\n"));
    let before = state(&netns, &profile);
    let refused = apply::apply(&journal, &request(&netns, &profile), None, &mut go_on);
    let Err(ApplyError::Impossible(plan)) = refused else { panic!("{refused:?}") };
    assert_eq!(plan.impossible.len(), 1, "{:?}", plan.impossible);
    assert_eq!(state(&netns, &profile), before);
    assert!(journal.list().unwrap().is_empty());

    let skipping = ApplyRequest { skip_impossible: true, ..request(&netns, &profile) };
    let applied = apply::apply(&journal, &skipping, None, &mut go_on).unwrap();
    persistent::release(&journal, &applied.journal.unwrap()).unwrap();
    assert_eq!(state(&netns, &profile), before);
}

#[test]
fn an_apply_that_is_stopped_at_any_stage_restores_everything() {
    let Some((_lab, netns)) = raise("stopped") else { return };
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let profile = profile(PROFILE);
    let before = state(&netns, &profile);
    let steps = ProfilePlan::of(&observe(Some(&netns), &profile).unwrap(), &profile).steps.len();
    for number in 0..steps {
        for stage in STAGES {
            let mut stop = |at: usize, now: ChangeStage| match (at, now) == (number, stage) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            };
            let stopped = apply::apply(&journal, &request(&netns, &profile), None, &mut stop);
            let Err(ApplyError::Change { reverted: Ok(reverted), .. }) = stopped else { panic!("{stopped:?}") };
            assert!(reverted.failed.is_empty() && reverted.partial.is_empty(), "{reverted:?}");
            assert_eq!(state(&netns, &profile), before, "stopped at {stage:?} of change {number}");
        }
    }
    assert!(journal.list().unwrap().is_empty());
    eprintln!("{} cases: stopped at {} stages of {steps} changes", steps * STAGES.len(), STAGES.len());
}

const KILLED_AT: &str = "QUELL_TEST_KILLED_AT";

/// Not a test: applies the profile and kills itself at the given point.
#[test]
#[ignore = "the program of a process that other tests start"]
fn applies_and_is_killed() {
    let Ok(arguments) = std::env::var(KILLED_AT) else { return };
    let [dir, netns, number, stage] = arguments.split(' ').collect::<Vec<_>>()[..] else { panic!("{arguments}") };
    let (number, stage): (usize, usize) = (number.parse().unwrap(), stage.parse().unwrap());
    let (netns, profile) = (NamespaceName::new(netns).unwrap(), profile(PROFILE));
    let mut kill = |at: usize, now: ChangeStage| {
        if (at, now) == (number, STAGES[stage]) {
            PidFd::open(Pid::of_this_process()).unwrap().signal(Signal::KILL).unwrap();
        }
        ControlFlow::Continue(())
    };
    apply::apply(&Journal::in_dir(dir), &request(&netns, &profile), None, &mut kill).unwrap();
}

fn killed(dir: &Path, netns: &NamespaceName, number: usize, stage: usize) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(entry(applies_and_is_killed))
        .arg("--test-threads=1")
        .env(KILLED_AT, format!("{} {netns} {number} {stage}", dir.display()))
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status:?}");
}

#[test]
fn an_apply_that_is_killed_at_any_stage_is_undone_by_the_next_command() {
    let Some((_lab, netns)) = raise("killed") else { return };
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let profile = profile(PROFILE);
    let before = state(&netns, &profile);
    let steps = ProfilePlan::of(&observe(Some(&netns), &profile).unwrap(), &profile).steps.len();
    for number in 0..steps {
        for (index, stage) in STAGES.iter().enumerate() {
            killed(dir.path(), &netns, number, index);
            let found = recover(&journal).unwrap();
            let [Found::Recovered { reverted, .. }] = &found[..] else { panic!("{found:?}") };
            assert!(reverted.failed.is_empty() && reverted.partial.is_empty(), "{reverted:?}");
            assert_eq!(state(&netns, &profile), before, "killed at {stage:?} of change {number}");
        }
    }
    assert!(recover(&journal).unwrap().is_empty(), "no journal is left");
    eprintln!("{} cases: killed at {} stages of {steps} changes", steps * STAGES.len(), STAGES.len());
}
