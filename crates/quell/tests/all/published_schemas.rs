//! The JSON Schemas in `docs/schema/` are those that `quell results schema` prints, one for each kind of document.

#![allow(clippy::unwrap_used, reason = "a schema that cannot be read fails the test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use quell_result::ResultDocument;

fn printed(name: &str) -> Vec<u8> {
    let mut quell = Command::new(env!("CARGO_BIN_EXE_quell"));
    quell.args(["results", "schema", name]).output().unwrap().stdout
}

/// `QUELL_WRITE_DOCS=1` writes the files instead of comparing them.
#[test]
fn the_schema_of_every_document_is_published() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");
    let mut published = BTreeSet::new();
    for kind in ResultDocument::KINDS {
        let file = format!("quell-{}.schema.json", kind.name());
        let (path, printed) = (directory.join(&file), printed(kind.name()));
        if std::env::var_os("QUELL_WRITE_DOCS").is_some() {
            fs::write(&path, &printed).unwrap();
        }
        let is_published = fs::read(&path).is_ok_and(|published| published == printed);
        assert!(is_published, "{file}: QUELL_WRITE_DOCS=1 cargo test -p quell --test all published_schemas::");
        published.insert(file);
    }
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(files.collect::<BTreeSet<_>>(), published);
}
