//! A journal: any text is refused or read, and what is read says the same when it is read again.
#![no_main]

use quell_host::journal::History;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let once = History::parse(text);
    assert_eq!(once, History::parse(text));
    if let Ok(history) = once {
        assert!(history.pending().count() <= history.entries.len());
    }
});
