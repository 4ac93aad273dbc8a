//! Runs the commands of the README as a user types them: a lab, a memcached in it, a profile, a healthy doctor, and
//! undoing it all. Needs root, Linux 6.13 and memcached; reports when it is skipped.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use quell_linux::netdev::PartialNapiSettings;
use quell_linux::netns::{Namespace, NamespaceName};
use quell_subject::requirements::missing;
use quell_subject::server::ServerCommand;
use quell_test_support::lab::TestLab;
use quell_test_support::{Lacks, skip, skip_missing};

use crate::command;

const SERVER: &str = "quell-lab-server";

fn skipped() -> bool {
    let missing = missing(&ServerCommand::memcached());
    if !missing.is_empty() {
        skip_missing(missing.iter().map(|missing| missing.what.as_str()));
        return true;
    }
    let is_up = Namespace::list_named().unwrap().contains(&NamespaceName::new(SERVER).unwrap());
    if is_up {
        skip(Lacks::Machine, "a lab is up already");
    }
    is_up
}

struct Quell<'a> {
    journal: &'a Path,
}

impl Quell<'_> {
    fn output(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
        command.args(arguments).env("QUELL_JOURNAL_DIR", self.journal).output().unwrap()
    }

    /// Runs the program, checks that it exits with `code`, and returns its output.
    fn says(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "quell {}\n{text}", arguments.join(" "));
        text
    }
}

impl Drop for Quell<'_> {
    fn drop(&mut self) {
        // Nothing may remain after a failed assertion.
        self.output(&["revert"]);
        self.output(&["lab", "down"]);
    }
}

fn memcached() -> Child {
    let namespace = Namespace::open_named(&NamespaceName::new(SERVER).unwrap()).unwrap();
    let start = || Command::new("memcached").args(["-u", "nobody", "-t", "4"]).stderr(Stdio::null()).spawn().unwrap();
    namespace.run(start).unwrap()
}

#[test]
fn a_profile_for_memcached_is_applied_found_healthy_and_reverted() {
    if skipped() {
        return;
    }
    let journal = tempfile::tempdir().unwrap();
    let quell = Quell { journal: journal.path() };
    let profile = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/lab.toml");

    assert!(quell.says(0, &["lab", "up"]).contains("4 queues"));
    assert!(quell.says(1, &["lab", "up"]).contains("is already up"));
    let mut memcached = memcached();
    let planned = quell.says(0, &["apply", "--netns", SERVER, "--dry-run", profile]);
    assert!(planned.contains("queues 0-3 napi: defer-hard-irqs 0"), "{planned}");
    assert!(quell.says(0, &["apply", "--netns", SERVER, profile]).contains("applied and verified"));
    assert!(quell.says(0, &["status"]).contains("lab.toml"));
    let printed = quell.says(0, &["show", "--as-profile", "--netns", SERVER]);
    assert!(printed.contains("\nmode = "), "{printed}");
    let saved = journal.path().with_extension("toml");
    std::fs::write(&saved, &printed).unwrap();
    let planned = quell.says(0, &["apply", "--netns", SERVER, "--dry-run", saved.to_str().unwrap()]);
    assert!(planned.contains("nothing to"), "{planned}");
    std::fs::write(&saved, "[sysctl]\n\"net.ipv4.tcp_sack\" = 0\n").unwrap();
    for dry_run in [&["--dry-run"][..], &[]] {
        let another = [&["apply", "--netns", SERVER], dry_run, &[saved.to_str().unwrap()]].concat();
        assert!(quell.says(2, &another).contains("is already applied"), "{dry_run:?}");
    }
    std::fs::write(&saved, "[device.lab]\nname = 'server0'\nqueues.all.mode = 'defer100000'\n").unwrap();
    quell.says(0, &["revert"]);
    for dry_run in [&["--dry-run"][..], &[]] {
        let stalling = [&["apply", "--netns", SERVER], dry_run, &[saved.to_str().unwrap()]].concat();
        let refused = quell.says(3, &stalling);
        assert!(refused.contains("timer-delays-packets: "), "{refused}");
    }
    assert!(quell.says(0, &["status"]).contains("nothing is applied"), "a predicted stall is refused");
    assert!(
        quell.says(0, &["apply", "--netns", SERVER, "--accept-stalls", saved.to_str().unwrap()]).contains("applied")
    );
    quell.says(0, &["revert"]);
    quell.says(0, &["apply", "--netns", SERVER, profile]);
    std::fs::remove_file(&saved).unwrap();
    for again in [&["apply", "--netns", SERVER, "--dry-run", profile][..], &["apply", "--netns", SERVER, profile]] {
        quell.says(0, again);
    }
    let unchanged = quell.says(0, &["apply", "--netns", SERVER, "--confirm", "60m", profile]);
    assert!(unchanged.contains("nothing was changed"), "{unchanged}");
    let verdict = quell.says(0, &["doctor", "--netns", SERVER, "--seconds", "0"]);
    assert!(!verdict.contains("serious"), "{verdict}");

    assert!(quell.says(1, &["confirm"]).contains("nothing to confirm"));
    assert!(quell.says(0, &["revert"]).contains("4 settings restored"));
    assert!(quell.says(0, &["status"]).contains("nothing is applied"));
    assert!(quell.says(0, &["apply", "--netns", SERVER, "--confirm", "60m", profile]).contains("quell confirm"));
    assert!(quell.says(0, &["revert"]).contains("4 settings restored"), "the watchdog's undo is reported too");
    assert!(quell.says(0, &["apply", "--netns", SERVER, "--confirm", "1s", profile]).contains("quell confirm"));
    // While the watchdog undoes the profile, `status` may show a part of it.
    while !String::from_utf8(quell.output(&["status"]).stdout).unwrap().contains("nothing is applied") {
        std::thread::yield_now();
    }
    assert!(quell.says(0, &["lab", "down"]).contains("removed"));
    assert!(!memcached.wait().unwrap().success(), "processes in the lab end with it");
    assert_eq!(crate::command::journals_in(journal.path()), [""; 0]);
}

