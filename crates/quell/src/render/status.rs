//! Output of `quell status`, as text and as JSON.

mod applied;
mod effect;
mod left;
mod set;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use quell_change::journal::{EndRecord, History, StallRecord, TargetProgram};
use quell_linux::Pid;
use quell_linux::visible::{agree, counted};
use quell_result::store::utc;
use schemars::JsonSchema;
use serde::Serialize;

pub(crate) use applied::AppliedReport;

use crate::output::on_one_line;
use applied::AppliedState;
use left::{LeftBehind, StallReport, WaitingReport};

/// Maximum number of ends that the text has.
const ENDS_SHOWN: usize = 5;

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct StatusReport {
    schema: &'static str,
    applied: Vec<AppliedReport>,
    unusable: Vec<String>,
    /// Journals whose run has ended without undoing everything: killed, failed, or before a reboot.
    left_behind: Vec<LeftBehind>,
    waiting: Vec<WaitingReport>,
    /// Stalls that the owners of modes found, also of modes that were reverted since.
    stalls: Vec<StallReport>,
    /// The last modes and profiles that ended, the newest one first.
    history: Vec<EndRecord>,
}

impl StatusReport {
    pub(crate) const SCHEMA: &str = "quell-status/1";

    pub(crate) fn new(
        mut applied: Vec<AppliedReport>,
        unusable: Vec<String>,
        left: &[(PathBuf, History)],
        stalls: Vec<StallRecord>,
        mut ends: Vec<EndRecord>,
    ) -> Self {
        ends.reverse();
        applied.iter_mut().for_each(|one| one.conclusion = one.conclude());
        let (waiting, left_behind): (Vec<_>, Vec<_>) = left.iter().partition(|(_, left)| left.only_waits());
        let left_behind = left_behind.into_iter().map(|(path, left)| LeftBehind::of(path, left));
        Self {
            schema: Self::SCHEMA,
            applied,
            unusable,
            left_behind: left_behind.collect(),
            waiting: waiting.into_iter().map(|(path, history)| WaitingReport::of(path, history)).collect(),
            stalls: stalls.into_iter().map(StallReport::from).collect(),
            history: ends,
        }
    }

