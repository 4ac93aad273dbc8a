//! Runs commands of this program in guests of the vm lab, on the fetched kernels. Skipped without QEMU or kernels:
//! `quell vm get` fetches them, and `make test-vm` does both. `docs/kernels.md` contains the results for all kernels;
//! `vm_kernels.rs` keeps it current.

use std::collections::BTreeMap;

use crate::vm_guests::{done_in, kernels, quell, text};
use quell_test_support::{Lacks, skip};
use serde_json::{Value, json};

/// The newest kernel of this flavour. If there is none, skips the test with the reason.
fn newest(of_flavour: impl Fn(&str) -> bool) -> Option<String> {
    let newest = kernels().into_iter().rfind(|kernel| of_flavour(kernel));
    if newest.is_none() {
        skip(Lacks::Guest, "no kernel of this flavour was fetched; `quell vm get 7.3 7.3-full` fetches them");
    }
    newest
}

fn lean() -> Option<String> {
    newest(|kernel| !kernel.ends_with("-full"))
}

#[test]
fn a_command_runs_in_a_guest_as_it_would_outside() {
    let Some(kernel) = lean() else { return };
    let ran = quell(&["vm", "run", "--kernel", &kernel, "--", "lab", "list", "--json"]);
    assert!(ran.status.success(), "{kernel}: {}", text(&ran.stderr));
    let document: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(document["schema"], "quell-labs/1");
    assert!(text(&ran.stderr).contains(&format!("Linux {kernel}.")), "{kernel}: {}", text(&ran.stderr));
}

#[test]
fn a_command_in_a_guest_has_the_same_exit_code_and_output() {
    let Some(kernel) = lean() else { return };
    let outside = quell(&["lab", "tidy"]);
    let inside = quell(&["vm", "run", "--kernel", &kernel, "--", "lab", "tidy"]);
    assert_eq!(inside.status.code(), outside.status.code());
    assert!(text(&inside.stderr).contains(text(&outside.stderr).lines().next().unwrap()));
}

#[test]
fn a_guest_that_does_not_exit_is_killed_and_its_output_reported() {
    let Some(kernel) = lean() else { return };
    let ran = quell(&["vm", "run", "--kernel", &kernel, "--limit-s", "30", "--", "respond", "127.0.0.1:7000"]);
    assert_eq!(ran.status.code(), Some(4));
    let said = text(&ran.stderr);
    assert!(said.contains("did not exit within 30 s") && said.contains("listening on 127.0.0.1:7000"), "{said}");
}

/// The experiment of `quell bench --on vm` with these options, and whether all its checks passed.
fn experiment(options: &[&str]) -> (Value, bool) {
    let ran = quell(&[&["bench", "--on", "vm", "--json", "--output", "/dev/null"][..], options].concat());
    assert!(matches!(ran.status.code(), Some(0 | 3)), "{}", text(&ran.stderr));
    let result: Value = serde_json::from_slice(&ran.stdout).unwrap();
    (result["experiments"][0].clone(), ran.status.success())
}

fn slices(experiment: &Value) -> impl Iterator<Item = &Value> {
    experiment["record"]["slices"].as_array().unwrap().iter()
}

/// As `quell bench --on vm` judges it (`quell-result/src/guest_checks.rs`).
const HOST_WAIT_SHARE_MAX: f64 = 0.22;

/// Whether the host delayed the emulator during a slice. Such a slice says nothing about the guest.
fn starved(experiment: &Value) -> bool {
    let shares = slices(experiment).filter_map(|slice| slice["observation"]["foreign-cpu"].as_f64());
    let worst = shares.fold(0.0, f64::max);
    let starved = worst > HOST_WAIT_SHARE_MAX;
    if starved {
        skip(
            Lacks::Machine,
            format_args!("the emulator waited for a CPU of this host for up to {:.0} % of its time", worst * 100.0),
        );
    }
    starved
}

#[test]
fn suspension_avoids_interrupts_and_timers() {
    let Some(kernel) = lean() else { return };
    let (experiment, held) = experiment(&["--kernel", &kernel]);
    assert!(held || starved(&experiment), "{experiment:#}");
}

/// Mean interrupts per request of an arm.
fn interrupts_per_request(experiment: &Value, arm: u64) -> f64 {
    let of_arm = slices(experiment).filter(|slice| slice["arm"] == arm);
    // The emulator can be so slow that the counters of a slice are read too late. They are then absent.
    let counts = of_arm.filter_map(|slice| slice["observation"]["metrics"]["irqs-per-request"].as_f64());
    let counts: Vec<f64> = counts.collect();
    assert!(!counts.is_empty(), "{experiment:#}");
    counts.iter().sum::<f64>() / counts.len() as f64
}