#[test]
fn a_profile_that_is_applied_already_is_set_again_and_with_another_text_it_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, profile) = (directory.path().join("journal"), directory.path().join("p.toml"));
    let write = |limit: u32| std::fs::write(&profile, format!("[sysctl]\n\"net.core.somaxconn\" = {limit}\n")).unwrap();
    let script = r#"
        limit=/proc/sys/net/core/somaxconn; before=$(cat $limit)
        "$0" apply "$1" && echo 5 >$limit
        "$0" apply --confirm 60m "$1"; echo $? && cat $limit
        "$0" apply "$1" && cat $limit
        sed -i s/77/78/ "$1"
        "$0" apply "$1"; echo $? && cat $limit
        "$0" revert && test "$(cat $limit)" = "$before" && echo restored"#;
    write(77);
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", script, env!("CARGO_BIN_EXE_quell")]).arg(&profile);
    let output = command.env("QUELL_JOURNAL_DIR", &journal).stdin(Stdio::null()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if err.contains("unshare failed") {
        skip(Lacks::Root, "network namespaces need CAP_SYS_ADMIN");
        return;
    }
    assert!(out.contains("\n2\n5\n"), "{out}{err}");
    let replaced = |err: &str| {
        err.contains("\nTo replace it: `quell revert profile-")
            || err.contains(". To replace it: `quell revert profile-")
    };
    assert!(err.contains("p.toml is already applied; nothing was changed") && replaced(&err), "{err}");
    assert!(out.contains("set again: net.core.somaxconn"), "{out}{err}");
    assert!(out.contains("\n77\n2\n77\n"), "{out}{err}");
    assert!(err.contains("p.toml is already applied, with other settings:\n"), "{err}");
    assert!(out.ends_with("restored\n"), "{out}{err}");
}

#[test]
fn an_invalid_profile_is_refused_with_the_position() {
    let journal = tempfile::tempdir().unwrap();
    let quell = Quell { journal: journal.path() };
    let file = journal.path().join("wrong.toml");
    std::fs::write(&file, "[device.a]\nname = \"*\"\n[device.a.queues.all]\nmode = \"suspnd20\"\n").unwrap();
    let said = quell.says(1, &["apply", "--dry-run", file.to_str().unwrap()]);
    assert!(said.contains("wrong.toml:4:9") && said.contains("^^^"), "{said}");
}

