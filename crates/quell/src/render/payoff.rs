//! Whether a mode pays here, in words: one text for `quell`, doctor, status, top and the end of attach.

use quell_cli::number::{plain, short};
use quell_host::attach::own_work::OwnWork;
use quell_host::attach::owners::{ModeInForce, QueueSharers};
use quell_host::attach::payoff::{DoesItPay, ModePayoff};
use quell_host::findings::{LackingCpus, STEERED, time_text};
use quell_linux::visible::{self, agree, counted};
use quell_mode::{DeliveryMode, Threaded};

use super::measured;
use super::program_arguments::ProgramArguments;

/// Share of time in which a program waited for a CPU from which it is said.
const CPU_WAIT_SHARE: f64 = 0.1;

/// `1.2 polls per packet, 98 % of them by the program, packets waited up to 41 µs (p99)`. Empty without polls.
/// `are_shared`: other attached programs use its queues.
#[must_use]
pub(crate) fn figures(payoff: &ModePayoff, are_shared: bool) -> String {
    let by = match (payoff.mode.poller(), are_shared) {
        (Some(_), _) => "the poller",
        (None, true) => "the programs on its queues",
        (None, false) => "the program",
    };
    let polls = payoff.polls_per_packet.map(|polls| format!("{} polls per packet", short(polls)));
    let share = payoff.program_share.map(|share| format!("{:.0} % of polls by {by}", share * 100.0));
    let wait = payoff.wait_p99_ns.map(|ns| format!("packets waited up to {} µs (p99)", short(ns as f64 / 1e3)));
    let cpu = payoff.cpu_wait_share.filter(|share| *share >= CPU_WAIT_SHARE);
    let cpu = cpu.map(|share| {
        format!("other threads had its CPUs {:.0} % of the time in which the program wanted one", share * 100.0)
    });
    [polls, share, wait, cpu].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// `suspend20 polls more than interrupts would (1.2 polls per packet)`.
#[must_use]
pub(crate) fn polls_more(payoff: &ModePayoff, are_shared: bool) -> String {
    format!("{} polls more than interrupts would{}", payoff.mode, in_parentheses([&figures(payoff, are_shared), ""]))
}

/// The answer in a few words, for a column.
#[must_use]
pub(crate) fn in_short(payoff: &ModePayoff) -> &'static str {
    match payoff.pays {
        DoesItPay::Drifted => "settings changed or lost, set it again",
        DoesItPay::NotInEffect { on_unset_epolls: true } => "not set on new epolls or queues, set it again",
        DoesItPay::NotInEffect { .. } => "not in effect",
        DoesItPay::LeavesQueuesUnpolled { .. } => "leaves queues unpolled",
        DoesItPay::LacksCpus(_) => "lacks CPUs",
        DoesItPay::NothingToGain(_) => "nothing to gain, undo it",
        _ if payoff.only_delays() => "costs more than it gives, undo it",
        DoesItPay::CostsCpuTime { .. } => "polls more than interrupts would, measure",
        DoesItPay::NearBreakEven if payoff.polls_more() => "polls more than interrupts would, measure",
        DoesItPay::NearBreakEven => "near break-even, measure",
        DoesItPay::ChangesNothing | DoesItPay::MeasureToKnow => "in effect, measure",
        DoesItPay::CannotTell => "unclear, measure",
        DoesItPay::TooFewPackets => "too few packets, look again under load",
    }
}

/// The mode of a newer attachment whose values make the kernel poll more, if those of the judged mode are not in force.
pub(crate) fn in_force<'a>(payoff: &ModePayoff, sharing: Option<&'a QueueSharers>) -> Option<&'a ModeInForce> {
    sharing.and_then(|sharing| sharing.in_force.as_ref()).filter(|_| counts_polls(payoff))
}

/// Whether the answer follows from the number of polls, which depends on the values in force.
pub(crate) fn counts_polls(payoff: &ModePayoff) -> bool {
    matches!(payoff.pays, DoesItPay::CostsCpuTime { .. } | DoesItPay::NearBreakEven)
}

