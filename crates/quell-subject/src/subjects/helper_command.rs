//! A command that runs during an experiment: the load, or the server that the experiment starts. It has its own session
//! and is recorded in the journal, so it is stopped even if this program is killed.

use std::process::ExitStatus;
use std::time::Duration;

use quell_change::journal::Purpose;
use quell_change::transaction::Transaction;
use quell_linux::Pid;
use quell_linux::process::{Child, Output, Spawn};
use quell_linux::shell;
use quell_linux::visible;

use super::{HelperError, Tools};

/// Number of bytes from the end of the command's output that an error quotes.
const OUTPUT_BYTES: usize = 4_096;

/// A running command.
#[derive(Debug)]
pub struct HelperCommand {
    words: Vec<String>,
    child: Child,
    transaction: Transaction,
    ended: Option<ExitStatus>,
}

/// A command that exited before the experiment stopped it.
#[derive(Debug)]
pub struct EndedCommand {
    /// Command line, with control characters escaped.
    pub command: String,
    pub status: ExitStatus,
    /// End of the command's stderr output, with control characters escaped.
    pub printed: String,
}

impl HelperCommand {
    /// Starts a command. `role` becomes part of the journal's name and its purpose.
    ///
    /// # Errors
    /// Fails if the journal could not be written or the command could not be started.
    pub fn start(tools: &Tools<'_>, words: &[String], role: &str) -> Result<Self, HelperError> {
        Self::start_with(tools, words, role, |spawn| spawn)
    }

    /// As [`Self::start`]. `prepare` sets what is special to this command, such as standard input and output, which are
    /// `/dev/null` otherwise.
    pub fn start_with<'a>(
        tools: &Tools<'_>,
        words: &[String],
        role: &str,
        prepare: impl FnOnce(Spawn<'a>) -> Spawn<'a>,
    ) -> Result<Self, HelperError> {
        let id = format!("{role}-{}", std::process::id());
        let purpose = Purpose::Command { role: role.to_owned() };
        let mut transaction = Transaction::begin(tools.journal, &id, purpose)?;
        (tools.start_keeper)(transaction.journal_path()).map_err(HelperError::Keeper)?;
        // The command gets SIGTERM, not SIGKILL, if this program is killed. After SIGKILL, `quell run` could not end
        // its own command, and the journal could not identify that command.
        let spawn = Spawn::new(&words[0]).args(&words[1..]).stderr(Output::Tail(OUTPUT_BYTES));
        let spawn = prepare(spawn).is_terminated_with_this_thread();
        let child = transaction.spawn(words, spawn).map_err(HelperError::Start)?;
        Ok(Self { words: words.to_vec(), child, transaction, ended: None })
    }

    #[must_use]
    pub fn pid(&self) -> Pid {
        self.child.pid()
    }

    pub fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.wait(Duration::ZERO).ok().flatten();
        }
        self.ended.is_some()
    }

    /// Returns how the command exited. Returns `None` while it is running.
    pub fn how_it_ended(&mut self) -> Option<EndedCommand> {
        if !self.has_ended() {
            return None;
        }
        let stderr = self.child.stderr_tail().unwrap_or_default();
        let stderr = String::from_utf8_lossy(&stderr);
        let printed = if stderr.trim().is_empty() { "empty".into() } else { visible::name(naming_a_rank(&stderr)) };
        let command = shell::command(&self.words);
        Some(EndedCommand { command, status: self.ended?, printed: printed.into_owned() })
    }

    /// Stops the command with SIGTERM, and with SIGKILL after `grace`. If the command exited before, returns how it
    /// exited.
    ///
    /// # Errors
    /// Fails if a process could not be killed.
    pub fn end(mut self, grace: Duration) -> Result<Option<EndedCommand>, HelperError> {
        let ended = self.how_it_ended();
        self.child.terminate(grace).map_err(HelperError::End)?;
        self.transaction.revert().map_err(HelperError::Revert)?;
        Ok(ended)
    }
}

/// Returns the line in which `quell-mpi` or `mpirun` names the rank that failed, or the whole text. `mpirun` prints
/// paragraphs of explanations around it.
fn naming_a_rank(stderr: &str) -> &str {
    let mut lines = stderr.lines().map(str::trim);
    lines
        .find(|line| line.starts_with("quell-mpi: ") || line.starts_with("mpirun noticed that process rank"))
        .unwrap_or_else(|| stderr.trim())
}

/// Returns the error message for a load that exited during the experiment.
pub(super) fn load_ended(ended: &EndedCommand) -> String {
    let EndedCommand { command, status, printed } = ended;
    format!("the load `{command}` exited during the experiment ({status}); its stderr: {printed}")
}

/// Returns the error message for clients on other machines that ended during the experiment. Their launcher names the
/// client that failed.
pub(super) fn clients_ended(ended: &EndedCommand) -> String {
    let EndedCommand { status, printed, .. } = ended;
    format!("the clients ended during the experiment ({status}): {}", printed.trim_end_matches('.'))
}
