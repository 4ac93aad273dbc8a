//! The plan of an attachment, affected processes and limitations, as text and as JSON.

pub(crate) mod detached;
mod effect;
pub(crate) mod placement;
mod unassigned_epolls;

pub(crate) use effect::{Effect, conclusion, verdict_in_words};

use std::fmt::{self, Write as _};

use quell_change::journal::TargetProgram;
use quell_host::attach::affected_processes::AffectedProcess;
use quell_host::attach::own_work::OwnWork;
use quell_host::attach::owners::CoveredOwner;
use quell_host::attach::payoff::ModePayoff;
use quell_host::attach::plan::{EpollStep, Limitation, QueueStep};
use quell_host::attach::poller::SHARED_CPUS;
use quell_host::attach::{AttachPlan, AttachRequest, Attachment, RingStep, SocketsStep, Targets};
use quell_host::findings::{Finding, Fix, FixText, LackingCpus, QueuePerEpoll, Severity, time_text};
use quell_linux::visible::{agree, counted, noun};
use quell_linux::{CpuList, NapiId, Pid};
use quell_mode::{DeliveryMode, PartialNapiSettings};
use schemars::JsonSchema;
use serde::Serialize;

use super::payoff::{own_work, whole_cpus};
use super::show_names::ranges;
use super::status::to_programs;
use crate::output::on_one_line;
use crate::render::conclusion::LastLine;

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Report<'a> {
    schema: &'static str,
    pub(crate) mode: DeliveryMode,
    programs: Vec<TargetProgram>,
    /// Command that sets queues when packets arrive; absent if this one does.
    #[serde(skip)]
    follows: Option<String>,
    #[serde(skip)]
    pub(crate) lacking_cpus: Option<LackingCpus>,
    /// What a stored measurement says about the mode; absent if none decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) measured: Option<String>,
    /// Absent if the delivery of its packets can matter, if that is unknown, and if a measurement found the mode best.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) own_work: Option<OwnWork>,
    /// Reuseport filters and their verification; absent if placement was not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) placement: Option<placement::PlacementReport>,
    pub(crate) rings_left_alone: Vec<RingLeftAlone>,
    pub(crate) plan: &'a AttachPlan,
    pub(crate) findings: Vec<Finding>,
    /// The finding about an epoll that receives from several queues, and would poll one of them. Absent without one, if a
    /// measurement found the mode best, and if steered connections end it.
    #[serde(skip)]
    pub(crate) slowed: Option<Finding>,
    /// Whether an epoll receives from several queues, so that the mode slows it until the clients reconnect and are steered.
    #[serde(skip)]
    pub(crate) unsorted: bool,
    /// How each epoll can get the connections of one queue. Absent unless the next connections will come from several queues
    /// to one epoll, and the mode lets it poll.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) will_mix: Option<QueuePerEpoll>,
    pub(crate) effect: Option<Effect>,
    /// Whether the mode pays. Absent if this was not checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payoff: Option<ModePayoff>,
    /// The last line: stored measurements decide before the payoff. Absent before the mode is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) conclusion: Option<LastLine>,
}

impl<'a> Report<'a> {
    pub(crate) const SCHEMA: &'static str = "quell-attach/1";

    pub(crate) fn new(
        request: &AttachRequest,
        targets: &Targets,
        plan: &'a AttachPlan,
        findings: Vec<Finding>,
        follows: Option<String>,
    ) -> Self {
        Self {
            schema: Self::SCHEMA,
            mode: request.mode,
            programs: targets.living().cloned().collect(),
            follows,
            lacking_cpus: None,
            measured: None,
            own_work: None,
            plan,
            placement: None,
            rings_left_alone: Vec::new(),
            findings,
            slowed: None,
            unsorted: false,
            will_mix: None,
            effect: None,
            payoff: None,
            conclusion: None,
        }
    }

    /// That no mode helps the programs; absent if one may.
    pub(crate) fn nothing_to_gain(&self) -> Option<String> {
        self.own_work.map(|work| format!("nothing to gain: {}", own_work(work)))
    }

    /// Whether it is refused because nothing can be set before a queue delivers packets to the programs.
    pub(crate) fn sets_nothing(&self) -> bool {
        self.follows.is_some() && sets_nothing(&self.mode, self.plan)
    }
}

