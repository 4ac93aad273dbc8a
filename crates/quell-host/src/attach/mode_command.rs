//! The command that gives programs a mode.

use std::collections::BTreeSet;
use std::fmt;

use quell_linux::Pid;
use quell_linux::netns::entering;
use quell_linux::shell;
use quell_mode::DeliveryMode;

use super::AttachedMode;
use crate::snapshot::Snapshot;

/// Command that gives programs a mode. Programs that have one get another command, because `quell attach` refuses them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModeCommand {
    /// Absent if the reader chooses it.
    pub mode: Option<DeliveryMode>,
    /// Programs as arguments of `quell attach`: PIDs, or an option such as `--cgroup PATH`.
    pub programs: String,
    /// Whether new connections are steered to their workers.
    pub steers: bool,
    /// Whether workers are pinned.
    pub pins: bool,
    /// What the programs have.
    pub attached: Option<AttachedMode>,
    /// Name of the network namespace in which they are started again; absent without one.
    pub netns: Option<String>,
}

impl ModeCommand {
    #[must_use]
    pub fn of_pids<'a>(mode: Option<DeliveryMode>, pids: impl IntoIterator<Item = &'a Pid>) -> Self {
        let programs = pids.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        Self { mode, programs, steers: false, pins: false, attached: None, netns: None }
    }

    /// The command for programs of the host, which are started again in their network namespace.
    #[must_use]
    pub(crate) fn of_programs(mode: Option<DeliveryMode>, programs: &BTreeSet<Pid>, now: &Snapshot) -> Self {
        let netns = now.named_netns_of(programs).map(str::to_owned);
        Self { netns, ..Self::of_pids(mode, programs) }
    }

    /// The same with steering and pinning.
    #[must_use]
    pub fn placed(self, steers: bool, pins: bool) -> Self {
        Self { steers, pins, ..self }
    }

    /// The same for programs with this mode. They keep it if the command has none.
    #[must_use]
    pub fn if_attached(self, attached: &AttachedMode) -> Self {
        Self { mode: self.mode.or(Some(attached.mode)), attached: Some(*attached), ..self }
    }

    /// Whether it can be run unchanged.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.mode.is_some() && !self.starts_again()
    }

    /// Whether it starts the program again.
    #[must_use]
    pub fn starts_again(&self) -> bool {
        self.attached.is_some_and(|attached| attached.launched)
    }
}

/// Options of `quell attach` and `bench` for steering and pinning, each after a space.
#[must_use]
pub fn placement_options(steers: bool, pins: bool) -> &'static str {
    match (steers, pins) {
        (true, true) => " --steer --pin",
        (true, false) => " --steer",
        (false, true) => " --pin",
        (false, false) => "",
    }
}

/// End of a command line that starts a program.
pub const STARTS_PROGRAM: &str = " -- COMMAND";

/// The command line of a command of Quell that starts a program, in the network namespace with this name.
#[must_use]
pub fn starting(netns: Option<&str>, line: &str) -> String {
    entered(netns, line) + STARTS_PROGRAM
}

/// A command line that runs in the network namespace with this name.
#[must_use]
pub fn entered(netns: Option<&str>, line: &str) -> String {
    let enter = entering(netns, None).map(|words| shell::command(words) + " ");
    enter.unwrap_or_default() + line
}

impl fmt::Display for ModeCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, programs, steers, pins, attached, netns } = self;
        let (steers, pins, attached_mode) = (*steers, *pins, attached.unwrap_or_default());
        let placement = &*AttachedMode { steers, pins, ..attached_mode }.placement_options();
        let accepts = match attached {
            Some(attached) if attached.accepts_stalls && *mode == Some(attached.mode) => " --accept-stalls",
            _ => "",
        };
        let is_base = *mode == Some(DeliveryMode::default());
        let mode = mode.map_or_else(|| "MODE".to_owned(), |mode| mode.to_string());
        // Placement lasts while a command in the foreground keeps it; only that one can take over.
        match (attached, placement) {
            (Some(_), _) if self.starts_again() => {
                f.write_str(&starting(netns.as_deref(), &format!("quell run {mode}{placement}")))
            }
            (Some(_), "") if is_base => write!(f, "quell detach {programs}"),
            (Some(attached), "") => {
                let follow = if attached.follows { " --follow" } else { "" };
                write!(f, "quell detach {programs} && quell attach {mode} {programs}{accepts}{follow}")
            }
            (Some(_), _) => {
                write!(f, "quell attach {mode} {programs}{placement}{accepts} --follow --take-over --yes")
            }
            (None, "") => write!(f, "quell attach {mode} {programs}"),
            (None, _) => write!(f, "quell attach {mode} {programs}{placement} --follow"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_a_mode_get_a_command_that_is_not_refused() {
        let pids = [Pid::new(7).unwrap(), Pid::new(8).unwrap()];
        let mode = |word: &str| word.parse::<DeliveryMode>().unwrap();
        let command = |word, placed| ModeCommand::of_pids(Some(mode(word)), &pids).placed(placed, placed);
        let attached = |launched| AttachedMode { mode: mode("suspend20"), launched, ..AttachedMode::default() };
        let again = |word, placed| command(word, placed).if_attached(&attached(false)).to_string();
        assert_eq!(command("defer20", false).to_string(), "quell attach defer20 7 8");
        assert_eq!(command("defer20", true).to_string(), "quell attach defer20 7 8 --steer --pin --follow");
        assert_eq!(again("defer20", false), "quell detach 7 8 && quell attach defer20 7 8");
        assert_eq!(again("base", false), "quell detach 7 8");
        assert_eq!(again("base", true), "quell attach base 7 8 --steer --pin --follow --take-over --yes");
        let accepted = AttachedMode { accepts_stalls: true, ..attached(false) };
        let after = |word, placed| command(word, placed).if_attached(&accepted).to_string();
        assert_eq!(after("suspend20", false), "quell detach 7 8 && quell attach suspend20 7 8 --accept-stalls");
        assert!(after("suspend20", true).ends_with("--pin --accept-stalls --follow --take-over --yes"));
        assert!(!after("defer20", false).contains("--accept-stalls"), "of the accepted mode only");
        let followed = AttachedMode { follows: true, ..attached(false) };
        let again = command("suspend20", false).if_attached(&followed).to_string();
        assert_eq!(again, "quell detach 7 8 && quell attach suspend20 7 8 --follow");
        let launched = command("defer20", true).if_attached(&attached(true));
        assert_eq!(launched.to_string(), "quell run defer20 --steer --pin -- COMMAND");
        let of_udp = AttachedMode { steers_udp: true, ..attached(true) };
        let launched_udp = command("defer20", true).if_attached(&of_udp).to_string();
        assert_eq!(launched_udp, "quell run defer20 --steer --steer-udp --pin -- COMMAND");
        assert!(!launched.is_complete() && command("defer20", false).is_complete());
        let kept = ModeCommand::of_pids(None, &pids);
        assert!(!kept.is_complete() && kept.to_string() == "quell attach MODE 7 8");
        assert_eq!(kept.if_attached(&attached(false)).mode, Some(mode("suspend20")));
    }
}
