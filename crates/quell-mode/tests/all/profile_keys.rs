//! Tests of the profile key reference: every example is valid, and `docs/profile-keys.md` is current.

use quell_mode::profile::keys::{ProfileTable, TABLES, markdown};
use quell_mode::profile::{Profile, ProfileRefusal, Source};

/// Creates a valid profile with `key = value` in the table at `path`.
fn profile_with(path: &str, key: &str, value: &str) -> String {
    let table = path.replace("LABEL", "main");
    let line = format!("{key} = {value}\n");
    let selector = if path == "device.LABEL" && key == "name" { "" } else { "name = 'eth0'\n" };
    match (path, key) {
        ("", _) => line,
        ("program", _) => format!("[program]\n{line}"),
        ("device.LABEL", _) => format!("[{table}]\n{selector}{line}"),
        ("device.LABEL.flow.LABEL", _) => {
            let others = [("protocol", "'tcp'"), ("port", "80"), ("to-queue", "0")];
            let others = others.iter().filter(|(name, _)| *name != key && !(key == "to-rss" && *name == "to-queue"));
            let others: String = others.map(|(name, value)| format!("{name} = {value}\n")).collect();
            let context = "[device.main.rss.bulk]\nqueues = 'all'\n";
            format!("[device.main]\n{selector}{context}[{table}]\n{others}{line}")
        }
        _ => format!("[device.main]\n{selector}[{table}]\n{line}"),
    }
}

fn paths(table: &ProfileTable) -> impl Iterator<Item = &str> {
    table.path.split(", ")
}

#[test]
fn every_example_is_valid() {
    for table in TABLES {
        for path in paths(table) {
            let per_queue = path.contains("queues");
            for key in table.keys.iter().filter(|key| !(per_queue && key.name.starts_with("cqe-mode"))) {
                let text = profile_with(path, key.name, key.example);
                if let Err(error) = Profile::parse(&[Source::new("example.toml", &text)]) {
                    panic!("[{path}] {}: {error}\n{text}", key.name);
                }
            }
        }
    }
}

#[test]
fn a_misspelled_key_is_refused_with_a_suggestion() {
    for table in TABLES {
        for path in paths(table) {
            for key in table.keys {
                let misspelt = format!("{}x", key.name);
                let text = profile_with(path, &misspelt, "0");
                let error = Profile::parse(&[Source::new("example.toml", &text)]).unwrap_err();
                match error.refusal() {
                    ProfileRefusal::UnknownKey { key: found, nearest, .. } => {
                        assert_eq!((found, *nearest), (&misspelt, Some(key.name)), "{text}");
                    }
                    other => panic!("{other:?}\n{text}"),
                }
            }
        }
    }
}

/// `QUELL_WRITE_DOCS=1` writes the page instead of comparing it.
#[test]
fn the_published_reference_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/profile-keys.md");
    if std::env::var_os("QUELL_WRITE_DOCS").is_some() {
        std::fs::write(path, markdown()).unwrap();
    }
    let published = std::fs::read_to_string(path).unwrap();
    assert!(
        published == markdown(),
        "out of date: QUELL_WRITE_DOCS=1 cargo test -p quell-mode --test all profile_keys::"
    );
}
