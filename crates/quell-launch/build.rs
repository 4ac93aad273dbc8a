//! Builds the preload library. It is embedded in `quell`, so only one file must be installed. The library's README
//! explains why it is written in C.

use std::env;
use std::path::Path;

const SOURCE: &str = "preload/preload.c";

/// The library needs no other library and no symbol version, so any glibc can load it. When a thread is cancelled,
/// unwinding through the library can start at any instruction.
const OPTIONS: [&str; 9] = [
    "-std=gnu11",
    "-shared",
    "-nostdlib",
    "-fvisibility=hidden",
    "-fasynchronous-unwind-tables",
    "-fno-stack-protector",
    "-Wl,-z,now,-z,relro,-z,noexecstack",
    "-Wl,--build-id=none",
    "-Wl,-s",
];

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    let out = env::var("OUT_DIR").unwrap_or_else(|error| panic!("cargo sets OUT_DIR for build scripts: {error}"));
    let library = Path::new(&out).join("libquell-preload.so");
    let mut cc = cc::Build::new().opt_level(2).debug(false).pic(true).get_compiler().to_command();
    cc.args(OPTIONS).arg("-o").arg(&library).arg(SOURCE);
    let status = cc.status().unwrap_or_else(|error| panic!("{cc:?}: {error}; install a C compiler, or name it in CC"));
    assert!(status.success(), "the preload library was not built: {cc:?}: {status}");
    println!("cargo::rustc-env=QUELL_PRELOAD_LIBRARY={}", library.display());
}