/// What to do with a mode that pays or does not, with its figures, and the command for it.
#[must_use]
pub(crate) fn advice(payoff: &ModePayoff, programs: &ProgramArguments) -> (String, Option<String>) {
    advice_with(payoff, programs, &figures(payoff, programs.sharing.is_some()))
}

/// The same with other words in place of the figures.
#[must_use]
pub(crate) fn advice_with(payoff: &ModePayoff, programs: &ProgramArguments, figures: &str) -> (String, Option<String>) {
    let ModePayoff { mode, queues, pays, .. } = payoff;
    let (known, figures) = (figures, in_parentheses([figures, ""]));
    let (undo, detach) = programs.undo();
    if programs.stalls > 0 {
        let text = format!(
            "the queues of {mode} have stalled {}{figures}, and packets waited: {undo}, or see the cause in `quell doctor {}`",
            counted(programs.stalls, "time"),
            programs.positional
        );
        return (text, detach);
    }
    let says_more = matches!(pays, DoesItPay::LeavesQueuesUnpolled { .. });
    if let Some(id) = programs.predicted.filter(|_| !says_more) {
        let text = format!(
            "{id} was predicted for {mode}{figures}, and accepted: {undo}, unless its clients wait no longer than before"
        );
        return (text, detach);
    }
    if let Some(why) = programs.unreached.as_ref().filter(|why| pays.is_unclear() || why.is_much() && !pays.is_no()) {
        let text = format!("{mode} cannot be judged{figures}: {why}");
        return (text, Some(format!("quell doctor {}", programs.positional)));
    }
    let measured = programs.measured.as_ref().and_then(|step| measured::advice(step, mode, programs, &figures));
    if let Some(measured) = measured {
        return measured;
    }
    if payoff.is_overdue() {
        let timeout = time_text(mode.napi().irq_suspend_timeout_ns);
        let text = format!(
            "packets waited longer than a suspension of {mode} lasts ({timeout}){figures}: something kept the program from \
             polling; look for the cause, and {undo} if it happens again"
        );
        return (text, Some(format!("quell doctor {}", programs.positional)));
    }
    if let Some(by) = in_force(payoff, programs.sharing.as_ref()) {
        let (of, name, pid) = (by.mode, visible::name(&by.program.name), by.program.pid);
        let text = format!(
            "the values of {of} of {name} {pid}, which was attached later, are in force instead of those of {mode}{figures}: \
             decide about {name} {pid}"
        );
        return (text, Some(format!("quell doctor {pid}")));
    }
    match pays {
        DoesItPay::Drifted => (drifted(mode), Some(programs.replace(mode))),
        DoesItPay::NotInEffect { on_unset_epolls: true } => (unset(mode, &figures), Some(programs.replace(mode))),
        DoesItPay::NotInEffect { .. } => {
            (format!("{mode} is not in effect{figures}: {undo}, or fix the cause"), detach)
        }
        DoesItPay::LeavesQueuesUnpolled { fix, command } => {
            // Reconnecting clients are what the reader waits for; any other advice changes the program first.
            let until_then = command.is_none() && fix != STEERED;
            let text = unpolled(payoff, fix) + if until_then { "; until then, " } else { "" };
            (text + if until_then { undo } else { "" }, command.clone().or(detach.filter(|_| until_then)))
        }
        DoesItPay::LacksCpus(LackingCpus { cpus, queues, workers }) => {
            let (cpus, threads) = (counted(*cpus, "CPU"), counted(*queues, "polling thread"));
            let workers = counted(*workers, "worker");
            (format!("{mode} costs more than it gives: {threads} and {workers} share {cpus}{figures}: {undo}"), detach)
        }
        DoesItPay::NothingToGain(work) => (format!("{mode} gains nothing: {}; {undo}", own_work(*work)), detach),
        DoesItPay::CostsCpuTime { instead, break_even_packets_per_s } => {
            let is_above = |rate: &u64| payoff.packets_per_s.is_some_and(|all| all >= rate * *queues as u64);
            let above = break_even_packets_per_s.filter(|rate| !is_above(rate)).map(|rate| {
                format!(
                    "above about {} packets/s per queue the timer expires less than twice per packet",
                    short(rate as f64)
                )
            });
            let figures = in_parentheses([known, &above.unwrap_or_default()]);
            if payoff.only_delays() {
                let text = format!(
                    "{mode} polls more than interrupts would, and delays packets{figures}: {undo}, unless more packets \
                     come at other times"
                );
                return (text, detach);
            }
            let (beside, modes) = match *instead == DeliveryMode::default() {
                true => (String::new(), vec![*instead]),
                false => (format!(" beside {instead}, which polls less"), vec![DeliveryMode::default(), *instead]),
            };
            let compares = programs.compares();
            (
                format!(
                    "{mode} polls more than interrupts would{figures}: CPU time that only lower latency repays; measure \
                     whether it does{beside}, or {undo}{compares}"
                ),
                Some(programs.measure(&modes, "")),
            )
        }
        DoesItPay::NearBreakEven if payoff.only_delays() => {
            let text = format!(
                "{mode} {} CPU time at this packet rate, and delays packets{figures}: {undo}, unless more packets \
                 come at other times",
                costs_or_saves(payoff)
            );
            (text, detach)
        }
        DoesItPay::NearBreakEven => {
            let timer = match mode.napi().gro_flush_timeout_ns {
                0 => String::new(),
                ns => format!(
                    "packets that find the program asleep wait for its timer, up to {} µs; ",
                    plain(ns as f64 / 1e3)
                ),
            };
            let compares = programs.compares();
            (
                format!(
                    "{mode} {} CPU time at this packet rate{figures}: {timer}measure whether it lowers latency, or \
                     {undo}{compares}",
                    costs_or_saves(payoff)
                ),
                Some(programs.measure(&[], "")),
            )
        }
        DoesItPay::ChangesNothing => {
            let is_unsorted = programs.mixes && programs.attached.is_some_and(|attached| attached.steers);
            let first = if is_unsorted { "let the clients reconnect, then " } else { "" };
            let compares = programs.compares();
            (
                format!(
                    "{mode} changes nothing about polls: {first}measure which mode is better, unless a measurement has \
                     chosen {mode}{compares}"
                ),
                Some(programs.measure(&[], "")),
            )
        }
        DoesItPay::MeasureToKnow => {
            let cost = whole_cpus(mode, *queues).map(|cost| format!("; {cost}")).unwrap_or_default();
            let compares = programs.compares();
            let shows = match payoff.waits_for_suspension() {
                false => "only a measurement shows whether it pays".to_owned(),
                true => format!(
                    "1 % of packets waited until the timer of a suspension ({}) ended it: measure whether it pays, or {undo}",
                    time_text(mode.napi().irq_suspend_timeout_ns)
                ),
            };
            (format!("{mode} is in effect{figures}{cost}; {shows}{compares}"), Some(programs.measure(&[], "")))
        }
        DoesItPay::CannotTell => {
            let compares = programs.compares();
            let measure = match payoff.waits_for_timer() {
                false => "measure whether it pays".to_owned(),
                true => format!(
                    "packets waited for its timer: measure whether it saves CPU time that is worth it, or {undo}"
                ),
            };
            (
                format!("whether {mode} is in effect is unclear{figures}; {measure}{compares}"),
                Some(programs.measure(&[], "")),
            )
        }
        DoesItPay::TooFewPackets if programs.attached.is_some_and(|attached| attached.accepts_stalls) => (
            format!(
                "{mode} has too few packets to judge it{figures}; it was set with `--accept-stalls`, and a stall can be \
                 why: {undo}, or see the cause in `quell doctor {}`",
                programs.positional
            ),
            detach,
        ),
        DoesItPay::TooFewPackets => match whole_cpus(mode, *queues) {
            Some(cost) => (
                format!(
                    "{mode} has too few packets to gain from{figures}, and {cost}: {undo}, unless more packets come at \
                     other times"
                ),
                detach,
            ),
            None => (
                format!(
                    "{mode} has too few packets to judge it{figures}, and to gain from: {undo}, or look again under load"
                ),
                Some(programs.top()),
            ),
        },
    }
}