#[test]
fn threaded_busy_polling_avoids_almost_all_interrupts() {
    let Some(kernel) = lean() else { return };
    let (experiment, _) = experiment(&["--kernel", &kernel, "--budget", "15s", "--modes", "base,threadedbusy"]);
    let dropped = &experiment["record"]["dropped"];
    if let Some(refusal) = dropped.get("2") {
        skip(Lacks::Guest, format_args!("{kernel} does not support threaded busy polling: {refusal}"));
        return;
    }
    // Some interrupts remain: virtio-net enables its callback for a moment before it finds that polling continues
    // (`virtqueue_napi_complete`). Under base there are fewer if the host delivers packets in batches.
    let (polling, base) = (interrupts_per_request(&experiment, 2), interrupts_per_request(&experiment, 0));
    assert!(polling * 10.0 < base, "{experiment:#}");
}

#[test]
fn a_search_in_a_guest_ends_with_an_answer_that_is_not_a_measurement() {
    let Some(kernel) = lean() else { return };
    let options =
        ["--goal", "least irqs-per-request", "--budget", "60s", "--seed", "1", "--output", "/dev/null", "--json"];
    let ran = quell(&[&["tune", "--on", "vm", "--kernel", &kernel][..], &options].concat());
    if ran.status.code() == Some(4) && text(&ran.stderr).contains("the load has changed") {
        skip(Lacks::Machine, "the host delayed the emulator, so the rate of the closed loop changed");
        return;
    }
    if ran.status.code() == Some(3) && text(&ran.stderr).contains("the budget was spent") {
        skip(Lacks::Machine, "the host delayed the emulator, so the slices took longer than planned");
        return;
    }
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let file: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let reason = file["not-a-measurement"].as_str().unwrap();
    assert!(reason.contains("times in an emulated guest mean nothing"), "{reason}");
    let release = file["host"]["kernel-release"].as_str().unwrap();
    assert!(release.starts_with(&kernel), "{release}");
    let search = &file["search"];
    assert_eq!(search["end"]["kind"], "answered", "{search:#}");
    assert_eq!((&search["plan"]["loads"], &search["plan"]["present"]), (&json!(["max"]), &json!("base")));
    let slices = search["slices"].as_array().unwrap();
    let has_latency = |slice: &Value| slice["observation"]["latency"].is_string();
    assert!(slices.len() > 9 && slices.iter().all(has_latency), "{search:#}");
}

/// Slices of a way at a point.
fn of_way<'a>(point: &'a Value, way: &str) -> impl Iterator<Item = &'a Value> {
    let design = &point["result"]["record"]["design"];
    let treatments = design["treatments"].as_array().unwrap().iter();
    let names: Vec<&str> = treatments.map(|treatment| treatment["name"].as_str().unwrap()).collect();
    // The arms of the reference are 0 and 1.
    let arm = names.iter().position(|name| *name == way).map_or(0, |at| at + 2);
    slices(&point["result"]).filter(move |slice| slice["arm"] == arm).map(|slice| &slice["observation"])
}

/// What was counted in the slices in which requests were answered.
struct Answered<'a>(Vec<&'a Value>);

impl<'a> Answered<'a> {
    /// `None` if nothing was answered. The host must have kept the emulator waiting then.
    fn of(point: &'a Value, way: &str) -> Option<Self> {
        let is_answered = |slice: &&Value| slice["metrics"][ANSWERED].as_f64() > Some(0.0);
        let answered: Vec<&Value> = of_way(point, way).filter(is_answered).collect();
        if !answered.is_empty() {
            return Some(Self(answered));
        }
        let waited = slices(&point["result"]).filter_map(|slice| slice["observation"]["foreign-cpu"].as_f64());
        let waited = waited.fold(0.0, f64::max);
        let dropped = &point["result"]["record"]["dropped"];
        assert!(waited > HOST_WAIT_SHARE_MAX, "{way}: nothing was answered, and the host was idle: {dropped:#}");
        let percent = waited * 100.0;
        skip(
            Lacks::Machine,
            format_args!("{way}: no answer; the emulator waited for a CPU for {percent:.0} % of its time"),
        );
        None
    }

