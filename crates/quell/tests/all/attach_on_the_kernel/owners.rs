//! Several owners of one queue or epoll: profiles, attachments and launched programs that begin and end in any order.

use std::path::PathBuf;
use std::process::{Child, Stdio};

use crate::command;
use quell_linux::netdev::{Netdev, PartialNapiSettings};
use quell_linux::process::Spawn;
use quell_test_support::kernel_values::{KernelNapi, KernelValues};

use serde_json::Value;

use super::stage::{MODE, Stage, wait_until};
/// defer-hard-irqs, gro-flush-timeout and irq-suspend-timeout.
type Values = (u64, u64, u64);
const BASE: Values = (0, 0, 0);
const DEFER50: Values = (100, 50_000, 0);
const SUSPEND20: Values = (100, 20_000, 20_000_000);
const SUSPEND200: Values = (100, 200_000, 20_000_000);

fn enter(test: &str) -> Option<(Stage, KernelValues)> {
    let stage = Stage::enter(test)?;
    let kernel = KernelValues::of_namespace(&stage.lab.server_name)?;
    Some((stage, kernel))
}

/// Values of every queue, which must be equal.
fn values(kernel: &KernelValues) -> Values {
    let of = |napi: &KernelNapi| {
        let values = [napi.defer_hard_irqs, napi.gro_flush_timeout_ns, napi.irq_suspend_timeout_ns].map(Option::unwrap);
        (values[0], values[1], values[2])
    };
    let all: Vec<Values> = kernel.napis("server0").iter().map(of).collect();
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
    all[0]
}

impl Stage {
    pub(crate) fn profile(&self, mode: &str) -> PathBuf {
        let path = self.dir.path().join(format!("{mode}.toml"));
        let text = format!("[device.lab]\nname = \"server0\"\n[device.lab.queues.all]\nmode = \"{mode}\"\n");
        std::fs::write(&path, text).unwrap();
        path
    }

    fn apply(&self, code: i32, mode: &str, options: &[&str]) -> String {
        let profile = self.profile(mode);
        let arguments = [&["apply", "--netns", &self.lab.server_name], options, &[profile.to_str().unwrap()]].concat();
        self.says(code, &arguments)
    }

    fn attach(&self, mode: &str) {
        self.says(0, &["attach", mode, &self.pid(), "--yes", "--seconds", "0"]);
    }

    fn is_without_journals(&self) -> bool {
        crate::command::journals_in(&self.journals()).is_empty()
    }
}

#[test]
fn the_rollback_of_a_profile_leaves_the_mode_of_an_attachment_and_the_detach_the_values_before_both() {
    let Some((stage, kernel)) = enter("own-confirm") else { return };
    stage.apply(0, "defer50", &["--confirm", "10s"]);
    assert_eq!(values(&kernel), DEFER50);
    stage.attach(MODE);
    let is_applied = |line: &str| line.starts_with("profile") && line.contains("defer50.toml");
    let profiles = || stage.says(0, &["status"]).lines().any(is_applied);
    wait_until(|| !profiles(), "the profile is not rolled back");
    assert_eq!(values(&kernel), SUSPEND200);
    assert!(!stage.says(0, &["status"]).contains("drift"));
    stage.says(0, &["detach", &stage.pid()]);
    assert_eq!(values(&kernel), BASE);
    stage.assert_back();
}

#[test]
fn the_detach_of_an_attachment_leaves_the_values_of_the_profile_below_or_above_it() {
    let Some((stage, kernel)) = enter("own-pair") else { return };
    stage.apply(0, "defer50", &[]);
    stage.attach(MODE);
    stage.says(0, &["detach", &stage.pid()]);
    assert_eq!(values(&kernel), DEFER50);
    stage.says(0, &["revert"]);
    assert_eq!(values(&kernel), BASE);
    stage.attach(MODE);
    stage.apply(0, "suspend20", &[]);
    assert_eq!(values(&kernel), SUSPEND20);
    assert!(!stage.says(0, &["status"]).contains("drift"), "a newer owner is not drift");
    let detached = stage.says(0, &["detach", &stage.pid()]);
    assert!(detached.contains(", 2 kept for profile ") && !detached.contains("already"), "{detached}");
    assert_eq!(values(&kernel), SUSPEND20);
    stage.says(0, &["revert"]);
    assert_eq!(values(&kernel), BASE);
    stage.assert_back();
}

#[test]
fn a_profile_with_the_values_of_an_attachment_keeps_them_when_that_one_ends() {
    let Some((stage, kernel)) = enter("own-equal") else { return };
    stage.attach(MODE);
    stage.apply(0, MODE, &[]);
    assert!(stage.apply(0, MODE, &[]).contains("already matches"));
    stage.says(0, &["detach", &stage.pid()]);
    assert_eq!(values(&kernel), SUSPEND200);
    stage.says(0, &["revert"]);
    assert_eq!(values(&kernel), BASE);
    stage.assert_back();
}

