//! `quell sim run --server xsk`: ways to poll AF_XDP sockets, at each period and delay.

use quell_mode::parse_timeout_ns;
use quell_result::Document as _;
use quell_result::simulation::{XskRow, XskSimulationRun};
use quell_sim::sweep::in_parallel;
use quell_sim::{RunError, XskPolling, XskRoundTrips};

use super::run::RunArgs;
use crate::exit::Failure;
use crate::output;
use crate::render::progress::Progress;
use crate::render::terminal::Terminal;
use crate::render::xsk_rows;

/// Host of the published experiment with AF_XDP sockets.
const HOST: &str = "af-xdp-2025";

/// Parses a time with a unit. `0` needs none.
pub(super) fn time_ns(text: &str) -> Result<u64, String> {
    let has_unit = text == "0" || text.ends_with('s');
    let refused = || format!("invalid time {text:?}: expected a number with the unit ns, us, ms or s, such as 83.3us");
    parse_timeout_ns(text).ok().filter(|_| has_unit).ok_or_else(refused)
}

/// Runs the command.
///
/// # Errors
/// When an option is invalid, or a run fails.
pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    if args.period.is_empty() {
        return Err(Failure::usage("--server xsk needs --period, such as --period 83.3us"));
    }
    let host = args.host.profile_or(HOST)?;
    let (warm_up_ns, measured_ns) = (super::warm_up_ns(args.warm_up)?, super::measured_ns(args.seconds)?);
    let ways = match &args.mode {
        Some(ways) => ways.split(',').map(str::parse).collect::<Result<_, _>>().map_err(Failure::usage)?,
        None => XskPolling::ALL.to_vec(),
    };
    let mut points = Vec::new();
    for &period_ns in &args.period {
        for &delay_ns in &args.delay {
            points.extend(ways.iter().map(|&mode| (mode, period_ns, delay_ns)));
        }
    }
    let row = |index: usize| {
        let (mode, period_ns, delay_ns) = points[index];
        let period = period_ns as f64;
        let run =
            XskRoundTrips { host: host.clone(), polling: mode, period_ns: period, delay_ns, warm_up_ns, measured_ns };
        Ok(XskRow { mode, period_ns, delay_ns, figures: run.simulate()?.figures() })
    };
    let progress = Progress::new();
    let step = |done| progress.step(done, points.len(), "rows");
    let rows: Result<Vec<XskRow>, RunError> =
        in_parallel(points.len(), super::threads(), row, step).into_iter().collect();
    progress.finish();
    let rows = rows.map_err(|error| super::not_run(&error))?;
    let schema = XskSimulationRun::SCHEMA.to_owned();
    let run = XskSimulationRun { schema, host: host.name, warm_up_ns, measured_ns, rows };
    if args.json { output::json(&run) } else { output::data(&xsk_rows::render(&run, Terminal::of_stdout())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_needs_a_unit_unless_it_is_0() {
        assert_eq!(["83.3us", "1ms", "0"].map(|text| time_ns(text).unwrap()), [83_300, 1_000_000, 0]);
        for text in ["83", "us", "-1us", ""] {
            assert!(time_ns(text).unwrap_err().contains("83.3us"), "{text}");
        }
    }
}
