//! A recording as lines: when, where, what, for how long.

use quell_sim::{Moment, Place, Trace};

/// The first `us` microseconds after `from_ns`.
#[must_use]
pub(crate) fn render(trace: &Trace, from_ns: u64, us: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float too large saturates")]
    let until_ns = from_ns.saturating_add((us * 1e3) as u64);
    let moments = trace.moments(from_ns, until_ns);
    let mut text = format!("{:>10}  {:<6} {:<32} {:>8}\n", "µs", "where", "what", "for µs");
    if moments.is_empty() {
        return format!("nothing happened in these {us} µs\n");
    }
    for moment in moments {
        text.push_str(&line(&moment, from_ns));
    }
    text
}

fn line(moment: &Moment, from_ns: u64) -> String {
    let us = |ns: u64| ns as f64 / 1e3;
    let place = match moment.place {
        Place::Cpu(cpu) => format!("cpu{cpu}"),
        Place::Queue(queue) => format!("rx{queue}"),
    };
    let lasts = moment.lasts_ns.map_or_else(String::new, |ns| format!("{:.2}", us(ns)));
    let line = format!("{:>10.2}  {place:<6} {:<32} {lasts:>8}", us(moment.at_ns - from_ns), moment.what);
    format!("{}\n", line.trim_end())
}
