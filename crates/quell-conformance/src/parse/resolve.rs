//! Resolves the names of a scenario file to indices. Referenced objects must exist, counts must be valid, and names
//! must be unique.

use std::collections::BTreeSet;
use std::ops::Range;

use quell_mode::{EpollParams, NapiSettings, Threaded};
use toml::Spanned;

use super::file::{self, File, Name};
use crate::duration::Nanos;
use crate::expect::{Backend, Count, Counter, Expectation, Expectations, Subject};
use crate::scenario::{
    Application, ApplicationStep, ChangeKind, Descriptor, DescriptorKind, KernelRule, Scenario, ScenarioChange,
    ScenarioEpoll, ScenarioPacket, ScenarioSocket,
};

/// Default of `maxevents`. It exceeds the number of sockets of every scenario.
const MAX_EVENTS: usize = 1024;
/// Maximum number of sockets or packets per row, enough to fill a ring several times.
const ROW_MAX: usize = 1024;

pub(super) struct Refused {
    pub(super) span: Range<usize>,
    pub(super) message: String,
}

type Result<T> = std::result::Result<T, Refused>;

fn refuse<T>(span: Range<usize>, message: impl Into<String>) -> Result<T> {
    Err(Refused { span, message: message.into() })
}

struct Names {
    epolls: Vec<String>,
    /// Name, first descriptor and number of sockets. A name may refer to a row.
    sockets: Vec<(String, usize, usize)>,
    events: Vec<(String, usize)>,
    applications: Vec<String>,
    packets: Vec<String>,
    queues: usize,
}

pub(super) fn scenario(name: &str, file: File) -> Result<Scenario> {
    let kernel = kernel_rule(&file.kernel)?;
    let names = Names::of(&file)?;
    let queues: Vec<NapiSettings> = file.queue.iter().map(napi).collect();
    let changes = changes(&file.change, &names, &queues)?;
    Ok(Scenario {
        name: name.to_owned(),
        needs: file.needs,
        past_napi: file.device.peer_tso,
        queues,
        epolls: file.epoll.iter().enumerate().map(|(index, from)| epoll(index, from, &names)).collect::<Result<_>>()?,
        descriptors: descriptors(&file.socket, &file.event, &names)?,
        applications: file.application.iter().map(|from| application(from, &names)).collect::<Result<_>>()?,
        packets: packets(&file.packet, &names, file.lasts)?,
        changes,
        kernel,
        expect: expectations(&file.expect, &names)?,
        statement: file.statement,
        source: file.source,
        lasts: file.lasts,
    })
}

fn kernel_rule(kernel: &file::Kernel) -> Result<KernelRule> {
    let of = *kernel.of.get_ref();
    if kernel.holds == 0 || kernel.holds > of || of > 9 {
        return refuse(kernel.of.span(), "holds must be at least 1, and of at most 9");
    }
    Ok(KernelRule { tolerance: kernel.tolerance, holds: kernel.holds, of })
}

impl Names {
    fn of(file: &File) -> Result<Self> {
        let mut first = 0;
        let mut sockets = Vec::new();
        for socket in &file.socket {
            let count = row(socket.count.as_ref())?;
            sockets.push((socket.name.clone(), first, count));
            first += count;
        }
        let events = file.event.iter().enumerate().map(|(index, event)| (event.name.clone(), first + index));
        let names = Self {
            epolls: file.epoll.iter().map(|epoll| epoll.name.clone()).collect(),
            events: events.collect(),
            sockets,
            applications: file.application.iter().map(|application| application.name.clone()).collect(),
            packets: file.packet.iter().map(|packet| packet.name.clone()).collect(),
            queues: file.queue.len(),
        };
        names.each_is_one_thing()?;
        Ok(names)
    }

    fn each_is_one_thing(&self) -> Result<()> {
        let descriptors = self.sockets.iter().map(|(name, ..)| name).chain(self.events.iter().map(|(name, _)| name));
        for names in [
            self.epolls.iter().collect(),
            descriptors.collect(),
            self.applications.iter().collect::<Vec<_>>(),
            self.packets.iter().collect(),
        ] {
            let mut seen = BTreeSet::new();
            if let Some(twice) = names.into_iter().find(|name| !seen.insert(*name)) {
                return refuse(0..0, format!("the name `{twice}` is used twice"));
            }
        }
        Ok(())
    }

    fn epoll(&self, name: &Name) -> Result<usize> {
        find("epoll", name, self.epolls.iter())
    }

    fn application(&self, name: &Name) -> Result<usize> {
        find("application", name, self.applications.iter())
    }

    fn packet(&self, name: &Name) -> Result<usize> {
        find("packet", name, self.packets.iter())
    }

    fn event(&self, name: &Name) -> Result<usize> {
        Ok(self.events[find("event", name, self.events.iter().map(|(name, _)| name))?].1)
    }

    fn socket_row(&self, name: &Name) -> Result<(usize, usize)> {
        let (_, first, count) = self.sockets[find("socket", name, self.sockets.iter().map(|(name, ..)| name))?];
        Ok((first, count))
    }

