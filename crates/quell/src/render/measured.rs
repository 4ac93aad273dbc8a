//! What a stored measurement says about a mode of programs: the same in every output.

use quell_host::attach::AttachedMode;
use quell_host::servers::{EarlierMeasurement, MeasuredStep, NextStep, OpenQuestion, OwnLoad};
use quell_linux::visible;
use quell_mode::DeliveryMode;
use quell_result::store::utc;

use super::number::short;
use super::payoff::RECONNECT_TO_ATTACHED;
use super::program_arguments::{ProgramArguments, START_WITHOUT};

/// `as measured at 200,000 packets/s on 2026-11-25 (bench-20261125-180405)`.
pub(crate) fn as_measured(measured: &EarlierMeasurement) -> String {
    let EarlierMeasurement { result, problem, reservation, .. } = measured;
    let although = problem.as_ref().map(|id| format!(", although with the serious finding {}", visible::name(id)));
    let reservation = reservation.as_ref().map(|reservation| format!(", {}", visible::name(reservation)));
    let reservations = although.unwrap_or_default() + &reservation.unwrap_or_default();
    format!("as measured{} ({}){reservations}", when(measured), visible::name(result))
}

/// ` at 200,000 packets/s on 2026-11-25`.
pub(crate) fn when(measured: &EarlierMeasurement) -> String {
    let own = match measured.own_load {
        Some(OwnLoad::Judge) => " with the judge",
        Some(OwnLoad::Generator) => " with its own load",
        None => "",
    };
    let rate = measured.packets_per_s.map(|rate| format!("{own} at {} packets/s", short(rate as f64)));
    let day = utc(measured.started_unix_s).and_then(|time| Some(format!(" on {}", time.split(' ').next()?)));
    rate.unwrap_or_default() + &day.unwrap_or_default()
}

/// What to do with the attached mode of programs, and the command. `figures` are those of its counters, in parentheses after a
/// space. Absent if the measurement does not decide it.
pub(super) fn advice(
    step: &MeasuredStep,
    mode: &DeliveryMode,
    programs: &ProgramArguments,
    figures: &str,
) -> Option<(String, Option<String>)> {
    let (text, command) = match &step.next {
        NextStep::Keep { measured, open: None } => {
            (format!("keep {mode}{figures}: no compared mode was better, {}", as_measured(measured)), None)
        }
        NextStep::Keep { measured, open: Some(OpenQuestion { advice, command }) }
        | NextStep::Decide { measured, advice, command } => (
            format!("{}{figures}: {}", as_measured(measured), visible::name(advice)),
            Some(visible::name(command).into_owned()),
        ),
        NextStep::Attach { mode: better, steered, measured } => {
            let reconnect = match *steered && !programs.are_steered() && !programs.are_launched() {
                true => format!("; {RECONNECT_TO_ATTACHED}"),
                false => String::new(),
            };
            let text = format!("use {better} instead of {mode}{figures}: it was better, {}", as_measured(measured));
            (text + &reconnect, programs.replace_by(&step.next, step.can_pin))
        }
        NextStep::Return { mode: kept, measured, beneath } => {
            let undone = undone(*beneath, programs.attached);
            let why = format!("{mode} was not better, {}{undone}", as_measured(measured));
            (format!("use {kept} instead of {mode}{figures}: {why}"), programs.replace_by(&step.next, step.can_pin))
        }
        _ => return None,
    };
    Some((text, command))
}

/// How a mode that `is_undone` ends, and what ends with it, after a semicolon. Empty if its command says it.
pub(super) fn undone(is_undone: bool, attached: Option<AttachedMode>) -> String {
    match attached.filter(|_| is_undone) {
        Some(AttachedMode { launched: true, .. }) => format!("; {START_WITHOUT}"),
        Some(AttachedMode { steers: true, .. }) => "; its filters, and pins if any, end with it".to_owned(),
        _ => String::new(),
    }
}

