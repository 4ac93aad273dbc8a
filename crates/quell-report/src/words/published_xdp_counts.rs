//! The published AF_XDP experiment played in a guest: who polled, and how often. Times are absent.

use quell_cli::number::{ABSENT, short};
use quell_experiment::SwitchbackAnalysis;
use quell_linux::visible;
use quell_result::experiment::LoadExperiment;
use quell_result::figures::{POLLS, Work};
use quell_result::guest_checks::starved_by;
use quell_result::published_xdp::{ANSWERED, PublishedXdpRun, SYSTEM_CALLS, XdpPoint, XdpWay};

use super::published::PublishedText::{self, Statement, Table};
use super::published::figure;
use super::published_xdp::{left_out, order_text, polled, ways};

pub(super) fn here(run: &PublishedXdpRun, slowed_by: u32) -> String {
    let placement = run.placement;
    let poller = placement.poller.map_or_else(String::new, |cpu| format!("; CPU {cpu}: the thread that polls"));
    format!(
        "here: a guest on Linux {}; rates, processing times and the timeout of deferral are {slowed_by} times slower; CPU {}: \
         the client's receiver and the interrupt of its queue; CPU {}: its sender and the responder{poller}",
        visible::name(&run.host.kernel_release),
        placement.receiver,
        placement.sender,
    )
}

pub(super) const LEGEND: &str = concat!(
    "polled by: polls of the client's queue, by who polled. polls, calls: polls of the queue, and system calls by which ",
    "the client received and polled, per answered request. answered: share of the requests, in %. socket: NAPI ID of the ",
    "AF_XDP socket. queue: NAPI ID of its queue. frames: copied by the kernel, or written into the socket's memory by ",
    "the device (zero-copy).",
);

pub(super) fn of_point(point: &XdpPoint, slowed_by: u32) -> Vec<PublishedText> {
    let slowed_by = f64::from(slowed_by);
    let mut out = vec![Statement(format!(
        "{} Kpkt/s, {} µs processing; here {} Kpkt/s, {} µs",
        short(point.rate_kpps * slowed_by),
        short(point.delay_us / slowed_by),
        short(point.rate_kpps),
        short(point.delay_us)
    ))];
    out.extend(point.not_possible.as_ref().map(|why| Statement(format!("not possible here: {}", visible::name(why)))));
    let Some(experiment) = &point.result else { return out };
    let played = ways(experiment);
    let heading = vec!["way", "polled by", "polls", "calls", "answered", "socket", "queue", "frames"];
    out.push(Table { heading, rows: played.iter().map(|(name, _)| row(point, experiment, name)).collect() });
    out.extend(order(experiment, &experiment.analyse(), &played).map(Statement));
    out.extend(point.not_as_named().into_iter().map(|(name, share)| {
        Statement(format!(
            "NOT AS NAMED: {}: the named poller has {} % of the polls",
            visible::name(&name),
            short(share * 100.0)
        ))
    }));
    out.extend(starved_by(experiment).map(|share| {
        let share = short(share * 100.0);
        Statement(format!(
            "the emulator waited for CPUs of the host for up to {share} % of a slice: responses are missing then"
        ))
    }));
    out.extend(left_out(experiment).map(Statement));
    out
}

fn row(point: &XdpPoint, experiment: &LoadExperiment<XdpWay>, name: &str) -> Vec<String> {
    let median = |metric: &str| experiment.median(name, metric);
    let queue = point.queues.get(name);
    let id = |napi: Option<quell_linux::NapiId>| napi.map_or(ABSENT.to_owned(), |napi| napi.get().to_string());
    let frames = queue.map_or(ABSENT, |queue| if queue.zero_copy { "zero-copy" } else { "copied" });
    vec![
        visible::name(name).into_owned(),
        polled(experiment, name),
        figure(median(&Work::Request.name(POLLS))),
        figure(median(SYSTEM_CALLS)),
        figure(median(ANSWERED).map(|share| share * 100.0)),
        id(queue.and_then(|queue| queue.socket_napi)),
        id(queue.and_then(|queue| queue.napi)),
        frames.to_owned(),
    ]
}

/// The ways by their polls per request.
fn order(
    experiment: &LoadExperiment<XdpWay>,
    analysis: &SwitchbackAnalysis,
    played: &[(&str, XdpWay)],
) -> Option<String> {
    let polls = Work::Request.name(POLLS);
    let sorted = played.iter().filter_map(|(name, _)| Some((*name, experiment.median(name, &polls)?))).collect();
    order_text(analysis, &Work::Request.criterion(POLLS), "polls per request", sorted)
}
