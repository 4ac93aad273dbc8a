//! The servers with source code in `fixtures/`. They are built once on first use, into `target/servers`. If a build
//! fails, the reason is reported.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The Go HTTP server; an error if Go is missing or the build fails.
pub(crate) fn go_http() -> Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(build_go_http).clone()
}

/// The tokio echo server; an error if tokio is not available or the build fails.
pub(crate) fn tokio_echo() -> Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(build_tokio_echo).clone()
}

fn build_go_http() -> Result<PathBuf, String> {
    let program = built("go-http");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&program).arg(".").current_dir(source("go-http"));
    run(&mut go)?;
    Ok(program)
}

fn build_tokio_echo() -> Result<PathBuf, String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--release", "--locked", "--target-dir"]).arg(built(""));
    run(cargo.current_dir(source("tokio-echo")))?;
    Ok(built("release/tokio-echo"))
}

/// Path of a fixture.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers/fixtures").join(name)
}

fn built(name: &str) -> PathBuf {
    // Cargo's own temporary directory is always in the target directory.
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("servers").join(name)
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("could not start {program} ({error})"))?;
    let said = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{program} could not build it: {}", said())) }
}
