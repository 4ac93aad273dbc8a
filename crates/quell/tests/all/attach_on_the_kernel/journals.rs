//! Undoing after a keeper was killed, on a full disk, and with a damaged, locked or foreign journal.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use quell_change::journal::{Journal, Purpose};
use quell_linux::proc::ProcRoot;
use quell_test_support::lab::TestLab;
use quell_test_support::small_disk::SmallDisk;
use quell_test_support::{Lacks, skip};

use super::stage::{MODE, Stage, kill, wait_until};

#[test]
fn an_attachment_of_another_pid_namespace_belongs_to_an_invisible_process() {
    let Some(stage) = Stage::enter("cli-pidns") else { return };
    let quell = env!("CARGO_BIN_EXE_quell");
    let script = format!(
        "memcached -u root -U 0 -t 1 -l 0.0.0.0 -p 11999 & \
         while ! {quell} attach {MODE} $! --yes --follow --seconds 0; do sleep 0.2; done"
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script]);
    unshare.env("QUELL_JOURNAL_DIR", stage.journals()).stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null());
    let Ok(mut inside) = unshare.spawn() else { return skip(Lacks::Tool("unshare"), "unshare is not installed") };
    let count = || crate::command::journals_in(&stage.journals()).len();
    let shows = || String::from_utf8(stage.quell(&["status"]).output().unwrap().stdout).unwrap();
    wait_until(|| count() > 0 && shows().contains("not visible here"), "the attachment in the namespace is not listed");
    for command in [&["detach", "--all"][..], &["revert"]] {
        assert!(stage.says(2, command).contains("not visible here"), "{command:?}");
    }
    inside.kill().unwrap();
    inside.wait().unwrap();
    wait_until(|| !shows().contains("not visible here"), "the owners are gone");
    stage.quell(&["revert"]).output().unwrap();
}

impl Stage {
    /// Path of the only journal.
    fn journal(&self) -> PathBuf {
        let is_journal = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "journal");
        let paths = std::fs::read_dir(self.journals()).unwrap().map(|entry| entry.unwrap().path());
        let [journal] = &paths.filter(is_journal).collect::<Vec<_>>()[..] else { panic!("expected one journal") };
        journal.clone()
    }

    fn attached_without_keeper(test: &str) -> Option<Self> {
        let stage = Self::enter(test)?;
        stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
        kill(&stage.keeper());
        Some(stage)
    }
}

#[test]
fn revert_after_the_keeper_was_killed_reports_restored_settings() {
    let Some(stage) = Stage::attached_without_keeper("cli-rev-k") else { return };
    let said = stage.says(0, &["revert"]);
    assert!(said.contains("detached memcached") && !said.contains("not restored"), "{said}");
    stage.assert_back();
}

#[test]
fn a_dry_run_beside_an_attachment_whose_keeper_was_killed_plans_what_the_real_run_does() {
    let Some(stage) = Stage::attached_without_keeper("cli-dry-k") else { return };
    let mut arguments = vec!["attach", "defer50", "--seconds", "0"];
    let pid = stage.pid();
    arguments.push(&pid);
    let planned = stage.says(0, &[&arguments[..], &["--dry-run"]].concat());
    assert!(planned.contains("restores attach suspend200 first"), "{planned}");
    assert!(planned.contains("gro-flush-timeout 0 ns"), "the values from before both: {planned}");
    assert!(stage.is_set(), "a dry run changes nothing");
    stage.says(0, &[&arguments[..], &["--yes"]].concat());
    assert!(stage.says(0, &["detach", &pid]).contains("restored"));
    stage.assert_back();
}

#[test]
fn revert_by_name_leaves_the_others_and_a_dry_run_changes_nothing() {
    let Some(stage) = Stage::enter("cli-rev-n") else { return };
    let profile = stage.dir.path().join("deferral.toml");
    let text = "[device.lab]\nname = \"server0\"\n[device.lab.queues.all]\nmode = \"defer200\"\n";
    std::fs::write(&profile, text).unwrap();
    stage.says(0, &["apply", "--netns", &stage.lab.server_name, profile.to_str().unwrap()]);
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    let attached = format!("attach-{}", stage.pid());
    let set = stage.lab.napi();
    let planned = stage.says(0, &["revert", "--dry-run"]);
    assert!(
        planned.contains(&format!("({attached}): ")) && planned.contains("deferral.toml in namespace"),
        "{planned}"
    );
    let planned = stage.says(0, &["revert", "--dry-run", &attached]);
    assert!(planned.contains(" to undo") && !planned.contains("deferral.toml"), "{planned}");
    let refused = stage.says(1, &["revert", &attached, "memcached"]);
    assert!(refused.contains("named memcached") && refused.contains(&format!("  {attached}: attach")), "{refused}");
    assert_eq!(stage.lab.napi(), set, "neither changes anything");
    assert!(stage.says(0, &["revert", "deferral"]).contains("deferral.toml in namespace"));
    let status = stage.says(0, &["status"]);
    assert!(status.contains(&format!("({attached})")) && !status.starts_with("profile"), "{status}");
    assert!(stage.is_set());
    assert!(stage.says(0, &["revert", &attached]).contains("detached memcached"));
    stage.assert_back();
}