#[test]
fn a_second_attach_names_the_command_that_replaces_the_mode_and_its_dry_run_changes_nothing() {
    let Some((stage, kernel)) = enter("own-second") else { return };
    stage.attach(MODE);
    let pid = stage.pid();
    let refused = stage.says(2, &["attach", "defer50", &pid]);
    assert!(refused.contains(&format!("quell detach --pid {pid} && quell attach defer50 --pid {pid}")), "{refused}");
    let refused = stage.says(2, &["attach", "defer50", &pid, "--follow"]);
    assert!(refused.contains(&format!("quell attach defer50 --pid {pid} --follow --take-over --yes")), "{refused}");
    let planned = stage.says(0, &["attach", "defer50", &pid, "--follow", "--take-over", "--yes", "--dry-run"]);
    assert!(planned.contains("restores attach suspend200 first"), "{planned}");
    assert!(planned.contains("follows: new workers and queues get the mode"), "{planned}");
    assert_eq!(values(&kernel), SUSPEND200);
    stage.says(0, &["detach", &pid]);
    stage.assert_back();
}

#[test]
fn a_neighbour_of_an_attached_program_is_not_advised_to_repair_the_queues_of_that_one() {
    let Some((mut stage, _)) = enter("own-neighbour") else { return };
    let (other, _connection) = stage.second_server();
    let other = other.pid().to_string();
    stage.attach(MODE);
    let examined = stage.says(0, &["doctor", &other, "--seconds", "1", "-j"]);
    let report: Value = serde_json::from_str(&examined).unwrap();
    let servers: Vec<String> = report["servers"].as_array().unwrap().iter().map(|it| it["pid"].to_string()).collect();
    assert_eq!(servers, [other], "the other programs of its queues are looked at, and not listed");
    assert!(report["findings"].as_array().unwrap().iter().all(|it| it["id"] != "no-epoll-prefers"), "{examined}");
    stage.says(0, &["detach", &stage.pid()]);
    stage.assert_back();
}

#[test]
fn the_dry_run_of_a_revert_knows_what_stays_for_a_newer_owner() {
    let Some((stage, kernel)) = enter("own-dry-revert") else { return };
    stage.apply(0, "defer50", &[]);
    stage.attach(MODE);
    let profile = stage.profile("defer50");
    let planned = stage.says(0, &["revert", "--dry-run", profile.to_str().unwrap()]);
    assert!(planned.contains(": 0 changes to undo, 2 kept for attach suspend200"), "{planned}");
    let all = stage.says(0, &["revert", "--dry-run"]);
    assert!(!all.contains("kept for"), "both are undone: {all}");
    let attachment = stage.says(0, &["detach", &stage.pid(), "--dry-run"]);
    assert!(attachment.contains(MODE) && !attachment.contains("defer50"), "{attachment}");
    assert_eq!(values(&kernel), SUSPEND200);
    stage.says(0, &["revert", profile.to_str().unwrap()]);
    assert_eq!(values(&kernel), SUSPEND200);
    stage.says(0, &["detach", &stage.pid()]);
    assert_eq!(values(&kernel), BASE);
    stage.assert_back();
}

#[test]
fn a_profile_that_would_end_the_suspension_of_an_attachment_is_refused() {
    let Some((stage, kernel)) = enter("own-refused") else { return };
    stage.attach(MODE);
    for options in [&["--dry-run"][..], &[]] {
        let refused = stage.apply(5, "defer50", options);
        assert!(refused.contains("has interrupt suspension"), "{refused}");
        assert_eq!(values(&kernel), SUSPEND200);
    }
    stage.says(0, &["detach", &stage.pid()]);
    stage.assert_back();
}

#[test]
fn a_profile_that_would_remove_a_queue_of_an_attachment_is_refused() {
    let Some((stage, kernel)) = enter("own-removed") else { return };
    stage.attach(MODE);
    for removing in ["channels]\nrx = 1", "features]\nrx-gro = false"] {
        let path = stage.dir.path().join("removing.toml");
        std::fs::write(&path, format!("[device.lab]\nname = \"server0\"\n[device.lab.{removing}\n")).unwrap();
        for options in [&["--dry-run"][..], &[]] {
            let apply = ["apply", "--netns", &stage.lab.server_name, path.to_str().unwrap()];
            let refused = stage.says(5, &[&apply, options].concat());
            assert!(refused.contains("has interrupt suspension on this queue, which would be removed"), "{refused}");
            assert!(refused.contains("nothing was changed"), "{refused}");
        }
    }
    assert_eq!(values(&kernel), SUSPEND200);
    stage.says(0, &["detach", &stage.pid()]);
    stage.assert_back();
}

