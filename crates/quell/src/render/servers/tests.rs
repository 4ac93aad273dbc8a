//! The table of servers, its conclusion and its commands.

use super::command::load;
use super::*;
use crate::render::client_load;
use quell_change::journal::{Purpose, TargetProgram};
use quell_host::attach::attached::Unfinished;
use quell_host::attach::own_work::OwnWork;
use quell_host::attach::owners::{ModeInForce, QueueSharers};
use quell_host::attach::payoff::{DoesItPay, ModePayoff};
use quell_host::findings::FixText;
use quell_host::servers::{OpenQuestion, OwnLoad};
use quell_linux::Pid;

fn attached(mode: &str) -> Option<AttachedMode> {
    let mode = mode.parse().unwrap_or_else(|why| panic!("{why}"));
    Some(AttachedMode { mode, ..AttachedMode::default() })
}

fn conclusion(servers: &[HostServer], is_root: bool, fixes: Fixes, examined: &Examined) -> String {
    super::conclusion(servers, is_root, fixes, examined).to_string()
}

/// Line breaks depend on the length of a number.
fn pid_7481() -> Pid {
    Pid::new(7_481).unwrap()
}

pub(super) fn server(name: &str, next: NextStep) -> HostServer {
    HostServer {
        sharing: None,
        suspension: None,
        pid: pid_7481(),
        name: name.to_owned(),
        processes: vec![pid_7481()],
        place: Some(ProgramPlace::Unit("nginx.service".to_owned())),
        netns: None,
        is_aside: false,
        waits: ServerWait::Epoll,
        attached: None,
        can_pin: true,
        present: Some(DeliveryMode::default()),
        queue_per_epoll: None,
        will_mix: None,
        modes: Vec::new(),
        queues: 2,
        workers: 2,
        address: None,
        cpus: None,
        few_packets_per_s: None,
        requests_wait: false,
        must_restart: false,
        serious: 0,
        warnings: 1,
        notes: 0,
        payoff: None,
        next,
        fix: None,
    }
}

#[test]
fn the_reasons_to_measure_again_are_below_the_table_unless_the_conclusion_has_them() {
    let advice = "measure longer, because the differences of latency and CPU time are within their uncertainty";
    let decide = |command: &str| {
        let (advice, command) = (advice.to_owned(), command.to_owned());
        NextStep::Decide { measured: measured(None), advice, command }
    };
    let pid = Pid::new(7_482).unwrap();
    let other = HostServer { pid, ..server("redis", decide("quell bench --pid 7482")) };
    let servers = [server("memcached", decide("quell bench --pid 7481")), other];
    for columns in [60, 100, 140] {
        let table = table(&servers, Terminal::of_columns(columns), Fixes::ByDoctor);
        assert!(table.lines().all(|line| display_width(line) <= columns), "{table}");
        let text = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("undecided: quell bench --pid 7481"), "{table}");
        assert!(text.ends_with(&format!("redis 7482: {}: {advice}", as_measured(&measured(None)))), "{table}");
        assert_eq!(text.matches(advice).count(), 1, "{table}");
    }
    let open = OpenQuestion { advice: advice.to_owned(), command: "quell bench --pid 7481".to_owned() };
    let kept = server("memcached", NextStep::Keep { measured: measured(None), open: Some(open) });
    for first in [&servers[0], &kept] {
        let said = conclusion(std::slice::from_ref(first), true, Fixes::ByDoctor, &Examined::Host);
        assert!(said.contains(advice) && said.ends_with("  quell bench --pid 7481\n"), "{said}");
    }
}

#[test]
fn a_server_that_suspension_would_stall_is_measured_without_it() {
    let would_stall = || Suspension::WouldStall {
        finding: "waits-with-timeout-zero",
        observed: "all 76,485 calls had timeout 0".to_owned(),
    };
    let of = |suspension| HostServer { suspension, ..server("web", NextStep::Measure { steered: false }) };
    let stalls = of(Some(would_stall()));
    let row = table(std::slice::from_ref(&stalls), Terminal::PIPE, Fixes::ByDoctor);
    assert!(row.contains("measure modes without suspension: quell bench --pid"), "{row}");
    let said = concluded(stalls);
    assert!(said.contains("would stall web 7481: all 76,485 calls had timeout 0 (waits-with-timeout-zero)"), "{said}");
    let both =
        [of(Some(would_stall())), HostServer { pid: Pid::new(7_482).unwrap(), ..of(Some(Suspension::NoStallSeen)) }];
    assert!(!conclusion(&both, true, Fixes::ByDoctor, &Examined::Host).contains("likewise"), "only one would stall");
    assert!(concluded(of(None)).contains("it is first observed"));
    let suits = concluded(of(Some(Suspension::NoStallSeen)));
    assert!(suits.contains("nothing prevents a benefit") && !suits.contains("it is first observed"), "{suits}");
}

