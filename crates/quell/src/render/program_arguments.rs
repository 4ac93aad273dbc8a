//! Programs as arguments of the commands that are advised about them.

use quell_host::attach::mode_command::starting;
use quell_host::attach::owners::QueueSharers;
use quell_host::attach::{AttachedMode, ModeCommand, Selection};
use quell_host::findings::Unreached;
use quell_host::servers::{MeasuredStep, NextStep};
use quell_linux::Pid;
use quell_linux::shell;
use quell_mode::{DeliveryMode, ModeKind};

/// How the mode of a program that `quell run` started is undone.
pub(super) const START_WITHOUT: &str = "start the command again without it";

/// Programs as arguments of commands.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProgramArguments {
    /// For `quell attach`, `detach` and `top`.
    pub(super) positional: String,
    /// For `quell bench`.
    by_option: String,
    /// Name of the network namespace in which a command of the same kind is started; absent without one.
    netns: Option<String>,
    /// What is attached to them.
    pub(super) attached: Option<AttachedMode>,
    /// Command that measures what their clients see.
    judge: Option<String>,
    /// Other attachments that use their queues.
    pub(super) sharing: Option<QueueSharers>,
    /// Whether one of their epolls has connections of several queues, which steering can change.
    pub(super) mixes: bool,
    /// What a stored measurement says about the attached mode.
    pub(super) measured: Option<MeasuredStep>,
    /// Why a mode reaches few of their packets, if it does.
    pub(super) unreached: Option<Unreached>,
    /// Number of stalls that were accepted in advance, if they were frequent.
    pub(super) stalls: u64,
    /// Rule of a finding that predicted a stall or delay, which was accepted.
    pub(super) predicted: Option<&'static str>,
}