/// Whether nothing of a mode can be set before a queue delivers packets to the programs.
pub(crate) fn sets_nothing(mode: &DeliveryMode, plan: &AttachPlan) -> bool {
    *mode != DeliveryMode::default() && plan.is_without_effect()
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} for {}", self.mode, programs(&self.programs))?;
        queue_lines(self.plan).iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        epoll_lines(self.plan).iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        self.plan.sockets().try_for_each(|step| writeln!(f, "  {}", sockets_line(step)))?;
        self.plan.rings().try_for_each(|step| writeln!(f, "  {}", ring_line(step)))?;
        let polled = self.plan.queues().count();
        if polled > 0
            && let Some(cost) = whole_cpus(&self.mode, polled)
        {
            writeln!(f, "  {cost}")?;
            self.lacking_cpus.iter().try_for_each(|lacking| f.write_str(&lacking_cpus(lacking)))?;
        }
        limitation_lines(&self.plan.limitations).iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        let is_possible = self.plan.impossible.is_empty();
        if !is_possible {
            writeln!(f, "not possible here:\n{}", impossible(self.plan))?;
        }
        affected_processes(f, self.plan)?;
        self.plan.covers.iter().try_for_each(|covered| writeln!(f, "{}", covered_line(covered)))?;
        finding_lines(&self.findings).iter().try_for_each(|line| writeln!(f, "{line}"))?;
        self.will_mix.iter().try_for_each(|by| f.write_str(&will_mix(by)))?;
        self.measured.iter().try_for_each(|measured| writeln!(f, "{measured}"))?;
        self.nothing_to_gain().iter().try_for_each(|text| writeln!(f, "{text}"))?;
        let is_serious = |finding: &&Finding| finding.severity == Severity::Serious;
        let mut serious = self.findings.iter().filter(is_serious).peekable();
        let is_refused = !is_possible || self.sets_nothing() || self.slowed.is_some();
        if !is_refused && self.unsorted {
            writeln!(f, "{UNSORTED}")?;
        } else if !is_refused && serious.peek().is_some() && !serious.any(Finding::predicts_stall) {
            writeln!(f, "not refused: no stall is predicted, and no unsteered epoll received from several queues")?;
        }
        match is_possible {
            true => f.write_str(&unassigned_epolls::text(self.plan, self.follows.as_deref())),
            // There is no next step.
            false => Ok(()),
        }
    }
}

const UNSORTED: &str = "one epoll received data from several queues, and present connections are not steered: until their \
                        clients reconnect, packets can wait up to irq-suspend-timeout. To sort them first, attach `base` \
                        with these options, let the clients reconnect, and add `--follow --take-over --yes` here";

pub(crate) fn covered_line(CoveredOwner { owner, programs }: &CoveredOwner) -> String {
    let owner = on_one_line(&format!("{owner}{}", to_programs(programs)));
    format!("{owner} has other values for these queues: they are not in force while these are set")
}

/// A warning about connections that have not come yet.
fn will_mix(by: &QueuePerEpoll) -> String {
    let advice = by.advice();
    format!(
        "warning: connections of several queues will come to one epoll, which polls one queue only: {advice}; more: `quell \
         doctor --explain epoll-mixes-napis`\n"
    )
}

/// A warning before pollers are started that share CPUs with the workers.
#[must_use]
pub(crate) fn lacking_cpus(LackingCpus { cpus, queues, workers }: &LackingCpus) -> String {
    format!(
        "warning: {} for {} and {}: {SHARED_CPUS}\n",
        counted(*cpus, "CPU"),
        counted(*queues, "polling thread"),
        counted(*workers, "worker")
    )
}

