//! The parts of each published experiment: a new experiment joins [`Replay::of`].

use quell_load::{OfferedLoad, ServeShape, Transport};
use quell_mode::DeliveryMode;
use quell_published::{
    EventLoopForm, Experiment, PublishedCell, PublishedError, event_loop_rows, irq_suspension_cells,
};
use quell_sim::Load;

use super::{Replay, ReplayPart};
use crate::bench_load;

impl Replay {
    /// The parts of an experiment. `None` if it is played by AF_XDP sockets ([`XdpReplay`](super::XdpReplay)).
    ///
    /// # Errors
    /// When the published data is malformed.
    pub fn of(experiment: Experiment) -> Result<Option<Self>, PublishedError> {
        let (threads, connections, parts) = match experiment {
            Experiment::A => (8, bench_load::CONNECTIONS, suspension_parts(&irq_suspension_cells()?)),
            Experiment::B => (1, 1, [Transport::Tcp, Transport::Udp].into_iter().flat_map(low_latency_parts).collect()),
            Experiment::C => return Ok(None),
            Experiment::D => {
                let rows = event_loop_rows()?;
                let user = rows.iter().filter(|row| row.form == EventLoopForm::User);
                // Longer than any wait in a closed loop: the program never sleeps, as published.
                let modes = ["base", "eventspin1000000"];
                let part = |bytes| responder(Transport::Tcp, ServeShape::Epoll, bytes, modes);
                (5, 30, user.map(|row| part(row.message_bytes)).collect())
            }
        };
        let counts_cycles = experiment == Experiment::A;
        Ok(Some(Self { experiment, threads, connections, counts_cycles, parts }))
    }
}

fn responder(transport: Transport, shape: ServeShape, message_bytes: u32, modes: [&str; 2]) -> ReplayPart {
    let mode = |text: &str| text.parse().unwrap_or_else(|error| unreachable!("a constant mode is invalid: {error}"));
    let modes = modes.map(mode).to_vec();
    ReplayPart { transport, shape, message_bytes: Some(message_bytes), load: None, share_of_max: None, modes }
}

fn low_latency_parts(transport: Transport) -> [ReplayPart; 2] {
    [
        responder(transport, ServeShape::Blocking, 1, ["base", "sockpoll50"]),
        responder(transport, ServeShape::Epoll, 1, ["base", "napibusy"]),
    ]
}

/// One part for each published load, the closed loop first, because the others offer a share of its throughput.
fn suspension_parts(cells: &[PublishedCell]) -> Vec<ReplayPart> {
    let is_closed_base = |cell: &&PublishedCell| cell.mode == DeliveryMode::default() && cell.load == Load::Max;
    let max_per_s = cells.iter().find(is_closed_base).map(|cell| cell.figures.qps);
    let mut parts: Vec<ReplayPart> = Vec::new();
    for cell in cells {
        let load = offered(cell.load);
        match parts.iter_mut().find(|part| part.load == Some(load)) {
            Some(part) => part.modes.push(cell.mode),
            None => parts.push(ReplayPart {
                transport: Transport::Tcp,
                shape: ServeShape::Epoll,
                message_bytes: None,
                load: Some(load),
                share_of_max: load.rate_per_s(f64::NAN).zip(max_per_s).map(|(rate, max)| rate / max),
                modes: vec![cell.mode],
            }),
        }
    }
    parts.sort_by_key(|part| part.load != Some(OfferedLoad::Max));
    for part in &mut parts {
        part.modes.sort_by_key(|mode| *mode != DeliveryMode::default());
    }
    parts
}

/// A published load as a load of the generator.
#[must_use]
pub fn offered(load: Load) -> OfferedLoad {
    match load {
        Load::Qps(per_s) => OfferedLoad::Rate(per_s),
        Load::Max => OfferedLoad::Max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_experiment_with_servers_has_parts_whose_reference_is_base() {
        for experiment in Experiment::ALL {
            let replay = Replay::of(experiment).unwrap();
            assert_eq!(replay.is_none(), experiment == Experiment::C, "{experiment}");
            for part in replay.iter().flat_map(|replay| &replay.parts) {
                assert!(part.modes.len() > 1 && part.modes[0] == DeliveryMode::default(), "{part:?}");
            }
        }
    }

    #[test]
    fn shares_refer_to_a_maximum_that_was_measured_before() {
        let parts = Replay::of(Experiment::A).unwrap().unwrap().parts;
        assert_eq!((parts[0].load, parts[0].share_of_max), (Some(OfferedLoad::Max), None));
        assert!(parts[1..].iter().all(|part| part.share_of_max.is_some_and(|share| share > 0.0 && share < 1.1)));
    }
}