#[test]
fn a_server_whose_packets_wait_for_an_attached_one_is_not_said_to_be_without_problem() {
    let program = TargetProgram { pid: Pid::new(900).unwrap(), start_time_ticks: 1, name: "memcached".to_owned() };
    let programs = vec![program.pid];
    let in_force = Some(ModeInForce { mode: "suspend200".parse().unwrap(), program });
    let sharing = Some(QueueSharers { programs, same_mode: true, launched: false, in_force });
    let of = |next| HostServer { sharing: sharing.clone(), ..server("web", next) };
    let delays = "suspend200 of memcached 900, on the same queues, delays packets of web 7481, up to 200 µs";
    let measure = concluded(of(NextStep::Measure { steered: false }));
    assert!(measure.contains(delays) && measure.trim_end().ends_with("quell bench --pid 7481,900"), "{measure}");
    let kept = of(NextStep::Keep { measured: measured(None), open: None });
    let row = table(std::slice::from_ref(&kept), Terminal::PIPE, Fixes::ByDoctor);
    assert!(row.ends_with("delayed by suspend200 of memcached 900\n") && concluded(kept).contains(delays), "{row}");
    let measure = of(NextStep::Measure { steered: false });
    assert!(concluded(HostServer { must_restart: true, ..measure }).contains("cannot poll its queue before a restart"));
}

#[test]
fn servers_that_are_not_listed_share_a_line_with_the_reason() {
    let local = |name: &str| LocalServer { pid: Pid::new(12).unwrap(), name: name.to_owned(), loopback: true };
    assert_eq!(not_listed(&[], Terminal::PIPE), "");
    let one = not_listed(&[local("redis")], Terminal::PIPE);
    assert!(one.starts_with("1 server is not listed: it listens") && one.ends_with(":\n  redis 12\n"), "{one}");
    let many = not_listed(&["a"; 8].map(local), Terminal::PIPE);
    assert!(many.starts_with("8 servers are not listed: they listen"), "{many}");
    assert!(many.ends_with(", a 12 and 2 more\n"), "{many}");
}

#[test]
fn a_server_has_one_line_and_its_next_command_below_it_on_a_narrow_terminal() {
    let servers = [server("nginx", NextStep::Measure { steered: false })];
    let pid = servers[0].pid;
    let wide = table(&servers, Terminal::PIPE, Fixes::ByDoctor);
    let line = wide.lines().nth(1).unwrap_or_default();
    assert!(line.contains("unit nginx.service  base") && line.contains("1 warning"), "{wide}");
    assert!(line.ends_with(&format!("measure: quell bench --pid {pid}")), "{wide}");
    let narrow = table(&servers, Terminal::of_columns(80), Fixes::ByDoctor);
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    assert_eq!(narrow.lines().nth(2), Some(&*format!("    measure: quell bench --pid {pid}")), "{narrow}");
}

#[test]
fn a_narrow_terminal_has_the_place_problems_and_mode_of_a_server_below_it() {
    let place = Some(ProgramPlace::Unit("memcached-of-the-shop.service".to_owned()));
    let (netns, attached) = (Some("frontend".to_owned()), attached("suspend200"));
    let of = |name: &str| server(name, NextStep::AwaitExperiment { pid: pid_7481() });
    let servers = [HostServer { place, netns, attached, ..of("memcached-of-us") }, of("nginx")];
    let at = |columns| table(&servers, Terminal::of_columns(columns), Fixes::ByDoctor);
    for columns in [50, 60, 80, 100, 132] {
        let text = at(columns);
        assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}: {text}");
        for cell in ["suspend200 (attached)", "1 warning", "netns frontend", "wait: an experiment"] {
            assert!(text.replace("\n    ", " ").contains(cell), "{columns}, {cell}: {text}");
        }
    }
    assert!(at(80).contains("\n    in unit memcached-of-the-shop.service, netns frontend\n"), "{}", at(80));
}