/// `25.0 ms of CPU time per packet: no mode changes more than some 0.08 % of it`.
#[must_use]
pub(crate) fn own_work(work: OwnWork) -> String {
    let (ms, percent) = (short(work.cpu_ns_per_packet as f64 / 1e6), short(work.changeable() * 100.0));
    format!("{ms} ms of CPU time per packet: no mode changes more than some {percent} % of it")
}

/// ` (a; b)`, without empty parts. Empty if all are.
fn in_parentheses(parts: [&str; 2]) -> String {
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join("; ")) }
}

fn costs_or_saves(payoff: &ModePayoff) -> &'static str {
    if payoff.polls_more() { "costs" } else { "saves no" }
}

/// Threads that use whole CPUs under a mode that polls while no packet arrives.
#[must_use]
pub(crate) fn whole_cpus(mode: &DeliveryMode, queues: usize) -> Option<String> {
    let of_queues = |thread: &str| {
        let use_one = agree(&queues, "uses a whole CPU", "use a whole CPU each");
        format!("its {} {use_one}, at any load", counted(queues, thread))
    };
    match (mode.poller().is_some(), mode.napi().threaded) {
        (true, _) => Some(of_queues("polling thread")),
        (false, Threaded::BusyPoll) => Some(of_queues("NAPI thread")),
        _ => {
            let epoll = mode.epoll().filter(|epoll| epoll.busy_poll_usecs > 0)?;
            let timer_ns = mode.napi().gro_flush_timeout_ns;
            let later = match epoll.ends_before(timer_ns) {
                true => format!("; if they come more rarely, they wait for up to {}", time_text(timer_ns)),
                false => String::new(),
            };
            Some(format!(
                "each worker polls for {} µs before it sleeps, and uses a whole CPU if packets come as often{later}",
                epoll.busy_poll_usecs
            ))
        }
    }
}

