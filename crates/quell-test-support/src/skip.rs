//! Skips tests that cannot run on this machine. libtest counts them as passed and captures their output. For this
//! reason, each skip is also a line in the file named by `QUELL_SKIPS`, which `tools/count-tests` summarizes.
//! `QUELL_REQUIRE` turns skips into failures.

use std::env;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::thread;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lacks<'a> {
    /// Capabilities, mostly those of root. Required by `kernel`.
    Root,
    /// A feature of the kernel, or of its configuration. Required by `kernel`.
    KernelFeature,
    /// A server program. Required by `servers`.
    Server(&'a str),
    /// Another program from a package. Required by `tools`.
    Tool(&'a str),
    /// QEMU, or a kernel to boot in it. Required by `guests`.
    Guest,
    /// A property of the machine that no package provides: CPUs, IPv6, features of the file system, time. Never
    /// required.
    Machine,
    /// The test takes long and belongs to another Makefile target. Never required.
    LeftTo(&'a str),
}

/// Groups that `QUELL_REQUIRE` accepts.
const GROUPS: [&str; 4] = ["kernel", "servers", "tools", "guests"];

impl Lacks<'_> {
    fn group(self) -> Option<&'static str> {
        match self {
            Self::Root | Self::KernelFeature => Some("kernel"),
            Self::Server(_) => Some("servers"),
            Self::Tool(_) => Some("tools"),
            Self::Guest => Some("guests"),
            Self::Machine | Self::LeftTo(_) => None,
        }
    }

    fn label(self) -> String {
        match self {
            Self::Root => "no root".to_owned(),
            Self::KernelFeature => "no kernel feature".to_owned(),
            Self::Server(program) | Self::Tool(program) => format!("no {program}"),
            Self::Guest => "no guest".to_owned(),
            Self::Machine => "unsuitable machine".to_owned(),
            Self::LeftTo(target) => format!("left to {target}"),
        }
    }
}

/// Records that the current test is skipped, with the reason. The test must return afterwards.
///
/// # Panics
/// When `QUELL_REQUIRE` contains the group of the missing requirement, or an unknown group; when the file named by
/// `QUELL_SKIPS` cannot be written.
pub fn skip(lacks: Lacks<'_>, reason: impl Display) {
    record(lacks, "whole", &reason.to_string());
}

/// Records that the current test skips a part, with the reason. Panics as [`skip`].
pub fn skip_part(lacks: Lacks<'_>, reason: impl Display) {
    record(lacks, "part", &reason.to_string());
}

/// Records that the current test is skipped because no lab is possible. `missing` contains texts of
/// `quell_subject::requirements`.
pub fn skip_missing<'a>(missing: impl IntoIterator<Item = &'a str>) {
    let missing: Vec<&str> = missing.into_iter().collect();
    skip(lacks_of(&missing), missing.join("; "));
}

/// Selects the first requirement that cannot be installed: privileges before the kernel, and the kernel before the
/// server.
fn lacks_of(missing: &[&str]) -> Lacks<'static> {
    let any = |words: &str| missing.iter().any(|what| what.contains(words));
    match () {
        () if any("privileges") || any("capabilities") => Lacks::Root,
        () if any("napi-set") => Lacks::KernelFeature,
        () if any("server program") && missing.len() == 1 => Lacks::Server("memcached"),
        () => Lacks::Machine,
    }
}

/// Whether kernel threads are invisible, as in a container. If so, records the test as skipped.
#[must_use]
pub fn kernel_threads_are_out_of_sight() -> bool {
    let out_of_sight = !std::fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm == "kthreadd\n");
    if out_of_sight {
        skip(Lacks::Machine, "kernel threads are not visible in this PID namespace");
    }
    out_of_sight
}

fn record(lacks: Lacks<'_>, extent: &str, reason: &str) {
    let required = env::var("QUELL_REQUIRE").unwrap_or_default();
    if is_required(lacks, &required).unwrap_or_else(|error| panic!("{error}")) {
        panic!("QUELL_REQUIRE={required}: this test may not be skipped: {reason}");
    }
    eprintln!("skipped: {reason}");
    if let Some(file) = env::var_os("QUELL_SKIPS") {
        let program = env::current_exe().unwrap();
        let thread = thread::current();
        let line = line(lacks, extent, &program, thread.name().unwrap_or("?"), reason);
        // A single write, so that lines of concurrent tests do not mix.
        OpenOptions::new().create(true).append(true).open(file).unwrap().write_all(line.as_bytes()).unwrap();
    }
}

fn is_required(lacks: Lacks<'_>, required: &str) -> Result<bool, String> {
    let words = required.split(',').map(str::trim).filter(|word| !word.is_empty());
    let mut found = false;
    for word in words {
        if !GROUPS.contains(&word) {
            return Err(format!("QUELL_REQUIRE: `{word}` is not one of {}", GROUPS.join(", ")));
        }
        found |= lacks.group() == Some(word);
    }
    Ok(found)
}

/// Label, extent, test program, test, reason, separated by tabs.
fn line(lacks: Lacks<'_>, extent: &str, program: &Path, test: &str, reason: &str) -> String {
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{}\t{extent}\t{program}\t{test}\t{reason}\n", lacks.label())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_required_test_may_not_be_skipped() {
        let required = |lacks, required| is_required(lacks, required).unwrap();
        assert!(required(Lacks::Root, "kernel") && required(Lacks::KernelFeature, "servers, kernel"));
        assert!(required(Lacks::Server("memcached"), "servers") && required(Lacks::Tool("ip"), "tools"));
        assert!(!required(Lacks::Server("memcached"), "kernel") && !required(Lacks::Root, ""));
        assert!(!required(Lacks::Machine, &GROUPS.join(",")));
    }

    #[test]
    fn an_unknown_requirement_is_an_error() {
        assert_eq!(
            is_required(Lacks::Root, "kernels").unwrap_err(),
            "QUELL_REQUIRE: `kernels` is not one of kernel, servers, tools, guests"
        );
    }

    #[test]
    fn the_first_missing_requirement_of_a_lab_counts() {
        let (root, server) = ("privileges: CAP_NET_ADMIN to make the veth pair", "the server program memcached");
        assert_eq!(lacks_of(&[root, server]), Lacks::Root);
        assert_eq!(lacks_of(&[server]), Lacks::Server("memcached"));
        assert_eq!(lacks_of(&["the kernel's threads, to pin those of NAPI instances", server]), Lacks::Machine);
    }

    #[test]
    fn a_record_is_one_line_of_five_fields() {
        let line =
            line(Lacks::Server("nginx"), "part", Path::new("/target/debug/servers-1"), "a::b", "not\tthere\nat all");
        assert_eq!(line, "no nginx\tpart\tservers-1\ta::b\tnot there at all\n");
    }
}