fn measured(problem: Option<&str>) -> EarlierMeasurement {
    EarlierMeasurement {
        result: "bench-20261125-180405".to_owned(),
        started_unix_s: 1_795_629_845,
        packets_per_s: Some(200_000),
        own_load: None,
        problem: problem.map(str::to_owned),
        reservation: None,
    }
}

#[test]
fn an_earlier_answer_has_its_load_day_and_result_and_its_serious_finding() {
    let of = |next| conclusion(&[server("nginx", next)], true, Fixes::Above, &Examined::Host).replace("\n  ", " ");
    let kept = |measured| of(NextStep::Keep { measured, open: None });
    let live = kept(measured(None));
    assert!(live.contains("as measured at 200,000 packets/s on 2026-11-25 (bench-20261125-180405)"), "{live}");
    let judged = kept(EarlierMeasurement { own_load: Some(OwnLoad::Judge), ..measured(None) });
    assert!(judged.contains("as measured with the judge at 200,000 packets/s on 2026-11-25"), "{judged}");
    let reservation = Some("unless p99 −88 % under suspend200 is worth cpu +55 %".to_owned());
    let traded = kept(EarlierMeasurement { reservation, ..measured(None) });
    assert!(traded.contains("180405), unless p99 −88 % under suspend200 is worth"), "{traded}");
    let ill = kept(measured(Some("nested-epoll")));
    assert!(ill.contains("serious finding nested-epoll") && ill.contains("quell results show bench-"), "{ill}");
    let again = |packets_per_s| of(NextStep::MeasureAgain { steered: false, measured: measured(None), packets_per_s });
    let (slow, idle) = (again(2_000), again(0));
    assert!(slow.contains("), now 2,000/s: measure again; ") && slow.contains(": quell bench --pid"), "{slow}");
    assert!(idle.contains("now none: look again under load") && !idle.contains("quell bench"), "{idle}");
}

#[test]
fn the_conclusion_is_to_fix_before_to_measure_before_to_attach() {
    let attach = || NextStep::Attach { mode: DeliveryMode::default(), steered: false, measured: measured(None) };
    let fix = || NextStep::Fix { finding: "stalled-queue" };
    let all = [attach(), NextStep::Measure { steered: false }, fix()].map(|next| server("nginx", next));
    assert!(conclusion(&all, true, Fixes::Above, &Examined::Host).contains("(stalled-queue)"));
    assert!(conclusion(&all[..2], true, Fixes::Above, &Examined::Host).contains("quell bench --pid"));
    assert!(conclusion(&all[..1], false, Fixes::Above, &Examined::Host).contains("(as root)"));
    assert!(conclusion(&[], false, Fixes::Above, &Examined::Host).contains("run this as root"));
}

#[test]
fn the_command_that_brings_a_missing_queue_back_is_the_next_one_without_doctor() {
    let next = NextStep::Fix { finding: "missing-queue" };
    let fix = Some(FixText::Command("ip link set eth0 up".to_owned()));
    let servers = [HostServer { fix, ..server("nginx", next) }];
    let said = conclusion(&servers, true, Fixes::ByDoctor, &Examined::Host);
    assert!(said.contains("(missing-queue)") && said.ends_with("  ip link set eth0 up\n"), "{said}");
    let row = table(&servers, Terminal::PIPE, Fixes::ByDoctor);
    assert!(row.ends_with("fix missing-queue: ip link set eth0 up\n"), "{row}");
}

#[test]
fn what_no_process_undoes_is_undone_first() {
    let left = |waited| {
        let purpose = Purpose::Attachment { mode: "suspend200".parse().unwrap() };
        undo_first(&Unfinished { path: "/run/attach-42.journal".into(), purpose, waited })
            .to_string()
            .replace("\n  ", " ")
    };
    assert_eq!(
        left(false),
        "conclusion: attach suspend200 was left by an earlier run, and nothing undoes it: undo it first: quell revert \
         attach-42\n"
    );
    assert!(left(true).contains("except for queues that were gone, and queues have its settings"), "{}", left(true));
}

