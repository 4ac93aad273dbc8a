//! `quell run` on a terminal of its own, created by `script(1)`: Ctrl-C and hang-up.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::lab::RunLab;
use quell_test_support::{Lacks, skip};

/// A command on a terminal that has printed that it is ready.
struct Terminal {
    script: Child,
    keys: ChildStdin,
    out: BufReader<ChildStdout>,
    shown: String,
}

impl Terminal {
    /// Starts `sh -c COMMAND` under Quell, which leads the session of the terminal. Returns `None`, with the reason on
    /// stderr, if `script` is not installed.
    fn start(lab: &RunLab, command: &str) -> Option<Self> {
        // The key also reaches the shell of script(1), so that shell executes Quell in its place. The test runner may
        // ignore signals (nohup), which a shell cannot undo; `env` can.
        let quell = format!("env --default-signal=HUP,INT {}", env!("CARGO_BIN_EXE_quell"));
        let line = format!("exec {quell} run --no-queues base -- sh -c \"{command}\"");
        let mut script = Command::new("script");
        script.args(["-q", "-e", "-f", "-c", &line, "/dev/null"]).envs(lab.environment());
        let started = script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut script = match started {
            Ok(script) => script,
            Err(error) => {
                skip(Lacks::Tool("script"), format_args!("no script(1) for a terminal: {error}"));
                return None;
            }
        };
        let (keys, mut out) = (script.stdin.take().unwrap(), BufReader::new(script.stdout.take().unwrap()));
        let mut shown = String::new();
        while !shown.contains("ready") {
            assert!(out.read_line(&mut shown).unwrap() > 0, "the terminal closed early: {shown}");
        }
        Some(Self { script, keys, out, shown })
    }
}

/// Runs a command that prints when a signal arrives, and exits some time after the first. Returns the exit code and the
/// output; `None`, with the reason on stderr, if `script` is not installed.
pub(crate) fn interrupted(lab: &RunLab) -> Option<(Option<i32>, String)> {
    let command = "trap 'echo interrupted; came=yes' INT; echo ready; \
                   until [ \\$came ]; do sleep 0.02; done; sleep 0.2; exit 3";
    let Terminal { mut script, mut keys, mut out, mut shown } = Terminal::start(lab, command)?;
    keys.write_all(b"\x03").unwrap();
    out.read_to_string(&mut shown).unwrap();
    drop(keys);
    Some((script.wait().unwrap().code(), shown))
}

/// Runs a command whose terminal hangs up, as with a broken connection. The command then writes `hung up` to this file;
/// without a signal it exits after a minute. Returns `None`, with the reason on stderr, if `script` is not installed.
pub(crate) fn hang_up_terminal(lab: &RunLab, told: &Path) -> Option<()> {
    let told = told.display();
    let command =
        format!("trap 'echo hung up > {told}; exit' HUP; echo ready; for i in \\$(seq 3000); do sleep 0.02; done");
    let mut terminal = Terminal::start(lab, &command)?;
    terminal.script.kill().unwrap();
    terminal.script.wait().unwrap();
    Some(())
}
