//! Whether a mode pays here, in words: one text for `quell`, doctor, status, top and the end of attach.

use quell_cli::number::{plain, short};
use quell_host::attach::payoff::{DoesItPay, ModePayoff};
use quell_host::attach::{AttachedMode, ModeCommand, Selection};
use quell_linux::Pid;
use quell_linux::visible::{self, counted};
use quell_mode::DeliveryMode;

/// Programs as arguments of commands.
#[derive(Debug, Clone)]
pub(crate) struct ProgramArguments {
    /// For `quell attach`, `detach` and `top`.
    positional: String,
    /// For `quell bench`.
    by_option: String,
    /// What is attached to them.
    attached: Option<AttachedMode>,
    /// Command that measures their latency, if it is known.
    judge: Option<String>,
}

impl ProgramArguments {
    pub(crate) fn of_pids(pids: &[Pid]) -> Self {
        let pids = |separator| pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator);
        Self { positional: pids(" "), by_option: format!("--pid {}", pids(",")), attached: None, judge: None }
    }

    pub(crate) fn attached(self, attached: Option<AttachedMode>) -> Self {
        Self { attached, ..self }
    }

    pub(crate) fn judged(self, judge: Option<String>) -> Self {
        Self { judge, ..self }
    }

    fn are_launched(&self) -> bool {
        self.attached.is_some_and(|attached| attached.launched)
    }

    /// Command that replaces the attached mode, with the same placement.
    pub(crate) fn replace(&self, mode: &DeliveryMode) -> String {
        let attached = self.attached.unwrap_or_default();
        let AttachedMode { steers, pins, .. } = attached;
        let (mode, programs) = (Some(*mode), self.positional.clone());
        ModeCommand { mode, programs, steers, pins, attached: Some(attached) }.to_string()
    }

    pub(crate) fn of_selection(selection: &Selection) -> Self {
        match selection {
            Selection::Processes(pids) => Self::of_pids(pids),
            Selection::Cgroup(cgroup) => {
                let path = cgroup.path().to_string_lossy();
                let option = format!("--cgroup {}", visible::name(&shell_words::quote(&path)));
                Self { positional: option.clone(), by_option: option, attached: None, judge: None }
            }
        }
    }

    pub(crate) fn top(&self) -> String {
        format!("quell top {}", self.positional)
    }
}

