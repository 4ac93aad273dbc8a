//! Runs `quell tune --pid` on memcached with live traffic. Each test checks that the queues and epolls are restored.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use quell_linux::CpuList;
use quell_linux::pidfd::Signal;
use quell_linux::proc::ProcRoot;
use quell_linux::process::Child;
use quell_linux::sched;
use quell_mode::PartialNapiSettings;
use quell_test_support::wait_until;

use super::stage::{Stage, assert_reported_and_restored, end};

/// A server beside that of the stage.
const SECOND_SERVER: &str = "memcached -u root -U 0 -t 1 -l 192.0.2.1 -p 11212";

const LONG: &[&str] = &["--goal=least cpu", "--budget=600s", "--yes"];

/// Interval at which the client sends. Its rate does not depend on the mode, and little on other programs.
const PAUSE: Duration = Duration::from_millis(2);

fn enter(test: &str) -> Option<Stage> {
    Stage::enter_with(test, PAUSE)
}

fn start(stage: &Stage, options: &[&str]) -> Child {
    let file = stage.file();
    let slice = if options.iter().any(|option| option.starts_with("--slice")) { &[][..] } else { &["--slice=50"] };
    let fixed = ["tune", "--settle=5", "--seed=1", "--output", file.to_str().unwrap()];
    stage.start(&[&fixed[..], slice, options].concat())
}

fn run(stage: &Stage, options: &[&str]) -> (Option<i32>, String, String) {
    end(start(stage, options))
}

/// A command that measures a latency of 5 ms while the server's queue is suspended, and of 100 µs otherwise.
fn suspension_is_slow(stage: &Stage) -> String {
    latency(stage, "echo p99-us 5000", "echo p99-us 100")
}

fn latency(stage: &Stage, suspended: &str, otherwise: &str) -> String {
    let (quell, netns) = (env!("CARGO_BIN_EXE_quell"), &stage.lab.server_name);
    let is_suspended = format!("{quell} show -j --netns {netns} | grep -Eq \"irq-suspend-timeout.*[1-9]\"");
    format!("--latency=sh -c 'if {is_suspended}; then {suspended}; else {otherwise}; fi'")
}

/// A command that measures a latency of 5 ms under every mode that defers interrupts, and of 100 µs otherwise. It writes
/// the gro-flush-timeout of each slice to `log`.
fn deferral_is_slow(stage: &Stage, log: &Path) -> String {
    let (quell, netns, log) = (env!("CARGO_BIN_EXE_quell"), &stage.lab.server_name, log.to_str().unwrap());
    let timeout =
        format!("{quell} show -j --netns {netns} | grep -Eo \"gro-flush-timeout[^0-9]*[1-9][0-9]*\" | head -1");
    let script = format!(
        "t=$({timeout}); echo \"$t\" >> {log}; if [ -n \"$t\" ]; then echo p99-us 5000; else echo p99-us 100; fi"
    );
    format!("--latency=sh -c '{script}'")
}