/// Another program has changed settings of the mode.
#[must_use]
pub(crate) fn drifted(mode: &DeliveryMode) -> String {
    format!(
        "another program, or a reset of the device as by link down and up, has changed settings of {mode}: set it again"
    )
}

/// The mode is missing on epolls or queues that the program uses only since it was attached.
#[must_use]
pub(crate) fn unset(mode: &DeliveryMode, figures: &str) -> String {
    format!(
        "{mode} is not set on epolls and queues that had no connection when it was attached, nor on newer ones, such as those \
         of the workers of a reload or of a device that was created again{figures}: if `--follow` runs, it sets them within \
         seconds; otherwise set it again"
    )
}

/// Stalls were accepted; only `quell doctor` examines which one is predicted.
#[must_use]
pub(crate) fn accepted(mode: &DeliveryMode, programs: &ProgramArguments) -> (String, Option<String>) {
    let text = format!("{mode} was set with `--accept-stalls`: `quell doctor` shows which stall is predicted");
    (text, Some(format!("quell doctor {}", programs.positional)))
}

/// Its connections come through queues that others have got since, as after a change of the number of queues.
#[must_use]
pub(crate) fn elsewhere(mode: &DeliveryMode, is_followed: bool) -> String {
    let first = if is_followed { "`--follow` sets it there within seconds; otherwise " } else { "" };
    format!("the program receives from queues without {mode}: {first}set it again")
}

/// How connections from before an attachment get to their workers. A reload would end a measurement.
pub(crate) const RECONNECT_TO_ATTACHED: &str =
    "only new connections are steered: restart the clients, or reload a server that can, such as nginx";