#[test]
fn the_conclusion_names_every_server_with_the_same_step() {
    let measure = || NextStep::Measure { steered: false };
    let keep = NextStep::Keep { measured: measured(None), open: None };
    let mut all = [server("nginx", measure()), server("haproxy", measure()), server("envoy", keep)];
    for (other, pid) in all.iter_mut().skip(1).zip(1_000_000..) {
        other.pid = Pid::new(pid).unwrap_or_else(|| unreachable!());
    }
    let text = conclusion(&all, true, Fixes::Above, &Examined::Host).replace("\n  ", " ");
    assert!(text.contains("for nginx ") && text.contains("; likewise haproxy 1000000"), "{text}");
    assert!(!text.contains("envoy"), "{text}");
}

#[test]
fn every_next_command_is_valid() {
    let attach =
        |problem, steered| NextStep::Attach { mode: DeliveryMode::default(), steered, measured: measured(problem) };
    let measure = |steered| NextStep::Measure { steered };
    let again = NextStep::MeasureAgain { steered: true, measured: measured(None), packets_per_s: 2_000 };
    let keep = NextStep::Keep { measured: measured(Some("nested-epoll")), open: None };
    let back = NextStep::Return { mode: DeliveryMode::default(), beneath: true, measured: measured(None) };
    let fix = NextStep::Fix { finding: "nested-epoll" };
    for next in [
        fix,
        measure(true),
        measure(false),
        again,
        attach(None, false),
        attach(None, true),
        attach(Some("nested-epoll"), true),
        keep,
        back,
        NextStep::Check,
    ] {
        let server = HostServer { address: Some(([10, 0, 0, 1], 80).into()), ..server("nginx", next) };
        let attached = matches!(server.next, NextStep::Return { .. }).then(AttachedMode::default);
        let command = command(&HostServer { attached, ..server }, Fixes::ByDoctor).unwrap_or_default();
        let words = shell_words::split(&command).unwrap_or_else(|why| panic!("{command}: {why}"));
        let parsed = crate::cli::command().try_get_matches_from(words);
        assert!(parsed.is_ok(), "{command}: {parsed:?}");
    }
}

#[test]
fn an_unattached_server_is_not_said_to_be_free_of_stalls_that_were_not_observed() {
    let of = |present| {
        let present = DeliveryMode::parse_list(present).unwrap().first().copied();
        concluded(HostServer { present, ..server("nginx", NextStep::Measure { steered: false }) })
    };
    let why = "first observed whether the program would stall";
    assert!(of("base").contains(why) && !of("suspend200").contains(why), "{}", of("base"));
}

#[test]
fn a_server_with_few_packets_is_measured_under_load_and_after_those_with_a_load() {
    let of = |name, few_packets_per_s| HostServer {
        few_packets_per_s,
        ..server(name, NextStep::Measure { steered: false })
    };
    let said = concluded(of("nginx", Some(41)));
    assert!(said.contains("measure which mode is better, under load: at 41 packets/s, little is to gain"), "{said}");
    assert!(next(&of("nginx", Some(41)), Fixes::ByDoctor).starts_with("measure under load: quell bench --pid"));
    assert!(next(&of("nginx", None), Fixes::ByDoctor).starts_with("measure: quell bench --pid"));
    let slow = HostServer { requests_wait: true, ..of("nginx", Some(270)) };
    assert!(next(&slow, Fixes::ByDoctor).starts_with("little to gain, requests wait for the program: quell bench"));
    let said = concluded(slow);
    assert!(said.contains("at 270 packets/s requests wait for the program itself, so little is to gain"), "{said}");
    let both = conclusion(&[of("idle", Some(2)), of("busy", None)], true, Fixes::Above, &Examined::Host);
    assert!(both.contains("for busy 7481") && !both.contains("idle"), "{both}");
}

#[test]
fn a_server_whose_workers_cannot_be_pinned_is_steered_only() {
    let of = |can_pin| HostServer { can_pin, ..server("nginx", NextStep::Measure { steered: true }) };
    assert!(command(&of(true), Fixes::ByDoctor).is_some_and(|it| it.ends_with(" --steer --pin")));
    assert!(command(&of(false), Fixes::ByDoctor).is_some_and(|it| it.ends_with(" --steer")));
}

