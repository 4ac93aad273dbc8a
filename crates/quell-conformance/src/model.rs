//! Runs a scenario on the model: [`quell_sim::scenario`] with a host of minimal costs. Only timers take time, so all
//! times are exact.

use quell_mode::Threaded;
use quell_sim::scenario::{self as sim, Input};
use quell_sim::{
    CONSTANTS, Constants, HostProfile, HostProfileError, PacketKind, ScriptStep, SimCoalescing, SocketBusyPoll,
};

use crate::observe::{Observations, ObservedWait, ScenarioQueueCounters, SentMessage};
use crate::scenario::{
    ApplicationStep, ChangeKind, Descriptor, DescriptorKind, Scenario, ScenarioChange, ScenarioPacket, ScenarioSocket,
};

/// `VETH_RING_SIZE` from `drivers/net/veth.c`, so that both backends have the same ring size.
const RING_SIZE: usize = 256;
/// Length in ns of one µs of busy polling in the kernel (`busy_loop_current_time`).
pub(crate) const BUSY_POLL_USEC_NS: u64 = 1024;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioModelError {
    #[error("the model cannot run it: {0}")]
    Scenario(#[from] sim::ScenarioError),
    #[error(transparent)]
    Profile(#[from] HostProfileError),
}

pub fn play(scenario: &Scenario) -> Result<Observations, ScenarioModelError> {
    play_on(host()?, scenario)
}

pub(crate) fn play_on(host: HostProfile, scenario: &Scenario) -> Result<Observations, ScenarioModelError> {
    let sent = sent(scenario);
    let mut inputs: Vec<(u64, Input)> = Vec::new();
    for message in &sent {
        let socket = scenario.packets[message.packet].to[message.index];
        inputs.push((message.sent_ns, packet(scenario, socket)));
    }
    inputs.extend(scenario.changes.iter().map(change));
    let played = sim::SimScenario {
        queues: scenario.queues.clone(),
        epolls: scenario.epolls.iter().map(epoll).collect(),
        descriptors: scenario.descriptors.iter().map(|from| descriptor(from, scenario.past_napi)).collect(),
        applications: applications(scenario),
        napi_thread_priority: Some(50),
        inputs,
        until_ns: scenario.lasts.0,
        ..sim::SimScenario::new(host)
    };
    Ok(observations(scenario, sent, &played.play()?))
}

/// Host profile with the smallest useful value of every constant, no idle states and no coalescing.
pub(crate) fn host() -> Result<HostProfile, HostProfileError> {
    let mut constants = Constants::default();
    for constant in CONSTANTS {
        constant.set(&mut constants, 0.0);
    }
    let template = HostProfile::shipped("epyc7662-cx5")?;
    let (coalescing, idle_states) = (SimCoalescing::NONE, Vec::new());
    Ok(HostProfile { name: "conformance".into(), constants, coalescing, idle_states, ring_size: RING_SIZE, ..template })
}

/// Lists every message. Messages of one row are 1 ns apart, so each has a distinct time.
fn sent(scenario: &Scenario) -> Vec<SentMessage> {
    let row = |(packet, row): (usize, &ScenarioPacket)| {
        let at_ns = row.at.0;
        (0..row.to.len()).map(move |index| SentMessage { packet, index, sent_ns: at_ns + index as u64, read_ns: None })
    };
    scenario.packets.iter().enumerate().flat_map(row).collect()
}

fn packet(scenario: &Scenario, socket: usize) -> Input {
    let descriptor = socket as u32;
    if scenario.past_napi {
        return Input::PastNapi { descriptor };
    }
    let held = matches!(scenario.descriptors[socket].kind, DescriptorKind::Socket(ScenarioSocket { gro: true, .. }));
    Input::Packet { descriptor, kind: if held { PacketKind::HeldRequest } else { PacketKind::Request } }
}

fn change(change: &ScenarioChange) -> (u64, Input) {
    let input = match change.what {
        ChangeKind::Napi { queue, settings } => Input::SetNapi { queue, settings },
        ChangeKind::Epoll { epoll, settings } => Input::SetEpoll { epoll, settings },
        ChangeKind::Raise(descriptor) => Input::AlwaysReady { descriptor: descriptor as u32 },
    };
    (change.at.0, input)
}

fn epoll(from: &crate::scenario::ScenarioEpoll) -> sim::EpollContext {
    sim::EpollContext { settings: from.settings, napi_known: from.napi_known, inside: from.inside }
}

fn descriptor(from: &Descriptor, past_napi: bool) -> sim::SimDescriptor {
    match from.kind {
        DescriptorKind::Socket(ScenarioSocket { queue, edge_triggered, .. }) => {
            let queue = Some(queue).filter(|_| !past_napi);
            sim::SimDescriptor { queue, epoll: from.epoll, edge_triggered }
        }
        DescriptorKind::Event => sim::SimDescriptor { queue: None, epoll: from.epoll, edge_triggered: false },
    }
}

/// Creates the applications, each on a CPU that no queue interrupts.
fn applications(scenario: &Scenario) -> Vec<sim::ScriptedApplication> {
    let first_cpu = scenario.queues.len();
    let application = |(index, from): (usize, &crate::scenario::Application)| sim::ScriptedApplication {
        epoll: from.epoll,
        cpu: first_cpu + index,
        priority: None,
        steps: from.steps.iter().map(|step| self::step(scenario, from.max_events, *step)).collect(),
    };
    scenario.applications.iter().enumerate().map(application).collect()
}

fn step(scenario: &Scenario, max_events: usize, step: ApplicationStep) -> ScriptStep {
    match step {
        ApplicationStep::Wait { timeout } => ScriptStep::Wait { max_events, timeout_ns: timeout.map(|time| time.0) },
        ApplicationStep::Read => ScriptStep::ReadAll,
        ApplicationStep::Receive(socket) => {
            ScriptStep::Receive { descriptor: socket as u32, busy_poll: busy_poll(scenario, socket) }
        }
        // A receive of a socket without packets polls alike, and sleeps afterwards.
        ApplicationStep::PollQueueOf(socket) => ScriptStep::Receive {
            descriptor: socket as u32,
            busy_poll: SocketBusyPoll { prefer: true, ..busy_poll(scenario, socket) },
        },
        ApplicationStep::Work(time) => ScriptStep::Work(time.0),
        ApplicationStep::Watch(time) => ScriptStep::Watch(time.0),
        ApplicationStep::SetEpoll(settings) => ScriptStep::SetEpoll(settings),
        ApplicationStep::AddWithoutInterest(socket) => ScriptStep::AddWithoutInterest { descriptor: socket as u32 },
        ApplicationStep::CloseEpoll => ScriptStep::CloseEpoll,
        ApplicationStep::Repeat => ScriptStep::Repeat,
    }
}

fn busy_poll(scenario: &Scenario, socket: usize) -> SocketBusyPoll {
    match scenario.descriptors[socket].kind {
        DescriptorKind::Socket(ScenarioSocket { busy_poll_usecs, prefer_busy_poll, .. }) => SocketBusyPoll {
            time_ns: u64::from(busy_poll_usecs) * BUSY_POLL_USEC_NS,
            prefer: prefer_busy_poll,
            budget: 0,
        },
        DescriptorKind::Event => SocketBusyPoll::default(),
    }
}

fn observations(scenario: &Scenario, mut messages: Vec<SentMessage>, observed: &sim::Observed) -> Observations {
    for message in &mut messages {
        let socket = scenario.packets[message.packet].to[message.index] as u32;
        let read = observed.reads.iter().find(|read| read.descriptor == socket && read.sent_ns == message.sent_ns);
        message.read_ns = read.map(|read| read.at_ns);
    }
    let wait = |wait: &quell_sim::WaitObserved| ObservedWait {
        application: wait.application,
        called_ns: wait.called_ns,
        returned_ns: wait.returned_ns,
        events: wait.events,
    };
    let packets = observed.queues.iter().map(|queue| queue.busy_poll_packets);
    Observations {
        waits: observed.waits.iter().map(wait).collect(),
        messages,
        queues: observed.queues.iter().zip(&scenario.queues).map(|(from, to)| queue(from, to.threaded)).collect(),
        busy_poll_rx_packets: Some(packets.sum()),
        incoming_napi: observed.incoming_napi.clone(),
    }
}

fn queue(observed: &sim::QueueObserved, threaded: Threaded) -> ScenarioQueueCounters {
    let busy_polls = observed.busy_polls - observed.final_polls;
    // The remaining polls come from the queue's thread, or from softirq if it has none.
    let rest = observed.polls - observed.busy_polls;
    let (busy_polls, thread_polls, softirq_polls) = match threaded {
        Threaded::Off => (busy_polls, 0, rest),
        Threaded::Thread => (busy_polls, rest, 0),
        // The thread never releases the queue, so applications make no busy polls.
        Threaded::BusyPoll => (0, busy_polls + rest, 0),
    };
    ScenarioQueueCounters {
        polls: Some(observed.polls),
        empty_polls: Some(observed.empty_polls),
        busy_polls: Some(busy_polls),
        thread_polls: Some(thread_polls),
        softirq_polls: Some(softirq_polls),
        other_polls: Some(softirq_polls + observed.final_polls),
        interrupts: Some(observed.irqs),
        timer_interrupts: Some(observed.timer_irqs),
        lost_timers: Some(observed.lost_timers),
        suspensions: Some(observed.suspensions),
    }
}