/// What connections on several queues of one epoll mean for the reader.
fn unpolled(payoff: &ModePayoff, fix: &str) -> String {
    let napi = payoff.mode.napi();
    let (timer, ns) = match napi.irq_suspend_timeout_ns {
        0 => ("gro-flush-timeout", napi.gro_flush_timeout_ns),
        ns => ("irq-suspend-timeout", ns),
    };
    let ms = plain(ns as f64 / 1e6);
    let wait = match payoff.wait_p99_ns.is_some_and(|waited_ns| waited_ns > ns) {
        // The settings of a queue are those of its newest owner.
        true => format!("waited longer than its {timer} ({ms} ms), 1 % of them or more"),
        false => format!("can wait up to {ms} ms ({timer})"),
    };
    let fix = if fix.is_empty() { String::new() } else { format!(": {fix}") };
    format!(
        "an epoll polls one queue, and here it has connections of several (epoll-mixes-napis): while it polls one, packets of \
         the others {wait}{fix}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_change::journal::TargetProgram;
    use quell_host::findings::Unreached;
    use quell_linux::Pid;

    fn said(mode: &str, pays: DoesItPay) -> (String, Option<String>) {
        said_with(12.1, mode, pays)
    }

    #[test]
    fn a_mode_near_break_even_costs_cpu_time_above_two_polls_by_the_kernel_per_packet() {
        let near = |polls| said_with(polls, "suspend20", DoesItPay::NearBreakEven).0;
        assert!(near(3.0).starts_with("suspend20 costs CPU time at this packet rate (3.00 polls"), "{}", near(3.0));
        assert!(near(2.1).starts_with("suspend20 saves no CPU time"), "8 % of them are by the program: {}", near(2.1));
    }

    fn said_with(polls_per_packet: f64, mode: &str, pays: DoesItPay) -> (String, Option<String>) {
        let pid = |pid| Pid::new(pid).unwrap_or_else(|| unreachable!());
        let programs = ProgramArguments::of_pids(&[pid(812), pid(813)]);
        advice(&payoff(polls_per_packet, mode, pays), &programs)
    }

    fn payoff(polls_per_packet: f64, mode: &str, pays: DoesItPay) -> ModePayoff {
        ModePayoff {
            mode: mode.parse().unwrap_or_else(|why| panic!("{why}")),
            queues: 2,
            packets_per_s: Some(1_000),
            polls_per_packet: Some(polls_per_packet),
            program_share: Some(0.08),
            wait_p99_ns: Some(41_000),
            cpu_wait_share: Some(0.09),
            pays,
        }
    }

    #[test]
    fn waits_for_a_timer_of_the_mode_are_said_with_the_undo() {
        let programs = ProgramArguments::of_pids(&[Pid::new(812).unwrap()]);
        let waited = |wait_ns, mode, pays| {
            advice(&ModePayoff { wait_p99_ns: Some(wait_ns), ..payoff(1.2, mode, pays) }, &programs).0
        };
        let deferred = |wait_ns| waited(wait_ns, "defer5000", DoesItPay::CannotTell);
        assert!(
            deferred(5_200_000).contains("packets waited for its timer: measure")
                && deferred(41_000).contains("unclear")
        );
        assert!(!deferred(41_000).contains("timer"), "{}", deferred(41_000));
        let suspended = |wait_ns| waited(wait_ns, "suspend200", DoesItPay::MeasureToKnow);
        let late = suspended(20_900_000);
        assert!(
            late.contains("until the timer of a suspension (20 ms) ended it: measure") && late.contains("undo"),
            "{late}"
        );
        assert!(suspended(41_000).contains("only a measurement shows"));
    }

    #[test]
    fn accepted_stalls_and_the_reason_of_few_packets_come_before_what_polls_show() {
        let programs = || ProgramArguments::of_pids(&[Pid::new(812).unwrap()]);
        let few = payoff(0.1, "suspend200", DoesItPay::TooFewPackets);
        let (name, pid) = ("nginx".to_owned(), Pid::new(812).unwrap());
        let (text, command) = advice(&few, &programs().unreached(Some(Unreached::Stopped { name, pid })));
        assert!(
            text.starts_with("suspend200 cannot be judged (") && text.ends_with(": nginx 812 is stopped"),
            "{text}"
        );
        assert_eq!(command.as_deref(), Some("quell doctor 812"));
        let enough = payoff(0.1, "suspend200", DoesItPay::MeasureToKnow);
        let without = |connections| {
            let unreached = Unreached::WithoutQueue { connections, of: 32 };
            advice(&enough, &programs().unreached(Some(unreached))).0
        };
        assert!(without(1).contains("is in effect"));
        assert!(without(19).ends_with(
            ": 19 of 32 connections receive without a queue (connections-without-napi), where no mode has an effect"
        ));
        let (predicted, command) = advice(&enough, &programs().predicted(Some("nested-epoll")));
        assert!(predicted.starts_with("nested-epoll was predicted for suspend200 ("), "{predicted}");
        assert_eq!(command.as_deref(), Some("quell detach 812"));
        let late = ModePayoff { wait_p99_ns: Some(46_000_000), ..enough.clone() };
        let (overdue, command) = advice(&late, &programs());
        assert!(
            overdue.starts_with("packets waited longer than a suspension of suspend200 lasts (20 ms)"),
            "{overdue}"
        );
        assert_eq!(command.as_deref(), Some("quell doctor 812"));
        let (stalled, command) = advice(&enough, &programs().stalled(4));
        assert!(stalled.starts_with("the queues of suspend200 have stalled 4 times ("), "{stalled}");
        assert_eq!(command.as_deref(), Some("quell detach 812"));
    }

    #[test]
    fn a_mode_whose_values_a_newer_attachment_has_changed_is_not_blamed_for_them() {
        let pid = |pid| Pid::new(pid).unwrap();
        let program = TargetProgram { pid: pid(900), start_time_ticks: 1, name: "nginx".to_owned() };
        let in_force = Some(ModeInForce { mode: "suspend20".parse().unwrap(), program });
        let sharers = QueueSharers { programs: vec![pid(900)], same_mode: false, launched: false, in_force };
        let programs = ProgramArguments::of_pids(&[pid(812)]).sharing(Some(sharers));
        let of = |pays| advice(&payoff(20.9, "suspend200", pays), &programs);
        let (text, command) = of(DoesItPay::NearBreakEven);
        assert!(
            text.starts_with("the values of suspend20 of nginx 900, which was attached later, are in force"),
            "{text}"
        );
        assert!(text.contains("20.9 polls per packet") && !text.contains("undo"), "{text}");
        assert_eq!(command.as_deref(), Some("quell doctor 900"));
        assert!(of(DoesItPay::Drifted).0.contains("has changed"));
    }

    fn costs(instead: &str) -> DoesItPay {
        let instead = instead.parse().unwrap_or_else(|why| panic!("{why}"));
        DoesItPay::CostsCpuTime { instead, break_even_packets_per_s: Some(25_000) }
    }

    #[test]
    fn a_verdict_has_polls_per_packet_the_share_of_the_program_and_the_wait() {
        let (text, command) = said("suspend20", DoesItPay::MeasureToKnow);
        assert!(
            text.contains("(12.1 polls per packet, 8 % of polls by the program, packets waited up to 41.0 µs (p99))"),
            "{text}"
        );
        assert!(text.contains("only a measurement shows whether it pays; this compares CPU time only"), "{text}");
        assert_eq!(command.as_deref(), Some("quell bench --pid 812,813"));
        let (poller, _) = said("userbusy", DoesItPay::MeasureToKnow);
        assert!(
            poller.contains("by the poller") && poller.contains("2 polling threads use a whole CPU each"),
            "{poller}"
        );
        let (spinning, _) = said("fullbusy", DoesItPay::MeasureToKnow);
        assert!(
            spinning.contains("each worker polls for 1000 µs before it sleeps, and uses a whole CPU"),
            "{spinning}"
        );
    }

    #[test]
    fn a_verdict_against_a_mode_names_what_to_do_instead() {
        let (text, command) = said("suspend20", costs("suspend500"));
        assert!(text.contains("polls more than interrupts would (12.1 polls per packet"), "{text}");
        assert!(text.contains("(p99); above about 25,000 packets/s per queue the timer"), "{text}");
        assert!(text.contains("measure whether it does beside suspend500"), "{text}");
        let busy = ModePayoff { packets_per_s: Some(50_000), ..payoff(12.1, "suspend20", costs("suspend500")) };
        let programs = ProgramArguments::of_pids(&[Pid::new(812).unwrap()]);
        assert!(!advice(&busy, &programs).0.contains("above about"), "two queues have more");
        assert_eq!(command.as_deref(), Some("quell bench --pid 812,813 --modes base,suspend500"));
        assert!(said("suspend20", costs("base")).0.contains("measure whether it does, or undo it"));
        let (deferral, command) = said("defer20", costs("base"));
        assert!(
            deferral.contains("and delays packets")
                && deferral.ends_with(": undo it, unless more packets come at other times"),
            "nothing repays it: {deferral}"
        );
        assert_eq!(command.as_deref(), Some("quell detach 812 813"));
        let lacking = DoesItPay::LacksCpus(LackingCpus { cpus: 2, queues: 2, workers: 1 });
        let (text, command) = said("userbusy", lacking);
        assert!(text.contains("2 polling threads and 1 worker share 2 CPUs") && text.ends_with(": undo it"), "{text}");
        assert_eq!(command.as_deref(), Some("quell detach 812 813"));
        let (unset, command) = said("suspend20", DoesItPay::NotInEffect { on_unset_epolls: true });
        assert!(unset.contains("workers of a reload") && unset.ends_with("set it again"), "{unset}");
        assert_eq!(command.as_deref(), Some("quell detach 812 813 && quell attach suspend20 812 813"));
        let (drifted, command) = said("suspend20", DoesItPay::Drifted);
        assert!(drifted.contains("has changed") && !drifted.contains("packet"), "{drifted}");
        assert_eq!(command.as_deref(), Some("quell detach 812 813 && quell attach suspend20 812 813"));
        let (near, command) = said("suspend20", DoesItPay::NearBreakEven);
        assert!(near.starts_with("suspend20 costs CPU time at this packet rate (12.1 polls per packet"), "{near}");
        assert!(near.contains("wait for its timer, up to 20 µs; measure whether it lowers latency, or undo"), "{near}");
        assert_eq!(
            command,
            said("suspend20", DoesItPay::MeasureToKnow).1,
            "no matter on which side the load is just now"
        );
        let (near, command) = said("defer20", DoesItPay::NearBreakEven);
        assert!(near.contains("and delays packets") && command.as_deref() == Some("quell detach 812 813"), "{near}");
        let (not, command) = said("suspend20", DoesItPay::NotInEffect { on_unset_epolls: false });
        assert!(not.contains("not in effect") && command.as_deref() == Some("quell detach 812 813"), "{not}");
        assert_eq!(said("suspend20", DoesItPay::CannotTell).1.as_deref(), Some("quell bench --pid 812,813"));
        assert_eq!(said("suspend20", DoesItPay::TooFewPackets).1.as_deref(), Some("quell top 812 813"));
        let work = DoesItPay::NothingToGain(OwnWork { cpu_ns_per_packet: 25_000_000 });
        let (work, command) = said("suspend20", work);
        assert_eq!(
            work,
            "suspend20 gains nothing: 25.0 ms of CPU time per packet: no mode changes more than some 0.08 % of it; undo it"
        );
        assert_eq!(command.as_deref(), Some("quell detach 812 813"));
        let (idle, command) = said("fullbusy", DoesItPay::TooFewPackets);
        assert!(idle.contains(", and each worker polls for 1000 µs before it sleeps, and uses a whole CPU"), "{idle}");
        assert_eq!(command.as_deref(), Some("quell detach 812 813"));
        assert_eq!(said("base", DoesItPay::ChangesNothing).1.as_deref(), Some("quell bench --pid 812,813"));
    }

    #[test]
    fn connections_on_several_queues_of_an_epoll_are_named_with_what_their_packets_wait() {
        let unpolled = |fix: &str| DoesItPay::LeavesQueuesUnpolled { fix: fix.to_owned(), command: None };
        let (text, command) = said("suspend20", unpolled("use one queue"));
        assert!(text.ends_with("up to 20 ms (irq-suspend-timeout): use one queue; until then, undo it"), "{text}");
        assert_eq!(command.as_deref(), Some("quell detach 812 813"));
        assert_eq!(said("suspend20", unpolled(STEERED)).1, None, "its clients will reconnect");
        assert!(said("fullbusy", unpolled("use one queue")).0.contains("up to 5 ms (gro-flush-timeout)"));
    }
}