#[test]
fn a_measurement_has_a_judge_for_known_protocols_and_says_otherwise_what_it_compares() {
    let of = |name, port| {
        let server = server(name, NextStep::Measure { steered: false });
        let text = conclusion(
            &[HostServer { address: Some(([10, 0, 0, 1], port).into()), ..server }],
            true,
            Fixes::Above,
            &Examined::Host,
        );
        text.replace("\n  ", " ")
    };
    let known = of("nginx", 80);
    assert!(
        known.contains("CLIENT is another machine") && known.contains("--latency \"ssh CLIENT quell load 10.0.0.1:80 "),
        "{known}"
    );
    for other in [of("nginx", 443), of("server", 80)] {
        assert!(other.contains("compares CPU time only") && !other.contains("--latency \""), "{other}");
    }
    assert!(!known.contains("--no-preload"), "{known}");
    for cache in [of("memcached", 11211), of("redis-server", 6379), of("valkey-server", 6379)] {
        assert!(cache.contains(" --no-preload --get-share 1 --rate 1K "), "a judge stores no keys: {cache}");
    }
}

#[test]
fn a_result_without_an_answer_and_one_against_the_attached_mode_have_one_next_command() {
    let mode = |word: &str| word.parse().unwrap_or_else(|why| panic!("{why}"));
    let (advice, command) = ("measure longer".to_owned(), "quell bench --pid 7 --budget 4m".to_owned());
    let of = |next| {
        let server = HostServer { attached: attached("suspend20"), ..server("nginx", next) };
        conclusion(&[server], true, Fixes::Above, &Examined::Host)
    };
    let open = of(NextStep::Decide { measured: measured(None), advice, command });
    let is_said = open.contains("180405): measure longer") && open.ends_with("\n  quell bench --pid 7 --budget 4m\n");
    assert!(is_said, "{open}");
    let back = |kept, beneath| of(NextStep::Return { mode: mode(kept), beneath, measured: measured(None) });
    let detach = format!("\n  quell detach {}\n", pid_7481());
    let base = back("base", true);
    assert!(base.contains("use base instead of suspend20") && base.ends_with(&detach), "{base}");
    let threaded = back("threaded", true);
    assert!(
        threaded.contains("use threaded, which its queues have without suspend20, instead of suspend20 for")
            && threaded.ends_with(&detach),
        "{threaded}"
    );
    assert!(back("suspend50", false).contains("&& quell attach suspend50"));
}

#[test]
fn a_mode_that_costs_cpu_time_is_measured_beside_one_that_polls_less_with_a_judge_before_others_are_checked() {
    let of = |pays| {
        let attached = attached("suspend20");
        let payoff = attached.map(|it| ModePayoff { pays, ..ModePayoff::of(it.mode, &[], None, None) });
        let address = Some(([10, 0, 0, 1], 80).into());
        HostServer { attached, payoff, address, ..server("nginx", NextStep::Check) }
    };
    let instead = "suspend200".parse().unwrap_or_else(|why| panic!("{why}"));
    let costs = DoesItPay::CostsCpuTime { instead, break_even_packets_per_s: Some(25_000) };
    let text = conclusion(&[of(DoesItPay::MeasureToKnow), of(costs)], true, Fixes::Above, &Examined::Host);
    let command = "--modes base,suspend200 --latency \"ssh CLIENT quell load 10.0.0.1:80 ";
    assert!(text.contains(command) && !text.contains("quell detach"), "{text}");
}

#[test]
fn an_attached_mode_is_replaced_by_one_command_with_the_same_placement() {
    let next = NextStep::Attach {
        mode: "suspend200".parse().unwrap_or_else(|why| panic!("{why}")),
        steered: true,
        measured: measured(None),
    };
    let attached = Some(AttachedMode { steers: true, pins: true, ..AttachedMode::default() });
    let server = HostServer { attached, ..server("nginx", next) };
    let text = conclusion(std::slice::from_ref(&server), true, Fixes::Above, &Examined::Host);
    let command = format!("quell attach suspend200 {} --steer --pin --follow --take-over --yes", server.pid);
    assert!(text.contains("use suspend200 instead of base") && text.ends_with(&format!("\n  {command}\n")), "{text}");
    let parsed = crate::cli::command().try_get_matches_from(command.split(' '));
    assert!(parsed.is_ok(), "{command}: {parsed:?}");
    let unplaced = HostServer { attached: Some(AttachedMode::default()), ..server };
    assert_eq!(super::command(&unplaced, Fixes::Above), Some(command), "it was measured with steering");
    let next = NextStep::Attach { mode: DeliveryMode::default(), steered: false, measured: measured(None) };
    let plain = HostServer { next, ..unplaced };
    assert!(super::command(&plain, Fixes::Above).is_some_and(|command| command.starts_with("quell detach")));
}

