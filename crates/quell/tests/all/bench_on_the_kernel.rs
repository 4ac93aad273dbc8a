//! Runs `quell bench` on the real kernel and ends the run in every possible way. Each test checks that the machine is in the
//! same state as before. No test asserts a performance figure. The tests need root.

use crate::live::{Running, Stage};
use crate::programs_on_the_kernel::stage::assert_reported_and_restored;
use quell_linux::InterfaceName;
use quell_linux::link::Links;
use quell_linux::netdev::Netdev;
use quell_linux::netns::{Namespace, NamespaceName};
use quell_linux::pidfd::Signal;
use quell_test_support::wait_until;

const SHORT: &[&str] = &["--loads=max", "--budget=2s", "--slice=50"];
/// Options of a run that lasts much longer than any test waits.
const LONG: &[&str] = &["--loads=max", "--budget=600s"];
/// A server that starts a child process.
const SERVER_WITH_A_CHILD: &str =
    "--server=sh -c 'memcached -u root -U 0 -l {address} -p {port} -t {workers} & sleep 1000'";

/// Command prefix that drops all privileges of a program.
const NOBODY: &[&str] = &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"];

/// Network namespaces of servers in running labs.
fn server_namespaces(stage: &Stage) -> Vec<Namespace> {
    let changes = stage.labs().into_iter().flat_map(|lab| lab["changes"].as_array().unwrap().clone());
    let names = changes.filter_map(|change| Some(change.get("name")?.as_str()?.to_owned()));
    let servers = names.filter(|name| name.ends_with("-server"));
    servers.filter_map(|name| Namespace::open_named(&NamespaceName::new(name).unwrap()).ok()).collect()
}

/// Waits until a queue of a lab has this gro-flush-timeout, which shows that a mode was set.
fn wait_until_flushed_after(us: u64, stage: &Stage, running: &Running) {
    let server = InterfaceName::new("server0").unwrap();
    let is_reported = |namespace: &Namespace| {
        let index = Links::open_in(namespace).ok()?.by_name(&server).ok()?.index;
        let napis = Netdev::open_in(namespace).ok()?.napis(index).ok()?;
        napis.iter().any(|napi| napi.settings.gro_flush_timeout_ns == Some(us * 1_000)).then_some(())
    };
    wait_until(|| {
        let set = server_namespaces(stage).iter().any(|namespace| is_reported(namespace).is_some());
        if set { Ok(()) } else { Err(format!("no mode with {us} µs was set; stderr of quell: {}", running.stderr())) }
    });
}

/// Waits until the bench has set the mode suspend200.
fn wait_until_modes_are_set(stage: &Stage, running: &Running) {
    wait_until_flushed_after(200, stage, running);
}

#[test]
fn a_run_restores_the_state_of_the_machine() {
    let Some(stage) = Stage::enter() else { return };
    let ended = stage.start_bench("base,suspend200", SHORT).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let result = stage.result();
    assert_eq!(result["schema"], "quell-experiment/1");
    let arms =
        result["experiments"][0]["record"]["slices"].as_array().unwrap().iter().map(|slice| slice["arm"].as_u64());
    assert_eq!(arms.collect::<std::collections::BTreeSet<_>>().len(), 3, "base has two arms");
    assert!(ended.stdout.contains("suspend200"), "{ended:?}");
    assert_reported_and_restored(&result["experiments"][0]["settings"], &["base", "suspend200"]);
    stage.assert_as_before();
}

#[test]
fn a_search_in_a_lab_answers_and_removes_the_lab() {
    let Some(stage) = Stage::enter() else { return };
    let file = stage.file("tune.json");
    let options =
        ["--loads=50%", "--connections=16", "--slice=50", "--settle=5", "--budget=8s", "--seed=1", "--insist"];
    let subject = ["tune", "--on=lab", "--goal=least cpu", "--output", file.to_str().unwrap()];
    let ended = stage.run(&[&subject[..], &options].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let result: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(result["search"]["end"]["kind"], "answered", "{ended:?}");
    assert_eq!(result["subject"]["kind"], "veth");
    assert_reported_and_restored(&result["settings"], &["base"]);
    assert!(ended.stdout.contains("not tried: ") && ended.stdout.contains("start it with `quell run`"), "{ended:?}");
    stage.assert_as_before();
}

/// Option that starts a second server, which exits after `seconds` seconds.
fn second_server(seconds: u32) -> String {
    format!("--beside=timeout {seconds} memcached -u root -U 0 -t 1 -l {{address}} -p {{port}}")
}

#[test]
fn the_latency_of_a_second_server_on_the_same_queues_is_compared_too() {
    let Some(stage) = Stage::enter() else { return };
    let ended =
        stage.start_bench("base,suspend200", &["--loads=5K", "--budget=2s", "--slice=50", &second_server(600)]).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let result = stage.result();
    assert_eq!(result["subject"]["beside"][0], "timeout");
    let slices = result["experiments"][0]["record"]["slices"].as_array().unwrap();
    let is_measured = |slice: &serde_json::Value| slice["observation"]["metrics"]["beside p99-us"].as_f64() > Some(0.0);
    assert!(slices.iter().any(is_measured), "{slices:?}");
    assert!(ended.stdout.contains("second server p99"), "{ended:?}");
    stage.assert_as_before();
}

#[test]
fn if_the_second_server_dies_the_run_ends_and_the_machine_is_restored() {
    let Some(stage) = Stage::enter() else { return };
    let ended =
        stage.start_bench("base,suspend200", &["--loads=5K", "--budget=600s", "--slice=50", &second_server(8)]).end();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.stderr.contains("the second server at 192.0.2.1:11212"), "{ended:?}");
    stage.assert_as_before();
}

