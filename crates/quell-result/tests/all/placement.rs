//! The conclusion of a measurement with filters and pins beside slices without them.

use quell_experiment::SliceObservation;
use quell_mode::DeliveryMode;
use quell_result::Document as _;
use quell_result::conclusion::{Conclusion, WhyKeep};
use quell_result::experiment::{ExperimentResult, SubjectFacts};
use quell_result::facts::{CommandFacts, PlacementFacts, ProgramsFacts, SteeredFacts};
use quell_result::figures::{CPU, IRQS, Work};
use quell_result::tune::TuneFile;

use crate::conclusions::{experiment, mode, programs, used};

fn options() -> Vec<String> {
    vec!["--steer".to_owned(), "--pin".to_owned()]
}

fn slice(cpu: f64) -> SliceObservation {
    SliceObservation::default()
        .with_metric(&Work::Packet.name(CPU), Some(cpu))
        .with_metric(&Work::Packet.name(IRQS), Some(0.5))
}

/// The conclusion about `suspend20`, which lowers the CPU time per packet from 10 to 7 with filters and pins, beside
/// slices with these CPU times without them. `steered` are the groups that the measurement steered.
fn result(without: &[f64], steered: Vec<SteeredFacts>) -> ExperimentResult {
    let unplaced = without.iter().copied().map(slice).collect();
    let placement = Some(PlacementFacts { options: options(), unplaced, steered, ..PlacementFacts::default() });
    let subject = SubjectFacts::Programs(Box::new(ProgramsFacts { placement, ..programs() }));
    ExperimentResult { subject, ..experiment(&[("suspend20", 7.0, 0.5)], 0.01) }
}

fn concluded(without: &[f64]) -> Conclusion {
    result(without, Vec::new()).conclusion().unwrap()
}

fn steered() -> Vec<SteeredFacts> {
    let group = "tcp 10.0.0.1:80".to_owned();
    vec![SteeredFacts {
        group,
        sockets: 2,
        connections_before: 0,
        aligned_before: 0,
        new_connections: Some(8),
        unsorted: None,
    }]
}

fn kept(conclusion: &Conclusion) -> Option<(DeliveryMode, usize, usize)> {
    match conclusion {
        Conclusion::Keep { mode, because: WhyKeep::PlacementCosts { saves, costs, .. }, .. } => {
            Some((*mode, saves.len(), costs.len()))
        }
        _ => None,
    }
}

#[test]
fn a_mode_that_costs_more_with_its_filters_than_the_server_without_is_not_recommended() {
    assert_eq!(kept(&concluded(&[3.0, 3.1, 4.0, 2.9])), Some((mode("base"), 0, 1)));
    for same in [&[6.8, 7.2, 7.0, 7.1][..], &[10.0, 9.8, 10.2, 10.1], &[3.0, 3.1, 12.0, 2.9], &[3.0, 3.1]] {
        assert_eq!(used(&concluded(same)).as_deref(), Some("suspend20"), "{same:?} do not show that it is worse");
    }
}

#[test]
fn filters_of_an_attachment_are_not_those_without_which_the_server_is_better() {
    let options = |steered| match result(&[3.0, 3.1, 4.0, 2.9], steered).conclusion() {
        Some(Conclusion::Keep { because: WhyKeep::PlacementCosts { options, .. }, .. }) => options,
        other => panic!("{other:?}"),
    };
    assert_eq!((options(steered()).as_str(), options(Vec::new()).as_str()), ("--steer --pin", "--pin"));
    let is_unmeasured = |steered| result(&[], steered).subject.has_unmeasured_placement();
    assert!(is_unmeasured(steered()) && !is_unmeasured(Vec::new()), "nothing was steered, and no worker pinned");
}

#[test]
fn a_search_compares_its_answer_with_the_server_without_filters_too() {
    let mut file = TuneFile::from_json(include_str!("../../../quell/tests/fixtures/tune.json")).unwrap();
    let found = file.found().unwrap();
    let arm = file.search.arms.iter().position(|arm| arm.mode == found).unwrap();
    let slice = file.search.slices.iter().find(|slice| slice.arm == arm && slice.load == 0).unwrap().clone();
    file.search.slices.extend(vec![slice.clone(); 3]);
    let slice = slice.observation;
    let cheaper = |slice: &SliceObservation| {
        let metrics = slice.metrics.iter().map(|(name, value)| (name.clone(), value * 0.3)).collect();
        SliceObservation { metrics, ..slice.clone() }
    };
    let with = |unplaced: Vec<SliceObservation>| {
        SubjectFacts::Command(CommandFacts { placement: options(), unplaced, ..CommandFacts::default() })
    };
    file.subject = with(vec![slice.clone(); 4]);
    assert!(used(&file.conclusion()).is_some(), "the same without filters");
    file.subject = with(vec![cheaper(&slice); 4]);
    assert!(kept(&file.conclusion()).is_some(), "{:?}", file.conclusion());
    assert_eq!(file.found(), None, "no profile is written for it");
}