#[test]
fn present_settings_of_an_operator_are_measured_or_replaced_by_a_command_that_names_them() {
    let mode = |word: &str| word.parse::<DeliveryMode>().unwrap_or_else(|why| panic!("{why}"));
    let (base, present) = (DeliveryMode::default(), Some(mode("defer2000")));
    let of = |next| concluded(HostServer { present, ..server("nginx", next) });
    let pid = pid_7481();
    let unknown = of(NextStep::SettingsChanged { steered: false, measured: measured(None), then: base, now: present });
    assert!(
        unknown.contains("with other settings (base then, defer2000 now): measure again")
            && unknown.contains(&format!("quell bench --pid {pid}")),
        "{unknown}"
    );
    let worse = of(NextStep::Attach { mode: base, steered: false, measured: measured(None) });
    assert!(
        worse.contains("use base instead of the present settings (defer2000) for nginx")
            && worse.contains(&format!("quell attach base {pid}"))
            && !worse.contains("was better"),
        "{worse}"
    );
}

#[test]
fn a_mode_that_quell_reverted_has_a_line_with_the_cause() {
    let pid = pid_7481();
    let end = EndRecord {
        purpose: Purpose::Attachment { mode: "userbusy".parse().unwrap_or_else(|why| panic!("{why}")) },
        programs: vec![TargetProgram { pid, start_time_ticks: 7, name: "redis".to_owned() }],
        ended_unix_s: 7,
        by: "its keeper: its polling process got 12 % of a CPU".to_owned(),
    };
    let text = reverted(&[end], Terminal::PIPE);
    let wanted =
        format!("reverted: attach userbusy of redis {pid}, by its keeper: its polling process got 12 % of a CPU\n");
    assert_eq!(text, wanted);
}

#[test]
fn a_launched_program_is_not_to_be_detached() {
    let of = |launched| {
        let attached = Some(AttachedMode { launched, ..AttachedMode::default() });
        let server = HostServer { attached, ..server("redis", NextStep::Check) };
        conclusion(&[server], true, Fixes::Above, &Examined::Host).replace("\n  ", " ")
    };
    assert!(of(false).contains("quell detach"), "{}", of(false));
    assert!(!of(true).contains("quell detach") && of(true).contains("ends with the command"), "{}", of(true));
}

/// The conclusion about a server of `quell doctor`, on one line.
fn concluded(server: HostServer) -> String {
    conclusion(&[server], true, Fixes::Above, &Examined::Programs).replace("\n  ", " ")
}

fn without_epolls() -> Vec<DeliveryMode> {
    DeliveryMode::parse_list("base,defer20").unwrap_or_else(|why| panic!("{why}"))
}

#[test]
fn after_a_stall_the_cause_is_the_next_step_and_a_program_that_reads_nothing_has_none() {
    let (pid, mode) = (pid_7481(), DeliveryMode::default());
    let of =
        |cause: Option<&str>| concluded(server("web", NextStep::FindStall { mode, cause: cause.map(str::to_owned) }));
    let known = of(Some("ready-object-holds-suspension: a file stays ready"));
    assert!(known.contains("cause: ready-object-holds-suspension: a file stays ready"), "{known}");
    assert!(known.trim_end().ends_with(&format!("quell attach base {pid} --dry-run")), "{known}");
    let unknown = of(None);
    assert!(unknown.trim_end().ends_with(&format!("-p {pid}")) && !unknown.contains("bench"), "{unknown}");
    let nothing = concluded(server("web", NextStep::NoModeHelps));
    assert!(nothing.contains("no mode helps web") && !nothing.contains("bench"), "{nothing}");
    let work = NextStep::NothingToGain(OwnWork { cpu_ns_per_packet: 25_000_000 });
    let work = concluded(server("web", work));
    assert!(work.contains("nothing to gain for web 7481: 25.0 ms of CPU time per packet"), "{work}");
    assert!(!work.contains("bench"), "{work}");
}

