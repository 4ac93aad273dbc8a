//! Transactions on the real kernel, in their own namespaces: all changes are undone, however the transaction ends.
//! Needs root; reports when it is skipped.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use quell_change::change::{Change, ChangeOutcome, StartedProcess};
use quell_change::journal::record::Record;
use quell_change::journal::{Attempt, Journal, Purpose};
use quell_change::recovery::{Found, recover};
use quell_change::transaction::{ChangeError, Transaction};
use quell_linux::InterfaceName;
use quell_linux::executable::FileId;
use quell_linux::link::{Links, VethEnd};
use quell_linux::netns::{Namespace, NamespaceName};
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::proc::ProcRoot;
use quell_linux::process::Spawn;
use quell_test_support::lab::{self, id, skipped};
use quell_test_support::{Lacks, skip};

fn exists(name: &NamespaceName) -> bool {
    Namespace::list_named().unwrap().contains(name)
}

/// Creates a namespace with a veth pair and a process, all journalled; returns the process ID.
fn populate(transaction: &mut Transaction, name: &NamespaceName) -> quell_linux::process::Child {
    let namespace = transaction.create_namespace(name).unwrap();
    let end =
        |end: &str| VethEnd { namespace: &namespace, name: InterfaceName::new(end).unwrap(), mac: None, queues: 1 };
    transaction.create_veth(name, &end("left"), &end("right")).unwrap();
    assert!(Links::open_in(&namespace).unwrap().by_name(&InterfaceName::new("right").unwrap()).is_ok());
    let spawn = Spawn::new("sleep").args(["1000"]).netns(&namespace);
    transaction.spawn(&["sleep".to_owned(), "1000".to_owned()], spawn).unwrap()
}

fn journal_is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().count() == 0
}

#[test]
fn reverting_undoes_the_last_change_first_and_leaves_no_journal() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let id = id("revert");
    let name = NamespaceName::new(id.clone()).unwrap();
    let mut transaction = Transaction::begin(&Journal::in_dir(dir.path()), &id, Purpose::Lab).unwrap();
    let mut child = populate(&mut transaction, &name);
    let reverted = transaction.revert().unwrap();
    let kinds: Vec<&str> = reverted
        .undone
        .iter()
        .map(|change| match change {
            Change::NetworkNamespace(_) => "namespace",
            Change::VethPair(_) => "veth",
            Change::Process(_) => "process",
            Change::NapiSettings(_)
            | Change::EpollParameters(_)
            | Change::LaunchedEpolls(_)
            | Change::ReuseportFilter(_)
            | Change::SocketsPolling(_)
            | Change::RingPolling(_)
            | Change::ThreadAffinity(_)
            | Change::HostSetting(_) => "setting",
        })
        .collect();
    assert_eq!(kinds, ["process", "veth", "namespace"]);
    assert!(child.wait(Duration::from_secs(5)).unwrap().is_some(), "the process has exited");
    assert!(!exists(&name));
    assert!(journal_is_empty(dir.path()));
}

#[test]
fn a_panic_undoes_everything() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let id = id("panic");
    let name = NamespaceName::new(id.clone()).unwrap();
    let panicked = std::panic::catch_unwind(|| {
        let mut transaction = Transaction::begin(&Journal::in_dir(dir.path()), &id, Purpose::Lab).unwrap();
        let _child = populate(&mut transaction, &name);
        panic!("on purpose");
    });
    assert!(panicked.is_err());
    assert!(!exists(&name));
    assert!(journal_is_empty(dir.path()));
}

#[test]
fn changes_of_a_dead_owner_are_recovered_once() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let id = id("gone");
    let name = NamespaceName::new(id.clone()).unwrap();
    let mut transaction = Transaction::begin(&journal, &id, Purpose::Lab).unwrap();
    let mut child = populate(&mut transaction, &name);
    let running = recover(&journal).unwrap();
    assert!(matches!(running[..], [Found::Running { .. }]), "the owner is running");
    assert!(exists(&name));

    // The copy has no owner, as after a `kill -9`.
    let written = std::fs::read(dir.path().join(format!("{id}.journal"))).unwrap();
    let left_behind = tempfile::tempdir().unwrap();
    std::fs::write(left_behind.path().join("left.journal"), written).unwrap();
    let journal = Journal::in_dir(left_behind.path());
    let found = recover(&journal).unwrap();
    let [Found::Recovered { reverted, .. }] = &found[..] else { panic!("{found:?}") };
    assert_eq!((reverted.undone.len(), reverted.failed.len()), (3, 0));
    assert!(child.wait(Duration::from_secs(5)).unwrap().is_some(), "the process has exited");
    assert!(!exists(&name));
    assert!(recover(&journal).unwrap().is_empty());

    let again = transaction.revert().unwrap();
    assert_eq!((again.undone.len(), again.already_gone.len()), (0, 3), "reverting twice does no harm");
}

