//! A published experiment played in a lab: its rows with the published ones beside them, and the published rows that the
//! lab cannot play, with the reason.

use quell_experiment::{Criterion, RatioEstimate, SliceFlag, SwitchbackAnalysis};
use quell_host::attach::effect::ModeVerdict;
use quell_linux::visible::{self, counted};
use quell_load::{OfferedLoad, ServeShape, Transport};
use quell_published::{
    CellTransport, EventLoopForm, EventLoopRow, Experiment, LowLatencyRow, PublishedCell, PublishedError,
    event_loop_rows, irq_suspension_cells, low_latency_rows,
};
use quell_result::experiment::LoadExperiment;
use quell_result::figures;
use quell_result::published::{PublishedPart, PublishedRun, part_name, server_name};

use quell_cli::number::{ABSENT, short};

use super::published_xdp::left_out;

/// Share of the server's CPU above which other programs disturb a part. Interrupts and the hypervisor are in this share: on
/// an idle virtual machine it is about 0.12.
const DISTURBED: f64 = 0.2;
const QUANTILES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

/// A part of what a published experiment says here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishedText {
    /// A statement.
    Statement(String),
    /// A table with its heading. The first two columns are names.
    Table { heading: Vec<&'static str>, rows: Vec<Vec<String>> },
    /// What follows is another matter.
    Break,
}

use PublishedText::{Break, Statement, Table};

/// The rows of a run with the published ones beside them, in words and tables.
pub fn published(run: &PublishedRun) -> Result<Vec<PublishedText>, PublishedError> {
    let experiment = run.experiment;
    let measured = run.parts.iter().find_map(|part| part.result.as_ref());
    let why = measured.and_then(|result| result.not_a_measurement.as_ref());
    let why = why.map(|why| Statement(format!("NOT A MEASUREMENT: {}", visible::name(why))));
    let mut out: Vec<PublishedText> = why.into_iter().collect();
    out.push(Statement(format!("({experiment}) {}", experiment.title())));
    out.push(Statement(format!("published: {}", experiment.source())));
    if let Some(host) = measured.map(|result| &result.host) {
        let cpu = host.cpu_model.as_deref().unwrap_or("unknown processor");
        let kernel = visible::name(&host.kernel_release);
        out.push(Statement(format!("here: a veth lab on Linux {kernel}, {}", visible::name(cpu))));
        out.push(Break);
    }
    out.extend(match experiment {
        Experiment::A => suspension(&run.parts, &irq_suspension_cells()?),
        Experiment::B => low_latency(&run.parts, &low_latency_rows()?),
        // Its runs are documents of their own.
        Experiment::C => Vec::new(),
        Experiment::D => event_loops(&run.parts, &event_loop_rows()?),
    });
    for part in &run.parts {
        if let Some(share) = disturbed(part) {
            out.push(Statement(format!(
                "{}: other programs, interrupts and the hypervisor used {:.0} % of the server's CPU, so these rows show them too",
                full_name(part),
                share * 100.0
            )));
        }
        for measured in modes(part) {
            let (failed, slices) = measured.failed_slices();
            if failed > 0 {
                let mode = visible::name(measured.mode);
                out.push(Statement(format!(
                    "{}, {mode}: requests failed in {failed} of {}",
                    full_name(part),
                    counted(slices, "slice")
                )));
            }
        }
        if let Some(experiment) = part.result.as_ref().and_then(|result| result.experiments.first()) {
            out.extend(effects(&full_name(part), experiment));
            let left_out = left_out(experiment).map(|text| Statement(format!("{}, {text}", full_name(part))));
            out.extend(left_out);
        }
        if let Some(why) = &part.not_possible {
            out.push(Statement(format!("{}: not possible here: {}", full_name(part), visible::name(why))));
        }
    }
    if let Some(why) = &run.no_hardware_counters {
        out.push(Statement(format!("no cycles and no instructions: {}", visible::name(why))));
    }
    if let Some(why) = &run.ended {
        out.push(Statement(format!("ENDED EARLY: {}", visible::name(why))));
    }
    Ok(out)
}