/// The first four processes by name and PID, and the number of others.
fn programs(programs: &[TargetProgram]) -> String {
    let named: Vec<String> = programs.iter().take(4).map(|target| format!("{} {}", target.name, target.pid)).collect();
    match programs.len().saturating_sub(named.len()) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

pub(crate) fn finding_lines(findings: &[Finding]) -> Vec<String> {
    let mut kinds: Vec<(&Finding, usize)> = Vec::new();
    for finding in findings.iter().filter(|finding| finding.severity > Severity::Note) {
        match kinds.iter_mut().find(|(first, _)| (first.id, first.severity) == (finding.id, finding.severity)) {
            Some((_, count)) => *count += 1,
            None => kinds.push((finding, 1)),
        }
    }
    let line = |(first, count): &(&Finding, usize)| {
        let more = if *count > 1 { format!(" (and {} more)", count - 1) } else { String::new() };
        // Commands of other tools change the present values, which are not those of the plan.
        let advice = first.fix.iter().find_map(|fix| match (fix, fix.text()) {
            (_, FixText::Advice(text)) => Some(format!("; {text}")),
            (Fix::Mode { .. }, FixText::Command(text)) => Some(format!("; then `{text}`")),
            (_, FixText::Command(_)) => None,
        });
        let Finding { severity, title, id, observed, nodes, .. } = first;
        let object = nodes.first().map(|node| on_one_line(&node.to_string()) + ": ").unwrap_or_default();
        let advice = advice.unwrap_or_default();
        format!("{}: {title} [{id}]: {object}{observed}{more}{advice}", severity.word())
    };
    kinds.iter().map(line).collect()
}

pub(crate) fn queue_lines(plan: &AttachPlan) -> Vec<String> {
    let mut groups: Vec<(&QueueStep, Vec<&QueueStep>)> = Vec::new();
    for step in plan.queues() {
        let alike = |first: &QueueStep| {
            (&first.device, first.namespace_cookie, &first.old, &first.new)
                == (&step.device, step.namespace_cookie, &step.old, &step.new)
        };
        match groups.iter_mut().find(|(first, _)| alike(first)) {
            Some((_, group)) => group.push(step),
            None => groups.push((step, vec![step])),
        }
    }
    groups.into_iter().map(|(first, group)| queue_line(first, &group)).collect()
}

fn queue_line(first: &QueueStep, group: &[&QueueStep]) -> String {
    let queues: CpuList = group.iter().flat_map(|step| step.queues.iter().copied()).collect();
    // IDs can be greater than any CPU number.
    let napis = ranges(group.iter().map(|step| step.napi.get()));
    let rx = if queues.is_empty() { String::new() } else { format!(" rx {queues}") };
    format!("{}{rx}  NAPI {napis}  {}", first.device, napi_change(&first.old, &first.new))
}

fn napi_change(old: &PartialNapiSettings, new: &PartialNapiSettings) -> String {
    let changed = new.unlike(old);
    match changed.is_empty() {
        true => format!("{new} (unchanged)"),
        false => format!("{} → {changed}", old.where_present_in(&changed)),
    }
}

/// One line per group of epolls of a process with the same change and the same number of queues.
fn epoll_lines(plan: &AttachPlan) -> Vec<String> {
    let mut groups: Vec<Vec<&EpollStep>> = Vec::new();
    for step in plan.epolls() {
        let alike = |first: &EpollStep| {
            let change = |step: &EpollStep| (step.pid, step.old, step.new, step.napis.len(), step.shared_with());
            change(first) == change(step)
        };
        match groups.iter_mut().find(|group| alike(group[0])) {
            Some(group) => group.push(step),
            None => groups.push(vec![step]),
        }
    }
    groups.iter().map(|group| epoll_line(group)).collect()
}

fn epoll_line(group: &[&EpollStep]) -> String {
    let first = group[0];
    let fds = group.iter().map(|step| step.fd.to_string()).collect::<Vec<_>>().join(", ");
    let epolls = noun(&group.len(), "epoll");
    let sockets: usize = group.iter().map(|step| step.sockets).sum();
    let queues = match first.napis.len() {
        0 => "no queue yet".to_owned(),
        1 if group.len() == 1 => format!("on NAPI {}", first.napis[0]),
        1 => "one queue each".to_owned(),
        many => format!("on {many} queues"),
    };
    let change = match first.is_there() {
        true => format!("{} (unchanged)", first.new.short()),
        false => format!("{} → {}", first.old.short(), first.new.short()),
    };
    let shared = match first.shared_with().len() {
        0 => String::new(),
        others => format!(", shared with {}", counted(others, "other process")),
    };
    let (process, pid) = (&first.process, first.pid);
    format!("{process} {pid}  {epolls} {fds}  busy poll {change}  {}, {queues}{shared}", counted(sockets, "socket"))
}

fn sockets_line(step: &SocketsStep) -> String {
    let SocketsStep { pid, process, sockets, xdp, new, .. } = step;
    let kind = if *xdp { "AF_XDP socket" } else { "socket" };
    let budget = new.budget.map(|budget| format!(", {} per poll", counted(budget, "packet"))).unwrap_or_default();
    format!("{process} {pid}  {} → {}{budget}", counted(sockets.len(), kind), new.values)
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct RingLeftAlone {
    pid: Pid,
    fd: i32,
    reason: String,
}

impl RingLeftAlone {
    pub(crate) fn of(attachment: &Attachment) -> Vec<Self> {
        attachment.rings_left_alone().map(|(pid, fd, why)| Self { pid, fd, reason: why.to_owned() }).collect()
    }
}

pub(crate) fn rings_left_alone(rings: &[RingLeftAlone]) -> String {
    rings
        .iter()
        .map(|RingLeftAlone { pid, fd, reason: why }| format!("io_uring {fd} of process {pid} not changed: {why}\n"))
        .collect()
}

fn ring_line(step: &RingStep) -> String {
    let RingStep { pid, process, fd, new, .. } = step;
    let prefer = u8::from(new.prefer_busy_poll);
    format!("{process} {pid}  io_uring {fd} → busy-poll {} µs, prefer {prefer}, if permitted", new.busy_poll_us)
}

/// One line per limitation; queues that keep their thread share one.
pub(crate) fn limitation_lines(limitations: &[Limitation]) -> Vec<String> {
    let thread = |limitation: &Limitation| match limitation {
        Limitation::NapiThreadRemains { napi } => Some(*napi),
        _ => None,
    };
    let others = limitations.iter().filter(|limitation| thread(limitation).is_none()).map(in_words);
    let threaded: Vec<NapiId> = limitations.iter().filter_map(thread).collect();
    let threaded = (!threaded.is_empty()).then(|| threads_remain(&threaded));
    others.chain(threaded).collect()
}

fn threads_remain(napis: &[NapiId]) -> String {
    let ids = ranges(napis.iter().map(|napi| napi.get()));
    let how = match napis.len() {
        1 => "stays threaded: a kernel thread, not a softirq, polls it",
        _ => "stay threaded: kernel threads, not softirqs, poll them",
    };
    format!("NAPI {ids}: {how} after interrupts and timers")
}

fn in_words(limitation: &Limitation) -> String {
    match limitation {
        Limitation::EpollWaitUnlimited { at_most_ms } => format!(
            "limited: the mode needs epoll_wait timeouts of at most {at_most_ms} ms, which only `quell run` can enforce"
        ),
        Limitation::WatchedByEpoll { pid, sockets } => format!(
            "limited: {} of process {pid} {} watched by epoll, which does not busy poll in this mode; only blocking \
             receives do (poll and select would need sysctl net.core.busy_poll, which stays unchanged)",
            counted(*sockets, "socket"),
            agree(sockets, "is", "are")
        ),
        Limitation::NoEpoll { pid } => format!("process {pid} has sockets, but no epoll watches them"),
        Limitation::NotSuspended { pid, xdp_sockets, io_urings } => {
            let ways = [(*xdp_sockets, "AF_XDP socket"), (*io_urings, "io_uring")];
            let has = ways.iter().filter(|(count, _)| *count > 0).map(|&(count, what)| counted(count, what));
            let has = has.collect::<Vec<_>>().join(" and ");
            format!("limited: process {pid} has {has}: this mode defers their interrupts and never suspends them")
        }
        Limitation::XdpCannotBusyPoll { pid, xdp_sockets } => format!(
            "limited: process {pid} has {} without NAPI ID: busy polling is not set, as it polls nothing \
             (xdp-socket-cannot-busy-poll)",
            counted(*xdp_sockets, "AF_XDP socket")
        ),
        Limitation::XdpFramesWait { pid, xdp_sockets, up_to_ns } => format!(
            "process {pid} has {} without busy polling: frames wait up to {} for the queue's timer",
            counted(*xdp_sockets, "AF_XDP socket"),
            time_text(*up_to_ns)
        ),
        Limitation::UnknownRings { pid, io_urings, suspends } => {
            let does = match suspends {
                true => "this mode never suspends their interrupts",
                false => "this mode lets them busy poll",
            };
            let rings = counted(*io_urings, "io_uring");
            format!("process {pid} has {rings}, and the kernel does not show whether for sockets: {does}")
        }
        Limitation::UnknownXdpQueues { pid, xdp_sockets, reason: why } => {
            let sockets = counted(*xdp_sockets, "AF_XDP socket");
            format!("limited: process {pid} has {sockets} on unknown queues, which are not set: {why}")
        }
        Limitation::UnknownQueue { napi } => format!("NAPI {napi}: not changed, as it belongs to no visible device"),
        Limitation::NapiThreadRemains { napi } => threads_remain(&[*napi]),
        _ => "unknown limitation".to_owned(),
    }
}

pub(crate) fn impossible(plan: &AttachPlan) -> String {
    let lines = plan.impossible.iter().map(|one| format!("  {}: {}", one.what, one.reason));
    lines.collect::<Vec<_>>().join("\n")
}

fn affected_processes(f: &mut fmt::Formatter<'_>, plan: &AttachPlan) -> fmt::Result {
    if plan.queues().next().is_none() {
        return Ok(());
    }
    if plan.affected_processes.is_empty() && plan.hidden.is_empty() {
        return writeln!(f, "no other process has sockets on these queues");
    }
    plan.affected_processes
        .iter()
        .try_for_each(|affected| writeln!(f, "affects {}", affected_process_line(affected)))?;
    match plan.hidden.len() {
        0 => Ok(()),
        hidden => writeln!(f, "{} may be affected: no permission to inspect them", counted(hidden, "other process")),
    }
}

pub(crate) fn affected_process_line(affected: &AffectedProcess) -> String {
    let AffectedProcess { pid, name, sockets, is_client, delay, .. } = affected;
    let client = if *is_client { " (their own client)" } else { "" };
    let mut line = format!("{name} {pid}{client}: {} on these queues", counted(*sockets, "socket"));
    if let Some(delay) = delay {
        let _ = write!(line, "; its packets wait {}", delay.text("the program"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_change::settings::epoll::EpollPlace;
    use quell_host::attach::AttachStep;
    use quell_host::attach::no_queue::NoQueueCause;
    use quell_host::attach::plan::AttachObstacle;
    use quell_host::attach::unassigned_epolls::{UnassignedEpoll, UnassignedFiles};
    use quell_linux::{NapiId, Pid};
    use quell_mode::EpollParams;

    fn report<'a>(plan: &'a AttachPlan, follows: &str) -> Report<'a> {
        Report {
            schema: Report::SCHEMA,
            mode: DeliveryMode::default(),
            programs: Vec::new(),
            follows: Some(follows.to_owned()),
            lacking_cpus: None,
            measured: None,
            own_work: None,
            placement: None,
            rings_left_alone: Vec::new(),
            plan,
            findings: Vec::new(),
            slowed: None,
            unsorted: false,
            will_mix: None,
            effect: None,
            payoff: None,
            conclusion: None,
        }
    }

    #[test]
    fn an_epoll_that_other_processes_share_has_a_line_of_its_own() {
        let place = |pid, fd| EpollPlace::new(Pid::new(pid).unwrap(), 1, fd);
        let step = |fd, duplicates| {
            AttachStep::Epoll(EpollStep {
                pid: Pid::new(10).unwrap(),
                start_time_ticks: 1,
                process: "server".to_owned(),
                fd,
                sockets: 1,
                watched: Vec::new(),
                duplicates,
                napis: Vec::new(),
                old: EpollParams::default(),
                new: EpollParams::default(),
            })
        };
        let steps = vec![step(4, vec![place(10, 5), place(11, 4), place(12, 4)]), step(6, vec![place(10, 7)])];
        let lines = epoll_lines(&AttachPlan { steps, ..AttachPlan::default() });
        let start = "server 10  epoll";
        let rest = "busy poll 0/0/0 (unchanged)  1 socket, no queue yet";
        assert_eq!(lines, [format!("{start} 4  {rest}, shared with 2 other processes"), format!("{start} 6  {rest}")]);
    }

    #[test]
    fn connections_that_will_mix_queues_are_announced_before_they_come() {
        let plan = AttachPlan::default();
        let reason = "the program has one epoll".to_owned();
        let report = Report { will_mix: Some(QueuePerEpoll::Impossible { reason }), ..report(&plan, "") };
        let said = report.to_string();
        assert!(said.contains("one queue only: the program has one epoll; more: `quell doctor --explain"), "{said}");
    }

    #[test]
    fn an_impossible_mode_has_no_next_step() {
        let epoll = UnassignedEpoll {
            pid: Pid::of_this_process(),
            process: "nginx".to_owned(),
            fd: 4,
            threads: Vec::new(),
            watches: UnassignedFiles::ListeningSockets,
            watched_by: None,
        };
        let mut plan = AttachPlan { unassigned_epolls: vec![epoll], ..AttachPlan::default() };
        plan.without_queue = Some(NoQueueCause::NoPacket);
        assert!(report(&plan, "quell attach M --follow").to_string().contains("quell attach M --follow"));
        plan.impossible.push(AttachObstacle { what: "eventspin50".to_owned(), reason: "needs a launch".to_owned() });
        let text = report(&plan, "quell attach M --follow").to_string();
        assert!(text.contains("needs a launch") && !text.contains("--follow"), "{text}");
    }

    #[test]
    fn a_device_without_gro_is_named_also_without_an_idle_epoll() {
        let fix = FixText::Command("ethtool -K veth0 gro on".to_owned());
        let cause = NoQueueCause::GroOff { device: "veth0".to_owned(), fix };
        let plan = AttachPlan { without_queue: Some(cause), ..AttachPlan::default() };
        let text = report(&plan, "quell attach M --follow").to_string();
        let gro = text.find("`ethtool -K veth0 gro on`").unwrap();
        assert!(text.find("quell attach M --follow").unwrap() > gro, "{text}");
    }

    #[test]
    fn a_napi_id_above_all_cpu_numbers_is_named() {
        let step = QueueStep {
            namespace_cookie: 1,
            device: "eth0".to_owned(),
            queues: vec![0],
            napi: NapiId::from_kernel(71_938).unwrap_or_else(|| unreachable!()),
            irq: None,
            old: PartialNapiSettings::default(),
            new: PartialNapiSettings::default(),
        };
        let line = queue_line(&step, &[&step]);
        assert!(line.starts_with("eth0 rx 0  NAPI 71938  "), "{line}");
    }

    #[test]
    fn limitations_name_their_objects_and_agree_with_the_counts() {
        let (pid, napi) = (Pid::of_this_process(), NapiId::from_kernel(8_193).unwrap_or_else(|| unreachable!()));
        let ways = |xdp_sockets, io_urings| Limitation::NotSuspended { pid, xdp_sockets, io_urings };
        let rings = |io_urings, suspends| Limitation::UnknownRings { pid, io_urings, suspends };
        let xdp = |xdp_sockets| Limitation::UnknownXdpQueues { pid, xdp_sockets, reason: "Linux 6.18".to_owned() };
        for (limitation, text) in [
            (
                Limitation::EpollWaitUnlimited { at_most_ms: 1 },
                "epoll_wait timeouts of at most 1 ms, which only `quell run`",
            ),
            (Limitation::WatchedByEpoll { pid, sockets: 1 }, "1 socket of process {pid} is watched by epoll, which"),
            (Limitation::WatchedByEpoll { pid, sockets: 2 }, "2 sockets of process {pid} are watched by epoll, which"),
            (Limitation::NoEpoll { pid }, "process {pid} has sockets, but no epoll watches them"),
            (
                ways(1, 0),
                "process {pid} has 1 AF_XDP socket: this mode defers their interrupts and never suspends them",
            ),
            (ways(2, 3), "process {pid} has 2 AF_XDP sockets and 3 io_urings: this mode defers their interrupts"),
            (
                rings(1, true),
                "has 1 io_uring, and the kernel does not show whether for sockets: this mode never suspends",
            ),
            (rings(2, false), "has 2 io_urings, and the kernel does not show whether for sockets: this mode lets them"),
            (
                Limitation::XdpCannotBusyPoll { pid, xdp_sockets: 1 },
                "process {pid} has 1 AF_XDP socket without NAPI ID: busy polling is not set",
            ),
            (
                Limitation::XdpFramesWait { pid, xdp_sockets: 1, up_to_ns: 200_000 },
                "has 1 AF_XDP socket without busy polling: frames wait up to 200 µs for the queue's timer",
            ),
            (xdp(1), "has 1 AF_XDP socket on unknown queues, which are not set: Linux 6.18"),
            (xdp(2), "has 2 AF_XDP sockets on unknown queues"),
            (Limitation::UnknownQueue { napi }, "NAPI 8193: not changed, as it belongs to no visible device"),
            (
                Limitation::NapiThreadRemains { napi },
                "NAPI 8193: stays threaded: a kernel thread, not a softirq, polls it",
            ),
        ] {
            let said = in_words(&limitation);
            assert!(said.contains(&text.replace("{pid}", &pid.to_string())), "{said}");
        }
        let threaded = |id| Limitation::NapiThreadRemains { napi: NapiId::from_kernel(id).unwrap() };
        let lines = limitation_lines(&[threaded(8_193), Limitation::UnknownQueue { napi }, threaded(8_194)]);
        assert!(lines[1].starts_with("NAPI 8193-8194: stay threaded") && lines.len() == 2, "{lines:?}");
    }
}