#[test]
fn a_namespace_of_another_program_with_the_same_name_is_left_alone() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let id = id("other");
    let name = NamespaceName::new(id.clone()).unwrap();
    let mut transaction = Transaction::begin(&Journal::in_dir(dir.path()), &id, Purpose::Lab).unwrap();
    let ours = transaction.create_namespace(&name).unwrap();
    // This name held the last reference, so the next namespace may get its inode number.
    drop(ours);
    Namespace::delete_named(&name).unwrap();
    drop(Namespace::create_named(&name).unwrap());
    let reverted = transaction.revert().unwrap();
    assert_eq!(reverted.failed.len(), 1, "{reverted:?}");
    assert!(exists(&name), "it belongs to another program");
    Namespace::delete_named(&name).unwrap();
}

#[test]
fn a_name_that_existed_before_is_not_removed() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let id = id("taken");
    let name = NamespaceName::new(id.clone()).unwrap();
    drop(Namespace::create_named(&name).unwrap());
    let mut transaction = Transaction::begin(&Journal::in_dir(dir.path()), &id, Purpose::Lab).unwrap();
    transaction.create_namespace(&name).unwrap_err();
    let reverted = transaction.revert().unwrap();
    let kept = exists(&name);
    Namespace::delete_named(&name).unwrap();
    assert!(kept, "{reverted:?}");
    assert!(journal_is_empty(dir.path()));
}

/// Starts a process in its own session without the transaction's knowledge, like a daemon; returns its pidfd.
fn daemonise(transaction: &mut Transaction, namespace: &Namespace) -> PidFd {
    let spawn = Spawn::new("setsid").args(["-f", "sleep", "1000"]).netns(namespace);
    let mut starter = transaction.spawn(&["setsid".to_owned()], spawn).unwrap();
    assert!(starter.wait(Duration::from_secs(5)).unwrap().is_some(), "it has left its session");
    let inside = namespace.processes(Path::new("/proc")).unwrap().pids;
    let [daemon] = inside[..] else { panic!("{inside:?}") };
    PidFd::open(daemon).unwrap()
}

#[test]
fn a_process_that_left_its_session_ends_with_its_namespace() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let id = id("daemon");
    let name = NamespaceName::new(id.clone()).unwrap();
    let mut transaction = Transaction::begin(&Journal::in_dir(dir.path()), &id, Purpose::Lab).unwrap();
    let namespace = transaction.create_namespace(&name).unwrap();
    let daemon = daemonise(&mut transaction, &namespace);
    let reverted = transaction.revert().unwrap();
    let ended = daemon.wait_for_exit(Duration::ZERO).unwrap();
    let _ = daemon.signal(Signal::KILL);
    assert!(ended, "{reverted:?}");
    assert!(!exists(&name));
}

#[test]
fn children_of_an_unrecorded_process_are_killed_with_its_namespace() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let id = id("cut");
    let name = NamespaceName::new(id.clone()).unwrap();
    let mut transaction = Transaction::begin(&Journal::in_dir(dir.path()), &id, Purpose::Lab).unwrap();
    let namespace = transaction.create_namespace(&name).unwrap();
    let daemon = daemonise(&mut transaction, &namespace);

    // The last line is the outcome of the process. Without it, the journal contains no PID.
    let written = std::fs::read_to_string(dir.path().join(format!("{id}.journal"))).unwrap();
    let (kept, outcome) = written.trim_end().rsplit_once('\n').unwrap();
    assert!(outcome.contains("start_time_ticks"), "{outcome}");
    let left_behind = tempfile::tempdir().unwrap();
    std::fs::write(left_behind.path().join("left.journal"), format!("{kept}\n")).unwrap();
    let found = recover(&Journal::in_dir(left_behind.path())).unwrap();

    let ended = daemon.wait_for_exit(Duration::ZERO).unwrap();
    let _ = daemon.signal(Signal::KILL);
    assert!(ended, "{found:?}");
    assert!(!exists(&name));
    assert!(journal_is_empty(left_behind.path()));
}

#[test]
fn a_journal_of_an_earlier_boot_has_nothing_to_undo() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    drop(journal.begin("old", Purpose::Lab, "00000000-0000-0000-0000-000000000000").unwrap());
    let found = recover(&journal).unwrap();
    assert!(matches!(&found[..], [Found::Recovered { reverted, .. }] if reverted.undone.is_empty()));
    assert!(journal_is_empty(dir.path()));
}

