//! Builds the preload library, so that it travels inside the program: `quell` stays one file to install. A build of its
//! own, because nothing else of the workspace is a shared object that must not unwind.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the library is made of, as places in the workspace.
const SOURCES: [&str; 6] = [
    "Cargo.toml",
    "Cargo.lock",
    "crates/quell-preload/Cargo.toml",
    "crates/quell-preload/src",
    "crates/quell-preload-settings/Cargo.toml",
    "crates/quell-preload-settings/src",
];

/// Variables that are meant for the build that this one is part of: flags of an instrumented build, clippy in the place
/// of the compiler.
const NOT_INHERITED: [&str; 4] =
    ["CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET"];

fn main() {
    let workspace = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../..");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    let library = build(&workspace);
    println!("cargo::rustc-env=QUELL_PRELOAD_LIBRARY={}", library.display());
}

/// Runs a cargo with a target directory of its own: that of the outer one is locked.
fn build(workspace: &Path) -> PathBuf {
    let (target, target_dir) = (variable("TARGET"), Path::new(&variable("OUT_DIR")).join("preload"));
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .current_dir(workspace)
        .args(["rustc", "--quiet", "--locked", "--offline", "--package=quell-preload", "--crate-type=cdylib"])
        .args(["--profile=preload", "--target", &target, "--target-dir"])
        .arg(&target_dir)
        // A thread that is cancelled while it waits is unwound through the library.
        .args(["--", "-C", "force-unwind-tables=yes"]);
    for name in NOT_INHERITED {
        cargo.env_remove(name);
    }
    let status = cargo.status().unwrap_or_else(|error| panic!("{cargo:?}: {error}"));
    assert!(status.success(), "the preload library was not built: {cargo:?}: {status}");
    target_dir.join(target).join("preload/libquell_preload.so")
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("cargo sets {name} for build scripts: {error}"))
}