#[test]
fn a_server_that_exits_at_once_is_reported_with_its_output() {
    let Some(stage) = Stage::enter() else { return };
    let ended = stage.start_bench("base", &["--server=sh -c 'echo no more memory >&2; exit 3'"]).end();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.stderr.contains("exited during startup (exit status: 3); its stderr: no more memory"), "{ended:?}");
    assert!(!stage.file("result.json").exists());
    stage.assert_as_before();
}

#[test]
fn a_server_that_never_listens_ends_the_run() {
    let Some(stage) = Stage::enter() else { return };
    let ended = stage.start_bench("base", &["--server=sleep 1000"]).end();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.stderr.contains("accepts no connection at 192.0.2.1:11211"), "{ended:?}");
    stage.assert_as_before();
}

/// A server that does not answer before it has received a megabyte.
const SERVER_THAT_NEVER_ANSWERS: &str =
    concat!("--server=", env!("CARGO_BIN_EXE_quell"), " respond {address}:{port} --request-bytes 1000000");

#[test]
fn a_server_that_never_answers_ends_the_run() {
    let Some(stage) = Stage::enter() else { return };
    let ended = stage.start_bench("base", &[SERVER_THAT_NEVER_ANSWERS]).end();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.stderr.contains("the server holds 0 of 10000 keys"), "{ended:?}");
    stage.assert_as_before();
}

#[test]
fn a_server_that_dies_ends_the_run() {
    let Some(stage) = Stage::enter() else { return };
    let running = stage.start_bench("suspend200", LONG);
    wait_until_modes_are_set(&stage, &running);
    stage.kill_the_server("memcached");
    let ended = running.end();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.stderr.contains("the server exited during the run"), "{ended:?}");
    stage.assert_as_before();
}

#[test]
fn a_signal_ends_the_run() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let Some(stage) = Stage::enter() else { return };
        let running = stage.start_bench("suspend200", LONG);
        wait_until_modes_are_set(&stage, &running);
        running.signal(signal);
        let ended = running.end();
        assert_eq!(ended.code, Some(130), "{signal:?}: {ended:?}");
        assert!(ended.stderr.contains("interrupted"), "{signal:?}: {ended:?}");
        stage.assert_as_before();
    }
}

#[test]
fn a_signal_ends_the_wait_for_a_server() {
    for server in ["--server=sleep 1000", SERVER_THAT_NEVER_ANSWERS] {
        let Some(stage) = Stage::enter() else { return };
        let running = stage.start_bench("base", &[server]);
        wait_until(|| match &stage.labs()[..] {
            [lab] if lab["changes"].to_string().contains("\"process\"") => Ok(()),
            labs => Err(format!("no server was started: {labs:?}")),
        });
        running.signal(Signal::INT);
        let ended = running.end();
        assert_eq!(ended.code, Some(130), "{ended:?}");
        stage.assert_as_before();
    }
}

#[test]
fn a_signal_keeps_the_measurements_so_far() {
    let Some(stage) = Stage::enter() else { return };
    let running = stage.start_bench("suspend200,suspend50", &["--loads=max", "--budget=600s", "--slice=100"]);
    for us in [200, 50, 200, 50] {
        wait_until_flushed_after(us, &stage, &running);
    }
    running.signal(Signal::INT);
    let ended = running.end();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    let result = stage.result();
    assert_eq!(result["experiments"][0]["end"]["kind"], "interrupted");
    assert!(!result["experiments"][0]["record"]["slices"].as_array().unwrap().is_empty());
    stage.assert_as_before();
}

