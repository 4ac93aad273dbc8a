//! Persistent changes: which commands leave them alone, which undo them, and what the watchdog does without a
//! confirmation. Needs root and Linux 6.13.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use quell_change::journal::{Journal, Persistence, Watchdog};
use quell_change::persistent::{self, PersistError, PersistState, WatchEnded};
use quell_change::recovery::{Found, recover};
use quell_linux::Pid;
use quell_linux::proc::{ProcRoot, ProcessIdentity};
use quell_test_support::entry;
use quell_test_support::lab::{SUSPENDING, TestLab};

const WATCHED_JOURNAL: &str = "QUELL_TEST_WATCHED_JOURNAL";
const PATIENCE_MS: &str = "QUELL_TEST_PATIENCE_MS";
const FOREVER: Duration = Duration::from_secs(1000);

/// Makes the settings of [`SUSPENDING`] persistent and returns the path of the journal.
fn keep(lab: &TestLab, dir: &tempfile::TempDir, test: &str) -> PathBuf {
    let mut transaction = lab.transaction(dir, test);
    assert!(transaction.set_napi(&lab.server, lab.napis[0], &SUSPENDING).unwrap());
    transaction.persist().unwrap()
}

fn is_set(lab: &TestLab) -> bool {
    lab.napi().settings.irq_suspend_timeout_ns == SUSPENDING.irq_suspend_timeout_ns
}

#[test]
fn persistent_changes_stay_until_their_release() {
    let Some(lab) = TestLab::raise("kept", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let path = keep(&lab, &dir, "kept-t");
    assert!(matches!(&recover(&journal).unwrap()[..], [Found::Kept { path: found, .. }] if *found == path));
    assert!(is_set(&lab));
    assert_eq!(persistent::list(&journal).unwrap()[0].state, PersistState::UntilReverted);

    let reverted = persistent::release(&journal, &path).unwrap().unwrap();
    assert_eq!((reverted.undone.len(), reverted.failed.len()), (1, 0));
    assert!(!is_set(&lab));
    assert!(persistent::list(&journal).unwrap().is_empty());
    assert!(persistent::release(&journal, &path).unwrap().is_none(), "nothing is undone twice");
}

#[test]
fn changes_of_another_boot_are_not_undone() {
    let Some(lab) = TestLab::raise("boot", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let mut transaction = lab.transaction(&dir, "boot-t");
    transaction.set_napi(&lab.server, lab.napis[0], &SUSPENDING).unwrap();
    let path = transaction.persist().unwrap();
    let other_boot = in_another_boot(&std::fs::read_to_string(&path).unwrap());
    std::fs::write(&path, other_boot).unwrap();

    assert!(matches!(recover(&journal).unwrap()[..], [Found::Kept { .. }]));
    assert_eq!(persistent::list(&journal).unwrap()[0].state, PersistState::BeforeThisBoot);
    persistent::forget_earlier_boots(&journal).unwrap();
    assert!(persistent::list(&journal).unwrap().is_empty());
    assert!(is_set(&lab), "in this boot, the value belongs to another program");
}

/// Rewrites the journal as if it were of another boot.
fn in_another_boot(text: &str) -> String {
    let (first, rest) = text.split_once('\n').unwrap();
    let json = &first[9..];
    let boot = ProcRoot::default().boot_id().unwrap().to_string();
    let json = json.replace(&boot, "00000000-0000-0000-0000-000000000000");
    format!("{:08x} {json}\n{rest}", crc32fast::hash(json.as_bytes()))
}

/// Not a test: the watchdog process that the tests below start.
#[test]
#[ignore = "the program of a process that other tests start"]
fn watchdog() {
    let Some(path) = std::env::var_os(WATCHED_JOURNAL).map(PathBuf::from) else { return };
    let patience = Duration::from_millis(std::env::var(PATIENCE_MS).unwrap().parse().unwrap());
    let journal = Journal::in_dir(path.parent().unwrap());
    let ended = persistent::watch(&journal, &path, patience, || {
        eprintln!("watching");
        Ok(())
    });
    assert!(ended.is_ok(), "{ended:?}");
}

fn start_watchdog(journal: &Path, patience: Duration) -> (Child, Watchdog) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(entry(watchdog))
        .arg("--test-threads=1")
        .env(WATCHED_JOURNAL, journal)
        .env(PATIENCE_MS, patience.as_millis().to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while line.trim() != "watching" {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut said, &mut line).unwrap() > 0, "the watchdog exited early");
    }
    let identity = ProcessIdentity::of(&ProcRoot::default(), Pid::from_kernel(child.id()).unwrap()).unwrap();
    let watchdog = Watchdog { pid: identity.pid, start_time_ticks: identity.starttime.0, deadline_unix_s: 0 };
    (child, watchdog)
}

