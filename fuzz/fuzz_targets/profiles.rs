//! Profiles: any text is refused with a place in it, or read, and the same again when it covers itself.
#![no_main]

use quell_mode::profile::{Profile, Source};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let layer = Source::new("fuzz.toml", text);
    match Profile::parse(std::slice::from_ref(&layer)) {
        Err(error) => assert!(error.caret().lines().count() <= 2),
        Ok(profile) => assert_eq!(Profile::parse(&[layer.clone(), layer]).as_ref(), Ok(&profile)),
    }
});