#[test]
fn leftovers_of_a_killed_run_are_listed_and_removed_by_lab_clean() {
    let Some(stage) = Stage::enter() else { return };
    let running = stage.start_bench("suspend200", &[LONG, &[SERVER_WITH_A_CHILD]].concat());
    wait_until_modes_are_set(&stage, &running);
    running.signal(Signal::KILL);
    let ended = running.end();
    assert_eq!(ended.signal, Some(Signal::KILL.as_raw()), "{ended:?}");
    let left = stage.labs();
    assert!(left.iter().all(|journal| journal["state"] == "abandoned"), "{left:?}");
    assert_eq!(left.len(), 2, "the lab, and the modes of its server: {left:?}");
    assert!(left.iter().all(|journal| journal["purpose"]["kind"] == "lab"), "{left:?}");
    let cleaned = stage.run(&["lab", "clean"]);
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
    assert!(cleaned.stdout.contains("removed") && cleaned.stdout.contains("network namespace"), "{cleaned:?}");
    assert!(stage.labs().is_empty());
    stage.assert_as_before();
}

#[test]
fn leftovers_of_a_killed_run_are_removed_by_the_next_run() {
    let Some(stage) = Stage::enter() else { return };
    let running = stage.start_bench("suspend200", &[LONG, &[SERVER_WITH_A_CHILD]].concat());
    wait_until_modes_are_set(&stage, &running);
    running.signal(Signal::KILL);
    running.end();
    let ended = stage.start_bench("base", SHORT).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("removed leftovers of an earlier run"), "{ended:?}");
    stage.assert_as_before();
}

#[test]
fn lab_clean_removes_everything_after_a_kill_at_any_time() {
    let Some(stage) = Stage::enter() else { return };
    for ms in [5, 20, 40, 80, 160, 320] {
        let running = stage.start_bench("suspend200", LONG);
        std::thread::sleep(std::time::Duration::from_millis(ms));
        running.signal(Signal::KILL);
        running.end();
        let cleaned = stage.run(&["lab", "clean"]);
        assert_eq!(cleaned.code, Some(0), "after {ms} ms: {cleaned:?}");
        stage.assert_as_before();
    }
}

#[test]
fn two_labs_coexist_and_a_running_one_is_left_alone() {
    let Some(stage) = Stage::enter() else { return };
    let own = ["bench", "--modes=defer200", "--connections=16", "--insist", "--loads=max"];
    let file = stage.file("first.json");
    let first = stage.start(&[&own[..], &["--budget=8s", "--output", file.to_str().unwrap()]].concat());
    wait_until_modes_are_set(&stage, &first);
    let labs = stage.labs();
    assert_eq!(labs.len(), 1, "{labs:?}");
    assert_eq!((&labs[0]["state"], &labs[0]["pid"]), (&"running".into(), &first.pid().into()));

    let cleaned = stage.run(&["lab", "clean", "--json"]);
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
    assert!(cleaned.stdout.contains("running") && !cleaned.stdout.contains("\"removed\""), "{cleaned:?}");

    let second = stage.start_bench("suspend200", SHORT).end();
    assert_eq!(second.code, Some(0), "{second:?}");
    assert!(second.stderr.contains("another lab is running"), "{second:?}");
    let first = first.end();
    assert_eq!(first.code, Some(0), "{first:?}");
    for file in ["first.json", "result.json"] {
        let result: serde_json::Value = serde_json::from_slice(&std::fs::read(stage.file(file)).unwrap()).unwrap();
        assert_eq!(result["experiments"][0]["end"]["kind"], "stopped", "{file}");
    }
    stage.assert_as_before();
}

#[test]
fn more_workers_than_cpus_are_refused_before_any_change() {
    let Some(stage) = Stage::enter() else { return };
    let ended = stage.run(&["bench", "--queues=1000"]);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(ended.stderr.contains("1,000 server workers and 1 generator thread need 1,001 CPUs"), "{ended:?}");
    assert!(!stage.file("journal").exists(), "no journal was created");
    stage.assert_as_before();
}

#[test]
fn a_run_without_any_settable_mode_is_refused() {
    let Some(stage) = Stage::enter() else { return };
    // Some of these seeds begin with the reference, others with the other mode.
    for seed in ["--seed=1", "--seed=2", "--seed=3", "--seed=4"] {
        let ended = stage.start_bench("sockpoll50,eventspin50", &[SHORT, &[seed]].concat()).end();
        assert_eq!(ended.code, Some(5), "{ended:?}");
        assert!(ended.stderr.contains("so nothing can be compared"), "{ended:?}");
    }
    stage.assert_as_before();
}

#[test]
fn a_missing_server_program_is_refused() {
    let Some(stage) = Stage::enter() else { return };
    let ended = stage.start_bench("base", &["--server=/no/such/server -p {port}"]).end();
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(ended.stderr.contains("/no/such/server") && ended.stderr.contains("to fix this"), "{ended:?}");
    stage.assert_as_before();
}

