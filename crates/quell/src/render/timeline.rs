//! A trace as lines: time, queue events, CPU activities, duration.

use quell_sim::{TimelineEntry, TimelineSource, Trace};

/// Renders the first `us` microseconds after `from_ns`.
#[must_use]
pub(crate) fn render(trace: &Trace, from_ns: u64, us: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float too large saturates")]
    let until_ns = from_ns.saturating_add((us * 1e3) as u64);
    let entries = trace.timeline(from_ns, until_ns);
    if entries.is_empty() {
        return format!("nothing happened in the first {us} µs\n");
    }
    let heading = format!("{:>10}  {:<24}  {:<32} {:>8}\n", "µs", "queue", "CPU", "for µs");
    entries.iter().fold(heading, |text, entry| text + &line(entry, from_ns) + "\n")
}

fn line(entry: &TimelineEntry, from_ns: u64) -> String {
    let us = |ns: u64| ns as f64 / 1e3;
    let at_us = us(entry.at_ns.saturating_sub(from_ns));
    let (queue, cpu) = match entry.place {
        TimelineSource::Queue(queue) => (format!("rx{queue} {}", entry.what), String::new()),
        TimelineSource::Cpu(cpu) => (String::new(), format!("cpu{cpu} {}", entry.what)),
    };
    let lasts = entry.lasts_ns.map_or_else(String::new, |ns| format!("{:.2}", us(ns)));
    format!("{at_us:>10.2}  {queue:<24}  {cpu:<32} {lasts:>8}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_and_cpus_have_separate_columns() {
        let packet = TimelineEntry { at_ns: 1_500, place: TimelineSource::Queue(0), what: "packet", lasts_ns: None };
        let poll =
            TimelineEntry { at_ns: 2_000, place: TimelineSource::Cpu(3), what: "busy poll", lasts_ns: Some(640) };
        assert_eq!(line(&packet, 1_000), "      0.50  rx0 packet");
        assert_eq!(
            line(&poll, 1_000),
            "      1.00                            cpu3 busy poll                       0.64"
        );
    }
}
