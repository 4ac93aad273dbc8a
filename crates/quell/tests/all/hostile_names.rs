//! Names chosen by other programs (processes, threads, interfaces, files, keys) in the output of every command that
//! prints them. No control sequence reaches the terminal, and no name starts a line of its own. Needs root, Linux 6.13
//! and memcached.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use quell_linux::process::Spawn;
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab};
use quell_test_support::{Lacks, skip};

/// Process name, set by the name of the executable: at most 15 bytes.
const PROCESS: &str = "q\n\u{1b}[2Japply?";
/// Interface names: at most 15 bytes, without blanks and slashes.
const INTERFACES: [&str; 2] = ["\u{1b}[2J$(id)\u{7}", "\u{202e}0hte\u{9b}1m"];

struct Stage {
    lab: TestLab,
    directory: tempfile::TempDir,
    pid: String,
}

impl Stage {
    fn enter() -> Option<Self> {
        let found = Command::new("sh").args(["-c", "command -v memcached"]).output().unwrap();
        if !found.status.success() {
            skip(Lacks::Server("memcached"), "memcached is not installed");
            return None;
        }
        let mut lab = TestLab::raise_beside_others("hostile", 2)?;
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join(PROCESS);
        // A link instead of a copy: a process that another test is starting could hold a copy open for writing
        // (ETXTBSY).
        std::os::unix::fs::symlink(String::from_utf8(found.stdout).unwrap().trim_end(), &program).unwrap();
        let words = ["-u", "root", "-U", "0", "-t", "2", "-l", "192.0.2.1", "-p", "11211"];
        let server = lab.start(Spawn::new(&program).args(words));
        let pid = server.pid().to_string();
        // The server ends with its namespace.
        std::mem::forget(server);
        Some(Self { lab, directory, pid })
    }

