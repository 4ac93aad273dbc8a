//! The command line: help, results and refusals, each with its exit code, as transcripts in `cmd/`. After an intended
//! change: `TRYCMD=overwrite cargo test -p quell-study --test all cli`, then read the diff.

#[test]
fn the_output_matches_the_transcripts() {
    trycmd::TestCases::new().env("COLUMNS", "100").case("tests/cmd/*.trycmd");
}