#[test]
fn a_setting_whose_queue_returns_when_a_profile_is_reverted_does_not_wait() {
    let Some((stage, kernel)) = enter("own-returns") else { return };
    let foreign = PartialNapiSettings { gro_flush_timeout_ns: Some(70_000), ..PartialNapiSettings::NONE };
    let mut netdev = Netdev::open_in(&stage.lab.server).unwrap();
    stage.lab.napis.iter().for_each(|napi| netdev.set_napi(*napi, &foreign).unwrap());
    stage.attach("base");
    let path = stage.dir.path().join("gro.toml");
    std::fs::write(&path, "[device.lab]\nname = \"server0\"\n[device.lab.features]\nrx-gro = false\n").unwrap();
    stage.says(0, &["apply", "--netns", &stage.lab.server_name, path.to_str().unwrap()]);
    let said = stage.says(0, &["revert"]);
    assert!(!said.contains("wait") && !said.contains(".journal"), "{said}");
    assert!(said.contains(&format!("attach base (memcached {}): 2 settings restored", stage.pid())), "{said}");
    assert_eq!(values(&kernel), (0, 70_000, 0));
    assert!(stage.is_without_journals());
}

#[test]
fn an_experiment_on_a_queue_of_another_program_is_refused_and_names_that_program() {
    let Some((mut stage, kernel)) = enter("own-bench") else { return };
    let (other, _connection) = stage.second_server();
    stage.attach(MODE);
    let pid = other.pid().to_string();
    let named = format!("attach {MODE} (memcached {}) has set it, ", stage.pid());
    for command in [&["bench", "--modes", "base,defer200"][..], &["tune", "--goal", "least cpu"]] {
        let refused = stage.says(5, &[command, &["--pid", &pid, "--yes"]].concat());
        assert!(refused.contains(&named) && refused.contains("nothing was changed"), "{refused}");
    }
    assert_eq!(values(&kernel), SUSPEND200);
    stage.says(0, &["detach", &stage.pid()]);
    stage.assert_back();
}