/// `1.2 polls per packet, 98 % of them by the program, packets waited up to 41 µs (p99)`. Empty without polls.
#[must_use]
pub(crate) fn figures(payoff: &ModePayoff) -> String {
    let by = if payoff.mode.poller().is_some() { "the poller" } else { "the program" };
    let polls = payoff.polls_per_packet.map(|polls| format!("{} polls per packet", short(polls)));
    let share = payoff.program_share.map(|share| format!("{:.0} % of polls by {by}", share * 100.0));
    let wait = payoff.wait_p99_ns.map(|ns| format!("packets waited up to {} µs (p99)", short(ns as f64 / 1e3)));
    [polls, share, wait].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What to do with a mode that pays or does not, with its figures, and the command for it.
#[must_use]
pub(crate) fn advice(payoff: &ModePayoff, programs: &ProgramArguments) -> (String, Option<String>) {
    let figures = figures(payoff);
    advice_with(payoff, programs, &if figures.is_empty() { figures } else { format!(" ({figures})") })
}

/// The same with other words in place of the figures.
#[must_use]
pub(crate) fn advice_with(payoff: &ModePayoff, programs: &ProgramArguments, figures: &str) -> (String, Option<String>) {
    let ModePayoff { mode, queues, pays, .. } = payoff;
    let judge = programs.judge.as_ref().map(|judge| format!(" --latency \"{judge}\"")).unwrap_or_default();
    let measure = || Some(format!("quell bench {}{judge}", programs.by_option));
    let compares = if programs.judge.is_some() { BY_CLIENT } else { CPU_ONLY };
    // `quell detach` refuses programs that `quell run` started.
    let (undo, detach) = match programs.are_launched() {
        true => ("start the command again without it", None),
        false => ("undo it", Some(format!("quell detach {}", programs.positional))),
    };
    match pays {
        DoesItPay::NotInEffect => (format!("{mode} is not in effect{figures}: {undo}, or fix the cause"), detach),
        DoesItPay::LeavesQueuesUnpolled { fix, command } => (unpolled(payoff, fix), command.clone()),
        DoesItPay::Costs { instead } if *instead == DeliveryMode::default() => {
            (format!("{mode} costs more than it gives at this load{figures}: {undo}"), detach)
        }
        DoesItPay::Costs { instead } => (
            format!("{mode} costs more than it gives at this load{figures}: use {instead} instead"),
            detach.map(|_| programs.replace(instead)),
        ),
        DoesItPay::ChangesNothing => {
            (format!("{mode} changes nothing about polls: measure which mode is better{compares}"), measure())
        }
        DoesItPay::MeasureToKnow => {
            let cost = match mode.poller() {
                Some(_) => format!("; its {} use a whole CPU each", counted(*queues, "polling thread")),
                None => String::new(),
            };
            (
                format!("{mode} is in effect{figures}{cost}; only a measurement shows whether it pays{compares}"),
                measure(),
            )
        }
        DoesItPay::CannotTell => {
            (format!("whether {mode} is in effect is unclear{figures}; look again under load"), Some(programs.top()))
        }
    }
}

/// How connections from before an attachment get to their workers. A reload would end a measurement.
pub(crate) const RECONNECT_TO_ATTACHED: &str =
    "only new connections are steered: restart the clients, or reload the server (`nginx -s reload`)";

/// What a measurement without clients compares.
pub(crate) const CPU_ONLY: &str = " (CPU time; --latency COMMAND adds what clients see)";

/// Where the command that measures latency runs.
pub(crate) const BY_CLIENT: &str =
    "; CLIENT is another machine, with quell, whose requests come beside the present ones";

/// What connections on several queues of one epoll mean for the reader.
fn unpolled(payoff: &ModePayoff, fix: &str) -> String {
    let napi = payoff.mode.napi();
    let (timer, ns) = match napi.irq_suspend_timeout_ns {
        0 => ("gro-flush-timeout", napi.gro_flush_timeout_ns),
        ns => ("irq-suspend-timeout", ns),
    };
    let wait = format!("{} ms ({timer})", plain(ns as f64 / 1e6));
    let fix = if fix.is_empty() { String::new() } else { format!(": {fix}") };
    format!(
        "an epoll polls one queue, and here it has connections of several (epoll-mixes-napis): while it polls one, packets of \
         the others can wait up to {wait}{fix}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(mode: &str, pays: DoesItPay) -> (String, Option<String>) {
        let payoff = ModePayoff {
            mode: mode.parse().unwrap_or_else(|why| panic!("{why}")),
            queues: 2,
            polls_per_packet: Some(12.1),
            program_share: Some(0.08),
            wait_p99_ns: Some(41_000),
            pays,
        };
        let pid = |pid| Pid::new(pid).unwrap_or_else(|| unreachable!());
        advice(&payoff, &ProgramArguments::of_pids(&[pid(812), pid(813)]))
    }

    #[test]
    fn a_measurement_has_the_command_that_measures_latency_if_it_is_known() {
        let pays = DoesItPay::ChangesNothing;
        let (polls_per_packet, program_share, wait_p99_ns) = (None, None, None);
        let mode = DeliveryMode::default();
        let payoff = ModePayoff { mode, queues: 2, polls_per_packet, program_share, wait_p99_ns, pays };
        let programs = ProgramArguments::of_pids(&[Pid::of_this_process()]).judged(Some("ssh CLIENT mine".to_owned()));
        let (text, command) = advice(&payoff, &programs);
        assert!(command.is_some_and(|command| command.ends_with(" --latency \"ssh CLIENT mine\"")));
        assert!(text.contains("CLIENT is another machine") && !text.contains("CPU time"), "{text}");
    }

    fn costs(instead: &str) -> DoesItPay {
        DoesItPay::Costs { instead: instead.parse().unwrap_or_else(|why| panic!("{why}")) }
    }

    #[test]
    fn a_verdict_has_polls_per_packet_the_share_of_the_program_and_the_wait() {
        let (text, command) = said("suspend20", DoesItPay::MeasureToKnow);
        assert!(
            text.contains("(12.1 polls per packet, 8 % of polls by the program, packets waited up to 41.0 µs (p99))"),
            "{text}"
        );
        assert!(text.contains("only a measurement shows whether it pays (CPU time; --latency"), "{text}");
        assert_eq!(command.as_deref(), Some("quell bench --pid 812,813"));
        let (poller, _) = said("userbusy", DoesItPay::MeasureToKnow);
        assert!(
            poller.contains("by the poller") && poller.contains("2 polling threads use a whole CPU each"),
            "{poller}"
        );
    }

    #[test]
    fn a_verdict_against_a_mode_names_what_to_do_instead() {
        let (text, command) = said("suspend20", costs("suspend500"));
        assert!(text.contains("costs more than it gives at this load") && text.ends_with("use suspend500 instead"));
        assert_eq!(command.as_deref(), Some("quell detach 812 813 && quell attach suspend500 812 813"));
        assert_eq!(said("suspend20", costs("base")).1.as_deref(), Some("quell detach 812 813"));
        let (not, command) = said("suspend20", DoesItPay::NotInEffect);
        assert!(not.contains("not in effect") && command.as_deref() == Some("quell detach 812 813"), "{not}");
        assert_eq!(said("suspend20", DoesItPay::CannotTell).1.as_deref(), Some("quell top 812 813"));
        assert_eq!(said("base", DoesItPay::ChangesNothing).1.as_deref(), Some("quell bench --pid 812,813"));
    }

    #[test]
    fn connections_on_several_queues_of_an_epoll_are_named_with_what_their_packets_wait() {
        let unpolled = || DoesItPay::LeavesQueuesUnpolled { fix: "add --steer".to_owned(), command: None };
        let (text, command) = said("suspend20", unpolled());
        assert!(text.contains("up to 20 ms (irq-suspend-timeout): add --steer") && command.is_none(), "{text}");
        assert!(said("fullbusy", unpolled()).0.contains("up to 5 ms (gro-flush-timeout)"));
    }
}
