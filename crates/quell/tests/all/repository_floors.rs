//! Rules of the repository: the floors in ARCHITECTURE.md hold, only `quell-linux` calls the kernel, only programs
//! print, and every file begins with its purpose. The tests read the sources as text. Rules that clippy can check are
//! clippy lints.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The floors: a crate imports only from lower floors. A crate that is missing here has no floor yet.
const FLOORS: &[(&str, u8)] = &[
    ("quell-mode", 0),
    ("quell-stats", 0),
    ("quell-sim", 1),
    ("quell-linux", 1),
    ("quell-experiment", 2),
    ("quell-sampler", 2),
    ("quell-cli", 2),
    ("quell-published", 2),
    ("quell-vm", 2),
    ("quell-change", 3),
    ("quell-load", 3),
    ("quell-xdp", 3),
    ("quell-conformance", 4),
    ("quell-host", 4),
    ("quell-tune", 4),
    ("quell-launch", 5),
    ("quell-result", 5),
    ("quell-test-support", 5),
    ("quell-subject", 6),
    ("quell-report", 6),
    ("quell-observer", 6),
    ("quell", 7),
    ("quell-mpi", 7),
    ("quell-study", 7),
];

/// Crates that provide access to the kernel beyond the standard library.
const KERNEL_CRATES: &[&str] = &["libc", "rustix", "nix", "netlink-bindings", "signal-hook", "io-uring", "aya"];

/// Crates that may depend on them. `quell-sampler` depends on `aya` alone, which loads its BPF programs.
const REACHING_THE_KERNEL: &[&str] = &["quell-linux", "quell-sampler"];

/// Crate shared by the tests of all crates, allowed only in `[dev-dependencies]`.
const TEST_SUPPORT: &str = "quell-test-support";

/// Maximum number of lines of a file, without the unit tests at its end.
const LINES_MAX: usize = 600;

fn crates_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

struct Manifest {
    name: String,
    dependencies: Vec<String>,
    /// Dependencies that only the tests of the crate use.
    dev_dependencies: Vec<String>,
    inherits_lints: bool,
}

fn manifests() -> Vec<Manifest> {
    let dirs = fs::read_dir(crates_dir()).unwrap().map(|entry| entry.unwrap().path());
    let parse = |dir: PathBuf| {
        let text = fs::read_to_string(dir.join("Cargo.toml")).unwrap();
        let manifest: toml::Table = text.parse().unwrap();
        let names = |sections: &[&str]| -> Vec<String> {
            let tables = sections.iter().filter_map(|section| manifest.get(*section)?.as_table());
            tables.flat_map(|table| table.keys().cloned()).collect()
        };
        Manifest {
            name: manifest["package"]["name"].as_str().unwrap().to_owned(),
            dependencies: names(&["dependencies", "build-dependencies"]),
            dev_dependencies: names(&["dev-dependencies"]),
            inherits_lints: manifest.get("lints").is_some_and(|lints| lints["workspace"].as_bool() == Some(true)),
        }
    };
    dirs.map(parse).collect()
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => rust_files(&path),
            false if path.extension().is_some_and(|extension| extension == "rs") => vec![path],
            false => Vec::new(),
        })
        .collect()
}

/// Removes the unit tests at the end. A file that contains only tests begins with `#![cfg(test)]`.
fn without_unit_tests(text: &str) -> &str {
    &text[..text.find("[cfg(test)]").unwrap_or(text.len())]
}

/// Sources in the `src` directory of a crate, without unit tests.
fn sources(krate: &str) -> BTreeMap<PathBuf, String> {
    let files = rust_files(&crates_dir().join(krate).join("src"));
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path, without_unit_tests(&text).to_owned())
    };
    files.into_iter().map(read).collect()
}

/// Lists code lines that contain one of `words`, without comments, in all crates except those in `but`.
fn places_with(words: &[&str], but: &[&str]) -> Vec<String> {
    let mut places = Vec::new();
    for (krate, _) in FLOORS.iter().filter(|(krate, _)| !but.contains(krate)) {
        for (path, source) in sources(krate) {
            for (index, line) in source.lines().enumerate() {
                let code = line.trim_start();
                if !code.starts_with("//") && words.iter().any(|word| code.contains(word)) {
                    places.push(format!("{}:{}: {code}", path.display(), index + 1));
                }
            }
        }
    }
    places
}

/// Files that read the wall clock: times of day in journals, results, logs and reports. Everything else measures with
/// clocks that do not jump when the system time is set.
const WALL_CLOCK: &[&str] = &[
    "quell/src/commands/apply/watchdog.rs",
    "quell/src/commands/bench/mod.rs",
    "quell/src/logging.rs",
    "quell/src/render/status.rs",
    "quell-change/src/journal/ends.rs",
    "quell-change/src/journal/store.rs",
    "quell-host/src/snapshot/read/mod.rs",
    "quell-linux/src/clock.rs",
    "quell-observer/src/observer.rs",
    "quell-result/src/experiment.rs",
    "quell-result/src/published_xdp.rs",
    "quell-result/src/store.rs",
    "quell-result/src/top.rs",
];

#[test]
fn durations_are_not_measured_by_the_wall_clock() {
    let places = places_with(&["SystemTime", "realtime_ns", "ClockId::Realtime"], &[]);
    let others = places.iter().filter(|place| WALL_CLOCK.iter().all(|file| !place.contains(file)));
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&String>::new(), "use Instant, or add the file with its reason");
}

#[test]
fn every_crate_has_a_floor() {
    let listed: Vec<&str> = FLOORS.iter().map(|(krate, _)| *krate).collect();
    for manifest in manifests() {
        assert!(
            listed.contains(&manifest.name.as_str()),
            "{} has no floor: give it one here and in ARCHITECTURE.md",
            manifest.name
        );
    }
}