#[test]
fn a_search_under_live_traffic_answers_and_restores() {
    let Some(stage) = enter("tp-live") else { return };
    let (code, stdout, stderr) = run(&stage, &["--goal=least cpu", "--budget=9s", "--yes"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("live traffic") && !stdout.contains("NOT A MEASUREMENT"), "{stdout}");
    assert_eq!(stage.result()["search"]["end"]["kind"], "answered", "{stdout}");
    assert_eq!(stage.result()["search"]["plan"]["present"], "base");
    assert_reported_and_restored(&stage.result()["settings"], &["base"]);
    stage.assert_as_before();
}

#[test]
fn a_plan_is_printed_without_any_change() {
    let Some(stage) = enter("tp-plan") else { return };
    let (code, stdout, stderr) = run(&stage, &["--goal=least cpu", "--keep", "--dry-run"]);
    assert_eq!(code, Some(0), "{stderr}");
    for said in [
        "memcached",
        "1 queue",
        "suspend",
        "at most 180 s",
        "restored",
        "  skips ",
        "start it with `quell run`",
        "would leave a better mode attached",
    ] {
        assert!(stdout.contains(said), "no {said:?} in {stdout}");
    }
    assert!(!stage.file().exists());
    stage.assert_as_before();
}

#[test]
fn without_a_terminal_a_search_needs_yes() {
    let Some(stage) = enter("tp-ask") else { return };
    let (code, _, stderr) = run(&stage, &["--goal=least cpu"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("nothing was changed (in scripts, use --yes)"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn settings_of_the_operator_are_the_present_setting_and_are_restored() {
    let Some(mut stage) = enter("tp-own") else { return };
    stage.set_as_an_operator();
    let (code, _, stderr) = run(&stage, &["--goal=least cpu", "--budget=9s", "--yes"]);
    assert_eq!(code, Some(0), "{stderr}");
    let present = "base,defer-hard-irqs=3,gro-flush-timeout=123us";
    assert_eq!(stage.result()["search"]["plan"]["present"], present);
    stage.assert_as_before();
}

#[test]
fn the_present_setting_is_known_if_only_the_command_that_measures_sends() {
    let Some(mut stage) = enter("tp-judge") else { return };
    stage.stop_clients();
    stage.set_as_an_operator();
    let judge = stage.load("--rate 1K --warm-up 0.1 --seconds 0.3 --figures");
    let search = start(&stage, &["--goal=least cpu", "--budget=600s", "--yes", &format!("--latency={judge}")]);
    let now = || stage.lab.napi().settings;
    let before = now();
    wait_until(|| if now() == before { Err("no other mode is set".to_owned()) } else { Ok(()) });
    search.pidfd().signal(Signal::INT).unwrap();
    let (code, stdout, stderr) = end(search);
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stderr.contains("1 queue of server0") && !stdout.contains("0 queues"), "{stderr}{stdout}");
    assert_eq!(stage.result()["search"]["plan"]["present"], "base,defer-hard-irqs=3,gro-flush-timeout=123us");
    stage.assert_as_before();
}

#[test]
fn the_mode_with_the_lower_latency_is_found_written_to_a_profile_and_kept() {
    let Some(stage) = enter("tp-keep") else { return };
    let profile = stage.dir.path().join("found.toml");
    let latency = latency(&stage, "echo p99-us 100", "echo p99-us 5000");
    let options = ["--goal=lowest p99", "--budget=90s", "--slice=20", "--yes", "--keep", "--profile"];
    let (code, stdout, stderr) = run(&stage, &[&options[..], &[profile.to_str().unwrap(), &latency]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.starts_with("memcached") && stdout.contains("is better than base"), "{stdout}");
    let text = std::fs::read_to_string(&profile).unwrap();
    assert!(text.contains("mode = \"suspend"), "{text}");
    assert!(stage.lab.napi().settings.irq_suspend_timeout_ns.is_some_and(|timeout| timeout > 0), "{stderr}");
    let quell = |command: &[&str]| {
        let (code, stdout, stderr) = end(stage.start_without_pid(command));
        assert_eq!(code, Some(0), "{command:?}: {stderr}");
        stdout + &stderr
    };
    let suspends = || stage.lab.napi().settings.irq_suspend_timeout_ns.is_some_and(|timeout| timeout > 0);
    let (pid, netns, file) =
        (stage.server.pid().to_string(), stage.lab.server_name.as_str(), profile.to_str().unwrap());
    quell(&["detach", &pid]);
    stage.assert_as_before();
    // The other commands use the same file: for the program, and for the queues alone.
    quell(&["attach", &format!("--profile={file}"), &pid, "--yes", "--seconds=0"]);
    assert!(suspends());
    quell(&["detach", &pid]);
    stage.assert_as_before();
    let said = quell(&["apply", "--netns", netns, file]);
    assert!(said.contains("the [program] table of") && suspends(), "{said}");
    quell(&["revert"]);
    stage.assert_as_before();
}

#[test]
fn a_mode_that_violates_a_guard_is_abandoned_and_not_set_again() {
    let Some(stage) = enter("tp-guard") else { return };
    let options = ["--goal=least cpu", "--budget=30s", "--never=p99>1ms", "--yes", &suspension_is_slow(&stage)];
    let (code, stdout, stderr) = run(&stage, &options);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("abandoned: p99>1000us"), "{stdout}");
    let result = stage.result();
    let arms = result["search"]["arms"].as_array().unwrap();
    let suspended = || arms.iter().filter(|arm| arm["mode"].as_str().unwrap().starts_with("suspend"));
    assert!(suspended().any(|arm| arm["state"]["kind"] == "violated-guard"), "{arms:?}");
    for arm in suspended() {
        assert_eq!(arm["slices"], 0, "a slice that violates a guard is not one of the search: {arm}");
    }
    stage.assert_as_before();
}

#[test]
fn each_mode_that_violates_a_guard_is_left_after_one_slice_in_20_of_20() {
    let Some(stage) = enter("tp-once") else { return };
    let mut left = 0;
    while left < 20 {
        let log = stage.dir.path().join("slices");
        let slow = deferral_is_slow(&stage, &log);
        let (code, _, stderr) =
            run(&stage, &["--goal=least cpu", "--budget=30s", "--slice=20", "--never=p99>1ms", "--yes", &slow]);
        assert_eq!(code, Some(0), "{stderr}");
        let mut slices: BTreeMap<String, usize> = BTreeMap::new();
        let text = std::fs::read_to_string(&log).unwrap();
        text.lines().filter(|line| !line.is_empty()).for_each(|line| *slices.entry(line.to_owned()).or_default() += 1);
        let result = stage.result();
        let arms = result["search"]["arms"].as_array().unwrap();
        let abandoned = arms.iter().filter(|arm| arm["state"]["kind"] == "violated-guard").count();
        // defer160 and suspend160 have the same gro-flush-timeout.
        assert_eq!(
            slices.values().sum::<usize>(),
            abandoned,
            "a mode that violates the guard had a second slice: {slices:?}"
        );
        assert!(abandoned > 0);
        left += abandoned;
        std::fs::remove_file(&log).unwrap();
        stage.assert_as_before();
    }
}

#[test]
#[ignore = "takes minutes; run with --ignored --nocapture"]
fn figures_of_how_long_a_mode_that_violates_a_guard_is_set() {
    let Some(stage) = enter("tp-left") else { return };
    let mut set_ms: Vec<u128> = Vec::new();
    while set_ms.len() < 20 {
        let guard = "--never=p99>1ms";
        let mut quell =
            start(&stage, &["--goal=least cpu", "--budget=30s", guard, "--yes", &suspension_is_slow(&stage)]);
        // Each suspending mode has another gro-flush-timeout. The queue is watched until the search ends.
        let mut since: Option<(Instant, Option<u64>)> = None;
        while quell.wait(Duration::from_millis(1)).unwrap().is_none() {
            let now = stage.lab.napi().settings;
            let suspended = now.irq_suspend_timeout_ns.is_some_and(|ns| ns > 0).then_some(now.gro_flush_timeout_ns);
            if since.map(|(_, mode)| mode) != suspended {
                set_ms.extend(since.map(|(began, _)| began.elapsed().as_millis()));
                since = suspended.map(|mode| (Instant::now(), mode));
            }
        }
        let (code, _, stderr) = end(quell);
        assert_eq!(code, Some(0), "{stderr}");
        stage.assert_as_before();
    }
    println!("modes that violate a guard were set for {set_ms:?} ms");
    let in_time = set_ms.iter().filter(|ms| **ms < 1_000).count();
    println!("{in_time} of {} were left within a second", set_ms.len());
}

#[test]
fn a_guard_that_cannot_be_read_ends_the_search() {
    let Some(stage) = enter("tp-blind") else { return };
    let errors = latency(&stage, "echo p99-us 100", "echo errors 0");
    let (code, _, stderr) = run(&stage, &[LONG, &["--never=errors", &errors]].concat());
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("the guard errors cannot be read, so nothing protects the server"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn metrics_that_cannot_be_read_are_refused_before_any_change() {
    let Some(stage) = enter("tp-names") else { return };
    let figures = "--latency=echo p50-us 7";
    for (options, said) in [
        (&["--goal=least foo", "--yes"][..], "the goal needs foo"),
        (&["--goal=p99<=300us, least cpu", "--dry-run"], "need --latency"),
        (&["--goal=least cpu", "--never=stall", "--yes"], "did you mean stalls?"),
        (&["--goal=lowest p99", "--yes", figures], "did not print it in a first run"),
    ] {
        let (code, _, stderr) = run(&stage, options);
        assert_eq!(code, Some(1), "{options:?}: {stderr}");
        assert!(stderr.contains(said) && stderr.contains("nothing was changed"), "{options:?}: {stderr}");
        assert!(!stage.file().exists());
        stage.assert_as_before();
    }
}

#[test]
fn advice_for_a_running_program_uses_what_it_can_see_and_changes_nothing() {
    let Some(stage) = enter("tp-advise") else { return };
    let (code, stdout, stderr) =
        end(stage.start(&["tune", "--advise", "--goal=least cpu", "--slice=20", "--settle=20"]));
    assert_eq!(code, Some(0), "{stderr}");
    for said in ["seen here: 1 queue, ", "present setting base", "packets/s", "modes ranked by the model of"] {
        assert!(stdout.contains(said), "no {said:?} in {stdout}");
    }
    // At a low CPU share, `base` is the first.
    assert!(stdout.contains("quell bench --pid ") || stdout.contains("knows no other mode"), "{stdout}");
    stage.assert_as_before();
}

#[test]
fn a_napi_thread_whose_cpu_time_is_not_measured_is_not_tried_for_less_cpu_time() {
    let Some(stage) = enter("tp-pinned") else { return };
    let tries_threads = |goal: &str| {
        let (code, stdout, stderr) = run(&stage, &[goal, "--dry-run"]);
        assert_eq!(code, Some(0), "{stderr}");
        stdout.split("skips").next().unwrap().contains("threadedbusy")
    };
    let is_possible = tries_threads("--goal=lowest wait-p99-us");
    for tid in ProcRoot::default().process(stage.server.pid()).tids().unwrap() {
        sched::set_affinity(tid, &[0].into_iter().collect()).unwrap();
    }
    assert!(!tries_threads("--goal=busy<=50%, lowest wait-p99-us"));
    assert_eq!(tries_threads("--goal=lowest wait-p99-us"), is_possible);
}

#[test]
fn polling_threads_are_tried_only_on_cpus_that_the_programs_leave() {
    let Some(stage) = enter("tp-poller") else { return };
    let plan = || {
        let (code, stdout, stderr) = run(&stage, &["--goal=least cpu", "--dry-run"]);
        assert_eq!(code, Some(0), "{stderr}");
        stdout
    };
    let is_tried = |plan: &str| plan.split("skips").next().unwrap().contains("userbusy");
    let free = plan();
    if free.contains("io_uring") {
        return;
    }
    // One for the polling thread, one for the worker, and one that is left.
    let is_enough = CpuList::online(quell_linux::kernel::sysfs()).unwrap().len() > 2;
    assert_eq!(is_tried(&free), is_enough, "{free}");
    for tid in ProcRoot::default().process(stage.server.pid()).tids().unwrap() {
        sched::set_affinity(tid, &[0].into_iter().collect()).unwrap();
    }
    let pinned = plan();
    assert!(!is_tried(&pinned), "{pinned}");
    assert!(pinned.contains("its 1 polling thread and 1 worker would share CPUs 0,"), "{pinned}");
}

#[test]
fn a_search_measures_polling_threads_and_leaves_none() {
    let Some(stage) = enter("tp-polled") else { return };
    let (code, stdout, stderr) = run(&stage, &["--goal=least cpu", "--budget=9s", "--yes"]);
    assert_eq!(code, Some(0), "{stderr}");
    let result = stage.result();
    let arms = result["search"]["arms"].as_array().unwrap();
    let Some(userbusy) = arms.iter().find(|arm| arm["mode"] == "userbusy") else {
        assert!(stdout.contains("userbusy"), "neither tried nor skipped: {stdout}");
        return;
    };
    assert!(userbusy["slices"].as_u64().unwrap() > 0, "{userbusy}");
    stage.assert_as_before();
}

#[test]
fn a_load_command_is_the_load_and_ends_with_the_search() {
    let Some(mut stage) = enter("tp-load") else { return };
    stage.stop_clients();
    stage.begin_here();
    let load = format!("--load={}", stage.load("--rate 2K --seconds 600"));
    // The number of packets per request depends on the machine.
    let counts = "--latency=echo requests 100";
    let (code, stdout, stderr) = run(&stage, &["--goal=least cpu", "--budget=15s", "--yes", &load, counts]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("load: "), "{stdout}");
    assert_eq!(stage.result()["search"]["end"]["kind"], "answered", "{stdout}");
    stage.assert_as_before();
}

#[test]
fn a_search_on_a_command_answers_and_leaves_nothing() {
    let Some(stage) = enter("tp-command") else { return };
    let judge = format!(
        "--latency={}",
        stage.load("--rate 2K --warm-up 0.02 --seconds 0.1 --figures").replace(":11211", ":11212")
    );
    let options = ["--goal=least cpu", "--slice=100", "--settle=20", "--budget=40s", "--yes", &judge];
    let (code, stdout, stderr) = end(stage.start_command(&options, SECOND_SERVER));
    // A busy machine can start the command too slowly for the budget.
    let end = match stage.result()["search"]["end"]["kind"].as_str().unwrap() {
        "budget-spent" => Some(3),
        "answered" => Some(0),
        other => panic!("{other}: {stdout} {stderr}"),
    };
    assert_eq!(code, end, "{stdout} {stderr}");
    assert!(stage.result()["search"]["slices"].as_array().unwrap().len() > 10, "{stdout}");
    assert_eq!(stage.result()["subject"]["kind"], "command");
    stage.assert_as_before();
}

#[test]
fn a_search_on_a_command_needs_the_figures_of_its_goal_from_a_first_run() {
    let Some(stage) = enter("tp-first") else { return };
    for (latency, why) in [("false", "exit status: 1"), ("echo p50-us 7", "did not print it in a first run")] {
        let latency = format!("--latency={latency}");
        let options = ["--goal=lowest p99", "--slice=50", "--settle=20", "--budget=120s", "--yes", &latency];
        let (code, _, stderr) = end(stage.start_command(&options, SECOND_SERVER));
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains(why), "{stderr}");
        stage.assert_as_before();
    }
}

#[test]
fn a_search_on_a_command_without_load_says_so() {
    let Some(stage) = enter("tp-no-load") else { return };
    let options = ["--goal=least cpu", "--slice=20", "--settle=20", "--budget=120s", "--yes"];
    let (code, _, stderr) = end(stage.start_command(&options, SECOND_SERVER));
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("--load and --latency are absent"), "{stderr}");
    let said = ["nothing has sent requests to the command", "there is no load"];
    assert!(said.iter().any(|said| stderr.contains(said)), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn a_clock_that_jumps_changes_nothing() {
    let Some(stage) = enter("tp-clock") else { return };
    let Some(library) = stage.compile_library("jumping_clock") else { return };
    let file = stage.file();
    let options = ["--goal=least cpu", "--budget=9s", "--yes", "--slice=50", "--settle=5", "--seed=1", "--output"];
    let pid = stage.server.pid().to_string();
    let command = [&["tune"][..], &options, &[file.to_str().unwrap(), "--pid", &pid]].concat();
    let (code, stdout, stderr) = end(stage.start_with(&command, |spawn| spawn.env("LD_PRELOAD", &library)));
    assert_eq!(code, Some(0), "{stderr}");
    let result = stage.result();
    assert_eq!(result["search"]["end"]["kind"], "answered", "{stdout}");
    // Each reading of the clock jumps by two hours.
    let slices = result["search"]["slices"].as_array().unwrap();
    let spent_ms = slices.iter().map(|slice| slice["observation"]["spent-ms"].as_f64().unwrap());
    assert!(spent_ms.sum::<f64>() < 3_600_000.0, "{result}");
    stage.assert_as_before();
}

#[test]
fn slices_that_are_too_long_for_a_guard_are_refused() {
    let Some(stage) = enter("tp-slow") else { return };
    let (code, _, stderr) = run(&stage, &[LONG, &["--never=drops>100", "--slice=1000"]].concat());
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("can take at most 899 ms together; they take 1005 ms"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn modes_under_which_a_latency_command_hangs_twice_are_left_out() {
    let Some(stage) = enter("tp-hang") else { return };
    let hangs = latency(&stage, "sleep 1000", "echo p99-us 100");
    let (code, stdout, stderr) = run(&stage, &["--goal=least cpu", "--budget=40s", "--never=p99>1ms", "--yes", &hangs]);
    assert!([Some(0), Some(3)].contains(&code), "{stderr}");
    let result = stage.result();
    let arms = result["search"]["arms"].as_array().unwrap();
    let is_left_out = |arm: &&serde_json::Value| {
        let reason = arm["state"]["reason"].as_str().unwrap_or_default();
        arm["mode"].as_str().unwrap().starts_with("suspend") && reason.contains("did not exit within")
    };
    assert!(arms.iter().any(|arm| is_left_out(&arm)), "{stdout}");
    stage.assert_as_before();
}

#[test]
fn a_guard_that_the_present_setting_violates_is_named_with_its_value() {
    let Some(stage) = enter("tp-present") else { return };
    let options = ["--goal=least cpu", "--budget=20s", "--never=p99>1ms", "--yes", "--latency=echo p99-us 37000"];
    let (code, _, stderr) = run(&stage, &options);
    assert_eq!(code, Some(3), "{stderr}");
    assert!(
        stderr.contains("violated p99>1000us, as the present setting does") && stderr.contains("'p99>1.1x'"),
        "{stderr}"
    );
    stage.assert_as_before();
}

#[test]
fn a_load_that_vanishes_ends_the_search() {
    let Some(mut stage) = enter("tp-gone") else { return };
    let quell = start(&stage, LONG);
    stage.wait_until_slices_of_the_present_setting_were_measured();
    stage.stop_clients();
    let (code, _, stderr) = end(quell);
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("has vanished; all settings were restored"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn a_load_that_doubles_ends_the_search() {
    let Some(mut stage) = enter("tp-double") else { return };
    let quell = start(&stage, LONG);
    stage.wait_until_slices_of_the_present_setting_were_measured();
    stage.add_client(PAUSE);
    stage.add_client(PAUSE);
    let (code, _, stderr) = end(quell);
    assert_eq!(code, Some(3), "{stderr}");
    let has_changed = stderr.contains("so modes cannot be compared: send a steady load");
    assert!(has_changed && stderr.contains("; all settings were restored"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn a_setting_that_another_program_changes_ends_the_search() {
    let Some(stage) = enter("tp-other") else { return };
    let quell = start(&stage, LONG);
    stage.wait_until_switched();
    let foreign = PartialNapiSettings { gro_flush_timeout_ns: Some(7_777_000), ..PartialNapiSettings::default() };
    stage.lab.set_napi(&foreign);
    let (code, _, stderr) = end(quell);
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("another program has changed NAPI"), "{stderr}");
    assert!(stderr.contains("all other settings were restored (left alone: "), "{stderr}");
    // The value of the other program stays. Everything else is as before.
    assert_eq!(stage.lab.napi().settings.gro_flush_timeout_ns, Some(7_777_000));
    stage.lab.set_napi(&PartialNapiSettings { gro_flush_timeout_ns: Some(0), ..PartialNapiSettings::default() });
    stage.assert_as_before();
}

#[test]
fn a_second_search_on_the_same_program_is_refused() {
    let Some(stage) = enter("tp-two") else { return };
    let first = start(&stage, LONG);
    stage.wait_until_switched();
    let (code, _, stderr) = end(stage.start(&[&["tune"], LONG].concat()));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("is already attached (search for a mode)"), "{stderr}");
    assert!(stderr.contains("nothing was changed"), "{stderr}");
    first.pidfd().signal(Signal::INT).unwrap();
    assert_eq!(end(first).0, Some(130));
    stage.assert_as_before();
}

#[test]
fn a_running_search_is_listed_with_its_owner_and_ended_by_detach() {
    let Some(stage) = enter("tp-seen") else { return };
    let (search, server) = (start(&stage, LONG), stage.server.pid().to_string());
    stage.wait_until_switched();
    let (code, status, _) = end(stage.start_without_pid(&["status"]));
    assert_eq!(code, Some(0), "{status}");
    assert!(status.contains(&format!("search for a mode to memcached {server}")), "{status}");
    assert!(status.contains(&format!("by process {}", search.pid())), "{status}");
    let (_, top, _) = end(stage.start_without_pid(&["top", &server, "-i", "0.2", "-n", "1", "-j"]));
    let top: serde_json::Value = serde_json::from_str(&top).unwrap();
    assert_eq!(top["programs"][0]["mode"], serde_json::Value::Null, "{top}");
    let (code, detached, said) = end(stage.start_without_pid(&["detach", &server]));
    assert_eq!(code, Some(0), "{detached}{said}");
    assert!(detached.contains(&format!("ended memcached {server} (search for a mode)")), "{detached}");
    stage.assert_as_before();
    assert_ne!(end(search).0, Some(0));
}

#[test]
fn a_running_experiment_is_ended_by_revert() {
    let Some(stage) = enter("tp-ends") else { return };
    let experiment = stage.start(&["bench", "--modes=suspend200", "--budget=600s", "--slice=50", "--yes"]);
    stage.wait_until_switched();
    let (code, reverted, said) = end(stage.start_without_pid(&["revert"]));
    assert_eq!(code, Some(0), "{reverted}{said}");
    assert!(reverted.contains("(experiment)"), "{reverted}");
    stage.assert_as_before();
    assert_ne!(end(experiment).0, Some(0));
}

#[test]
fn if_the_server_dies_its_pid_is_reported() {
    let Some(mut stage) = enter("tp-dies") else { return };
    let quell = start(&stage, LONG);
    stage.wait_until_a_slice_was_measured();
    let pid = stage.server.pid();
    stage.server.terminate(Duration::ZERO).unwrap();
    let (code, _, stderr) = end(quell);
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains(&format!("process {pid} has exited; all settings were restored")), "{stderr}");
    stage.assert_queues_as_before();
}

#[test]
fn if_the_server_restarts_the_search_ends_and_the_new_server_has_the_settings_from_before() {
    let Some(mut stage) = enter("tp-restart") else { return };
    let epolls = stage.epolls();
    let quell = start(&stage, LONG);
    stage.wait_until_a_slice_was_measured();
    stage.restart_server(PAUSE);
    let (code, _, stderr) = end(quell);
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("has exited; all settings were restored"), "{stderr}");
    stage.assert_queues_as_before();
    assert_eq!(stage.epolls(), epolls);
}

#[test]
fn after_kills_at_random_moments_the_keeper_restores_the_server() {
    kill_at_random_moments("tp-kill", 4);
}

#[test]
#[ignore = "takes minutes; run with --ignored"]
fn after_100_kills_at_random_moments_the_keeper_restores_the_server() {
    kill_at_random_moments("tp-kills", 100);
}

fn kill_at_random_moments(test: &str, kills: u64) {
    let Some(stage) = enter(test) else { return };
    for kill in 0..kills {
        let quell = start(&stage, LONG);
        // Up to a second after the start: before, during and after the first slices.
        std::thread::sleep(Duration::from_millis(kill * 617 % 1_000));
        quell.pidfd().signal(Signal::KILL).unwrap();
        let _ = end(quell);
        stage.assert_settings_as_before();
    }
    // A journal that was killed before it had a name has no changes. The next command removes it.
    assert_eq!(end(stage.start_without_pid(&["revert"])).0, Some(0));
    stage.assert_as_before();
}
