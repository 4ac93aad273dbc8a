//! What must hold of whatever is read from texts that people or earlier runs write: journals, modes, profiles, results,
//! scenarios, hosts. Shared
//! by the fuzz targets and by the ordinary test that pushes the kept corpus through them.

use std::str::from_utf8;

use quell_change::journal::History;
use quell_conformance::parse;
use quell_mode::DeliveryMode;
use quell_mode::profile::{Profile, Source};
use quell_result::ResultDocument;
use quell_sim::HostProfile;

/// A journal is refused or read, and what is read says the same when it is read again.
pub fn journal(bytes: &[u8]) {
    let Ok(text) = from_utf8(bytes) else { return };
    let once = History::parse(text);
    assert_eq!(once, History::parse(text));
    if let Ok(history) = once {
        assert!(history.pending().count() <= history.entries.len());
    }
}

/// A list of modes is refused with a place in it, or read, and then displays as what parses back.
pub fn modes(bytes: &[u8]) {
    let Ok(text) = from_utf8(bytes) else { return };
    match DeliveryMode::parse_list(text) {
        Err(error) => assert!(error.caret().lines().count() == 2),
        Ok(modes) => {
            for mode in modes {
                assert_eq!(mode.to_string().parse(), Ok(mode));
            }
        }
    }
}

/// A profile is refused with a place in it, or read, and the same again when it covers itself.
pub fn profiles(bytes: &[u8]) {
    let Ok(text) = from_utf8(bytes) else { return };
    let layer = Source::new("fuzz.toml", text);
    match Profile::parse(std::slice::from_ref(&layer)) {
        Err(error) => assert!(error.caret().lines().count() <= 2),
        Ok(profile) => assert_eq!(Profile::parse(&[layer.clone(), layer]).as_ref(), Ok(&profile)),
    }
}

/// A scenario is refused with one of its lines, or refers only to what there is.
pub fn scenarios(bytes: &[u8]) {
    let Ok(text) = from_utf8(bytes) else { return };
    match parse::scenario("fuzz", text) {
        Err(error) => assert!((1..=text.lines().count().max(1) + 1).contains(&error.line), "{error}"),
        Ok(scenario) => {
            let known = |socket: &usize| *socket < scenario.descriptors.len();
            assert!(scenario.packets.iter().all(|packet| packet.to.iter().all(known)));
            assert!(scenario.applications.iter().all(|application| application.epoll < scenario.epolls.len()));
        }
    }
}

/// A host's profile is refused or read.
pub fn host_profiles(bytes: &[u8]) {
    let Ok(text) = from_utf8(bytes) else { return };
    let _ = HostProfile::from_toml(text);
}

/// A result is refused with a reason that is one line, or written as what reads as the same; its verdicts can be derived.
pub fn results(bytes: &[u8]) {
    let Ok(text) = from_utf8(bytes) else { return };
    let written = |document: &ResultDocument| serde_json::to_string(document).expect("a document is written as JSON");
    match ResultDocument::parse(text) {
        Err(error) => assert!(!error.to_string().contains(char::is_control), "{error}"),
        Ok(document) => {
            let once = written(&document);
            let again = ResultDocument::parse(&once).unwrap_or_else(|error| panic!("{error}: {once}"));
            assert_eq!(written(&again), once);
            if let ResultDocument::Experiment(result) = &again {
                result.experiments.iter().for_each(|experiment| drop(experiment.analyse()));
            }
        }
    }
}