#[test]
fn where_no_server_was_found_is_said_with_the_command_that_looks_elsewhere() {
    let said = |examined| conclusion(&[], true, Fixes::Above, &examined).replace("\n  ", " ");
    let here = said(Examined::Namespace(None));
    assert!(here.contains("the network namespace of this command, the only one examined"), "{here}");
    let other = said(Examined::Namespace(Some("shop".to_owned())));
    assert!(other.contains("network namespace shop"), "{other}");
    for elsewhere in [here, other, said(Examined::Device("eth0".to_owned()))] {
        assert!(elsewhere.ends_with(": quell doctor --all\n"), "{elsewhere}");
    }
    assert!(
        said(Examined::Programs).contains("nothing to do: none of these programs listens on an address of a device")
    );
    assert!(said(Examined::Host).ends_with(": quell bench\n"));
}

#[test]
fn a_program_without_epoll_has_a_row_a_reason_and_the_modes_that_can_work() {
    let (netns, next) = (Some("a b".to_owned()), NextStep::Measure { steered: false });
    let of =
        |waits| HostServer { waits, netns: netns.clone(), modes: without_epolls(), ..server("dnsd", next.clone()) };
    let command = "quell bench --pid ".to_owned() + &pid_7481().to_string() + " --modes base,defer20";
    let row = table(&[of(ServerWait::Poll)], Terminal::PIPE, Fixes::ByDoctor);
    assert!(row.contains("measure modes without epoll (poll or select): quell bench --pid"), "{row}");
    for (waits, reason) in [
        (ServerWait::Poll, " waits in poll or select, so modes in which epolls poll do not apply"),
        (
            ServerWait::Receive,
            "starts the program: `ip netns exec 'a b' quell bench --modes base,sockpoll50 -- COMMAND`)",
        ),
        (ServerWait::IoUring, " waits in io_uring, so"),
        (ServerWait::Unknown, " has no epoll with connections, so"),
    ] {
        let text = concluded(of(waits));
        assert!(text.contains(reason) && text.trim_end().ends_with(&command), "{text}");
    }
    let others = [of(ServerWait::Poll), server("nginx", NextStep::Measure { steered: false })];
    let both = conclusion(&others, true, Fixes::Above, &Examined::Host);
    assert!(both.contains("for nginx") && !both.contains("dnsd"), "an epoll server comes first: {both}");
}

#[test]
fn what_was_measured_with_several_queues_in_an_epoll_is_the_answer_with_the_change_that_may_decide_otherwise() {
    let keep = || NextStep::Keep { measured: measured(Some(EPOLL_MIXES_NAPIS)), open: None };
    let of = |name, by| HostServer { queue_per_epoll: Some(by), modes: without_epolls(), ..server(name, keep()) };
    let change = "add `reuseport`".to_owned();
    let nginx = concluded(of("nginx", QueuePerEpoll::Configured { change, steered: true }));
    assert!(nginx.contains("keep the settings of nginx") && nginx.contains("as measured at 200,000"), "{nginx}");
    assert!(
        nginx.contains(
            "one queue per epoll may decide otherwise: add `reuseport`, then measure again: quell bench --pid"
        ) && nginx.trim_end().ends_with(" --steer --pin"),
        "{nginx}"
    );
    let change = "start memcached with `-N`".to_owned();
    let memcached = concluded(of("memcached", QueuePerEpoll::Configured { change, steered: false }));
    assert!(memcached.ends_with("then measure again: quell\n"), "its PID changes: {memcached}");
    let go = concluded(of("goweb", QueuePerEpoll::Impossible { reason: "one epoll".to_owned() }));
    assert!(go.ends_with("may decide otherwise: one epoll\n"), "{go}");
}