/// Modes that were in effect in a part, and those for which that is not so or not known, with the reason.
fn effects(part: &str, LoadExperiment { effects, .. }: &LoadExperiment) -> Vec<PublishedText> {
    let is = |verdict: &ModeVerdict| matches!(verdict, ModeVerdict::InEffect(_));
    let names = effects.iter().filter(|(_, verdict)| is(verdict)).map(|(mode, _)| visible::name(mode).into_owned());
    let names = names.collect::<Vec<_>>().join(", ");
    let in_effect = (!names.is_empty()).then(|| Statement(format!("{part}: in effect: {names}")));
    let other = |(mode, verdict): (&String, &ModeVerdict)| {
        let (verdict, why) = match verdict {
            ModeVerdict::InEffect(_) => return None,
            ModeVerdict::NotInEffect(why) => ("not in effect, so its row shows another mode", why),
            ModeVerdict::CannotTell(why) => ("cannot tell whether it was in effect", why),
        };
        Some(Statement(format!("{part}, {}: {verdict}: {}", visible::name(mode), visible::name(why))))
    };
    in_effect.into_iter().chain(effects.iter().filter_map(other)).collect()
}

/// Median share of the server's CPU that was used by others, if it is too high for a comparison.
fn disturbed(part: &PublishedPart) -> Option<f64> {
    let slices = &part.result.as_ref()?.experiments.first()?.record.slices;
    let mut shares: Vec<f64> = slices.iter().filter_map(|slice| slice.observation.foreign_cpu).collect();
    shares.sort_by(f64::total_cmp);
    shares.get(shares.len() / 2).copied().filter(|share| *share > DISTURBED)
}

fn name(part: &PublishedPart) -> String {
    server_name(part.transport, part.shape)
}

fn full_name(part: &PublishedPart) -> String {
    part_name(part.transport, part.shape, part.message_bytes, part.load)
}

struct Measured<'a> {
    part: &'a PublishedPart,
    experiment: &'a LoadExperiment,
    mode: &'a str,
    /// Throughput relative to the reference. Absent for the reference.
    ratio: Option<RatioEstimate>,
    is_reference: bool,
}

impl Measured<'_> {
    fn metric(&self, name: &str) -> Option<f64> {
        self.experiment.median(self.mode, name)
    }

    fn ratio(&self) -> String {
        match (&self.ratio, self.is_reference) {
            (Some(RatioEstimate { ratio, low, high, .. }), _) => {
                let high = high.map_or(ABSENT.to_owned(), |high| format!("{high:.2}"));
                format!("{ratio:.2} ({low:.2}–{high})")
            }
            (None, true) => "1".to_owned(),
            (None, false) => ABSENT.to_owned(),
        }
    }

    /// CPU time per round trip of the server and of its NAPI thread, in µs.
    fn demand_us(&self) -> Option<f64> {
        self.metric(&figures::Work::Request.name(figures::CPU))
    }

    fn failed_slices(&self) -> (usize, usize) {
        let arms = self.experiment.arms_of(self.mode);
        let slices = || arms.iter().flat_map(|arm| self.experiment.record.of_arm(*arm));
        (slices().filter(|slice| slice.flags.contains(&SliceFlag::RequestsFailed)).count(), slices().count())
    }

    /// Number of CPUs that the server and its NAPI thread used.
    fn cpus(&self) -> Option<f64> {
        Some(self.demand_us()? * self.metric(figures::REQUESTS)? / 1e6)
    }

    /// Thousands of cycles or instructions per request.
    fn thousands_per_request(&self, counter: &str) -> Option<f64> {
        Some(self.metric(&figures::Work::Request.name(counter))? / 1e3)
    }

    /// Latency quantile over all slices, in µs.
    fn latency_us(&self, quantile: f64) -> Option<f64> {
        Some(self.experiment.latencies(self.mode).quantile(quantile)?.as_secs_f64() * 1e6)
    }

    fn mean_us(&self) -> Option<f64> {
        Some(self.experiment.latencies(self.mode).mean()?.as_secs_f64() * 1e6)
    }
}