/// Makes settings that persist only with a confirmation, and starts the watchdog.
fn persist_if_confirmed(
    lab: &TestLab,
    dir: &tempfile::TempDir,
    test: &str,
    patience: Duration,
) -> (Child, Watchdog, PathBuf) {
    let mut transaction = lab.transaction(dir, test);
    let (child, watchdog) = start_watchdog(transaction.journal_path(), patience);
    transaction.set_napi(&lab.server, lab.napis[0], &SUSPENDING).unwrap();
    let path = transaction.persist_if_confirmed(watchdog).unwrap();
    (child, watchdog, path)
}

#[test]
fn an_unconfirmed_profile_is_rolled_back() {
    let Some(lab) = TestLab::raise("unconfirmed", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (mut child, watchdog, path) = persist_if_confirmed(&lab, &dir, "unconfirmed-t", Duration::from_millis(1));
    assert!(child.wait().unwrap().success());
    assert!(!is_set(&lab));
    let journal = Journal::in_dir(dir.path());
    let confirmed = persistent::confirm(&journal, &path, &watchdog);
    assert!(matches!(confirmed, Err(PersistError::TooLate { .. })), "{confirmed:?}");
    assert!(journal.list().unwrap().is_empty());
}

#[test]
fn a_confirmed_profile_stays() {
    let Some(lab) = TestLab::raise("confirmed", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let (mut child, watchdog, path) = persist_if_confirmed(&lab, &dir, "confirmed-t", FOREVER);
    assert_eq!(persistent::list(&journal).unwrap()[0].state, PersistState::Unconfirmed(watchdog));
    assert!(!matches!(recover(&journal).unwrap()[..], [Found::Recovered { .. }]), "the watchdog owns the journal");
    persistent::confirm(&journal, &path, &watchdog).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(is_set(&lab));
    assert_eq!(persistent::list(&journal).unwrap()[0].history.persistence, Persistence::UntilReverted);
    persistent::release(&journal, &path).unwrap();
}

#[test]
fn an_incomplete_transaction_is_undone_by_the_watchdog_at_once() {
    let Some(lab) = TestLab::raise("died", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, "died-t");
    transaction.set_napi(&lab.server, lab.napis[0], &SUSPENDING).unwrap();
    // A copy has no owner, as after a `kill -9`.
    let left_behind = tempfile::tempdir().unwrap();
    let path = left_behind.path().join("died.journal");
    std::fs::copy(transaction.journal_path(), &path).unwrap();
    let (mut child, _) = start_watchdog(&path, FOREVER);
    assert!(child.wait().unwrap().success());
    assert!(!is_set(&lab));
}

#[test]
fn a_profile_without_watchdog_is_undone_by_the_next_command() {
    let Some(lab) = TestLab::raise("blind", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (mut child, _, _) = persist_if_confirmed(&lab, &dir, "blind-t", FOREVER);
    child.kill().unwrap();
    child.wait().unwrap();
    let found = recover(&Journal::in_dir(dir.path())).unwrap();
    assert!(matches!(&found[..], [Found::Recovered { reverted, .. }] if reverted.undone.len() == 1), "{found:?}");
    assert!(!is_set(&lab));
}

#[test]
fn a_watchdog_undoes_everything_at_once_on_request() {
    let Some(lab) = TestLab::raise("give-up", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (mut child, watchdog, path) = persist_if_confirmed(&lab, &dir, "give-up-t", FOREVER);
    let journal = Journal::in_dir(dir.path());
    let reverted = persistent::give_up(&journal, &path, &watchdog).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!is_set(&lab));
    assert_eq!((reverted.undone.len(), reverted.already_gone.len(), reverted.partial.len()), (1, 0, 0), "{reverted:?}");
    let again = persistent::give_up(&journal, &path, &watchdog).unwrap();
    assert!(again.undone.is_empty(), "no change is left: {again:?}");
}

#[test]
fn a_watchdog_of_a_journal_that_was_reverted_has_nothing_to_do() {
    let Some(lab) = TestLab::raise("nothing", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let transaction = lab.transaction(&dir, "nothing-t");
    let path = transaction.journal_path().to_owned();
    transaction.revert().unwrap();
    let ended = persistent::watch(&Journal::in_dir(dir.path()), &path, FOREVER, || Ok(())).unwrap();
    assert!(matches!(ended, WatchEnded::AlreadyReverted), "{ended:?}");
}
