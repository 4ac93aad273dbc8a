//! Replays the fuzzing corpus without instrumentation, so that every fixed bug stays fixed. Unit tests of other crates
//! replay the corpora of their private parsers. These tests also check that no corpus is left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

// The fuzz targets are a workspace of their own, which needs libFuzzer: a dependency on it would bring that into every build.
// A crate of the workspace for these functions would exist for this test only.
#[allow(unreachable_pub, reason = "a library for the fuzz targets")]
#[path = "../../../../fuzz/src/lib.rs"]
mod texts;

/// Corpora that tests of `quell-linux`, `quell-load`, `quell-vm` and `quell-xdp` replay.
const REPLAYED_ELSEWHERE: &[&str] = &[
    "bit_mask",
    "btf",
    "cpu_list",
    "ethtool_ioctl",
    "guest_messages",
    "memcached_answers",
    "netlink",
    "one_line_files",
    "proc_files",
    "settings_files",
    "xdp_frames",
];

type Entry = fn(&[u8]);
const REPLAYED_HERE: &[(&str, Entry)] = &[
    ("host_profiles", texts::host_profiles),
    ("journal", texts::journal),
    ("modes", texts::modes),
    ("profiles", texts::profiles),
    ("results", texts::results),
    ("scenarios", texts::scenarios),
];

/// Maximum number of files per corpus. More or larger files would bloat the repository and slow the tests down.
const FILES_MAX: usize = 100;
const BYTES_MAX: u64 = 64 << 10;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn files(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn recorded_texts_are_parsed_or_refused_as_expected() {
    for (target, entry) in REPLAYED_HERE {
        for file in files(&fuzz().join("corpus").join(target)) {
            entry(&fs::read(file).unwrap());
        }
    }
}

#[test]
fn every_target_has_a_small_corpus_that_is_replayed() {
    let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let targets: BTreeSet<String> = files(&fuzz().join("fuzz_targets")).into_iter().map(stem).collect();
    let here = REPLAYED_HERE.iter().map(|(target, _)| *target);
    let replayed: BTreeSet<String> = here.chain(REPLAYED_ELSEWHERE.iter().copied()).map(str::to_owned).collect();
    assert_eq!(targets, replayed);
    for target in targets {
        let corpus = files(&fuzz().join("corpus").join(&target));
        assert!((1..=FILES_MAX).contains(&corpus.len()), "{target}: {} files", corpus.len());
        for file in corpus {
            assert!(file.metadata().unwrap().len() <= BYTES_MAX, "{} is large", file.display());
        }
    }
}