    fn socket(&self, name: &Name) -> Result<usize> {
        match self.socket_row(name)? {
            (first, 1) => Ok(first),
            _ => refuse(
                name.span(),
                format!("`{}` is a row of sockets, but a single socket is required here", name.get_ref()),
            ),
        }
    }

    fn queue(&self, queue: &Spanned<usize>) -> Result<usize> {
        let (index, queues) = (*queue.get_ref(), self.queues);
        if index < queues {
            return Ok(index);
        }
        refuse(queue.span(), format!("there is no queue {index}: the file has {queues}, counted from 0"))
    }
}

fn find<'a>(what: &str, name: &Name, mut known: impl Iterator<Item = &'a String> + Clone) -> Result<usize> {
    let all = known.clone();
    match known.position(|known| known == name.get_ref()) {
        Some(index) => Ok(index),
        None => {
            let all = all.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            let all = if all.is_empty() { "none is defined".to_owned() } else { format!("defined: {all}") };
            refuse(name.span(), format!("unknown {what} `{}`; {all}", name.get_ref()))
        }
    }
}

fn row(count: Option<&Spanned<usize>>) -> Result<usize> {
    let Some(count) = count else { return Ok(1) };
    match *count.get_ref() {
        wanted @ 1..=ROW_MAX => Ok(wanted),
        _ => refuse(count.span(), format!("expected 1 to {ROW_MAX}")),
    }
}

fn napi(queue: &file::Queue) -> NapiSettings {
    NapiSettings {
        defer_hard_irqs: queue.defer_hard_irqs,
        gro_flush_timeout_ns: queue.gro_flush_timeout.0,
        irq_suspend_timeout_ns: queue.irq_suspend_timeout.0,
        threaded: match queue.threaded {
            file::Threaded::ByThread(true) => Threaded::Thread,
            file::Threaded::Named(file::ThreadedBy::BusyPoll) => Threaded::BusyPoll,
            file::Threaded::ByThread(false) | file::Threaded::Unspecified => Threaded::Off,
        },
    }
}

fn epoll(index: usize, from: &file::Epoll, names: &Names) -> Result<ScenarioEpoll> {
    let file::Epoll { busy_poll_usecs, busy_poll_budget, prefer_busy_poll, napi_known, .. } = *from;
    let inside = from.inside.as_ref().map(|outer| names.epoll(outer)).transpose()?;
    if let (Some(name), Some(outer)) = (&from.inside, inside)
        && outer >= index
    {
        return refuse(name.span(), "the outer epoll must be defined earlier in the file");
    }
    let settings = EpollParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll };
    Ok(ScenarioEpoll { name: from.name.clone(), settings, napi_known, inside })
}

fn descriptors(sockets: &[file::Socket], events: &[file::Event], names: &Names) -> Result<Vec<Descriptor>> {
    let mut descriptors = Vec::new();
    for socket in sockets {
        let epoll = socket.epoll.as_ref().map(|name| names.epoll(name)).transpose()?;
        let kind = DescriptorKind::Socket(ScenarioSocket {
            queue: names.queue(&socket.queue)?,
            edge_triggered: socket.edge_triggered,
            gro: socket.gro,
            busy_poll_usecs: socket.busy_poll_usecs,
            prefer_busy_poll: socket.prefer_busy_poll,
        });
        let count = row(socket.count.as_ref())?;
        for index in 0..count {
            let name = if count == 1 { socket.name.clone() } else { format!("{}.{index}", socket.name) };
            descriptors.push(Descriptor { name, epoll, kind });
        }
    }
    for event in events {
        let epoll = Some(names.epoll(&event.epoll)?);
        descriptors.push(Descriptor { name: event.name.clone(), epoll, kind: DescriptorKind::Event });
    }
    Ok(descriptors)
}

fn application(from: &file::Application, names: &Names) -> Result<Application> {
    let steps = from.steps.iter().map(|from| step(from, names)).collect::<Result<_>>()?;
    let max_events = max_events(from.maxevents.as_ref())?;
    Ok(Application { name: from.name.clone(), epoll: names.epoll(&from.epoll)?, max_events, steps })
}

fn step(step: &file::Step, names: &Names) -> Result<ApplicationStep> {
    Ok(match step {
        file::Step::Wait(file::Timeout(timeout)) => ApplicationStep::Wait { timeout: *timeout },
        file::Step::Read => ApplicationStep::Read,
        file::Step::Receive(name) => ApplicationStep::Receive(names.socket(name)?),
        file::Step::PollQueueOf(name) => ApplicationStep::PollQueueOf(names.socket(name)?),
        file::Step::Work(time) => ApplicationStep::Work(*time),
        file::Step::Watch(time) => ApplicationStep::Watch(*time),
        file::Step::SetEpoll(new) => ApplicationStep::SetEpoll(*new),
        file::Step::AddWithoutInterest(name) => ApplicationStep::AddWithoutInterest(names.socket(name)?),
        file::Step::CloseEpoll => ApplicationStep::CloseEpoll,
        file::Step::Repeat => ApplicationStep::Repeat,
    })
}

