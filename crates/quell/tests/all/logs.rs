//! The log: silent by default, each change with previous and new values at -vv, and the format for the systemd journal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use quell_linux::process::{Child, Spawn};
use quell_test_support::lab::TestLab;
use quell_test_support::wait_until;

const QUELL: &str = env!("CARGO_BIN_EXE_quell");

/// A lab with a responder that has connections, and files for Quell's journals and the log.
struct Stage {
    lab: TestLab,
    server: Child,
    _connection: TcpStream,
    dir: tempfile::TempDir,
}

impl Stage {
    fn enter(test: &str) -> Option<Self> {
        let mut lab = TestLab::raise_beside_others(test, 1)?;
        let server = lab.start(Spawn::new(QUELL).args(["respond", "192.0.2.1:7000"]));
        let connect = || TcpStream::connect("192.0.2.1:7000").map_err(|error| error.to_string());
        let mut connection = wait_until(|| lab.client.run(connect).unwrap());
        // A connection has no queue before its first packet.
        connection.write_all(&[0; 64]).unwrap();
        connection.read_exact(&mut [0; 64]).unwrap();
        Some(Self { lab, server, _connection: connection, dir: tempfile::tempdir().unwrap() })
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// A command that logs to a file, because a keeper keeps a pipe open until it exits.
    fn quell(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(QUELL);
        command.args(arguments).env("QUELL_JOURNAL_DIR", self.dir.path().join("journal")).env_remove("QUELL_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(self.log()).unwrap());
        command
    }

    fn attach(&self) -> Vec<String> {
        ["attach", "suspend200", &self.server.pid().to_string(), "--yes", "--seconds", "0"].map(str::to_owned).into()
    }

    /// The log of an attach with this verbosity.
    fn attach_log(&self, options: &[&str], variables: &[(&str, &str)]) -> String {
        let arguments = self.attach();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(options.iter().copied()).collect();
        let ended = self.quell(&arguments).envs(variables.iter().copied()).status().unwrap();
        let log = self.read_log();
        assert!(ended.success(), "{log}");
        log
    }

    fn read_log(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap()
    }

    fn detach(&self) {
        let ended = Command::new(QUELL)
            .args(["detach", "--all"])
            .env("QUELL_JOURNAL_DIR", self.dir.path().join("journal"))
            .env_remove("QUELL_LOG")
            .output()
            .unwrap();
        assert!(ended.status.success(), "{ended:?}");
    }
}

/// Output of a command that changes nothing.
fn diagnostics(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let journals = tempfile::tempdir().unwrap();
    let mut command = Command::new(QUELL);
    command.args(arguments).env("QUELL_JOURNAL_DIR", journals.path()).env_remove("QUELL_LOG");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn nothing_is_logged_by_default() {
    assert_eq!(diagnostics(&["status"], &[]), "");
    assert_eq!(diagnostics(&["status"], &[("QUELL_LOG", "")]), "");
    let Some(stage) = Stage::enter("log-off") else { return };
    let log = stage.attach_log(&[], &[]);
    let said: Vec<&str> = log.lines().collect();
    assert!(matches!(said[..], ["observing the programs", done] if done.starts_with("applied and verified")), "{log}");
    stage.detach();
}

#[test]
fn each_change_and_its_undo_by_the_keeper_are_logged_with_values() {
    let Some(stage) = Stage::enter("log-vv") else { return };
    stage.attach_log(&["-vv"], &[]);
    let assert_has = |words: &[&str]| {
        let log = stage.read_log();
        assert!(log.lines().any(|line| words.iter().all(|word| line.contains(word))), "{words:?}\n{log}");
    };
    let pid = stage.server.pid().to_string();
    let napi = stage.lab.napis[0].get().to_string();
    for words in [
        [" INFO ", "process found", &format!("pid={pid}"), "why=\"selected\""],
        [" DEBUG ", &format!("napi={napi}"), "from=\"defer-hard-irqs 0", "irq-suspend-timeout 20 ms"],
        [" DEBUG ", "from=\"busy_poll_usecs 0", "to=\"busy_poll_usecs 0, busy_poll_budget 64", "fd="],
        [" DEBUG ", "the kernel accepted", "set_napi", "command=attach"],
        [" INFO ", "keeper started", "pid=", "command=attach"],
    ] {
        assert_has(&words);
    }
    stage.detach();
    // `detach` returns after the keeper has exited.
    assert_has(&[" INFO ", "command=keeper", "reverted", "failed=0"]);
    assert_has(&["command=keeper", "undo{seq=", "to=\"defer-hard-irqs 0"]);
}

#[test]
fn a_single_v_logs_decisions_only() {
    let Some(stage) = Stage::enter("log-v") else { return };
    let log = stage.attach_log(&["-v"], &[]);
    assert!(log.contains(" INFO ") && !log.contains(" DEBUG "), "{log}");
    stage.detach();
}

#[test]
fn the_variable_has_precedence_over_the_option() {
    assert_eq!(diagnostics(&["-vvv", "status"], &[("QUELL_LOG", "off")]), "");
    let Some(stage) = Stage::enter("log-var") else { return };
    let log = stage.attach_log(&["-vv"], &[("QUELL_LOG", "quell_change::transaction=debug")]);
    assert!(log.contains(" quell_change::transaction ") && !log.contains(" quell_change::settings"), "{log}");
    stage.detach();
}

#[test]
fn an_invalid_variable_is_reported_with_its_position_and_ignored() {
    let said = diagnostics(&["status"], &[("QUELL_LOG", "warn,quell_host=loud")]);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("quell: QUELL_LOG, character 17: \"loud\" is not a level"), "{said}");
    assert_eq!(lines[1..], ["  warn,quell_host=loud", "                  ^"], "{said}");
}

#[test]
fn lines_for_the_systemd_journal_begin_with_their_priority() {
    let Some(stage) = Stage::enter("log-unit") else { return };
    let arguments = stage.attach();
    let mut command = stage.quell(&arguments.iter().map(String::as_str).chain(["-vv"]).collect::<Vec<_>>());
    let log = std::fs::metadata(stage.log()).unwrap();
    command.env("JOURNAL_STREAM", format!("{}:{}", log.dev(), log.ino()));
    assert!(command.status().unwrap().success());
    stage.detach();
    let log = stage.read_log();
    let (logged, said): (Vec<&str>, Vec<&str>) = log.lines().partition(|line| line.starts_with('<'));
    assert!(logged.iter().any(|line| line.starts_with("<7>DEBUG quell_change::")), "{log}");
    assert!(logged.iter().any(|line| line.starts_with("<6>INFO  quell_change::")), "{log}");
    assert!(matches!(said[..], ["observing the programs", done] if done.starts_with("applied and verified")), "{log}");
}
