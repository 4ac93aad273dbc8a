//! Lists of delivery modes: any text is refused with a place in it, or read, and then displays as what parses back.
#![no_main]

use quell_mode::DeliveryMode;

libfuzzer_sys::fuzz_target!(|text: &str| match DeliveryMode::parse_list(text) {
    Err(error) => assert!(error.caret().lines().count() == 2),
    Ok(modes) => {
        for mode in modes {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
    }
});