    /// Median over slices.
    fn median(&self, figure: impl Fn(&Value) -> f64) -> f64 {
        let mut values: Vec<f64> = self.0.iter().map(|slice| figure(&slice["metrics"])).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    fn share_of(&self, pollers: &[&str]) -> f64 {
        self.median(|metrics| pollers.iter().map(|poller| number(metrics, &format!("polls {poller}"))).sum())
    }

    /// Polls or calls by the number of requests, of which the host can have left many without an answer.
    fn per_sent(&self, metric: &str) -> f64 {
        self.median(|metrics| number(metrics, metric) * number(metrics, ANSWERED))
    }
}

fn number(metrics: &Value, metric: &str) -> f64 {
    metrics[metric].as_f64().unwrap_or_else(|| panic!("no {metric}: {metrics:#}"))
}

const ANSWERED: &str = "answered-share";
/// Part of `XdpError::NoAnswer`.
const NO_ANSWER: &str = "did not answer within";

/// The NIC links its queues to NAPI instances, so an AF_XDP socket can busy poll, and a third CPU polls. A way is judged
/// by the slices in which it answered: a host that is busy lets no response in.
#[test]
fn each_way_to_receive_through_af_xdp_is_polled_by_the_poller_after_which_it_is_named() {
    let Some(kernel) = lean() else { return };
    let durations = ["--slice", "500", "--budget", "200s", "--seed", "1"];
    let options =
        ["bench", "--experiment", "c", "--on", "vm", "--quick", "--json", "--output", "/dev/null", "--kernel"];
    let ran = quell(&[&options[..], &[&kernel], &durations].concat());
    if !ran.status.success() && text(&ran.stderr).contains(NO_ANSWER) {
        skip(Lacks::Machine, text(&ran.stderr));
        return;
    }
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let run: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!((&run["slowed-by"], &run["placement"]["poller"]), (&json!(100), &json!(2)));
    let points = run["points"].as_array().unwrap();
    let first = &points[0];
    if let Some(why) = first["not-possible"].as_str() {
        skip(Lacks::Guest, format_args!("{kernel}: {why}"));
        return;
    }
    let dropped = first["result"]["record"]["dropped"].as_object().unwrap();
    if let Some(why) = dropped.values().find(|why| !why.as_str().unwrap().contains(NO_ANSWER)) {
        skip(Lacks::Guest, format_args!("{kernel}: {why}"));
        return;
    }

    let interrupts = ["interrupt", "rescheduled", "ksoftirqd"];
    let named: [(&str, &[&str]); 7] = [
        ("interrupts", &interrupts),
        ("interrupts-sleeping", &interrupts),
        ("busy-poll", &["program"]),
        ("busy-poll-thread", &["program"]),
        ("napi-thread", &["thread"]),
        ("napi-thread-own-cpu", &["thread"]),
        ("threaded-busy-poll", &["thread"]),
    ];
    let mut answered = BTreeMap::new();
    for (way, pollers) in named {
        let Some(counted) = Answered::of(first, way) else { continue };
        let (share, queue) = (counted.share_of(pollers), &first["queues"][way]);
        assert!(share > 0.5, "{way}: {share}");
        assert!(queue["napi"].is_u64() && queue["socket-napi"] == queue["napi"], "{way}: {queue:#}");
        assert_eq!(queue["hook"], "native", "{way}");
        answered.insert(way, counted);
    }
    let per_sent = |way, metric| answered.get(way).map(|counted| counted.per_sent(metric));
    for without_end in ["busy-poll", "busy-poll-thread", "threaded-busy-poll"] {
        for by_packets in ["interrupts", "napi-thread"] {
            let polls = [without_end, by_packets].map(|way| per_sent(way, "polls-per-request"));
            let [Some(endless), Some(few)] = polls else { continue };
            assert!(endless > 5.0 * few, "{without_end}: {endless}, {by_packets}: {few}");
        }
    }
    let calls = ["busy-poll", "threaded-busy-poll"].map(|way| per_sent(way, "system-calls-per-request"));
    if let [Some(program), Some(thread)] = calls {
        assert!(program > 5.0 * thread, "the kernel's thread polls without calls: {program}, {thread}");
    }

    // Times in a guest mean nothing.
    for slice in points.iter().filter(|point| !point["result"].is_null()).flat_map(|point| slices(&point["result"])) {
        assert_eq!(slice["observation"]["latency"], Value::Null);
        let metrics = slice["observation"]["metrics"].as_object().unwrap();
        assert!(metrics.keys().all(|name| !name.contains("us") && !name.contains("cpu")), "{metrics:?}");
    }
}

/// Profile for `quell apply` that sets threaded busy polling on the server's NIC.
const THREADED_BUSY: &str = "[device.nic]\nname = \"server\"\n[device.nic.queues.all]\nmode = \"threadedbusy\"\n";

#[test]
fn doctor_reports_a_busy_polling_thread_without_its_own_cpu() {
    let Some(kernel) = lean() else { return };
    let done = done_in(
        &kernel,
        &[],
        &json!([
            ["write", "/tmp/profile.toml", THREADED_BUSY],
            ["apply", "--netns", "server", "/tmp/profile.toml"],
            ["show", "--netns", "server", "--json"],
            ["doctor", "--netns", "server", "--seconds", "0", "--json"],
            ["revert"],
        ]),
    );
    if done[1]["code"] == 5 {
        skip(Lacks::Guest, format_args!("{kernel}: {}", done[1]["diagnostics"]));
        return;
    }
    let snapshot: Value = document(&done[2]);
    let napi = &server(&snapshot)["napis"][0];
    assert_eq!(napi["threading"], "busy-poll", "{napi:#}\n{:#}", done[1]);
    assert!(napi["thread"]["tid"].is_u64(), "{napi:#}");
    let found = document(&done[3]);
    let ids: Vec<&str> = found["findings"].as_array().unwrap().iter().filter_map(|one| one["id"].as_str()).collect();
    assert!(ids.contains(&"busy-napi-thread-without-cpu"), "{found:#}");
    assert_eq!(done[4]["code"], 0, "{:#}", done[4]);
}

#[test]
fn threaded_busy_polling_is_judged_in_effect() {
    let Some(kernel) = lean() else { return };
    let attach = json!(["attach", "--yes", "--json", "--seconds", "5", "threadedbusy", "{pid}"]);
    let done = done_in(&kernel, &[], &json!([attach, ["detach", "--all"]]));
    if done[0]["code"] == 5 {
        skip(Lacks::Guest, format_args!("{kernel}: {}", done[0]["diagnostics"]));
        return;
    }
    let effect = &document(&done[0])["effect"];
    let queues = effect["watched"].as_array().unwrap_or_else(|| panic!("{effect:#}"));
    assert!(!queues.is_empty() && queues.iter().all(|queue| queue["verdict"] == "in-effect"), "{effect:#}");
    assert_eq!(done[1]["code"], 0, "{:#}", done[1]);
}

fn document(done: &Value) -> Value {
    serde_json::from_str(done["output"].as_str().unwrap()).unwrap_or_else(|error| panic!("{error}: {done:#}"))
}

fn server(snapshot: &Value) -> &Value {
    snapshot["devices"].as_array().unwrap().iter().find(|device| device["name"] == "server").unwrap()
}

/// The driver of this NIC reports everything, so the snapshot can be compared with /proc of the same guest.
#[test]
fn the_path_from_device_to_cpu_matches_proc() {
    let Some(kernel) = newest(|kernel| kernel.ends_with("-full")) else { return };
    let irqs = ["read", "/proc/interrupts"];
    let done = done_in(&kernel, &["--nic", "e1000e"], &json!([["show", "--netns", "server", "--json"], irqs]));
    let snapshot = document(&done[0]);
    let device = server(&snapshot);
    let (rx, napi) = (&device["rx-queues"][0], &device["napis"][0]);
    assert_eq!(rx["napi"], json!({"to": napi["id"], "source": "kernel"}), "{device:#}");
    assert_eq!(napi["irq"]["source"], "kernel", "{device:#}");

    let irq = napi["irq"]["to"].as_u64().unwrap();
    let interrupts = done[1]["output"].as_str().unwrap();
    let line = interrupts.lines().find(|line| line.trim_start().starts_with(&format!("{irq}:"))).unwrap();
    assert!(line.trim_end().ends_with("server-rx-0"), "{line}");
    assert!(device["irqs"].as_array().unwrap().contains(&json!(irq)), "{device:#}");

    // The lab in the guest binds the interrupts of the server's NIC to CPU 0.
    let place = ["read", &format!("/proc/irq/{irq}/smp_affinity_list")];
    let shown = snapshot["irqs"].as_array().unwrap().iter().find(|one| one["number"] == irq).unwrap();
    let done = done_in(&kernel, &["--nic", "e1000e"], &json!([place]));
    let said = done[0]["output"].as_str().unwrap().trim();
    assert_eq!((shown["affinity"].as_str(), said), (Some(said), "0"), "{shown:#}");
}
