//! `quell run` at a terminal of its own, by `script(1)`: somebody types Ctrl-C.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};

use crate::lab::RunLab;

/// A command that says when a signal came, and ends a while after the first. Gives the exit code and what was shown;
/// `None`, with the reason on stderr, where there is no `script`.
pub(crate) fn interrupted(lab: &RunLab) -> Option<(Option<i32>, String)> {
    let command = "trap 'echo interrupted; came=yes' INT; echo ready; \
                   until [ \\$came ]; do sleep 0.02; done; sleep 0.2; exit 3";
    // The key reaches the shell of script(1) too, whichever it is: it gives its place to quell.
    let line = format!("exec {} run --no-queues base -- sh -c \"{command}\"", env!("CARGO_BIN_EXE_quell"));
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-f", "-c", &line, "/dev/null"]).envs(lab.environment());
    let started = script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
    let mut script = match started {
        Ok(script) => script,
        Err(error) => {
            eprintln!("skipped: no script(1) for a terminal: {error}");
            return None;
        }
    };
    let (mut keys, mut out) = (script.stdin.take().unwrap(), BufReader::new(script.stdout.take().unwrap()));
    let mut shown = String::new();
    while !shown.contains("ready") {
        assert!(out.read_line(&mut shown).unwrap() > 0, "it ended early: {shown}");
    }
    keys.write_all(b"\x03").unwrap();
    out.read_to_string(&mut shown).unwrap();
    drop(keys);
    Some((script.wait().unwrap().code(), shown))
}
