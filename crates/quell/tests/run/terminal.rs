//! `quell run` at a terminal of its own, by `script(1)`: somebody types Ctrl-C, or goes away.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::lab::RunLab;
use quell_test_support::{Lacks, skip};

/// A command at a terminal, which has said that it is ready.
struct Terminal {
    script: Child,
    keys: ChildStdin,
    out: BufReader<ChildStdout>,
    shown: String,
}

impl Terminal {
    /// `sh -c COMMAND` under quell, which leads the terminal's session; `None`, with the reason on stderr, where there
    /// is no `script`.
    fn start(lab: &RunLab, command: &str) -> Option<Self> {
        // The key reaches the shell of script(1) too, whichever it is: it gives its place to quell. Whoever runs the
        // tests may ignore signals (nohup), which a shell cannot undo.
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
            assert!(out.read_line(&mut shown).unwrap() > 0, "it ended early: {shown}");
        }
        Some(Self { script, keys, out, shown })
    }
}

/// A command that says when a signal came, and ends a while after the first. Gives the exit code and what was shown;
/// `None`, with the reason on stderr, where there is no `script`.
pub(crate) fn interrupted(lab: &RunLab) -> Option<(Option<i32>, String)> {
    let command = "trap 'echo interrupted; came=yes' INT; echo ready; \
                   until [ \\$came ]; do sleep 0.02; done; sleep 0.2; exit 3";
    let Terminal { mut script, mut keys, mut out, mut shown } = Terminal::start(lab, command)?;
    keys.write_all(b"\x03").unwrap();
    out.read_to_string(&mut shown).unwrap();
    drop(keys);
    Some((script.wait().unwrap().code(), shown))
}

/// A command whose terminal goes away, as with a connection that breaks: it writes `hung up` to this file when it hears
/// of that, and ends by itself if it never does. `None`, with the reason on stderr, where there is no `script`.
pub(crate) fn hang_up_terminal(lab: &RunLab, told: &Path) -> Option<()> {
    let told = told.display();
    let command =
        format!("trap 'echo hung up > {told}; exit' HUP; echo ready; for i in \\$(seq 3000); do sleep 0.02; done");
    let mut terminal = Terminal::start(lab, &command)?;
    terminal.script.kill().unwrap();
    terminal.script.wait().unwrap();
    Some(())
}