impl ProgramArguments {
    pub(crate) fn of_pids(pids: &[Pid]) -> Self {
        let pids = |separator| pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator);
        Self::named(pids(" "), format!("--pid {}", pids(",")))
    }

    fn named(positional: String, by_option: String) -> Self {
        Self { positional, by_option, ..Self::default() }
    }

    pub(crate) fn attached(self, attached: Option<AttachedMode>) -> Self {
        Self { attached, ..self }
    }

    pub(crate) fn sharing(self, sharing: Option<QueueSharers>) -> Self {
        Self { sharing, ..self }
    }

    pub(crate) fn mixing(self, mixes: bool) -> Self {
        Self { mixes, ..self }
    }

    pub(crate) fn answered_by(self, measured: Option<MeasuredStep>) -> Self {
        Self { measured, ..self }
    }

    pub(crate) fn unreached(self, unreached: Option<Unreached>) -> Self {
        Self { unreached, ..self }
    }

    pub(crate) fn predicted(self, predicted: Option<&'static str>) -> Self {
        Self { predicted, ..self }
    }

    pub(super) fn stalled(self, stalls: u64) -> Self {
        Self { stalls, ..self }
    }

    pub(crate) fn in_netns(self, netns: Option<String>) -> Self {
        Self { netns, ..self }
    }

    pub(crate) fn judged_by(self, judge: Option<String>) -> Self {
        Self { judge, ..self }
    }

    /// Command that compares these modes on them, or default ones. Options of the placement come after a space. A mode that
    /// was set at the start of the program needs a start for each slice. So does a program that shares queues with one
    /// which `quell run` started: an experiment changes each queue for all its users, and that mode ends with its command
    /// only.
    pub(crate) fn measure(&self, modes: &[DeliveryMode], placement: &str) -> String {
        let judge = self.judge.as_ref().map(|judge| format!(" --latency \"{judge}\"")).unwrap_or_default();
        let list = |modes: &[DeliveryMode]| match modes {
            [] => String::new(),
            modes => format!(" --modes {}", modes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")),
        };
        let netns = self.netns.as_deref();
        match self.attached {
            _ if !self.needs_start() => {
                let bench = QueueSharers::bench(self.sharing.as_ref(), &self.by_option);
                format!("{bench}{}{placement}{judge}", list(modes))
            }
            None => starting(netns, &format!("quell bench{}{placement}{judge}", list(modes))),
            Some(attached) => {
                let base = [DeliveryMode::default()];
                let first = if modes.is_empty() && attached.mode != base[0] { &base } else { modes };
                let present = Some(attached.mode).filter(|mode| !first.is_empty() && !first.contains(mode));
                let compared: Vec<DeliveryMode> = first.iter().copied().chain(present).collect();
                let placed = attached.placement_options();
                starting(netns, &format!("quell bench{}{placed}{judge}", list(&compared)))
            }
        }
    }

    fn needs_start(&self) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| sharing.launched)
            || self.attached.is_some_and(|it| it.launched || matches!(it.mode.kind(), ModeKind::SockPoll { .. }))
    }

    /// What has to end before that command, what it compares, and what the reader has to replace.
    pub(crate) fn compares(&self) -> String {
        let compares = match self.judge {
            Some(_) => "; CLIENT is another machine, with quell, whose requests come beside the present ones",
            None => "; this compares CPU time only: --latency COMMAND adds what clients see (docs/bench.md)",
        };
        match self.needs_start() {
            true => {
                format!(
                    "; first end the program, which COMMAND starts again, and others of `quell run` on its queues{compares}"
                )
            }
            false => compares.to_owned(),
        }
    }

    pub(super) fn are_launched(&self) -> bool {
        self.attached.is_some_and(|attached| attached.launched)
    }

    pub(super) fn are_steered(&self) -> bool {
        self.attached.is_some_and(|attached| attached.steers)
    }

    /// Command that replaces the attached mode as a measurement advises; absent if it advises no other one.
    pub(super) fn replace_by(&self, next: &NextStep, can_pin: bool) -> Option<String> {
        let (mode, is_steered) = match next {
            NextStep::Return { beneath: true, .. } => return self.undo().1,
            NextStep::Return { mode, .. } => (mode, false),
            NextStep::Attach { mode, steered, .. } => (mode, *steered),
            _ => return None,
        };
        let placed = |old: AttachedMode| AttachedMode {
            steers: old.steers || is_steered,
            pins: old.pins || is_steered && can_pin,
            ..old
        };
        Some(Self { attached: self.attached.map(placed), ..self.clone() }.replace(mode))
    }

    /// Command that replaces the attached mode, with the same placement.
    pub(crate) fn replace(&self, mode: &DeliveryMode) -> String {
        let attached = self.attached.unwrap_or_default();
        let AttachedMode { steers, pins, .. } = attached;
        let (mode, programs, netns) = (Some(*mode), self.positional.clone(), self.netns.clone());
        ModeCommand { mode, programs, steers, pins, attached: Some(attached), netns }.to_string()
    }

    pub(crate) fn of_selection(selection: &Selection) -> Self {
        match selection {
            Selection::Processes(pids) => Self::of_pids(pids),
            Selection::Cgroup(cgroup) => {
                let path = cgroup.path().to_string_lossy();
                let option = format!("--cgroup {}", shell::word(&path));
                Self::named(option.clone(), option)
            }
        }
    }

    /// How the mode is undone, and the command. `quell detach` refuses programs that `quell run` started.
    pub(super) fn undo(&self) -> (&'static str, Option<String>) {
        match self.are_launched() {
            true => (START_WITHOUT, None),
            false => ("undo it", Some(format!("quell detach {}", self.positional))),
        }
    }

    /// What is left to do after a device with its settings is gone, and no other queue has the mode.
    pub(super) fn of_gone_device(&self) -> (String, Option<String>) {
        let (undo, detach) = self.undo();
        let gone =
            "a device of the mode, or its network namespace, is gone, and no other queue of the program has the mode";
        let back = "once the program has connections through another device";
        let text = match self.attached.is_some_and(|attached| attached.follows) {
            true => format!("{gone}: `--follow` sets it again {back}; otherwise {undo}"),
            false => format!("{gone}: {undo}, and set it again {back}"),
        };
        (text, detach)
    }

    pub(crate) fn top(&self) -> String {
        format!("quell top {}", self.positional)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_of_a_shared_queue_has_all_its_users_or_comes_after_their_detach() {
        let pid = |pid| Pid::new(pid).unwrap();
        let command = |same_mode, launched| {
            let sharers = QueueSharers { programs: vec![pid(900), pid(901)], same_mode, launched, in_force: None };
            ProgramArguments::of_pids(&[pid(812)]).sharing(Some(sharers)).measure(&[], "")
        };
        assert_eq!(command(true, false), "quell bench --pid 812,900,901");
        assert_eq!(command(false, false), "quell detach 900 901 && quell bench --pid 812");
        assert_eq!(command(false, true), "quell bench -- COMMAND", "`quell detach` refuses what `quell run` started");
    }

    #[test]
    fn a_mode_that_is_set_at_the_start_of_a_program_is_measured_with_starts() {
        let pid = Pid::new(812).unwrap_or_else(|| unreachable!());
        let measure = |mode: &str, launched: bool, others: &[DeliveryMode]| {
            let mode = mode.parse().unwrap_or_else(|why| panic!("{why}"));
            let attached = AttachedMode { mode, launched, ..AttachedMode::default() };
            ProgramArguments::of_pids(&[pid]).attached(Some(attached)).measure(others, "")
        };
        assert_eq!(measure("suspend20", true, &[]), "quell bench --modes base,suspend20 -- COMMAND");
        assert_eq!(measure("sockpoll50", false, &[]), "quell bench --modes base,sockpoll50 -- COMMAND");
        let others = DeliveryMode::parse_list("base,suspend500").unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(measure("suspend20", true, &others), "quell bench --modes base,suspend500,suspend20 -- COMMAND");
        assert_eq!(measure("suspend20", false, &[]), "quell bench --pid 812");
        let launched = AttachedMode { launched: true, ..AttachedMode::default() };
        let elsewhere = ProgramArguments::of_pids(&[pid]).attached(Some(launched)).in_netns(Some("web".to_owned()));
        assert_eq!(elsewhere.measure(&[], ""), "ip netns exec web quell bench -- COMMAND");
        assert_eq!(elsewhere.replace(&others[1]), "ip netns exec web quell run suspend500 -- COMMAND");
    }
}