/// The line about a mode that is about to be set. `cost` is that of the measurement. Absent if it does not decide it.
pub(crate) fn before(step: &MeasuredStep, mode: &DeliveryMode, cost: Option<&str>) -> Option<String> {
    Some(match &step.next {
        NextStep::Keep { measured, open: None } => {
            format!("measured: no compared mode was better than {mode}, {}", as_measured(measured))
        }
        NextStep::Attach { mode: better, measured, .. } if step.was_compared => {
            let cost = cost.map(|cost| format!("{cost}; ")).unwrap_or_default();
            format!("warning: {cost}{better} was better than {mode}, {}", as_measured(measured))
        }
        NextStep::Attach { mode: better, measured, .. } => {
            format!("measured: {better} was better, {}; that measurement did not compare {mode}", as_measured(measured))
        }
        NextStep::Return { mode: kept, measured, .. } => {
            let cost = cost.map(|cost| format!("{cost}; ")).unwrap_or_default();
            format!("warning: {cost}{mode} was not better than {kept}, {}", as_measured(measured))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_linux::Pid;

    fn step(next: impl Fn(EarlierMeasurement) -> NextStep, was_compared: bool) -> MeasuredStep {
        let measured = EarlierMeasurement {
            result: "bench-1".to_owned(),
            started_unix_s: 1_764_000_000,
            packets_per_s: Some(20_000),
            own_load: None,
            problem: None,
            reservation: None,
        };
        MeasuredStep { next: next(measured), was_compared, can_pin: true }
    }

    fn mode(word: &str) -> DeliveryMode {
        word.parse().unwrap_or_else(|why| panic!("{why}"))
    }

    fn returned(measured: EarlierMeasurement) -> NextStep {
        NextStep::Return { mode: DeliveryMode::default(), beneath: true, measured }
    }

    fn better(measured: EarlierMeasurement) -> NextStep {
        NextStep::Attach { mode: mode("suspend200"), steered: true, measured }
    }

    fn kept(measured: EarlierMeasurement) -> NextStep {
        NextStep::Keep { measured, open: None }
    }

    #[test]
    fn a_mode_that_was_worse_has_a_warning_with_its_cost_before_it_is_set() {
        let said = |step: &MeasuredStep, cost| before(step, &mode("suspend20"), cost).unwrap_or_default();
        let worse = said(&step(returned, true), Some("suspend20 costs cpu ×6.04"));
        let end = "suspend20 was not better than base, as measured at 20,000 packets/s on 2025-11-24 (bench-1)";
        assert_eq!(worse, format!("warning: suspend20 costs cpu ×6.04; {end}"));
        assert_eq!(said(&step(returned, true), None), format!("warning: {end}"));
        assert!(
            said(&step(better, true), None).starts_with("warning: suspend200 was better than suspend20, as measured")
        );
        let other = said(&step(better, false), None);
        assert!(other.starts_with("measured: suspend200") && other.ends_with("did not compare suspend20"), "{other}");
        assert!(
            said(&step(kept, true), None)
                .starts_with("measured: no compared mode was better than suspend20, as measured")
        );
    }

    #[test]
    fn an_attached_mode_that_was_measured_is_not_measured_again() {
        let pid = Pid::new(812).unwrap_or_else(|| unreachable!());
        let attached = AttachedMode { mode: mode("suspend20"), ..AttachedMode::default() };
        let programs = ProgramArguments::of_pids(&[pid]).attached(Some(attached));
        let said = |step| advice(&step, &mode("suspend20"), &programs, " (1.2 polls per packet)").unwrap_or_default();
        let (text, command) = said(step(kept, true));
        assert!(
            text.starts_with("keep suspend20 (1.2 polls per packet): no compared mode was better, as measured at"),
            "{text}"
        );
        assert_eq!(command, None);
        assert_eq!(said(step(returned, true)).1.as_deref(), Some("quell detach 812"));
        let placed = AttachedMode { steers: true, pins: true, ..attached };
        let (text, command) = advice(&step(returned, true), &placed.mode, &programs.clone().attached(Some(placed)), "")
            .unwrap_or_else(|| panic!("none"));
        assert!(text.ends_with("its filters, and pins if any, end with it"), "{text}");
        assert_eq!(command.as_deref(), Some("quell detach 812"), "as before the attachment");
        let (text, command) = said(step(better, true));
        assert!(text.contains("use suspend200 instead of suspend20") && text.contains("restart the clients"), "{text}");
        assert_eq!(command.as_deref(), Some("quell attach suspend200 812 --steer --pin --follow --take-over --yes"));
        let launched = programs.clone().attached(Some(AttachedMode { launched: true, ..attached }));
        let said = |step| advice(&step, &mode("suspend20"), &launched, "").unwrap_or_default();
        let (text, command) = said(step(returned, true));
        assert!(text.ends_with("; start the command again without it") && command.is_none(), "{text}");
        let (text, command) = said(step(better, true));
        assert!(text.ends_with("(bench-1)"), "{text}");
        assert_eq!(command.as_deref(), Some("quell run suspend200 --steer --pin -- COMMAND"));
    }
}