#[test]
fn after_the_namespace_of_a_profile_was_deleted_nothing_is_left_to_undo() {
    let Some(stage) = Stage::enter("cli-rev-gone") else { return };
    let Some(other) = TestLab::raise_beside_others("cli-rev-gone2", 1) else { return };
    let profile = stage.dir.path().join("deferral.toml");
    let text = "[device.lab]\nname = \"server0\"\n[device.lab.queues.all]\nmode = \"defer200\"\n";
    std::fs::write(&profile, text).unwrap();
    stage.says(0, &["apply", "--netns", &other.server_name, profile.to_str().unwrap()]);
    drop(other);
    // The kernel deletes a namespace in the background.
    let status = || String::from_utf8(stage.quell(&["status"]).output().unwrap().stdout).unwrap();
    wait_until(|| status().contains("nothing is left to undo"), "status does not say so");
    let planned = stage.says(0, &["revert", "--dry-run", "deferral"]);
    assert!(planned.contains("nothing is left to undo"), "{planned}");
    assert!(stage.says(0, &["revert", "deferral"]).contains("nothing was left to undo"));
    assert!(stage.says(0, &["status"]).contains("nothing is applied"));
}

#[test]
fn on_a_full_disk_detach_restores_and_reports_everything() {
    // The undo records of so many epolls do not fit into the last page of the journal.
    let Some(mut stage) = Stage::with_workers("cli-disk", 64) else { return };
    stage.connect(128);
    let Some(disk) = SmallDisk::mount(stage.journals()) else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    disk.fill();
    let said = stage.says(0, &["detach", &stage.pid()]);
    assert!(!said.contains("not restored") && !said.contains(": 0 settings"), "{said}");
    assert!(!stage.is_set());
}

#[test]
fn on_a_full_disk_a_profile_is_reverted() {
    let Some(stage) = Stage::enter("cli-disk-p") else { return };
    let Some(disk) = SmallDisk::mount(stage.journals()) else { return };
    let profile = stage.dir.path().join("profile.toml");
    std::fs::write(&profile, "[device.lab]\nname = \"server0\"\n[device.lab.queues.all]\nmode = \"suspend20\"\n")
        .unwrap();
    let before = stage.lab.napi();
    stage.says(0, &["apply", "--netns", &stage.lab.server_name, profile.to_str().unwrap()]);
    assert_ne!(stage.lab.napi(), before);
    disk.fill();
    let said = stage.says(0, &["revert"]);
    assert!(!said.contains(": 0 settings"), "{said}");
    assert_eq!(stage.lab.napi(), before);
}

#[test]
fn the_readable_lines_of_a_damaged_journal_are_undone_and_the_rest_is_reported() {
    let Some(stage) = Stage::attached_without_keeper("cli-damage") else { return };
    let journal = stage.journal();
    let text = std::fs::read_to_string(&journal).unwrap();
    let last_intention = text.lines().rfind(|line| line.contains("\"intend\"")).unwrap();
    std::fs::write(&journal, text.replace(last_intention, "what a bad sector left")).unwrap();
    let status = stage.says(3, &["status"]);
    assert!(!status.contains("nothing is applied") && status.contains("1 journal cannot be read"), "{status}");
    assert!(status.contains("quell revert") && status.contains("damaged"), "{status}");

    let said = stage.says(2, &["revert"]);
    assert!(!stage.is_set(), "the readable lines are undone");
    assert!(said.contains("unreadable: line") && said.contains("--remove-damaged"), "{said}");
    assert!(!said.contains("nothing to revert"), "{said}");
    assert!(journal.exists());
    let said = stage.says(0, &["revert", "--remove-damaged"]);
    assert!(said.contains("file removed"), "{said}");
    assert!(!journal.exists());
}

#[test]
fn a_locked_journal_is_reported_with_the_process_that_holds_it() {
    let Some(stage) = Stage::attached_without_keeper("cli-lock") else { return };
    let held = std::fs::File::open(stage.journal()).unwrap();
    held.lock().unwrap();
    let said = stage.says(2, &["revert"]);
    assert!(said.contains(&format!("process {} (", std::process::id())), "{said}");
    assert_eq!(said.matches("holds its lock").count(), 1, "one attempt and one error: {said}");
    assert!(!said.contains("nothing to revert"), "{said}");
    drop(held);
    stage.says(0, &["revert"]);
    stage.assert_back();
}

#[test]
fn an_attachment_that_was_killed_before_its_first_change_is_listed_and_reverted() {
    let Some(stage) = Stage::enter("cli-begun") else { return };
    let boot_id = ProcRoot::default().boot_id().unwrap().to_string();
    let purpose = Purpose::Attachment { mode: MODE.parse().unwrap() };
    drop(Journal::in_dir(stage.journals()).begin("attach-1", purpose, &boot_id).unwrap());
    let left = format!("attach {MODE}");
    let status = stage.says(3, &["status"]);
    assert!(status.contains(&format!("left by an earlier run: {left}")), "{status}");
    let reverted = stage.says(0, &["revert"]);
    assert!(reverted.contains(&format!("{left}: 0 settings restored")), "{reverted}");
    assert!(stage.says(0, &["revert"]).contains("nothing to revert"));
    stage.assert_back();
}

#[test]
fn a_journal_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(stage) = Stage::attached_without_keeper("cli-forged") else { return };
    let set_mode = |mode| std::fs::set_permissions(stage.journal(), std::fs::Permissions::from_mode(mode)).unwrap();
    assert_eq!(stage.journal().metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    set_mode(0o666);
    for command in ["revert", "detach"] {
        let said = stage.says(if command == "revert" { 2 } else { 1 }, &[command]);
        assert!(command == "detach" || said.contains("it is writable by others"), "{said}");
    }
    assert!(stage.is_set());
    set_mode(0o600);
    stage.says(0, &["revert"]);
    stage.assert_back();
}
