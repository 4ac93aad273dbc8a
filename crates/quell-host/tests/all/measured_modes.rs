//! What stored measurements say about a mode that programs have, or are about to get.

use std::collections::{BTreeMap, BTreeSet};

use quell_host::attach::AttachedMode;
use quell_host::servers::{EarlierAnswer, EarlierAnswers, JudgedMode, NextStep, measured_step};

use crate::servers::{answer, pid, plain};
use crate::snapshots::snapshot;

#[test]
fn a_mode_that_is_set_or_planned_has_the_answer_that_the_overview_has() {
    let mode = |word: &str| word.parse().unwrap();
    let measured = |answer: EarlierAnswer| {
        let now = snapshot(&plain());
        (BTreeMap::from([((pid(4242), now.processes[0].name.clone()), vec![answer])]), now)
    };
    let step = |(measured, now): &(EarlierAnswers, _), word: &str, packets_per_s| {
        let attached = AttachedMode { mode: mode(word), ..AttachedMode::default() };
        let judged = JudgedMode { packets_per_s, ..JudgedMode::planned(attached) };
        measured_step(now, &BTreeSet::from([pid(4242)]), measured, &judged)
    };
    let (kept, better) = (measured(answer(None)), measured(answer(Some("suspend200"))));
    let worse = step(&kept, "suspend200", Some(90_000)).unwrap();
    assert!(matches!(worse.next, NextStep::Return { mode: base, .. } if base == mode("base")), "{worse:?}");
    assert!(worse.was_compared);
    assert_eq!(step(&kept, "suspend200", Some(9_000)), None, "another load");
    assert_eq!(step(&kept, "suspend50", Some(90_000)), None, "it was not compared");
    let best = step(&better, "suspend200", Some(90_000)).unwrap();
    assert!(matches!(best.next, NextStep::Keep { open: None, .. }), "{best:?}");
    let other = step(&better, "defer20", None).unwrap();
    assert!(matches!(other.next, NextStep::Attach { .. }) && !other.was_compared, "{other:?}");
    let others = EarlierAnswer { settings: vec![mode("threaded")], ..answer(Some("suspend50")) };
    assert_eq!(step(&measured(others), "suspend200", Some(90_000)), None, "other settings");
}