    /// Returns everything that `quell` prints with these arguments.
    fn printed(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
        command.args(arguments).env("QUELL_JOURNAL_DIR", self.directory.path().join("journal")).stdin(Stdio::null());
        // A keeper that logs keeps a pipe open, and it continues to write during the next commands. A file avoids this.
        let diagnostics = self.directory.path().join("diagnostics");
        command.stderr(std::fs::OpenOptions::new().create(true).append(true).open(&diagnostics).unwrap());
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap() + &std::fs::read_to_string(diagnostics).unwrap()
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

fn assert_harmless(arguments: &[&str], text: &str) {
    let obeyed = |letter: char| {
        (letter.is_control() && letter != '\n' && letter != '\t') || matches!(letter, '\u{202a}'..='\u{202e}')
    };
    assert!(!text.contains(obeyed), "quell {arguments:?}: {text:?}");
    let forged = text.lines().find(|line| line.trim_start().starts_with(r"\u{1b}[2Jset") || line.starts_with("apply?"));
    assert_eq!(forged, None, "quell {arguments:?}: {text}");
}

#[test]
fn no_command_prints_control_sequences_or_forged_lines() {
    let Some(stage) = Stage::enter() else { return };
    let (pid, netns) = (stage.pid.as_str(), stage.lab.server_name.as_str());
    ip(&["-n", netns, "link", "set", "server0", "name", INTERFACES[0]]);
    ip(&["-n", netns, "link", "add", INTERFACES[1], "type", "veth", "peer", "name", "\u{7f}$(id)\u{ad}"]);
    let connections = connect(&stage);

    let profile = stage.file(
        "a\n\u{1b}[2Japply?.toml",
        &format!("[device.\"{}\"]\nname = \"*\"\n[device.x.queues.all]\nmode = \"suspend200\"\n", "$(id)\u{202e}"),
    );
    let keys = stage.file("keys.toml", "[device.\"a\\n\\u001b[2Japply?\"]\nname = \"*\"\n");
    let values =
        stage.file("values.toml", "[device.a]\nname = \"*\"\n[device.a.queues.all]\nmode = \"a\\napply?\\u001b\"\n");
    let shown = stage.printed(&["show", pid, "--json"]);
    assert_harmless(&["show", "--json"], &shown);
    let forged = stage.file("shown.json", &shown.replace(r"q\\n", r"q\n").replace("veth", r"\u001b[2J\napply? "));
    let file = |arguments: &[&str], file: &str| -> Vec<String> {
        arguments.iter().copied().chain([file]).map(ToOwned::to_owned).collect()
    };
    let words = |arguments: &[&str]| -> Vec<String> { arguments.iter().copied().map(ToOwned::to_owned).collect() };
    for arguments in [
        words(&["show", pid]),
        words(&["show", pid, "--details"]),
        words(&["show", "--netns", netns]),
        words(&["show", "--all"]),
        words(&["show", "--netns", netns, "--as-profile", "--details"]),
        words(&["doctor", pid, "--seconds", "0"]),
        words(&["doctor", "--netns", netns, "--seconds", "0", "--json"]),
        words(&["attach", "suspend200", pid, "--dry-run"]),
        words(&["attach", "suspend200", pid, "--yes", "--seconds", "0"]),
        words(&["attach", "base", pid, "--yes"]),
        words(&["show", pid, "-vvv"]),
        words(&["attach", "suspend200", pid, "--dry-run", "-vv"]),
        words(&["detach", pid, "-vv"]),
        words(&["attach", "suspend200", pid, "--yes", "--seconds", "0", "-vvv"]),
        words(&["status"]),
        words(&["status", "--json"]),
        words(&["lab", "list"]),
        words(&["detach"]),
        words(&["detach", pid]),
        file(&["doctor", "--read"], &forged),
        file(&["apply", "--dry-run", "--netns", netns], &profile),
        file(&["apply", "--dry-run", "--netns", netns], &keys),
        file(&["apply", "--dry-run", "--netns", netns], &values),
        file(&["-vv", "apply", "--netns", netns], &profile),
        file(&["apply", "--dry-run"], "/nonexistent/\u{1b}[2J\napply?"),
        file(&["results", "show"], &forged),
        file(
            &["run", "--no-queues", "--dry-run", "base", "--"],
            stage.directory.path().join(PROCESS).to_str().unwrap(),
        ),
        file(&["show", "--device"], INTERFACES[0]),
        file(&["show", "--netns"], "a\n\u{1b}[2Japply?"),
        file(&["show"], "\u{1b}[2J"),
        words(&["revert"]),
    ] {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        assert_harmless(&arguments, &stage.printed(&arguments));
    }
    let shown = stage.printed(&["show", pid]);
    assert!(shown.contains(r"q\n\u{1b}[2Japply?") && shown.contains(r"\u{1b}[2J$(id)"), "{shown}");
    drop(connections);
}

/// Opens connections that wait for answers, so that the program has epolls and queues.
fn connect(stage: &Stage) -> Vec<TcpStream> {
    let deadline = Instant::now() + ARRIVES_WITHIN;
    let connect = || loop {
        match TcpStream::connect("192.0.2.1:11211") {
            Ok(mut connection) => {
                connection.write_all(b"version\r\n").unwrap();
                return connection;
            }
            Err(error) => assert!(Instant::now() < deadline, "memcached does not answer: {error}"),
        }
        std::thread::yield_now();
    };
    stage.lab.client.run(|| (0..8).map(|_| connect()).collect()).unwrap()
}

#[test]
fn a_journal_with_a_hostile_name_is_listed_on_its_line() {
    let journals = tempfile::tempdir().unwrap();
    let hostile = journals.path().join("a\n\u{1b}[2Japply?.journal");
    std::fs::write(&hostile, "nonsense\n").unwrap();
    assert!(Path::new(&hostile).exists());
    for arguments in [&["status"][..], &["lab", "list"], &["revert"], &["lab", "clean"], &["status", "--json"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
        let output = command.args(arguments).env("QUELL_JOURNAL_DIR", journals.path()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        assert_harmless(arguments, &text);
    }
}