/// Another memcached under `quell run`, in the lab's namespace.
fn launch(stage: &Stage) -> Child {
    let mut command =
        stage.quell(&["run", MODE, "--", "memcached", "-u", "root", "-U", "0", "-l", "192.0.2.1", "-p", "11212"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    stage.lab.server.run(|| command.spawn().unwrap()).unwrap()
}

#[test]
fn the_revert_of_a_profile_leaves_the_mode_of_a_launched_program() {
    let Some((stage, kernel)) = enter("own-run") else { return };
    stage.apply(0, "defer50", &[]);
    let mut launched = launch(&stage);
    let connect = || std::net::TcpStream::connect("192.0.2.1:11212");
    wait_until(|| stage.lab.client.run(connect).unwrap().is_ok(), "memcached does not listen");
    let connections: Vec<_> = (0..8).map(|_| stage.lab.client.run(connect).unwrap().unwrap()).collect();
    wait_until(|| values(&kernel) == SUSPEND200, "the mode is not set");
    stage.says(0, &["revert"]);
    assert_eq!(values(&kernel), SUSPEND200);
    drop(connections);
    quell_linux::pidfd::PidFd::open(quell_linux::Pid::from_kernel(launched.id()).unwrap())
        .unwrap()
        .signal(quell_linux::pidfd::Signal::TERM)
        .unwrap();
    launched.wait().unwrap();
    assert_eq!(values(&kernel), BASE);
    assert!(stage.is_without_journals());
}

#[test]
fn a_profile_and_an_attachment_that_begin_at_the_same_time_leave_nothing() {
    let Some((stage, kernel)) = enter("own-race") else { return };
    let profile = stage.profile("suspend20");
    for _ in 0..5 {
        let apply = ["apply", "--netns", &stage.lab.server_name, profile.to_str().unwrap()];
        let start =
            |arguments: &[&str]| stage.quell(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut both = [start(&["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]), start(&apply)];
        both.iter_mut().for_each(|one| assert!(one.wait().unwrap().success()));
        stage.says(0, &["detach", &stage.pid()]);
        assert_eq!(values(&kernel), SUSPEND20);
        stage.says(0, &["revert"]);
        assert_eq!(values(&kernel), BASE);
    }
    stage.assert_back();
}

/// Two workers that inherit one epoll with a connection.
const TWO_WORKERS: &str = "import os, select, socket
connection, _ = socket.create_server(('192.0.2.1', 11301)).accept()
epoll = select.epoll()
epoll.register(connection, select.EPOLLIN | select.EPOLLET)
if os.fork() and os.fork():
    os.wait()
while True:
    epoll.poll()
";

#[test]
fn two_workers_with_one_epoll_are_attached_and_detached_in_any_order() {
    let Some(mut stage) = Stage::without_connections("own-epoll") else { return };
    let server = stage.lab.start(Spawn::new("python3").args(["-c", TWO_WORKERS]));
    let connect = || std::net::TcpStream::connect("192.0.2.1:11301");
    let mut connection = None;
    wait_until(
        || {
            connection = stage.lab.client.run(connect).unwrap().ok();
            connection.is_some()
        },
        "the server does not listen",
    );
    let children = || {
        let path = format!("/proc/{0}/task/{0}/children", server.pid());
        let text = std::fs::read_to_string(path).unwrap();
        text.split_whitespace().map(ToOwned::to_owned).collect::<Vec<String>>()
    };
    wait_until(|| children().len() == 2, "the workers do not start");
    let workers = children();
    let polls = |worker: &str| {
        let shown: serde_json::Value =
            serde_json::from_str(&command::says(0, &mut stage.quell(&["show", "-j", worker]))).unwrap();
        shown["processes"][0]["files"]["epolls"][0]["params"].to_string()
    };
    let before = polls(&workers[0]);
    let modes = ["suspend200", "suspend200,busy-poll-budget=8"];
    for order in [[0, 1], [1, 0]] {
        for (worker, mode) in workers.iter().zip(modes) {
            stage.says(0, &["attach", mode, worker, "--yes", "--seconds", "0", "--accept-stalls"]);
        }
        stage.says(0, &["detach", &workers[order[0]]]);
        let remains = polls(&workers[0]);
        assert_eq!(remains.contains("\"busy_poll_budget\":8"), order[1] == 1, "{remains}");
        assert_ne!(remains, before);
        stage.says(0, &["detach", &workers[order[1]]]);
        assert_eq!(polls(&workers[0]), before, "ended in the order {order:?}");
    }
    stage.assert_back();
}

#[test]
fn the_status_of_an_older_owner_names_the_newer_one_and_measures_what_bench_does_not_refuse() {
    let Some((mut stage, kernel)) = enter("own-shared") else { return };
    let (second, _connection) = stage.second_server();
    let (first, second) = (stage.pid(), second.pid().to_string());
    stage.attach("suspend20");
    stage.says(0, &["attach", MODE, &second, "--yes", "--seconds", "0"]);
    let status = stage.says(0, &["status"]);
    let now = format!("; newer: gro-flush-timeout 200 µs by attach suspend200 to memcached {second}\n");
    assert!(status.contains(&now), "{status}");
    let status: serde_json::Value = serde_json::from_str(&stage.says(0, &["status", "-j"])).unwrap();
    let of_first = status["applied"].as_array().unwrap().iter().find(|one| one["purpose"]["mode"] == "suspend20");
    let of_first = of_first.unwrap_or_else(|| panic!("{status:#}"));
    let (mut sharing, of_second) = (of_first["sharing"].clone(), second.parse::<i32>().unwrap());
    let in_force = sharing.as_object_mut().unwrap().remove("in-force").unwrap();
    assert_eq!((&in_force["mode"], &in_force["program"]["pid"]), (&"suspend200".into(), &of_second.into()));
    assert_eq!(sharing, serde_json::json!({"programs": [of_second], "same-mode": false, "launched": false}));

    let bench = |code, pids: &str| stage.says(code, &["bench", "--pid", pids, "--quick", "--dry-run"]);
    let refused = bench(5, &first);
    assert!(refused.contains("suspend200"), "{refused}");
    stage.says(0, &["detach", &second]);
    bench(0, &first);
    stage.says(0, &["attach", "suspend20", &second, "--yes", "--seconds", "0"]);
    bench(0, &format!("{first},{second}"));
    stage.says(0, &["detach", &first, &second]);
    assert_eq!(values(&kernel), BASE);
    stage.assert_back();
}

#[test]
fn a_mode_that_another_program_has_changed_has_no_figures_but_the_command_that_sets_it_again() {
    let Some(stage) = Stage::enter("own-drifted") else { return };
    stage.attach(MODE);
    stage.lab.set_napi(&PartialNapiSettings { gro_flush_timeout_ns: Some(77_000), ..PartialNapiSettings::NONE });
    let pid = stage.pid();
    let again = format!("quell detach {pid} && quell attach {MODE} {pid}");
    let status = stage.says(3, &["status"]);
    assert!(status.contains("has changed settings of suspend200"), "{status}");
    assert!(
        status.contains(&format!(":\n    {again}\n")) && status.contains(&format!("what to do: `{again}`")),
        "{status}"
    );
    assert!(!status.contains("timer expires"), "{status}");
    stage.says(0, &["detach", &pid]);
}