fn max_events(given: Option<&Spanned<usize>>) -> Result<usize> {
    match given {
        Some(given) if *given.get_ref() == 0 => refuse(given.span(), "maxevents must be at least 1"),
        Some(given) => Ok((*given.get_ref()).min(MAX_EVENTS)),
        None => Ok(MAX_EVENTS),
    }
}

fn packets(rows: &[file::Packet], names: &Names, lasts: Nanos) -> Result<Vec<ScenarioPacket>> {
    let mut moments = BTreeSet::new();
    let mut packets = Vec::new();
    for from in rows {
        let (first, sockets) = names.socket_row(&from.to)?;
        let at = *from.at.get_ref();
        if at >= lasts {
            return refuse(from.at.span(), "the scenario ends before this time");
        }
        if !moments.insert((at, first)) {
            return refuse(from.at.span(), "another packet to the same socket has the same time; use count");
        }
        let to = (0..row(from.count.as_ref())?).map(|index| first + index % sockets).collect();
        packets.push(ScenarioPacket { name: from.name.clone(), at, to });
    }
    Ok(packets)
}

fn changes(rows: &[Spanned<file::Change>], names: &Names, queues: &[NapiSettings]) -> Result<Vec<ScenarioChange>> {
    let change = |row: &Spanned<file::Change>| {
        let from = row.get_ref();
        let what = match (&from.queue, &from.napi, &from.epoll, from.params, &from.raise) {
            (Some(queue), Some(new), None, None, None) => {
                let queue = names.queue(queue)?;
                // The threaded state of a queue does not change during a scenario.
                let settings = NapiSettings { threaded: queues[queue].threaded, ..napi(new) };
                ChangeKind::Napi { queue, settings }
            }
            (None, None, Some(epoll), Some(settings), None) => {
                ChangeKind::Epoll { epoll: names.epoll(epoll)?, settings }
            }
            (None, None, None, None, Some(event)) => ChangeKind::Raise(names.event(event)?),
            _ => return refuse(row.span(), "a change needs queue and napi, or epoll and params, or raise"),
        };
        Ok(ScenarioChange { at: from.at, what })
    };
    rows.iter().map(change).collect()
}

fn count(count: file::Count) -> Count {
    match count {
        file::Count::Exactly(count) => Count::exactly(count),
        file::Count::Between(file::Between { at_least, at_most }) => Count { least: at_least, greatest: at_most },
    }
}

fn expectations(expect: &file::Expect, names: &Names) -> Result<Expectations> {
    let mut all = Vec::new();
    let mut add = |on: &[Backend], what: Subject| all.push(Expectation { on: on.to_vec(), what });
    for file::ExpectPacket { on, name, seen_after, unseen } in &expect.packet {
        let packet = names.packet(name)?;
        match (*seen_after, *unseen) {
            (Some(after), None) => add(on, Subject::SeenAfter { packet, after }),
            (None, Some(unseen)) => add(on, Subject::Unseen { packet, count: count(unseen) }),
            _ => return refuse(name.span(), "an expectation of a packet needs seen-after or unseen"),
        }
    }
    for file::ExpectWait { on, application, number, events, took } in &expect.wait {
        let application = names.application(application)?;
        if *number.get_ref() == 0 || (events.is_none() && took.is_none()) {
            return refuse(number.span(), "an expectation of a wait needs a number from 1, and events or took");
        }
        let number = *number.get_ref();
        if let Some(events) = *events {
            add(on, Subject::WaitEvents { application, number, events: count(events) });
        }
        if let Some(took) = *took {
            add(on, Subject::WaitTook { application, number, took });
        }
    }
    for row in &expect.queue {
        let queue = names.queue(&row.queue)?;
        for (counter, expected) in Counter::ALL.into_iter().zip(counts(row)) {
            if let Some(expected) = expected {
                add(&row.on, Subject::QueueCount { queue, counter, count: count(expected) });
            }
        }
    }
    for file::ExpectNamespace { on, busy_poll_rx_packets } in &expect.namespace {
        add(on, Subject::BusyPollRxPackets(count(*busy_poll_rx_packets)));
    }
    for file::ExpectSocket { on, name, napi_of_queue } in &expect.socket {
        let queue = napi_of_queue.as_ref().map(|queue| names.queue(queue)).transpose()?;
        add(on, Subject::IncomingNapi { descriptor: names.socket(name)?, queue });
    }
    if all.is_empty() {
        return refuse(0..0, "the scenario has no expectations, so it cannot fail");
    }
    Ok(Expectations(all))
}

/// Counts in the order of [`Counter::ALL`].
fn counts(row: &file::ExpectQueue) -> [Option<file::Count>; 10] {
    [
        row.polls,
        row.empty_polls,
        row.busy_polls,
        row.thread_polls,
        row.softirq_polls,
        row.other_polls,
        row.interrupts,
        row.timer_interrupts,
        row.lost_timers,
        row.suspensions,
    ]
}