/// Modes of a part, the reference first. Modes that could not be set are left out.
fn modes(part: &PublishedPart) -> Vec<Measured<'_>> {
    let Some(experiment) = part.result.as_ref().and_then(|result| result.experiments.first()) else {
        return Vec::new();
    };
    let analysis = experiment.analyse();
    let reference = experiment.record.design.reference.name.as_str();
    let measured = |mode| Measured {
        part,
        experiment,
        mode,
        ratio: throughput_ratio(&analysis, mode),
        is_reference: mode == reference,
    };
    let has_slices =
        |mode: &&str| experiment.arms_of(mode).into_iter().any(|arm| experiment.record.of_arm(arm).next().is_some());
    experiment.treatment_names().filter(has_slices).map(measured).collect()
}

fn throughput_ratio(analysis: &SwitchbackAnalysis, mode: &str) -> Option<RatioEstimate> {
    let is_throughput =
        |criterion: &Criterion| matches!(criterion, Criterion::Metric { name, .. } if name == figures::REQUESTS);
    let mut of_mode = analysis.contrasts.iter().filter(|one| one.treatment == mode && is_throughput(&one.criterion));
    of_mode.next()?.estimate
}

pub(super) fn figure(value: Option<f64>) -> String {
    value.map_or(ABSENT.to_owned(), short)
}

/// Configuration of the published rows to which a veth is closest: no coalescing.
const RX_USECS: &str = "0";

fn why_not_here(row: &LowLatencyRow) -> Option<&'static str> {
    if row.rx_usecs != RX_USECS {
        return Some("a veth has no interrupts that a NIC could coalesce (rx-usecs)");
    }
    if row.config != "optimized" {
        return Some("this machine has one kernel configuration");
    }
    None
}

fn published_row<'a>(rows: &'a [LowLatencyRow], mode: &str) -> Option<&'a LowLatencyRow> {
    let kernel = match mode {
        "base" => "3.9",
        "sockpoll50" => "patched",
        _ => return None,
    };
    rows.iter().find(|row| row.kernel == kernel && why_not_here(row).is_none())
}

fn low_latency(parts: &[PublishedPart], rows: &[LowLatencyRow]) -> Vec<PublishedText> {
    let heading =
        ["", "mode", "trips/s", "to base (95 %)", "CPUs", "µs/trip", "published", "to base", "CPUs", "µs/trip"];
    let base = published_row(rows, "base");
    let mut order = Vec::new();
    let row = |measured: Measured<'_>| {
        let transport = match measured.part.transport {
            Transport::Tcp => CellTransport::Tcp,
            Transport::Udp => CellTransport::Udp,
        };
        // The publication has one server, which receives without epoll.
        let row = published_row(rows, measured.mode).filter(|_| measured.part.shape == ServeShape::Blocking);
        let to_base =
            row.zip(base).map(|(row, base)| row.round_trips_per_s(transport) / base.round_trips_per_s(transport));
        if let (Some(published), Some(here), None) = (to_base, &measured.ratio, disturbed(measured.part)) {
            order.push(Statement(agreement(&name(measured.part), measured.mode, published, here)));
        }
        vec![
            name(measured.part),
            visible::name(measured.mode).into_owned(),
            figure(measured.metric(figures::REQUESTS)),
            measured.ratio(),
            figure(measured.cpus()),
            figure(measured.demand_us()),
            figure(row.map(|row| row.round_trips_per_s(transport))),
            to_base.map_or(ABSENT.to_owned(), |ratio| format!("{ratio:.2}")),
            figure(row.map(|row| row.busy_cpus(transport))),
            figure(row.map(|row| row.service_demand_us(transport))),
        ]
    };
    let rows_here = parts.iter().flat_map(modes).map(row).collect();
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for row in rows {
        let Some(why) = why_not_here(row) else { continue };
        match reasons.iter_mut().find(|(other, _)| *other == why) {
            Some((_, rows)) => rows.push(row.to_string()),
            None => reasons.push((why, vec![row.to_string()])),
        }
    }
    let not_here = reasons.iter().map(|(why, rows)| Statement(format!("  {why}: {}", rows.join("; "))));
    let mut out = vec![
        Table { heading: heading.to_vec(), rows: rows_here },
        Break,
        Statement(LOW_LATENCY_LEGEND.to_owned()),
        Break,
    ];
    out.extend(order);
    out.push(Statement("published rows that this lab cannot play:".to_owned()));
    out.extend(not_here);
    out
}