#[test]
fn a_profile_with_a_program_table_only_is_refused_with_the_commands_that_use_it() {
    let journal = tempfile::tempdir().unwrap();
    let quell = Quell { journal: journal.path() };
    let file = journal.path().join("program.toml");
    std::fs::write(&file, "[program]\nmode = \"suspend20\"\n").unwrap();
    for options in [&["apply"][..], &["apply", "--dry-run"]] {
        let said = quell.says(1, &[options, &[file.to_str().unwrap()]].concat());
        for part in
            ["program.toml has only a [program] table", "nothing was changed", "attach --profile", "run --profile"]
        {
            assert!(said.contains(part), "no {part:?} in {said}");
        }
    }
}

#[test]
fn apply_and_run_warn_about_a_short_suspension_before_they_set_it() {
    let Some(lab) = TestLab::raise_beside_others("cli-short", 1) else { return };
    let journal = tempfile::tempdir().unwrap();
    let profile = journal.path().with_extension("toml");
    let mode = "suspend20,irq-suspend-timeout=20000";
    let text = |mode: &str| format!("[device.a]\nname = \"server0\"\n[device.a.queues.all]\nmode = \"{mode}\"\n");
    let warns = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
        command.args(arguments).env("QUELL_JOURNAL_DIR", journal.path());
        let output = lab.server.run(|| command.output().unwrap()).unwrap();
        let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        said.contains("irq-suspend-timeout does not exceed gro-flush-timeout [suspend-timeout-too-short]")
    };
    for (mode, expected) in [(mode, true), ("suspend20", false)] {
        std::fs::write(&profile, text(mode)).unwrap();
        let file = profile.to_str().unwrap();
        assert_eq!(warns(&["apply", "--dry-run", file]), expected, "apply {mode}");
        assert_eq!(warns(&["run", "--dry-run", mode, "--", "true"]), expected, "run {mode}");
        assert_eq!(warns(&["run", mode, "--", "true"]), expected, "run {mode}");
    }
    std::fs::remove_file(&profile).unwrap();
}

/// Writes the files of other owners into an own `/etc`, which hides that of the machine, and examines the namespace.
const WITH_OTHER_OWNERS: &str = r#"
set -e
mount -t tmpfs tmpfs /etc
mkdir -p /etc/systemd/network /etc/udev/rules.d /etc/tuned/mine
printf '[Match]\nDriver=ve*\n[Link]\nRxBufferSize=max\n' >/etc/systemd/network/10-lab.link
printf 'SUBSYSTEM=="net", RUN+="/bin/sh -c \047echo 0 >/sys/class/net/$name/gro_flush_timeout\047"\n' \
    >/etc/udev/rules.d/99-lab.rules
exec "$@"
"#;

#[test]
fn files_that_overwrite_the_settings_of_queues_are_found() {
    let Some(lab) = TestLab::raise_beside_others("cli-owners", 1) else { return };
    let examine = || {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", WITH_OTHER_OWNERS, "sh", env!("CARGO_BIN_EXE_quell"), "doctor"]);
        command.args(["--seconds", "0"]);
        let output = lab.server.run(|| command.output().unwrap()).unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let said = examine();
    assert!(!said.contains("overwriting-configuration"), "no queue has a mode: {said}");
    lab.set_napi(&PartialNapiSettings {
        defer_hard_irqs: Some(100),
        gro_flush_timeout_ns: Some(20_000),
        ..PartialNapiSettings::NONE
    });
    let said = examine();
    assert!(said.contains("server0: /etc/systemd/network/10-lab.link sets RxBufferSize=max"), "{said}");
    assert!(said.contains("this host: /etc/udev/rules.d/99-lab.rules sets gro_flush_timeout"), "{said}");
}

#[test]
fn a_setting_that_is_not_possible_is_shown_once_in_words_before_the_kernels() {
    let Some(lab) = TestLab::raise_beside_others("impossible", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("rings.toml");
    std::fs::write(&profile, "[device.lab]\nname = \"server0\"\n[device.lab.rings]\nrx = 64\n").unwrap();
    let said = command::says(
        5,
        &mut command::quell(
            &dir.path().join("journal"),
            &["apply", "--netns", &lab.server_name, "--dry-run", profile.to_str().unwrap()],
        ),
    );
    assert_eq!(said.matches("rings of server0: the driver does not support it: ").count(), 1, "{said}");
    assert_eq!(said.matches("rings of server0").count(), 1, "{said}");
    assert!(
        said.contains("1 setting in the profile cannot be applied here") && said.contains("--skip-impossible"),
        "{said}"
    );
}
