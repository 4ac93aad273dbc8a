//! The exposition: OpenMetrics, and the older text format for `promtool check metrics` and node_exporter. At most 15
//! series a queue.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode as encode_open_metrics;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use quell_host::attach::effect::ModeVerdict;
use quell_host::attach::payoff::DoesItPay;
use quell_linux::visible;
use quell_result::top::{ObservedProgram, ObservedXdp, SkippedPart};
use quell_sampler::{QueuePoller, Unsampled};

use super::totals::{DeviceKey, DeviceTotals, NamespaceNames, QueueKey, QueueTotals, Totals};

#[derive(Debug, Default)]
pub(super) struct Exposition {
    /// OpenMetrics 1.0.
    pub(super) open_metrics: String,
    /// Prometheus' text format 0.0.4.
    pub(super) text: String,
}

type Labels = Vec<(&'static str, String)>;

pub(super) fn encode(totals: &Totals) -> Exposition {
    let mut open_metrics = String::new();
    let mut registry = Registry::with_prefix("quell");
    registry.register_collector(Box::new(Snapshot::of(totals)));
    // Writing to a String cannot fail.
    let _ = encode_open_metrics(&mut open_metrics, &registry);
    let text = text_format(&open_metrics);
    Exposition { open_metrics, text }
}

/// Converts OpenMetrics to the text format: a counter's metadata have the name of its samples.
fn text_format(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let counters: Vec<&str> =
        (open_metrics.lines()).filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    for line in open_metrics.lines() {
        let metadata = line.strip_prefix("# HELP ").map(|rest| ("HELP", rest));
        let metadata = metadata.or_else(|| line.strip_prefix("# TYPE ").map(|rest| ("TYPE", rest)));
        match metadata.and_then(|(kind, rest)| Some((kind, rest.split_once(' ')?))) {
            Some((kind, (name, rest))) => {
                let total = if counters.contains(&name) { "_total" } else { "" };
                text.push_str(&format!("# {kind} {name}{total} {rest}\n"));
            }
            None if line.starts_with('#') => {}
            None => text.extend([line, "\n"]),
        }
    }
    text
}

#[derive(Debug)]
struct Metric {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    samples: Samples,
}

#[derive(Debug)]
enum Samples {
    Counter(Vec<(Labels, u64)>),
    Seconds(Vec<(Labels, f64)>),
    Gauge(Vec<(Labels, f64)>),
}

#[derive(Debug)]
struct Snapshot(Vec<Metric>);

fn device_labels(key: &DeviceKey, names: &NamespaceNames) -> Labels {
    let mut labels = vec![("device", key.device.clone())];
    labels.extend(namespace_labels(key.namespace, names));
    labels
}

fn queue_labels(key: &QueueKey, names: &NamespaceNames) -> Labels {
    let mut labels = vec![("device", key.device.clone()), ("queue", key.queue.clone())];
    labels.extend(namespace_labels(key.namespace, names));
    labels
}

/// Inode of a namespace, and its name if it has one.
fn namespace_labels(namespace: Option<u64>, names: &NamespaceNames) -> impl Iterator<Item = (&'static str, String)> {
    let inode = namespace.map(|inode| ("netns", inode.to_string()));
    let name = namespace.and_then(|inode| names.get(&inode)).map(|name| ("netns_name", name.clone()));
    inode.into_iter().chain(name)
}

fn program_labels(program: &ObservedProgram) -> Labels {
    let mut labels = vec![("pid", program.pid.to_string()), ("comm", program.name.clone())];
    let places = [("unit", &program.unit), ("pod_uid", &program.pod), ("container_id", &program.container)];
    labels.extend(places.into_iter().filter_map(|(label, place)| Some((label, place.clone()?))));
    labels
}

/// Labels of the mode of a program, and of the process for which all its workers have one alert.
fn mode_labels(program: &ObservedProgram) -> Option<Labels> {
    let labels = with(program_labels(program), "mode", program.mode.clone()?);
    let (pid, name) = program.root.as_ref().map_or((program.pid, &program.name), |root| (root.pid, &root.name));
    Some(with(with(labels, "root_pid", pid.to_string()), "root_comm", name))
}

fn with(mut labels: Labels, name: &'static str, value: impl Into<String>) -> Labels {
    labels.push((name, value.into()));
    labels
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Snapshot {
    fn of(totals: &Totals) -> Self {
        let queues = |of: &dyn Fn(&QueueTotals) -> Option<u64>| -> Vec<(Labels, u64)> {
            totals
                .queues
                .iter()
                .filter_map(|(key, queue)| Some((queue_labels(key, &totals.namespaces), of(queue)?)))
                .collect()
        };
        let counter = |name, help, of: &dyn Fn(&QueueTotals) -> Option<u64>| Metric {
            name,
            help,
            unit: None,
            samples: Samples::Counter(queues(of)),
        };
        let in_seconds = |name, help, of: &dyn Fn(&QueueTotals) -> Option<u64>, is_counter: bool| {
            let samples = queues(of).into_iter().map(|(labels, ns)| (labels, seconds(ns))).collect();
            let samples = if is_counter { Samples::Seconds(samples) } else { Samples::Gauge(samples) };
            Metric { name, help, unit: Some(Unit::Seconds), samples }
        };
        let mut metrics = vec![
            polls(totals),
            counter("queue_packets", "Packets that polls reported as work", &|queue| Some(queue.sample?.packets)),
            counter("queue_empty_polls", "Polls without packets", &|queue| Some(queue.sample?.empty)),
            counter(
                "queue_stalls",
                "Polls that found packets after 50 ms without a poll, with the interrupt masked",
                &|queue| queue.stalls,
            ),
            in_seconds(
                "queue_cpu",
                "CPU time of polls in softirqs and in the NAPI thread",
                &|queue| queue.cpu_ns,
                true,
            ),
            in_seconds(
                "queue_masked",
                "Time with the interrupt masked but not suspended",
                &|queue| Some(queue.sample?.masked_ns),
                true,
            ),
            in_seconds(
                "queue_suspended",
                "Time with the interrupt suspended",
                &|queue| Some(queue.sample?.suspended_ns),
                true,
            ),
            counter("queue_wait_bound_packets", "Packets whose wait in the ring has an upper bound", &|queue| {
                Some(queue.sample?.wait.packets)
            }),
            in_seconds(
                "queue_wait_bound",
                "Sum of the upper bounds of these waits",
                &|queue| queue.sample.map(|_| queue.wait_sum_ns),
                true,
            ),
            in_seconds(
                "queue_wait_bound_p99",
                "99th percentile of these bounds in the last interval",
                &|queue| queue.wait_p99_ns,
                false,
            ),
        ];
        let napi = |(key, queue): (&QueueKey, &QueueTotals)| {
            Some((with(queue_labels(key, &totals.namespaces), "napi_id", queue.napi?.to_string()), 1.0))
        };
        metrics.push(gauge(
            "queue_info",
            "NAPI instance of the queue",
            totals.queues.iter().filter_map(napi).collect(),
        ));
        metrics.extend(devices(totals));
        metrics.extend(programs(&totals.programs));
        let drifted = |(profile, count): (&String, &usize)| (vec![("profile", profile.clone())], *count as f64);
        metrics.push(gauge(
            "profile_drifted_settings",
            "Settings of an applied profile that others changed; absent if they cannot be read",
            totals.journals.drifted.iter().map(drifted).collect(),
        ));
        let left_behind = totals.journals.left_behind.map(|count| (Vec::new(), count as f64));
        metrics.push(gauge(
            "left_behind_journals",
            "Journals of killed runs that wait to be restored",
            left_behind.into_iter().collect(),
        ));
        let reverted = totals.journals.reverted.map(|count| (Vec::new(), count as f64));
        metrics.push(gauge(
            "stalled_modes_reverted",
            "Modes that Quell reverted since boot because their queues stalled; `quell revert` forgets them",
            reverted.into_iter().collect(),
        ));
        let unsampled = |(why, count): (&Unsampled, &u32)| {
            let reason = match why {
                Unsampled::EqualSlots => "equal-slots",
                Unsampled::TooMany => "too-many",
                _ => "other",
            };
            (vec![("reason", reason.to_owned())], f64::from(*count))
        };
        let unsampled = totals.unsampled.iter().map(unsampled).collect();
        metrics.push(gauge("unsampled_queues", "Queues that are not sampled although others are", unsampled));
        let unknown = totals.polls_unknown.iter().map(|why| (vec![("reason", why.clone())], 1.0)).collect();
        metrics.push(gauge("polls_unknown_info", "Why polls cannot be sampled", unknown));
        let hidden = vec![(Vec::new(), totals.hidden_processes as f64)];
        metrics.push(gauge("hidden_processes", "Processes whose sockets are unknown", hidden));
        let version = vec![(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0)];
        metrics.push(gauge("build_info", "Version of Quell", version));
        Self(metrics)
    }
}

fn gauge(name: &'static str, help: &'static str, samples: Vec<(Labels, f64)>) -> Metric {
    Metric { name, help, unit: None, samples: Samples::Gauge(samples) }
}

fn devices(totals: &Totals) -> [Metric; 3] {
    let metric = |name, help, of: fn(&DeviceTotals) -> Option<u64>| {
        let samples = totals
            .devices
            .iter()
            .filter_map(|(key, device)| Some((device_labels(key, &totals.namespaces), of(device)?)));
        Metric { name, help, unit: None, samples: Samples::Counter(samples.collect()) }
    };
    [
        metric("device_rx_dropped", "Packets dropped on receive, with those that no protocol wanted", |device| {
            device.rx_dropped
        }),
        metric(
            "device_rx_queue_dropped",
            "Packets lost because a receive queue was full; on veth, also while the link was down",
            |device| device.rx_queue_dropped,
        ),
        metric("device_tx_dropped", "Packets that the device dropped on transmit", |device| device.tx_dropped),
    ]
}

/// Whether the mode of a program pays, as a state set: 1 for the verdict, 0 for the others.
fn pays(programs: &[ObservedProgram]) -> Metric {
    let mut samples = Vec::new();
    for program in programs {
        let Some(payoff) = &program.payoff else { continue };
        let verdict = payoff.pays.name();
        let state = |name| (with(program_labels(program), "verdict", name), if name == verdict { 1.0 } else { 0.0 });
        samples.extend(DoesItPay::NAMES.map(state));
    }
    gauge("program_mode_pays", "Whether that mode pays: 1 for the verdict; absent if it is not judged", samples)
}

/// Number of parts of the mode of a program that are not applied, by the reason.
fn skipped(programs: &[ObservedProgram]) -> Metric {
    let by_reason = |program: &ObservedProgram| {
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for SkippedPart { reason, .. } in program.skipped.iter().flatten() {
            *counts.entry(reason.name()).or_default() += 1;
        }
        let labels = program_labels(program);
        let sample = move |(reason, count)| (with(labels.clone(), "reason", reason), f64::from(count));
        counts.into_iter().map(sample)
    };
    let samples = programs.iter().flat_map(by_reason).collect();
    gauge("program_skipped_parts", "Parts of that mode that are not applied, by the reason", samples)
}

fn polls(totals: &Totals) -> Metric {
    let mut samples = Vec::new();
    for (key, queue) in &totals.queues {
        let Some(sample) = &queue.sample else { continue };
        samples.extend(QueuePoller::ALL.map(|poller| {
            let label = match poller {
                QueuePoller::Rescheduled => "other",
                QueuePoller::Thread => "napi_thread",
                other => other.field(),
            };
            (with(queue_labels(key, &totals.namespaces), "poller", label), poller.polls(&sample.polls))
        }));
    }
    Metric { name: "queue_polls", help: "NAPI polls by who polled", unit: None, samples: Samples::Counter(samples) }
}

fn programs(programs: &[ObservedProgram]) -> [Metric; 8] {
    let of_xdp = |name, help, of: fn(&ObservedXdp) -> u64| {
        let sample = |program: &ObservedProgram| Some((program_labels(program), of(program.xdp.as_ref()?)));
        Metric { name, help, unit: None, samples: Samples::Counter(programs.iter().filter_map(sample).collect()) }
    };
    let samples = |of: &dyn Fn(&ObservedProgram) -> Option<(Labels, f64)>| programs.iter().filter_map(of).collect();
    let in_effect = |program: &ObservedProgram| match program.effect.as_ref()? {
        ModeVerdict::InEffect(_) => Some((program_labels(program), 1.0)),
        ModeVerdict::NotInEffect(_) => Some((program_labels(program), 0.0)),
        ModeVerdict::CannotTell(_) => None,
    };
    [
        Metric {
            name: "program_cpu",
            help: "User and system time of the program since it started",
            unit: Some(Unit::Seconds),
            samples: Samples::Seconds(samples(&|program| Some((program_labels(program), seconds(program.cpu_ns?))))),
        },
        gauge(
            "program_mode_info",
            "Mode that was applied to the program, and the attached process that it descends from",
            samples(&|program| Some((mode_labels(program)?, 1.0))),
        ),
        gauge(
            "program_mode_in_effect",
            "Whether that mode is in effect; absent if it cannot be judged, as without packets from a queue",
            samples(&in_effect),
        ),
        pays(programs),
        gauge(
            "program_drifted_settings",
            "Settings of that mode that others changed",
            samples(&|program| Some((program_labels(program), program.drifted? as f64))),
        ),
        skipped(programs),
        of_xdp("program_xdp_dropped", "Frames that AF_XDP sockets of the program dropped", |xdp| xdp.dropped),
        of_xdp(
            "program_xdp_fill_ring_empty",
            "Times that a frame for an AF_XDP socket of the program found its fill ring empty",
            |xdp| xdp.fill_ring_empty,
        ),
    ]
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        for metric in &self.0 {
            let kind = match metric.samples {
                Samples::Counter(_) | Samples::Seconds(_) => MetricType::Counter,
                Samples::Gauge(_) => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(metric.name, metric.help, metric.unit.as_ref(), kind)?;
            match &metric.samples {
                Samples::Counter(samples) => encode_all(&mut family, samples, ConstCounter::new)?,
                Samples::Seconds(samples) => encode_all(&mut family, samples, ConstCounter::new)?,
                Samples::Gauge(samples) => encode_all(&mut family, samples, ConstGauge::new)?,
            }
        }
        Ok(())
    }
}

fn encode_all<N: Copy, M: EncodeMetric>(
    family: &mut MetricEncoder<'_>,
    samples: &[(Labels, N)],
    metric: impl Fn(N) -> M,
) -> Result<(), Error> {
    for (labels, value) in samples {
        // Others choose the names of programs, units and devices. Terminals and dashboards show these values.
        let labels: Vec<(&str, Cow<'_, str>)> =
            labels.iter().map(|(name, value)| (*name, visible::name(value))).collect();
        metric(*value).encode(family.encode_family(&labels.as_slice())?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use quell_host::attach::payoff::ModePayoff;
    use quell_linux::{NapiId, Pid};
    use quell_mode::DeliveryMode;
    use quell_result::top::{RootProgram, SkipReason};

    use super::super::totals::tests::report;
    use super::*;

    fn program() -> ObservedProgram {
        ObservedProgram {
            pid: Pid::from_kernel(42).unwrap(),
            name: "evil\"} 1\nquell_x 2\u{1b}[2J\u{202e}".to_owned(),
            unit: Some("memcached.service".to_owned()),
            pod: None,
            container: None,
            napis: vec![NapiId::from_kernel(8_193).unwrap()],
            xdp: Some(ObservedXdp { sockets: 1, dropped: 7, fill_ring_empty: 5, dropped_per_s: None }),
            epolls: Vec::new(),
            cpus: Some(0.5),
            cpu_ns_per_packet: None,
            cpu_ns: Some(1_230_000_000),
            mode: Some("suspend200".to_owned()),
            root: Some(RootProgram { pid: Pid::from_kernel(40).unwrap(), name: "memcached".to_owned() }),
            effect: Some(ModeVerdict::NotInEffect("no busy poll".to_owned())),
            payoff: Some(ModePayoff {
                cpu_wait_share: None,
                pays: DoesItPay::CostsCpuTime { instead: DeliveryMode::default(), break_even_packets_per_s: None },
                ..ModePayoff::of("suspend200".parse().unwrap(), &[], None, None)
            }),
            drifted: Some(2),
            skipped: Some(vec![
                SkippedPart { napi: NapiId::from_kernel(8_194), reason: SkipReason::QueueNotSet },
                SkippedPart { napi: NapiId::from_kernel(8_195), reason: SkipReason::QueueNotSet },
                SkippedPart { napi: None, reason: SkipReason::NotSuspended },
            ]),
        }
    }

    fn exposition(packets: Option<u64>) -> Exposition {
        let mut totals = Totals::new(7);
        let report = report(8_193, packets);
        totals.add(&quell_result::top::IntervalReport { programs: vec![program()], ..report });
        encode(&totals)
    }

    #[test]
    fn a_queue_has_at_most_fifteen_series() {
        let text = exposition(Some(10)).open_metrics;
        let series = text.lines().filter(|line| line.contains("device=\"eth0\",queue="));
        assert_eq!(series.count(), 15 + 1, "with queue_info, which is the only one with the NAPI ID\n{text}");
    }

    #[test]
    fn a_namespace_has_its_inode_and_its_name_if_it_has_one() {
        let mut totals = Totals::new(1);
        totals.add(&report(8_193, Some(10)));
        let packets = |totals: &Totals| {
            let text = encode(totals).text;
            text.lines().find(|line| line.starts_with("quell_queue_packets_total{")).map(str::to_owned)
        };
        let labels = "quell_queue_packets_total{device=\"eth0\",queue=\"3\",netns=\"7\"";
        assert_eq!(packets(&totals), Some(format!("{labels}}} 10")));
        totals.namespaces.insert(7, "shop".to_owned());
        assert_eq!(packets(&totals), Some(format!("{labels},netns_name=\"shop\"}} 10")));
    }

    #[test]
    fn counters_end_with_total_and_times_are_in_seconds() {
        let text = exposition(Some(10)).open_metrics;
        for line in [
            "quell_queue_packets_total{device=\"eth0\",queue=\"3\"} 10",
            "quell_queue_polls_total{device=\"eth0\",queue=\"3\",poller=\"timer\"} 10",
            "quell_queue_wait_bound_p99_seconds{device=\"eth0\",queue=\"3\"} 0.002",
            "quell_queue_info{device=\"eth0\",queue=\"3\",napi_id=\"8193\"} 1.0",
            "quell_queue_cpu_seconds_total{device=\"eth0\",queue=\"3\"} 2.0",
            "quell_queue_stalls_total{device=\"eth0\",queue=\"3\"} 2",
            "quell_device_rx_dropped_total{device=\"eth0\"} 2",
            "# EOF",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
        }
    }

    #[test]
    fn what_cannot_be_sampled_is_absent_with_the_reason() {
        let text = exposition(None).open_metrics;
        let absent = ["quell_queue_packets_total", "quell_queue_stalls_total", "quell_device_tx_dropped_total"];
        assert!(absent.iter().all(|name| !text.contains(name)), "{text}");
        assert!(text.contains("quell_polls_unknown_info{reason=\"needs CAP_BPF\"} 1"), "{text}");
    }

    #[test]
    fn journals_that_cannot_be_read_are_absent() {
        let mut totals = Totals::new(7);
        assert!(!encode(&totals).text.contains("quell_left_behind_journals{}"));
        totals.journals.left_behind = Some(2);
        totals.journals.reverted = Some(1);
        totals.journals.drifted = [("a.toml".to_owned(), 3)].into();
        let text = encode(&totals).text;
        for line in [
            "quell_left_behind_journals{} 2.0",
            "quell_stalled_modes_reverted{} 1.0",
            "quell_profile_drifted_settings{profile=\"a.toml\"} 3.0",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
        }
    }

    #[test]
    fn programs_have_a_counter_of_cpu_time_and_the_parts_that_are_skipped_by_reason() {
        let text = exposition(Some(10)).open_metrics;
        let value = |start: &str, end: &str| {
            let line = text.lines().find(|line| line.starts_with(start) && line.contains(end));
            line.and_then(|line| line.rsplit(' ').next()).unwrap_or_else(|| panic!("{start} {end}\n{text}"))
        };
        assert_eq!(value("quell_program_cpu_seconds_total{", ""), "1.23");
        assert_eq!(value("quell_program_skipped_parts{", "reason=\"queue-not-set\"}"), "2.0");
        assert_eq!(value("quell_program_skipped_parts{", "reason=\"not-suspended\"}"), "1.0");
        assert_eq!(value("quell_program_drifted_settings{", ""), "2.0");
        let labels = "mode=\"suspend200\",root_pid=\"40\",root_comm=\"memcached\"}";
        assert_eq!(value("quell_program_mode_info{pid=\"42\",", labels), "1.0");
        assert_eq!(value("quell_program_mode_pays{", "verdict=\"costs-cpu-time\"}"), "1.0");
        assert_eq!(value("quell_program_mode_pays{", "verdict=\"not-in-effect\"}"), "0.0");
        assert_eq!(value("quell_program_xdp_dropped_total{", ""), "7");
        assert_eq!(value("quell_program_xdp_fill_ring_empty_total{", ""), "5");
    }

    #[test]
    fn names_of_others_cannot_add_samples() {
        for text in [exposition(Some(1)).open_metrics, exposition(Some(1)).text] {
            assert!(text.lines().all(|line| !line.starts_with("quell_x")), "{text}");
            assert!(text.contains(r#"comm="evil\"} 1\\nquell_x 2\\u{1b}[2J\\u{202e}""#), "{text}");
            assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
        }
    }

    #[test]
    fn both_formats_have_the_same_samples() {
        let both = exposition(Some(3));
        let samples = |text: &str| -> BTreeSet<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        assert_eq!(samples(&both.open_metrics), samples(&both.text));
        assert!(both.text.contains("# TYPE quell_queue_packets_total counter\n"), "{}", both.text);
        assert!(!both.text.contains("EOF") && !both.text.contains("UNIT"), "{}", both.text);
    }
}