const LOW_LATENCY_LEGEND: &str = concat!(
    "trips/s: round trips of one connection, 1 byte each way. CPUs and µs/trip: CPU time of the server and of its NAPI ",
    "thread, per second and per round trip. base: published for kernel 3.9 without C-states; sockpoll50: published for ",
    "the patched kernel; both with rx-usecs 0. Here, only the server's way of waiting changes; published, also the ",
    "client's. Busy polling of epolls is younger than the publication.",
);

fn agreement(part: &str, mode: &str, published: f64, here: &RatioEstimate) -> String {
    let verdict = side(published, here);
    format!("{part}, {mode}: {verdict} ({:.2} times the reference here, {published:.2} published)", here.ratio)
}

/// Whether a ratio that was measured here is on the same side of 1 as the published one.
pub(super) fn side(published: f64, here: &RatioEstimate) -> &'static str {
    let is_above = here.low > 1.0;
    let is_below = here.high.is_some_and(|high| high < 1.0);
    match (is_above, is_below) {
        (false, false) => "here, the difference is not significant",
        (above, _) if above == (published > 1.0) => "same order as published",
        _ => "the order is the reverse of the published one",
    }
}

/// A figure of the IRQ suspension experiment: a column of this machine and a published one.
struct Figure {
    heading: &'static str,
    here: fn(&Measured<'_>) -> Option<f64>,
    published: fn(&PublishedCell) -> Option<f64>,
    /// Loads at which the order of the modes by this figure is compared, and its name there.
    order: Option<(LoadKind, &'static str)>,
}

#[derive(PartialEq)]
enum LoadKind {
    Closed,
    Open,
}

const SUSPENSION_FIGURES: [Figure; 7] = [
    Figure {
        heading: "req/s",
        here: |here| here.metric(figures::REQUESTS),
        published: |cell| Some(cell.figures.qps),
        order: Some((LoadKind::Closed, "requests/s")),
    },
    Figure {
        heading: "mean µs",
        here: |here| here.mean_us(),
        published: |cell| Some(cell.figures.mean_us),
        order: Some((LoadKind::Open, "mean latency")),
    },
    Figure {
        heading: "p95",
        here: |here| here.latency_us(0.95),
        published: |cell| Some(cell.figures.p95_us),
        order: None,
    },
    Figure {
        heading: "p99",
        here: |here| here.latency_us(0.99),
        published: |cell| Some(cell.figures.p99_us),
        order: Some((LoadKind::Open, "p99")),
    },
    Figure {
        heading: "CPU %",
        here: |here| Some(here.cpus()? / f64::from(here.part.threads) * 100.0),
        published: |cell| Some(cell.figures.cpu_pct),
        order: Some((LoadKind::Open, "CPU")),
    },
    Figure {
        heading: "kcycles",
        here: |here| here.thousands_per_request(figures::CYCLES),
        published: |cell| Some(cell.figures.cycles_per_query / 1e3),
        order: None,
    },
    Figure {
        heading: "kinstr",
        here: |here| here.thousands_per_request(figures::INSTRUCTIONS),
        published: |cell| Some(cell.instructions_per_query? / 1e3),
        order: None,
    },
];

/// IRQ suspension: a table of each load, with the published figures beside those of this machine.
fn suspension(parts: &[PublishedPart], cells: &[PublishedCell]) -> Vec<PublishedText> {
    let headings = || SUSPENSION_FIGURES.iter().map(|column| column.heading);
    let heading: Vec<&str> =
        std::iter::once("").chain(headings()).chain(["published"]).chain(headings().skip(1)).collect();
    let mut out = Vec::new();
    for part in parts {
        let Some(load) = part.load else { continue };
        let of_load = |mode: &str| {
            let is_row = |cell: &&PublishedCell| OfferedLoad::from(cell.load) == load && cell.mode.to_string() == mode;
            cells.iter().find(is_row)
        };
        let measured = modes(part);
        let row = |measured: &Measured<'_>| {
            let cell = of_load(measured.mode);
            let here = SUSPENSION_FIGURES.iter().map(|column| (column.here)(measured));
            let published = SUSPENSION_FIGURES.iter().map(|column| cell.and_then(column.published));
            let name = visible::name(measured.mode).into_owned();
            std::iter::once(name).chain(here.chain(published).map(figure)).collect()
        };
        out.push(Statement(full_name(part)));
        out.push(Table { heading: heading.clone(), rows: measured.iter().map(row).collect() });
        let kind = if load == OfferedLoad::Max { LoadKind::Closed } else { LoadKind::Open };
        let agreement = |column: &Figure| {
            let (_, name) = column.order.as_ref().filter(|(of, _)| *of == kind)?;
            let pair = |one: &Measured<'_>| Some(((column.here)(one)?, (column.published)(of_load(one.mode)?)?));
            let pairs: Vec<_> = measured.iter().filter_map(pair).collect();
            Some(format!("{name} {:.2}", rank_correlation(&pairs)?))
        };
        let agreements: Vec<String> = SUSPENSION_FIGURES.iter().filter_map(agreement).collect();
        if disturbed(part).is_none() && !agreements.is_empty() {
            let text =
                format!("order of the modes, rank correlation with the published order: {}", agreements.join(", "));
            out.push(Statement(text));
        }
        out.push(Break);
    }
    out.push(Statement(SUSPENSION_LEGEND.to_owned()));
    out
}

const SUSPENSION_LEGEND: &str = concat!(
    "memcached with the published load is offered the same share of the maximum of base, here and there. CPU %: of the ",
    "server's CPUs, used by memcached and its NAPI threads; published, not idle. kcycles, kinstr: thousands of cycles and ",
    "instructions per request. Latencies are over all requests of a mode; published, medians over runs.",
);

/// Spearman's rank correlation of pairs: 1 if both values have the same order, -1 if one is the reverse of the other.
/// `None` for fewer than three pairs, or if all values of a side are equal.
fn rank_correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    if pairs.len() < 3 {
        return None;
    }
    let ranks = |values: Vec<f64>| -> Vec<f64> {
        let rank = |value: f64| {
            let below = values.iter().filter(|other| **other < value).count();
            let equal = values.iter().filter(|other| **other == value).count();
            below as f64 + (equal as f64 + 1.0) / 2.0
        };
        values.iter().map(|value| rank(*value)).collect()
    };
    let (here, published) =
        (ranks(pairs.iter().map(|(here, _)| *here).collect()), ranks(pairs.iter().map(|(_, there)| *there).collect()));
    let mean = (pairs.len() as f64 + 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>();
    let scale = (product(&here, &here) * product(&published, &published)).sqrt();
    (scale > 0.0).then(|| product(&here, &published) / scale)
}

fn event_loops(parts: &[PublishedPart], rows: &[EventLoopRow]) -> Vec<PublishedText> {
    let heading = ["bytes", "waits", "trips/s", "to base (95 %)", "p50 µs", "p90", "p99", "p99.9"];
    let mut table = Vec::new();
    for part in parts {
        let bytes = part.message_bytes.map_or(ABSENT.to_owned(), |bytes| bytes.to_string());
        for measured in modes(part) {
            let fixed = [bytes.clone(), visible::name(measured.mode).into_owned()];
            let figures = [figure(measured.metric(figures::REQUESTS)), measured.ratio()];
            let latencies = QUANTILES.map(|quantile| figure(measured.latency_us(quantile)));
            table.push(fixed.into_iter().chain(figures).chain(latencies).collect());
        }
        for row in rows.iter().filter(|row| Some(row.message_bytes) == part.message_bytes) {
            let form = match row.form {
                EventLoopForm::User => "published, user",
                EventLoopForm::Kernel => "published, kernel",
            };
            let fixed = [bytes.clone(), form.to_owned(), short(row.throughput_rps), ABSENT.to_owned()];
            let latencies = [row.p50_us, row.p90_us, row.p99_us, row.p999_us].map(short);
            table.push(fixed.into_iter().chain(latencies).collect());
        }
    }
    let threads = parts.first().map_or(0, |part| part.threads);
    let legend = format!(
        "Waits: base sleeps in epoll_wait; eventspin loops in the program (the published user form); the kernel form \
         needs a patched kernel, so only the model plays it (quell-study published d). 30 flows; {} here, 5 published.",
        counted(threads, "server thread")
    );
    vec![Table { heading: heading.to_vec(), rows: table }, Break, Statement(legend)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use quell_experiment::{ExperimentDesign, ExperimentRecord, Treatment};
    use quell_mode::DeliveryMode;
    use quell_result::experiment::EndOfExperiment;

    use super::*;

    #[test]
    fn two_published_rows_have_a_counterpart_and_the_others_a_reason() {
        let rows = low_latency_rows().unwrap();
        let here: Vec<String> =
            rows.iter().filter(|row| why_not_here(row).is_none()).map(ToString::to_string).collect();
        assert_eq!(here, ["patched optimized, C-states on, rx-usecs 0", "3.9 optimized, C-states off, rx-usecs 0"],);
        assert_eq!(published_row(&rows, "base").map(|row| row.tcp_tps), Some(57_000.0));
        assert_eq!(published_row(&rows, "sockpoll50").map(|row| row.tcp_tps), Some(71_000.0));
        assert!(published_row(&rows, "napibusy").is_none());
    }

    #[test]
    fn a_part_says_which_modes_were_in_effect_and_why_others_were_not() {
        let mut experiment = without_slices();
        assert_eq!(effects("TCP recv, 1 B", &experiment), []);
        let verdicts = [
            ("base", ModeVerdict::InEffect("9 polls by the kernel, none by a program".to_owned())),
            ("napibusy", ModeVerdict::CannotTell("only 9 packets in 50 ms".to_owned())),
            ("sockpoll50", ModeVerdict::NotInEffect("none of 900 polls was by the program".to_owned())),
        ];
        experiment.effects = verdicts.map(|(mode, verdict)| (mode.to_owned(), verdict)).into();
        let said = [
            "TCP recv, 1 B: in effect: base",
            "TCP recv, 1 B, napibusy: cannot tell whether it was in effect: only 9 packets in 50 ms",
            "TCP recv, 1 B, sockpoll50: not in effect, so its row shows another mode: none of 900 polls was by the program",
        ];
        assert_eq!(effects("TCP recv, 1 B", &experiment), said.map(|text| Statement(text.to_owned())));
    }

    fn without_slices() -> LoadExperiment {
        let base = Treatment { name: "base".to_owned(), setting: DeliveryMode::default() };
        let design = ExperimentDesign::new(base, Vec::new(), Vec::new(), 1);
        LoadExperiment::new(
            ExperimentRecord { design, slices: Vec::new(), dropped: BTreeMap::new() },
            EndOfExperiment::Interrupted,
        )
    }

    #[test]
    fn the_rank_correlation_depends_on_the_order_only() {
        let correlation = |pairs: &[(f64, f64)]| rank_correlation(pairs);
        assert_eq!(correlation(&[(1.0, 10.0), (2.0, 11.0), (9.0, 500.0)]), Some(1.0));
        assert_eq!(correlation(&[(1.0, 3.0), (2.0, 2.0), (3.0, -9.0)]), Some(-1.0));
        // Spearman's formula for ranks without ties: 1 - 6 * 2 / (4 * 15).
        let swapped = correlation(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0)]).unwrap();
        assert!((swapped - 0.8).abs() < 1e-12, "{swapped}");
        assert_eq!(correlation(&[(1.0, 1.0), (2.0, 2.0)]), None);
        assert_eq!(correlation(&[(1.0, 7.0), (2.0, 7.0), (3.0, 7.0)]), None);
    }

    #[test]
    fn an_order_is_the_published_one_only_if_the_interval_shows_it() {
        let here = |low, high| RatioEstimate { ratio: 1.1, low, high, blocks: 9 };
        let verdict = |here: &RatioEstimate| agreement("TCP", "sockpoll50", 1.25, here);
        assert!(verdict(&here(1.05, None)).contains("same order"));
        assert!(verdict(&here(0.9, Some(1.2))).contains("not significant"));
        assert!(verdict(&here(0.7, Some(0.9))).contains("the reverse"));
    }
}