/// Sets or clears the immutable flag of a file. Prints the reason if that is not possible.
fn set_immutable(path: &Path, immutable: bool) -> bool {
    let flag = if immutable { "+i" } else { "-i" };
    let done = Command::new("chattr").arg(flag).arg(path).status().is_ok_and(|status| status.success());
    if !done {
        skip(Lacks::Machine, "needs chattr, root and a file system with immutable files");
    }
    done
}

#[test]
fn changes_are_undone_even_if_the_journal_cannot_be_written() {
    if skipped() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let id = id("full");
    let path = dir.path().join(format!("{id}.journal"));
    let name = NamespaceName::new(id.clone()).unwrap();
    let mut transaction = Transaction::begin(&Journal::in_dir(dir.path()), &id, Purpose::Lab).unwrap();
    let mut child = populate(&mut transaction, &name);
    if !set_immutable(&path, true) {
        return;
    }
    let error = transaction.revert();
    set_immutable(&path, false);
    assert_eq!(error.unwrap_err().attempt, Attempt::Remove);
    assert!(child.wait(Duration::from_secs(5)).unwrap().is_some(), "the process has exited");
    assert!(!exists(&name));
    assert_eq!(recover(&Journal::in_dir(dir.path())).unwrap().len(), 1, "only the journal is left");
    assert!(journal_is_empty(dir.path()));
}

#[test]
fn an_unwritable_journal_does_not_prevent_the_recovery_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    for id in ["a", "b"] {
        drop(journal.begin(id, Purpose::Lab, "00000000-0000-0000-0000-000000000000").unwrap());
    }
    if !set_immutable(&dir.path().join("a.journal"), true) {
        return;
    }
    let found = recover(&journal);
    set_immutable(&dir.path().join("a.journal"), false);
    let found = found.unwrap();
    let [Found::Failed(error), Found::Recovered { .. }] = &found[..] else { panic!("{found:?}") };
    assert!(error.to_string().contains("a.journal"), "{error}");
    assert!(!dir.path().join("b.journal").exists());
}

#[test]
fn a_wait_for_the_queue_lock_can_be_stopped() {
    use std::ops::ControlFlow;

    let dir = tempfile::tempdir().unwrap();
    let mut transaction = Transaction::begin(&Journal::in_dir(dir.path()), "turn", Purpose::Lab).unwrap();
    let turn = std::fs::File::open(dir.path()).unwrap();
    turn.lock().unwrap();
    let here = Namespace::current().unwrap();
    let no_queue = quell_linux::NapiId::from_kernel(u32::MAX).unwrap();
    let mut set_while_waiting = |looks: u32| {
        let mut left = looks;
        let mut observer = |_| {
            left = left.saturating_sub(1);
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        transaction.set_napi_observed(&here, no_queue, &lab::SUSPENDING, &mut observer)
    };
    assert!(matches!(set_while_waiting(3), Err(ChangeError::Stopped)));
    drop(turn);
    let refused = set_while_waiting(u32::MAX).unwrap_err();
    assert!(!matches!(refused, ChangeError::Stopped), "it got the lock: {refused}");
}

#[test]
fn a_process_is_killed_only_if_it_runs_the_recorded_executable() {
    let proc = ProcRoot::default();
    let mut child = Spawn::new("sleep").args(["1000"]).start().unwrap();
    let (pid, start_time_ticks) = (child.pid(), child.identity().starttime.0);
    let reverted = |executable: Option<FileId>| {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let mut owned = journal.begin("forged", Purpose::Lab, &proc.boot_id().unwrap().to_string()).unwrap();
        owned
            .write(Record::Intend { seq: 0, change: Change::Process(StartedProcess { command: vec!["sleep".into()] }) })
            .unwrap();
        let outcome = ChangeOutcome::Process { pid, start_time_ticks, executable };
        owned.write(Record::Done { seq: 0, outcome }).unwrap();
        drop(owned);
        let Found::Recovered { reverted, .. } = recover(&journal).unwrap().remove(0) else { panic!("not abandoned") };
        reverted
    };
    let executable = proc.process(child.pid()).executable().unwrap();
    let another = FileId { inode: executable.inode + 1, ..executable };
    for not_its_own in [Some(another), None] {
        let left_alone = reverted(not_its_own).left_alone;
        assert!(matches!(&left_alone[..], [(_, why)] if why.contains("another executable")), "{left_alone:?}");
    }
    assert!(child.identity().is_running(&proc).unwrap());
    assert_eq!(reverted(Some(executable)).undone.len(), 1);
    assert!(child.wait(Duration::from_secs(5)).unwrap().is_some());
    assert_eq!(reverted(Some(executable)).already_gone.len(), 1);
}
