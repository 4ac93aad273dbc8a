//! Runs the entry points on the stored corpus, damaged recordings and arbitrary bytes.

#![cfg(test)]

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;

fn files(directory: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let paths = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let contents: Vec<_> = paths.filter(|path| path.is_file()).map(|path| fs::read(path).unwrap()).collect();
    assert!(!contents.is_empty(), "no files in {}", directory.display());
    contents
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    files(&format!("../../fuzz/corpus/{target}"))
}

#[test]
fn the_stored_netlink_datagrams_do_not_panic() {
    corpus("netlink").iter().for_each(|bytes| super::netlink(bytes));
}

#[test]
fn the_stored_replies_of_the_ethtool_ioctl_do_not_panic() {
    corpus("ethtool_ioctl").iter().for_each(|bytes| super::ethtool_ioctl(bytes));
}

#[test]
fn the_stored_masks_are_refused_or_round_trip() {
    corpus("bit_mask").iter().for_each(|bytes| super::bit_mask(bytes));
}

#[test]
fn the_stored_one_line_files_do_not_panic() {
    corpus("one_line_files").iter().for_each(|bytes| super::one_line_files(bytes));
}

#[test]
fn the_stored_files_with_settings_do_not_panic() {
    corpus("settings_files").iter().for_each(|bytes| super::settings_files(bytes));
}

#[test]
fn the_stored_proc_files_do_not_panic() {
    corpus("proc_files").iter().for_each(|bytes| super::proc_files(bytes));
}

#[test]
fn the_stored_lists_of_cpus_round_trip() {
    corpus("cpu_list").iter().for_each(|bytes| super::cpu_list(bytes));
}

#[test]
fn the_stored_types_do_not_panic() {
    corpus("btf").iter().for_each(|bytes| super::btf(bytes));
}

fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let bytes = prop::collection::vec((any::<Index>(), any::<u8>()), 0..8);
    (prop::sample::select(files("tests/recordings")), bytes, any::<Index>(), 0..40usize).prop_map(
        |(mut content, others, start, length)| {
            for (place, byte) in others {
                let place = place.index(content.len());
                content[place] = byte;
            }
            let start = start.index(content.len());
            let end = content.len().min(start + length);
            content.drain(start..end);
            content
        },
    )
}

/// Generates BTF with a valid header and arbitrary types, mostly of known kinds.
fn btf_of_anything() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![0..9u32, (1..20u32, 0..4u32).prop_map(|(kind, n)| kind << 24 | n), any::<u32>()];
    (prop::collection::vec(word, 0..60), 0..300u32).prop_map(|(words, length)| {
        let strings = b"\0napi_struct\0napi_id\0a\0b\0";
        let types = words.len() as u32 * 4;
        let mut bytes = Vec::from(0xEB9F_u16.to_ne_bytes());
        bytes.extend([1, 0]);
        let length = if length < 250 { types } else { length };
        for word in [24, 0, length, types, strings.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend(strings);
        bytes
    })
}

proptest! {
    #[test]
    fn a_damaged_recording_never_panics(bytes in damaged()) {
        super::proc_files(&bytes);
        super::cpu_list(&bytes);
        super::btf(&bytes);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        super::proc_files(&bytes);
        super::cpu_list(&bytes);
        super::btf(&bytes);
    }

    #[test]
    fn arbitrary_types_never_panic(bytes in btf_of_anything()) {
        super::btf(&bytes);
    }
}