#[test]
fn without_privileges_the_model_is_used_and_the_output_states_it() {
    let Some(stage) = Stage::enter() else { return };
    let small = ["--quick", "--modes=base,suspend20", "--loads=20K", "--output=/dev/null"];
    let ended = stage.start_as(NOBODY, &[&["bench"], &small[..]].concat()).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("CAP_NET_ADMIN") && ended.stderr.contains("simulated on the model"), "{ended:?}");
    for row in ["NOT A MEASUREMENT", " base ", " suspend20 "] {
        assert!(ended.stdout.lines().any(|line| line.starts_with(row)), "{row}: {ended:?}");
    }
    stage.assert_as_before();
}

#[test]
fn missing_privileges_are_reported_at_once_with_their_remedy() {
    let Some(stage) = Stage::enter() else { return };
    let ended = stage.start_as(NOBODY, &["bench", "--on=lab", "--quick", "--output=/dev/null"]).end();
    assert_eq!(ended.code, Some(5), "{ended:?}");
    for missing in ["CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_SYS_NICE", "CAP_SYS_PTRACE"] {
        assert!(ended.stderr.contains(missing), "{missing}: {ended:?}");
    }
    assert!(ended.stderr.contains("sudo quell bench"), "{ended:?}");
    stage.assert_as_before();
}

#[test]
fn an_unwritable_output_file_is_reported_before_the_measurement() {
    let Some(stage) = Stage::enter() else { return };
    let ended = stage.run(&["bench", "--quick", "--output=/no/such/directory/result.json"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("/no/such/directory/result.json"), "{ended:?}");
    assert!(!stage.file("journal").exists(), "no journal was created");
    stage.assert_as_before();
}

/// Starts a published experiment.
fn start_published(stage: &Stage, options: &[&str]) -> Running {
    let file = stage.file("result.json");
    let fixed = ["bench", "--insist", "--seed=1", "--output", file.to_str().unwrap()];
    stage.start(&[&fixed[..], options].concat())
}

/// Waits until the server of a slice was started.
fn wait_for_a_server(stage: &Stage, running: &Running) {
    wait_until(|| {
        let is_started = stage.journals().iter().any(|name| name.starts_with("server-"));
        if is_started { Ok(()) } else { Err(running.stderr()) }
    });
}

#[test]
fn an_interrupted_published_experiment_leaves_nothing() {
    for experiment in ["a", "b", "d"] {
        let Some(stage) = Stage::enter() else { return };
        let running = start_published(&stage, &["--experiment", experiment]);
        wait_for_a_server(&stage, &running);
        running.signal(Signal::INT);
        let ended = running.end();
        assert_eq!(ended.code, Some(130), "{ended:?}");
        stage.assert_as_before();
    }
}

#[test]
fn a_killed_published_experiment_leaves_nothing_after_the_next_command() {
    let Some(stage) = Stage::enter() else { return };
    let running = start_published(&stage, &["--experiment=b"]);
    wait_for_a_server(&stage, &running);
    running.signal(Signal::KILL);
    let _ = running.end();
    let cleaned = stage.run(&["lab", "clean"]);
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
    stage.assert_as_before();
}

/// Every part is measured, and the text has the published figures `said`.
fn plays(experiment: &str, parts: usize, said: &[&str]) {
    let Some(stage) = Stage::enter() else { return };
    let running = start_published(&stage, &["--experiment", experiment, "--quick", "--slice=100", "--settle=50"]);
    let ended = running.end_within(std::time::Duration::from_secs(1_200));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for said in said {
        assert!(ended.stdout.contains(said), "no {said:?} in {ended:?}");
    }
    let result = stage.result();
    assert_eq!(result["schema"], "quell-published/1");
    let measured = result["parts"].as_array().unwrap();
    assert_eq!(measured.len(), parts);
    for part in measured {
        let record = &part["result"]["experiments"][0]["record"];
        assert_eq!(record["dropped"], serde_json::json!({}), "{part}");
        let slices = record["slices"].as_array().unwrap();
        assert!(slices.iter().any(|slice| slice["arm"] == 2), "{part}");
        let answered = |slice: &serde_json::Value| slice["observation"]["metrics"]["requests-per-s"].as_f64().unwrap();
        assert!(slices.iter().all(|slice| answered(slice) > 0.0));
    }
    stage.assert_as_before();
}

#[test]
#[ignore = "takes 6 minutes; part of make nightly"]
fn irq_suspension_is_measured_at_each_published_load() {
    plays("a", 6, &["memcached, max", "memcached, 1000K", "suspend200", "1,236,608"]);
}

#[test]
#[ignore = "takes 3 minutes; part of make nightly"]
fn low_latency_sockets_are_measured_in_four_parts() {
    plays("b", 4, &["sockpoll50", "71,000", "UDP epoll", "this lab cannot play"]);
}

#[test]
#[ignore = "takes 6 minutes; part of make nightly"]
fn event_loops_are_measured_at_each_published_message_size() {
    plays("d", 8, &["eventspin1000000", "published, kernel", "16384", " here, 5 published"]);
}
