//! Compares `docs/kernels.md` with guests of the vm lab: the features and the results of Quell on three Debian kernels.
//! Skipped without QEMU or the kernels.

use std::fmt::Write as _;
use std::path::Path;

use crate::vm_guests::{done_in, kernels, quell, text};
use quell_test_support::{Lacks, skip};
use serde_json::{Value, json};

/// The kernels and modes on the page.
const KERNELS: [&str; 3] = ["6.1", "6.12", "7.3"];
const MODES: [&str; 7] = ["base", "defer20", "napibusy", "fullbusy", "suspend20", "threaded", "threadedbusy"];

/// Features of a kernel in a guest, and the modes that can be set.
fn asked(kernel: &str) -> Value {
    let modes = MODES.join(",");
    let run = ["bench", "--on", "vm", "--json", "--output", "/dev/null"];
    let moments = ["--slice", "100", "--settle", "50", "--budget", "8s"];
    let ran = quell(&[&run[..], &moments, &["--kernel", kernel, "--modes", &modes]].concat());
    // The exit code of the measurement does not matter here, because the machine may be busy.
    assert!(matches!(ran.status.code(), Some(0 | 3)), "{kernel}: {}", text(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// Commands for a host with two NICs and a server under load.
fn commands() -> Value {
    json!([
        ["show", "--netns", "server"],
        ["show", "{pid}"],
        ["doctor", "--netns", "server", "--seconds", "0"],
        ["attach", "--yes", "defer20", "{pid}"],
        ["detach", "--all"],
        ["attach", "--yes", "napibusy", "{pid}"],
        ["detach", "--all"],
        ["attach", "--yes", "suspend20", "{pid}"],
        ["status"],
        ["detach", "--all"],
        ["attach", "--yes", "userbusy", "{pid}"],
        ["detach", "--all"],
        ["in-server", "run", "napibusy", "--", "/bin/quell", "lab", "list"],
        [
            "write",
            "/tmp/profile.toml",
            "[device.nic]\nname = \"server\"\n[device.nic.queues.all]\nmode = \"defer20\"\n"
        ],
        ["apply", "--netns", "server", "/tmp/profile.toml"],
        ["revert"],
        ["conformance", "--on", "model", "deferral-counts-down"],
        ["lab", "list"],
    ])
}

/// Text for an exit code, as `quell --help` explains it.
fn outcome(done: &Value) -> &'static str {
    match done["code"].as_u64() {
        Some(0) => "ok",
        // The emulator may have no CPU left for a polling thread, so that the mode is undone later.
        Some(3) if done["diagnostics"].as_str().unwrap().starts_with("applied and verified") => "ok",
        Some(3) => "finds something serious",
        Some(5) => "not possible here",
        _ => panic!("{done:#}"),
    }
}

/// Number of scenarios of the conformance suite that a kernel runs; all of them must pass.
fn scenarios_played(kernel: &str) -> (usize, usize) {
    let ran = quell(&["conformance", "--on", "vm", "--json", "--kernel", kernel]);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{}", text(&ran.stderr)));
    let results = report["results"].as_array().unwrap();
    let wrong: Vec<&Value> = results
        .iter()
        .filter(|result| !matches!(result["outcome"]["outcome"].as_str(), Some("held" | "not-possible")))
        .collect();
    assert!(wrong.is_empty(), "{kernel}: {wrong:#?}");
    (results.iter().filter(|result| result["outcome"]["outcome"] == "held").count(), results.len())
}

/// What the sampler counts at the NAPI instance of the loaded server in 2 seconds, with this deferral of its device.
fn sampled(done: &Value) -> Value {
    let samples: Value = serde_json::from_str(done["output"].as_str().unwrap()).unwrap();
    let samples = samples.as_object().unwrap();
    assert_eq!(samples.len(), 1, "{done:#}");
    samples.values().next().unwrap().clone()
}

/// `quell_poll` counts polls, `quell_timer` recognises the deferral timer, and `quell_softirq` begins the time of softirqs.
#[test]
fn all_programs_of_the_sampler_count_on_every_kernel() {
    let here = kernels();
    for kernel in KERNELS {
        if !here.contains(&kernel.to_owned()) {
            skip(Lacks::Guest, format_args!("kernel {kernel} was not fetched"));
            continue;
        }
        let done = done_in(kernel, &[], &json!([["sample", "0", "0"], ["sample", "2", "1000000"]]));
        let (interrupts, deferred) = (sampled(&done[0]), sampled(&done[1]));
        assert!(interrupts["polls"]["interrupt"].as_u64().unwrap() > 0, "{kernel}: {interrupts:#}");
        assert_eq!(interrupts["polls"]["timer"], 0, "{kernel}: {interrupts:#}");
        assert!(deferred["polls"]["timer"].as_u64().unwrap() > 0, "{kernel}: {deferred:#}");
        for sample in [interrupts, deferred] {
            assert!(sample["packets"].as_u64().unwrap() > 0, "{kernel}: {sample:#}");
            assert!(sample["softirq-ns"].as_u64().unwrap() > 0, "{kernel}: {sample:#}");
        }
    }
}

#[test]
fn xdp_diag_and_the_bpf_iterator_agree_on_the_queue_of_an_af_xdp_socket() {
    let here = kernels();
    for kernel in KERNELS.iter().filter(|kernel| here.contains(&(**kernel).to_owned())) {
        let done = done_in(kernel, &[], &json!([["xdp-sockets"]]));
        let listed: Value = serde_json::from_str(done[0]["output"].as_str().unwrap()).unwrap();
        let bound = listed["by-iterator"].as_object().unwrap();
        let queues: Vec<&Value> = bound.values().collect();
        assert_eq!(queues, [&json!([listed["ifindex"], 0])], "{kernel}");
        if listed["by-diag"].is_null() {
            let why = "has no XDP_DIAG (Debian 12), or was fetched without the module xsk_diag by an older Quell";
            skip(Lacks::Guest, format_args!("kernel {kernel} {why}"));
            continue;
        }
        assert_eq!(listed["by-diag"], listed["by-iterator"], "{kernel}");
    }
}

fn head(page: &mut String, first: &str) {
    let kernels = KERNELS.map(|kernel| format!(" Linux {kernel} |")).concat();
    write!(page, "\n| {first} |{kernels}\n| --- |{}\n", " --- |".repeat(KERNELS.len())).unwrap();
}

fn row(page: &mut String, name: &str, cells: impl IntoIterator<Item = String>) {
    let cells: String = cells.into_iter().map(|cell| format!(" {cell} |")).collect();
    writeln!(page, "| {name} |{cells}").unwrap();
}

fn mode_cell(said: &Value, mode: &str) -> String {
    let record = &said["experiments"][0]["record"];
    let treatments = record["design"]["treatments"].as_array().unwrap();
    let arm = treatments.iter().position(|treatment| treatment["name"] == mode).map(|at| at + 2);
    if arm.is_none_or(|arm| record["dropped"].get(arm.to_string()).is_none()) {
        return "yes".to_owned();
    }
    let nearest = &said["subject"]["nearest"][mode];
    if nearest.is_null() {
        return "no".to_owned();
    }
    let (device, epoll) = (&nearest["device"], &nearest["epoll"]);
    let mut parts = Vec::new();
    if device["defer-hard-irqs"] != 0 {
        let us = device["gro-flush-timeout"].as_u64().unwrap() / 1_000;
        parts.push(format!("deferral {}, {us} µs", device["defer-hard-irqs"]));
    }
    if device["threaded"] != "off" {
        parts.push("threads".to_owned());
    }
    if epoll["prefer_busy_poll"] == true {
        parts.push(format!("`EPIOCSPARAMS` {}/{}/1", epoll["busy_poll_usecs"], epoll["busy_poll_budget"]));
    }
    if let Some(usecs) = nearest["socket-busy-poll-usecs"].as_u64() {
        parts.push(format!("`SO_BUSY_POLL` {usecs} µs"));
    }
    format!("no; {}", parts.join(", "))
}

fn page() -> String {
    let mut page = String::from(HEAD);
    let said = KERNELS.map(asked);
    head(&mut page, "found");
    for (index, feature) in said[0]["subject"]["features"].as_array().unwrap().iter().enumerate() {
        let state = |kernel: &Value| kernel["subject"]["features"][index]["state"].as_str().unwrap().to_owned();
        row(&mut page, feature["name"].as_str().unwrap(), said.iter().map(state));
    }
    page.push_str(MODES_HEAD);
    head(&mut page, "mode");
    for mode in MODES {
        row(&mut page, &format!("`{mode}`"), said.iter().map(|kernel| mode_cell(kernel, mode)));
    }
    page.push_str(COMMANDS_HEAD);
    head(&mut page, "command");
    let mut everywhere = Vec::new();
    let done = KERNELS.map(|kernel| done_in(kernel, &[], &commands()));
    for (index, command) in commands().as_array().unwrap().iter().enumerate() {
        let words: Vec<&str> = command.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        let words: Vec<&str> = words.into_iter().filter(|word| *word != "in-server").collect();
        let command = format!("`quell {}`", words.join(" "));
        let outcomes: Vec<&str> = done.iter().map(|done| outcome(&done[index])).collect();
        if words[0] != "write" && outcomes.iter().any(|outcome| *outcome != "ok") {
            row(&mut page, &command, outcomes.into_iter().map(ToOwned::to_owned));
        } else if words[0] != "write" && !everywhere.contains(&command) {
            everywhere.push(command);
        }
    }
    writeln!(page, "\nok on all: {}", everywhere.join(", ")).unwrap();
    page.push_str(CONFORMANCE_HEAD);
    head(&mut page, "scenarios");
    let played = KERNELS.map(scenarios_played);
    row(&mut page, "run, and passed", played.iter().map(|(played, of)| format!("{played} of {of}")));
    page
}

const HEAD: &str = "\
# What Quell finds and does on older kernels

`make test-vm` queries the kernels in guests of the vm lab, with virtio-net NICs, and fails if this page differs. Every
line was queried from the running kernel; nothing is inferred from a version.
";

const MODES_HEAD: &str = "
## Modes

Quell refuses a mode that the kernel does not support (`no`), and names the nearest setting that works, which was set,
verified and undone there: deferral or threads of the whole device, by sysfs, which sets all queues to the same value.
";

const COMMANDS_HEAD: &str = "
## Commands

On a host with two NICs and a server under load. If a command is not possible (exit code 5), it names the feature that
the kernel lacks, before anything is changed. `attach` is ok if the mode was set and read back.
";

const CONFORMANCE_HEAD: &str = "
## Conformance

Scenarios that the kernel or a single queue does not support are not run.
";

/// After an intended change: `QUELL_OVERWRITE=1 make test-vm`, then read the diff.
#[test]
fn the_page_of_kernels_matches_the_kernels() {
    let here = kernels();
    if let Some(missing) = KERNELS.iter().find(|kernel| !here.contains(&(**kernel).to_owned())) {
        skip(Lacks::Guest, format_args!("kernel {missing} was not fetched"));
        return;
    }
    let page = page();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kernels.md");
    if std::env::var_os("QUELL_OVERWRITE").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    assert_eq!(page, std::fs::read_to_string(&file).unwrap());
}