    pub(crate) fn advice(&self) -> Option<String> {
        let drifted = |is_meant: fn(AppliedState) -> bool| -> usize {
            self.applied.iter().filter(|applied| is_meant(applied.state)).map(|applied| applied.drifted.len()).sum()
        };
        let of_launched = drifted(|state| matches!(state, AppliedState::Launched));
        let of_attached = drifted(|state| matches!(state, AppliedState::Attached));
        let of_profiles = drifted(|state| matches!(state, AppliedState::Applied | AppliedState::Unconfirmed));
        let advice = |count: usize, what: &str, to_do: &str| {
            let has = agree(&count, "has", "have");
            (count > 0).then(|| format!("{} of {what} {has} drifted; what to do: {to_do}", settings(count)))
        };
        let unset: usize = self.applied.iter().map(|applied| applied.started_since.len()).sum();
        let unset = (unset > 0).then(|| {
            let (was, lacks) = (agree(&unset, "was", "were"), agree(&unset, "lacks", "lack"));
            let processes = counted(unset, "process");
            format!("{processes} of attached programs {was} started since and {lacks} the mode; `--follow` sets it")
        });
        let gone: usize = self.applied.iter().map(|applied| applied.gone).sum();
        let names =
            self.applied.iter().filter(|applied| applied.gone > 0).map(|applied| format!(" {}", applied.journal_name));
        let gone = (gone > 0).then(|| {
            let (is, them) = (agree(&gone, "is", "are"), agree(&gone, "it", "them"));
            format!(
                "{} {is} gone with the device or network namespace: `quell revert{}` removes {them} from the list",
                settings(gone),
                names.map(|name| on_one_line(&name)).collect::<String>()
            )
        });
        let reverted = self.stalls.iter().filter(|stalls| stalls.reverted).map(|stalls| {
            format!(
                "a mode was reverted because its queues stalled: remove the cause before you attach again; `quell revert {}` \
                 forgets the stalls, and undoes nothing else",
                on_one_line(&stalls.journal_name)
            )
        });
        let reverted = reverted.collect::<Vec<_>>().join("\n");
        let reverted = Some(reverted).filter(|text| !text.is_empty());
        let unusable = (!self.unusable.is_empty()).then(|| {
            let (count, it) = (self.unusable.len(), agree(&self.unusable.len(), "its", "their"));
            format!("{} cannot be read: {it} settings may be in force", counted(count, "journal"))
        });
        let drifted = self.applied.iter().filter(|one| !one.drifted.is_empty());
        let (attached, others): (Vec<_>, Vec<_>) = drifted.partition(|one| one.attached.is_some());
        let (launched, attached): (Vec<_>, Vec<_>) =
            attached.into_iter().partition(|one| matches!(one.state, AppliedState::Launched));
        let steps = |of: Vec<&AppliedReport>| {
            let mut steps: Vec<String> = of.into_iter().map(AppliedReport::steps_to_reapply).collect();
            steps.dedup();
            steps.join(", ")
        };
        let missing: BTreeSet<String> =
            others.into_iter().flat_map(AppliedReport::missing).map(ToString::to_string).collect();
        let left = (!self.left_behind.is_empty()).then(|| {
            "settings that a killed command left are in force, and nobody watches them: `quell revert` undoes them"
                .to_owned()
        });
        let reassert = missing.into_iter().chain(["`quell apply --reassert`".to_owned()]);
        let reassert = reassert.collect::<Vec<_>>().join(", then ");
        let advice = [
            unusable,
            reverted,
            advice(of_profiles, "profiles", &reassert),
            unset,
            advice(of_attached, "attachments", &steps(attached)),
            advice(of_launched, "launched programs", &steps(launched)),
            gone,
            left,
        ];
        let advice: Vec<String> = advice.into_iter().flatten().collect();
        (!advice.is_empty()).then(|| advice.join("\n"))
    }
}

impl fmt::Display for StatusReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_left = !self.left_behind.is_empty() || !self.waiting.is_empty();
        if self.applied.is_empty() && !is_left && self.unusable.is_empty() {
            writeln!(f, "nothing is applied")?;
        }
        for applied in &self.applied {
            applied.fmt(f)?;
        }
        for LeftBehind { purpose, journal_name, programs } in &self.left_behind {
            let (name, programs) = (on_one_line(journal_name), to_programs(programs));
            let what = on_one_line(&format!("{purpose}{programs}"));
            writeln!(f, "left by an earlier run: {what} ({name}): undo with `quell revert {name}`")?;
        }
        for WaitingReport { journal_name, purpose, programs, settings } in &self.waiting {
            let (name, count) = (on_one_line(journal_name), self::settings(settings.len()));
            let what = on_one_line(&format!("{purpose}{}", to_programs(programs)));
            writeln!(f, "reverted except {count}: {what} ({name}): try again with `quell revert {name}`")?;
            // Settings of one queue wait for the same reason.
            let reasons: BTreeSet<_> = settings.iter().collect();
            reasons.into_iter().try_for_each(|why| writeln!(f, "  waits: {why}"))?;
        }
        self.stalls.iter().try_for_each(|stalls| stalls.fmt(f))?;
        self.unusable.iter().try_for_each(|unusable| writeln!(f, "{unusable}"))?;
        if !self.history.is_empty() {
            writeln!(f, "history:")?;
        }
        for EndRecord { purpose, programs, ended_unix_s, by } in self.history.iter().take(ENDS_SHOWN) {
            let at = utc(*ended_unix_s).map_or_else(|| "at an unknown time".to_owned(), |at| format!("at {at} UTC"));
            let what = on_one_line(&format!("{purpose}{}", to_programs(programs)));
            writeln!(f, "  {what}: ended {at}, by {}", on_one_line(by))?;
        }
        match self.history.len().saturating_sub(ENDS_SHOWN) {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more; --json lists all"),
        }
    }
}