#[test]
fn several_queues_in_an_epoll_leave_a_measurement_of_the_modes_that_can_work() {
    let of = |next, by| HostServer { queue_per_epoll: Some(by), modes: without_epolls(), ..server("web", next) };
    let reason = "the program has one epoll".to_owned();
    let go = concluded(of(NextStep::Measure { steered: false }, QueuePerEpoll::Impossible { reason }));
    assert!(go.contains(": the program has one epoll, or measure modes in which epolls do not poll; "), "{go}");
    assert!(go.trim_end().ends_with(" --modes base,defer20"), "{go}");
    let change = "add `reuseport`".to_owned();
    let fix = of(NextStep::Fix { finding: EPOLL_MIXES_NAPIS }, QueuePerEpoll::Configured { change, steered: true });
    assert!(command(&fix, Fixes::ByDoctor).is_some_and(|command| command.starts_with("quell doctor")));
    let fix = concluded(fix);
    assert!(fix.contains("(epoll-mixes-napis): add `reuseport`; until then, only modes without epoll"), "{fix}");
    assert!(fix.trim_end().ends_with(" --modes base,defer20"), "{fix}");
}

#[test]
fn the_conclusion_of_doctor_has_the_fix() {
    let of = |fix| HostServer { fix: Some(fix), ..server("web", NextStep::Fix { finding: "gro-off" }) };
    let command = of(FixText::Command("ethtool -K eth0 gro on".to_owned()));
    let row = table(std::slice::from_ref(&command), Terminal::PIPE, Fixes::Above);
    assert!(row.trim_end().ends_with("fix gro-off"), "{row}");
    assert!(concluded(command).ends_with("(gro-off): ethtool -K eth0 gro on\n"));
    assert!(concluded(of(FixText::Advice("pin it".to_owned()))).ends_with("(gro-off): pin it\n"));
}

#[test]
fn an_idle_server_has_the_next_step_and_what_is_known_without_requests() {
    let of = |name, will_mix| {
        let address = Some(([10, 0, 0, 1], 80).into());
        HostServer { address, queues: 0, will_mix, ..server(name, NextStep::AwaitClients) }
    };
    let change = "add `reuseport`".to_owned();
    let expected = of("nginx", Some(QueuePerEpoll::Configured { change, steered: true }));
    let row = table(std::slice::from_ref(&expected), Terminal::PIPE, Fixes::ByDoctor);
    assert!(row.contains("(known now: epoll-mixes-napis): send requests, then again: ssh CLIENT quell load"), "{row}");
    let known = concluded(expected);
    assert!(known.contains("known without requests") && known.contains(": add `reuseport`; send requests"), "{known}");
    assert!(known.ends_with(": ssh CLIENT quell load 10.0.0.1:80 --seconds 10\n"), "{known}");
    let on_all = HostServer { address: Some(([0, 0, 0, 0], 80).into()), ..of("nginx", None) };
    assert_eq!(command(&on_all, Fixes::Above), load(&on_all, "--seconds 10"));
    assert_eq!(client_load::judge(&on_all.name, on_all.address), None);
    assert!(concluded(on_all).contains("quell load ADDRESS:80 "));
    let unknown = concluded(of("server", None));
    assert!(!unknown.contains("known without") && unknown.trim_end().ends_with("then run this again"), "{unknown}");
}

#[test]
fn a_server_with_few_connections_has_what_more_of_them_will_prevent() {
    let will_mix = Some(QueuePerEpoll::Impossible { reason: "use a device with one queue".to_owned() });
    let few = HostServer { will_mix, ..server("web", NextStep::Measure { steered: false }) };
    let row = table(std::slice::from_ref(&few), Terminal::PIPE, Fixes::ByDoctor);
    assert!(row.contains("measure (known now: epoll-mixes-napis): quell bench --pid "), "{row}");
    let text = concluded(few);
    assert!(text.contains("with more, an epoll will have those of several queues (epoll-mixes-napis)"), "{text}");
    assert!(text.contains(": use a device with one queue; for as few as now: measure which"), "{text}");
    assert!(!text.contains("nothing prevents"), "{text}");
}

#[test]
fn programs_without_epoll_and_without_packets_share_a_line() {
    let one = |name: &str, waits| HostServer { waits, queues: 0, ..server(name, NextStep::AwaitClients) };
    let both = [one("dnsmasq", ServerWait::Poll), one("evil\n\u{1b}[2J", ServerWait::Receive)];
    let text = table(&both, Terminal::PIPE, Fixes::ByDoctor);
    assert!(text.starts_with("no epoll, and no packet") && text.contains("dnsmasq"), "{text}");
    assert!(!text.contains('\u{1b}') && !text.trim_end().contains("evil\n"), "{text}");
}