#[test]
fn no_crate_imports_upwards_or_sideways() {
    let floor = |name: &str| FLOORS.iter().find(|(krate, _)| *krate == name).map(|(_, floor)| *floor);
    for manifest in manifests() {
        let own = floor(&manifest.name).unwrap();
        let of_tests = manifest.dev_dependencies.iter().filter(|dependency| *dependency != TEST_SUPPORT);
        for dependency in manifest.dependencies.iter().chain(of_tests) {
            let Some(other) = floor(dependency) else { continue };
            assert!(other < own, "{} (floor {own}) imports {dependency} (floor {other})", manifest.name);
        }
    }
}

#[test]
fn only_tests_depend_on_the_support_of_tests() {
    for manifest in manifests() {
        let depends = manifest.dependencies.iter().any(|dependency| dependency == TEST_SUPPORT);
        assert!(!depends, "{} depends on {TEST_SUPPORT} outside of [dev-dependencies]", manifest.name);
    }
}

#[test]
fn only_some_crates_depend_on_crates_that_reach_the_kernel() {
    for manifest in manifests().iter().filter(|manifest| !REACHING_THE_KERNEL.contains(&manifest.name.as_str())) {
        let all = manifest.dependencies.iter().chain(&manifest.dev_dependencies);
        let reaching = all.into_iter().find(|dependency| KERNEL_CRATES.contains(&dependency.as_str()));
        assert_eq!(reaching, None, "{} reaches the kernel by itself", manifest.name);
    }
}

#[test]
fn only_quell_linux_opens_proc_and_sys_or_handles_descriptors() {
    let places = places_with(
        &["\"/proc", "\"/sys", "std::os::fd", "std::os::unix::io", "std::net::Tcp", "std::net::Udp"],
        &["quell-linux", TEST_SUPPORT],
    );
    assert!(places.is_empty(), "{places:#?}");
}

#[test]
fn nobody_calls_ip_or_ethtool() {
    let places = places_with(&["Command::new(\"ip\"", "Command::new(\"ethtool\"", "Command::new(\"sysctl\""], &[]);
    assert!(places.is_empty(), "{places:#?}");
}

#[test]
fn only_programs_print() {
    let printing = ["println!", "print!(", "eprint!(", "io::stdout", "io::stderr"];
    let places = places_with(&printing, &["quell-cli", "quell", "quell-mpi", TEST_SUPPORT]);
    assert!(places.is_empty(), "{places:#?}");
}

#[test]
fn every_skipped_test_is_counted() {
    let uncounted = concat!("eprintln!(\"skip", "ped");
    for path in
        rust_files(&crates_dir()).iter().filter(|path| !path.components().any(|part| part.as_os_str() == "benches"))
    {
        let text = fs::read_to_string(path).unwrap();
        let of_the_support = path.components().any(|part| part.as_os_str() == TEST_SUPPORT);
        assert!(of_the_support || !text.contains(uncounted), "{}: use {TEST_SUPPORT}::skip", path.display());
    }
}

#[test]
fn every_crate_inherits_the_lints_and_only_quell_linux_has_unsafe_code() {
    for manifest in manifests() {
        assert!(manifest.inherits_lints, "{} does not inherit the workspace's lints", manifest.name);
        if manifest.name == "quell-linux" {
            continue;
        }
        let roots = ["src/lib.rs", "src/main.rs"].map(|root| crates_dir().join(&manifest.name).join(root));
        let root = roots.iter().find(|root| root.exists()).unwrap();
        let text = fs::read_to_string(root).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "{} does not forbid unsafe code", root.display());
    }
}

#[test]
fn every_file_begins_with_its_purpose_and_is_short() {
    for path in rust_files(&crates_dir()) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("//!"), "{} does not begin with a doc comment about its purpose", path.display());
        let lines = without_unit_tests(&text).lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines, more than {LINES_MAX}", path.display());
    }
}

/// Each binary costs seconds of linking and tens of megabytes.
#[test]
fn no_crate_has_two_binaries_of_integration_tests() {
    for (krate, _) in FLOORS {
        let Ok(entries) = fs::read_dir(crates_dir().join(krate).join("tests")) else { continue };
        let paths = entries.map(|entry| entry.unwrap().path());
        let is_binary =
            |path: &PathBuf| path.extension().is_some_and(|ext| ext == "rs") || path.join("main.rs").exists();
        let binaries: Vec<PathBuf> = paths.filter(is_binary).collect();
        assert!(binaries.len() <= 1, "modules of tests/all/main.rs would do: {binaries:?}");
    }
}

#[test]
fn architecture_names_every_crate_and_its_floor() {
    let text = fs::read_to_string(crates_dir().parent().unwrap().join("ARCHITECTURE.md")).unwrap();
    for (krate, floor) in FLOORS {
        let row = format!("| {floor} | `{krate}` |");
        assert!(text.contains(&row), "ARCHITECTURE.md has no row beginning {row:?}");
    }
}

/// Name of the public type that a line declares.
fn declared_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let name = ["struct ", "enum ", "trait ", "type ", "union "].iter().find_map(|kind| rest.strip_prefix(kind))?;
    name.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()
}

#[test]
fn every_public_type_has_a_name_of_its_own() {
    let mut files_by_name: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (krate, _) in FLOORS {
        for (path, source) in sources(krate) {
            for name in source.lines().filter_map(declared_type) {
                files_by_name.entry(name.to_owned()).or_default().push(path.clone());
            }
        }
    }
    files_by_name.retain(|_, files| files.len() > 1);
    assert!(files_by_name.is_empty(), "choose names that say the domain: {files_by_name:#?}");
}