pub(crate) fn stall_cause(known: Option<&str>, programs: impl Iterator<Item = Pid>) -> String {
    match known {
        Some(cause) => format!("cause: {cause}"),
        None => format!("the cause is unknown: {}", quell_host::findings::see_the_events(programs)),
    }
}

pub(crate) fn to_programs(programs: &[TargetProgram]) -> String {
    match programs {
        [] => String::new(),
        [only] => format!(" to {} {}", only.name, only.pid),
        [first, others @ ..] => format!(" to {} {} and {} more", first.name, first.pid, others.len()),
    }
}

fn settings(count: usize) -> String {
    counted(count, "setting")
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A duration in its two largest units.
fn span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quell_change::change::Drift;
    use quell_change::journal::Purpose;
    use quell_change::missing_queue::{MissingCause, MissingQueue};
    use quell_host::attach::attached::AttachedMode;
    use quell_host::attach::effect::ModeVerdict;
    use quell_host::attach::payoff::{DoesItPay, ModePayoff};
    use quell_linux::proc::Ticks;
    use quell_result::Document as _;
    use quell_result::top::{IntervalReport, ObservedProgram, SkipReason, SkippedPart};

    use super::effect::{ProgramEffect, live_effect};
    use super::*;

    fn report(effect: Option<ModeVerdict>, polls_unknown: Option<&str>) -> IntervalReport {
        let program = ObservedProgram {
            pid: Pid::from_kernel(42).unwrap(),
            name: "memcached".to_owned(),
            unit: None,
            pod: None,
            container: None,
            napis: Vec::new(),
            xdp: None,
            epolls: Vec::new(),
            cpus: None,
            cpu_ns_per_packet: None,
            cpu_ns: None,
            mode: Some("suspend20".to_owned()),
            root: None,
            effect,
            payoff: None,
            drifted: None,
            skipped: None,
        };
        IntervalReport {
            schema: IntervalReport::SCHEMA.to_owned(),
            unix_ns: 0,
            interval_ns: 1,
            polls_unknown: polls_unknown.map(str::to_owned),
            queues: Vec::new(),
            devices: Vec::new(),
            programs: vec![program],
            idle_states: Vec::new(),
            hidden_processes: 0,
        }
    }

    #[test]
    fn a_program_has_one_line_with_its_verdict_or_the_reason_why_there_is_none() {
        let line = |observed: Result<IntervalReport, String>| {
            let pid = Pid::new(42).unwrap();
            let effect = live_effect(pid, &observed);
            ProgramEffect { pid, name: "me\nm".to_owned(), pod: None, effect, payoff: None, lost_queues: false }
                .line(false)
        };
        let judged = line(Ok(report(Some(ModeVerdict::NotInEffect("no busy poll".to_owned())), None)));
        assert!(judged.starts_with("  me") && judged.ends_with("m 42: not in effect: no busy poll"), "{judged}");
        assert_eq!(judged.lines().count(), 1, "{judged}");
        assert!(line(Ok(report(None, Some("needs CAP_BPF")))).ends_with(" 42: unknown: needs CAP_BPF"));
        assert!(line(Ok(report(None, None))).contains(": idle: no open connection through a queue"));
        let mut elsewhere = report(None, None);
        elsewhere.programs[0].napis.push(quell_linux::NapiId::from_kernel(8193).unwrap());
        assert!(
            line(Ok(elsewhere)).contains(": not in effect: none of the queues from which it receives has the mode")
        );
        assert!(line(Err("process 42 does not exist".to_owned())).ends_with(": unknown: process 42 does not exist"));
    }

    fn applied(programs: Vec<TargetProgram>) -> AppliedReport {
        AppliedReport {
            purpose: Purpose::Attachment { mode: "suspend20".parse().unwrap() },
            journal: "j".to_owned(),
            journal_name: "attach-42".to_owned(),
            owner_pid: None,
            since_unix_s: 0,
            state: AppliedState::Attached,
            deadline_unix_s: None,
            settings: 1,
            set: Vec::new(),
            gone: 0,
            drifted: Vec::new(),
            being_set_again: Vec::new(),
            programs,
            started_since: Vec::new(),
            being_set: Vec::new(),
            parents: Vec::new(),
            attached: None,
            is_followed: false,
            netns: None,
            load_command: None,
            mixes: false,
            unreached: None,
            stalls: 0,
            packets_per_s: None,
            measured: None,
            sharing: None,
            effects: Vec::new(),
            predicted: Vec::new(),
            conclusion: None,
        }
    }

    #[test]
    fn a_launched_program_whose_link_is_down_needs_the_link_and_no_restart() {
        let (cause, device) = (MissingCause::LinkDown, "eth0".to_owned());
        let missing = MissingQueue { cause, device, command: Some("ip link set eth0 up".to_owned()) };
        let drift = |missing: Option<MissingQueue>| Drift {
            device: Some("eth0".to_owned()),
            queue: Some(0),
            setting: "napi".to_owned(),
            made: "defer-hard-irqs 100".to_owned(),
            now: missing.is_none().then(|| "defer-hard-irqs 0".to_owned()),
            missing,
        };
        let advice = |drifted| {
            let mode = "suspend20".parse().unwrap();
            let attached = Some(AttachedMode { mode, launched: true, ..AttachedMode::default() });
            let (state, is_followed) = (AppliedState::Launched, true);
            let launched = AppliedReport { state, attached, is_followed, drifted, ..applied(Vec::new()) };
            StatusReport::new(vec![launched], Vec::new(), &[], Vec::new(), Vec::new()).advice().unwrap()
        };
        let down = advice(vec![drift(Some(missing))]);
        assert!(down.ends_with("what to do: the link eth0 is down: `ip link set eth0 up`"), "{down}");
        let changed = advice(vec![drift(None)]);
        assert!(changed.ends_with("what to do: restart the program with `quell run`"), "{changed}");
    }

    #[test]
    fn a_mode_that_polls_one_queue_is_set_again_after_clients_have_reconnected() {
        let text = |mixes, mode: &str| {
            let drifted = Drift {
                device: Some("eth0".to_owned()),
                queue: Some(0),
                setting: "napi".to_owned(),
                made: "defer-hard-irqs 100".to_owned(),
                now: Some("defer-hard-irqs 0".to_owned()),
                missing: None,
            };
            let attached = Some(AttachedMode { mode: mode.parse().unwrap(), ..AttachedMode::default() });
            let (parents, drifted) = (vec![Pid::new(42).unwrap()], vec![drifted]);
            let applied = AppliedReport { attached, mixes, parents, drifted, ..applied(Vec::new()) };
            let report = StatusReport::new(vec![applied], Vec::new(), &[], Vec::new(), Vec::new());
            report.to_string() + &report.advice().unwrap()
        };
        let reconnect = "set it again once its clients have reconnected, because an epoll has connections";
        let polls = text(true, "suspend20");
        assert_eq!(polls.matches("once its clients have reconnected").count(), 2, "{polls}");
        assert!(polls.contains(reconnect), "{polls}");
        assert!(!text(false, "suspend20").contains("reconnected") && !text(true, "defer20").contains("reconnected"));
    }

    #[test]
    fn after_its_device_is_gone_the_rest_of_a_mode_is_undone() {
        let attached = Some(AttachedMode { mode: "suspend20".parse().unwrap(), ..AttachedMode::default() });
        let parents = vec![Pid::new(42).unwrap()];
        let program = TargetProgram { pid: parents[0], start_time_ticks: 7, name: "nginx".to_owned() };
        let text = |lost_queues| {
            let effect = ProgramEffect { lost_queues, ..ProgramEffect::of(&program, &Ok(report(None, None))) };
            let (parents, effects) = (parents.clone(), vec![effect]);
            AppliedReport { attached, parents, effects, ..applied(Vec::new()) }.to_string()
        };
        let gone = text(true);
        assert!(gone.contains("is gone, and no other queue") && gone.ends_with("\n    quell detach 42\n"), "{gone}");
        assert!(!text(false).contains("detach"));
    }

    #[test]
    fn a_mode_with_accepted_stalls_is_first_looked_at_for_what_was_predicted() {
        let program = TargetProgram { pid: Pid::new(42).unwrap(), start_time_ticks: 7, name: "nginx".to_owned() };
        let text = |pays| {
            let mode: quell_mode::DeliveryMode = "suspend20".parse().unwrap();
            let payoff = ModePayoff {
                mode,
                queues: 1,
                packets_per_s: Some(1_000),
                polls_per_packet: Some(0.5),
                program_share: Some(1.0),
                wait_p99_ns: None,
                cpu_wait_share: None,
                pays,
            };
            let attached = Some(AttachedMode { mode, accepts_stalls: true, ..AttachedMode::default() });
            let effect = ProgramEffect { payoff: Some(payoff), ..ProgramEffect::of(&program, &Ok(report(None, None))) };
            let (parents, effects) = (vec![program.pid], vec![effect]);
            AppliedReport { attached, parents, effects, ..applied(Vec::new()) }.to_string()
        };
        let in_effect = text(DoesItPay::MeasureToKnow);
        assert!(in_effect.contains("was set with `--accept-stalls`"), "{in_effect}");
        assert!(in_effect.ends_with("\n    quell doctor 42\n"), "{in_effect}");
        assert!(text(DoesItPay::NotInEffect { on_unset_epolls: false }).ends_with("\n    quell detach 42\n"));
    }

    #[test]
    fn programs_that_have_exited_are_left_out_unless_all_have() {
        let program =
            |pid, name: &str| TargetProgram { pid: Pid::new(pid).unwrap(), start_time_ticks: 7, name: name.to_owned() };
        let mut applied = applied(vec![program(42, "nginx"), program(43, "nginx")]);
        applied.update_programs(|_| None);
        assert_eq!(applied.programs.len(), 2);
        applied.update_programs(|one| {
            (one.pid.get() == 43).then(|| TargetProgram { name: "worker".to_owned(), ..one.clone() })
        });
        assert_eq!(applied.programs, [program(43, "worker")]);
        let mode = "suspend20".parse().unwrap();
        applied.attached = Some(AttachedMode { mode, steers: true, pins: true, ..AttachedMode::default() });
        (applied.started_since, applied.parents) = (vec![program(44, "nginx")], vec![Pid::new(42).unwrap()]);
        let text = applied.to_string();
        assert!(text.contains("nginx 44: started since, without the mode"), "{text}");
        assert!(text.ends_with("quell attach suspend20 42 --steer --pin --follow --take-over --yes\n"), "{text}");
        applied.load_command = Some("ssh CLIENT quell load 10.0.0.1:80".to_owned());
        let measure = applied.arguments().measure(&[], "");
        assert_eq!(measure, "quell bench --pid 42 --latency \"ssh CLIENT quell load 10.0.0.1:80\"");
        let mut observed = report(None, None);
        let new = &mut observed.programs[0];
        (new.pid, new.skipped) =
            (Pid::new(44).unwrap(), Some(vec![SkippedPart { napi: None, reason: SkipReason::EpollNotSet }]));
        let mut status = StatusReport::new(vec![applied], Vec::new(), &[], Vec::new(), Vec::new());
        status.applied[0].judge(&Ok(observed.clone()));
        let said = status.advice().unwrap();
        assert!(said.starts_with("1 process of attached programs was started since and lacks the mode"), "{said}");
        observed.programs[0].skipped = Some(Vec::new());
        status.applied[0].judge(&Ok(observed));
        assert_eq!(status.advice(), None, "it shares the epolls of its parent");
    }

    #[test]
    fn new_workers_are_left_to_a_follower_until_it_has_had_the_time_to_look_at_them() {
        let program = |pid, ticks| TargetProgram {
            pid: Pid::new(pid).unwrap(),
            start_time_ticks: ticks,
            name: "nginx".to_owned(),
        };
        let at = |is_followed, seconds| {
            let mode = "suspend20".parse().unwrap();
            let mut applied = AppliedReport { is_followed, ..applied(vec![program(42, 7)]) };
            applied.attached = Some(AttachedMode { mode, ..AttachedMode::default() });
            (applied.started_since, applied.parents) = (vec![program(44, 1_000)], vec![Pid::new(42).unwrap()]);
            let started = Ticks(1_000).duration();
            applied.leave_new_ones_to_follower(started + Duration::from_secs(seconds));
            let text = applied.to_string();
            (text, StatusReport::new(vec![applied], Vec::new(), &[], Vec::new(), Vec::new()).advice())
        };
        let (text, advice) = at(true, 1);
        assert!(text.contains("nginx 44: started just now") && text.ends_with(":\n    quell status\n"), "{text}");
        assert_eq!(advice, None);
        for (is_followed, seconds) in [(true, 6), (false, 1)] {
            let (text, advice) = at(is_followed, seconds);
            assert!(text.contains("nginx 44: started since, without the mode") && advice.is_some(), "{text}");
        }
    }

    #[test]
    fn nothing_is_applied_only_if_nothing_is_left_either() {
        let report = |left_of: &[Purpose]| {
            let name = "me\nm".to_owned();
            let programs = vec![TargetProgram { pid: Pid::new(42).unwrap(), start_time_ticks: 7, name }];
            let left = |purpose: &Purpose| LeftBehind {
                purpose: purpose.clone(),
                journal_name: "attach-42".to_owned(),
                programs: programs.clone(),
            };
            let left_behind = left_of.iter().map(left).collect();
            StatusReport { left_behind, ..StatusReport::new(Vec::new(), Vec::new(), &[], Vec::new(), Vec::new()) }
        };
        assert_eq!((report(&[]).to_string().as_str(), report(&[]).advice()), ("nothing is applied\n", None));
        let left = report(&[Purpose::Attachment { mode: "base".parse().unwrap() }]);
        assert!(left.advice().is_some_and(|advice| advice.contains("nobody watches them")), "the exit code is 3");
        assert_eq!(
            left.to_string(),
            "left by an earlier run: attach base to me\\nm 42 (attach-42): undo with `quell revert attach-42`\n"
        );
    }

    #[test]
    fn settings_that_wait_are_not_nothing_and_each_reason_is_listed_once_with_the_command() {
        let waiting = WaitingReport {
            journal_name: "attach-42".to_owned(),
            purpose: Purpose::Attachment { mode: "base".parse().unwrap() },
            programs: Vec::new(),
            settings: vec!["queue 0".to_owned(); 2],
        };
        let empty = StatusReport::new(Vec::new(), Vec::new(), &[], Vec::new(), Vec::new());
        assert_eq!(
            StatusReport { waiting: vec![waiting], ..empty }.to_string(),
            "reverted except 2 settings: attach base (attach-42): try again with `quell revert attach-42`\n  \
             waits: queue 0\n"
        );
    }

    #[test]
    fn a_duration_has_its_two_largest_units() {
        assert_eq!([span(59), span(61), span(7260), span(90_000)], ["59 s", "1 min 1 s", "2 h 1 min", "1 d 1 h"]);
    }
}
