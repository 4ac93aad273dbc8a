//! The JSON Schemas in `docs/schema/` are those that `quell results schema` prints, one for each kind of document, and
//! what the commands print matches them.

#![allow(clippy::unwrap_used, reason = "a schema that cannot be read fails the test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::attach_on_the_kernel::stage::{MODE, Stage};

fn printed(words: &[&str]) -> Vec<u8> {
    let mut quell = Command::new(env!("CARGO_BIN_EXE_quell"));
    quell.args(["results", "schema"]).args(words).output().unwrap().stdout
}

fn kinds() -> Vec<String> {
    String::from_utf8(printed(&[])).unwrap().lines().map(str::to_owned).collect()
}

fn published(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/schema/quell-{kind}.schema.json"))
}

/// `QUELL_WRITE_DOCS=1` writes the files instead of comparing them.
#[test]
fn the_schema_of_every_document_is_published() {
    let mut expected = BTreeSet::new();
    for kind in kinds() {
        let (path, printed) = (published(&kind), printed(&[&kind]));
        if std::env::var_os("QUELL_WRITE_DOCS").is_some() {
            fs::write(&path, &printed).unwrap();
        }
        let is_published = fs::read(&path).is_ok_and(|published| published == printed);
        assert!(is_published, "{kind}: QUELL_WRITE_DOCS=1 cargo test -p quell --test all published_schemas::");
        expected.insert(path.file_name().unwrap().to_owned());
    }
    let files = fs::read_dir(published("").parent().unwrap()).unwrap();
    assert_eq!(files.map(|entry| entry.unwrap().file_name()).collect::<BTreeSet<_>>(), expected);
}

/// Files of Rust below `dir`.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let of = |path: PathBuf| match path.is_dir() {
        true => sources(&path),
        false => vec![path],
    };
    paths.flat_map(of).filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// Names in literals such as `"quell-tune/1"`.
fn schema_names(source: &str) -> impl Iterator<Item = &str> {
    source.split("\"quell-").skip(1).filter_map(|rest| {
        let (literal, _) = rest.split_once(['"', '\\'])?;
        let (name, version) = literal.split_once('/')?;
        version.parse::<u32>().is_ok().then_some(name)
    })
}

/// Journals are state of the program, and `quell-study` is in no package.
#[test]
fn every_document_that_the_program_can_write_has_a_published_schema() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let packaged = fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path().join("src"));
    let packaged = packaged.filter(|src| src.is_dir() && !src.starts_with(crates.join("quell-study")));
    let texts: Vec<String> =
        packaged.flat_map(|src| sources(&src)).map(|path| fs::read_to_string(path).unwrap()).collect();
    let written: BTreeSet<&str> = texts.iter().flat_map(|text| schema_names(text)).collect();
    let kinds = kinds();
    let published = kinds.iter().map(|kind| &**kind).chain(["journal"]).collect();
    assert_eq!(written, published);
}

#[test]
fn the_page_lists_every_document() {
    let page = include_str!("../../../../docs/results.md");
    let missing: Vec<String> =
        kinds().into_iter().filter(|kind| !page.contains(&format!("(schema/quell-{kind}.schema.json)"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Fields of `struct epoll_params`, with the kernel's names.
const OF_THE_KERNEL: [&str; 3] = ["busy_poll_budget", "busy_poll_usecs", "prefer_busy_poll"];

#[test]
fn names_of_fields_have_hyphens_except_for_those_of_the_kernel() {
    fn check(kind: &str, schema: &Value) {
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            let has_hyphens = |name: &str| !name.contains(|letter: char| letter == '_' || letter.is_uppercase());
            let others: Vec<&String> =
                properties.keys().filter(|name| !has_hyphens(name) && !OF_THE_KERNEL.contains(&&***name)).collect();
            assert!(others.is_empty(), "{kind}: {others:?}");
        }
        match schema {
            Value::Object(members) => members.values().for_each(|member| check(kind, member)),
            Value::Array(elements) => elements.iter().for_each(|element| check(kind, element)),
            _ => {}
        }
    }
    for kind in kinds() {
        check(&kind, &serde_json::from_slice(&printed(&[&kind])).unwrap());
    }
}

#[test]
fn output_of_commands_matches_its_schema() {
    let Some(stage) = Stage::enter("schemas") else { return };
    let pid = stage.pid();
    let profile = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/lab.toml");
    let netns = &*stage.lab.server_name;
    for arguments in [
        &["doctor", &pid, "--seconds", "0"][..],
        &["attach", MODE, &pid, "--dry-run"],
        &["attach", MODE, &pid, "--yes"],
        &["status"],
        &["detach", "--all"],
        &["apply", "--netns", netns, profile, "--dry-run", "--skip-impossible"],
        &["apply", "--netns", netns, profile, "--yes", "--skip-impossible", "--confirm", "60s"],
        &["confirm"],
        &["apply", "--reassert"],
        &["status"],
        &["revert"],
        &["status"],
        &["lab", "list"],
        &["vm", "list"],
        &["sim", "hosts"],
        &["conformance", "--list"],
        &["sim", "explain", "suspend20"],
        &[
            "tune",
            "--advise",
            "--goal",
            "least cpu",
            "--loads",
            "50%",
            "--queues",
            "1",
            "--slice",
            "20",
            "--settle",
            "20",
        ],
    ] {
        let output = stage.quell(&[arguments, &["--json"]].concat()).output().unwrap();
        let document: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output:?}"));
        let (kind, _) = document["schema"].as_str().unwrap().strip_prefix("quell-").unwrap().split_once('/').unwrap();
        let schema: Value = serde_json::from_slice(&fs::read(published(kind)).unwrap()).unwrap();
        let why = Schema { root: &schema }.mismatch(&schema, &document);
        assert_eq!(why, None, "{arguments:?}: {document:#}");
    }
    stage.assert_back();
}

/// The keywords of JSON Schema that `schemars` writes.
struct Schema<'a> {
    root: &'a Value,
}

impl Schema<'_> {
    /// Where and why a value does not match a schema.
    fn mismatch(&self, schema: &Value, value: &Value) -> Option<String> {
        let object = match schema {
            Value::Bool(true) => return None,
            Value::Object(object) => object,
            _ => return Some(format!("{value} is not permitted")),
        };
        for (keyword, wanted) in object {
            let found = match (&**keyword, wanted) {
                ("$ref", Value::String(reference)) => {
                    self.mismatch(self.root.pointer(reference.strip_prefix('#').unwrap()).unwrap(), value)
                }
                ("type", types) => {
                    let is = |name: &Value| is_of_type(value, name.as_str().unwrap());
                    let is_one = types.as_array().map_or_else(|| is(types), |types| types.iter().any(is));
                    (!is_one).then(|| format!("{value} is not of type {types}"))
                }
                ("const", constant) => (value != constant).then(|| format!("{value} is not {constant}")),
                ("enum", Value::Array(known)) => {
                    (!known.contains(value)).then(|| format!("{value} is none of {known:?}"))
                }
                ("required", Value::Array(names)) => {
                    let missing =
                        names.iter().find(|name| value.is_object() && value.get(name.as_str().unwrap()).is_none());
                    missing.map(|name| format!("{name} is missing in {value}"))
                }
                ("properties", Value::Object(properties)) => properties
                    .iter()
                    .filter_map(|(name, property)| Some((name, self.mismatch(property, value.get(name)?)?)))
                    .map(|(name, why)| format!("{name}: {why}"))
                    .next(),
                ("additionalProperties" | "unevaluatedProperties", further) => {
                    let is_further = |name: &str| !self.names(schema).contains(name);
                    let others = value.as_object().into_iter().flatten().filter(|(name, _)| is_further(name));
                    others.map(|(_, other)| other).find_map(|other| self.mismatch(further, other))
                }
                ("items", items) => value.as_array().into_iter().flatten().find_map(|item| self.mismatch(items, item)),
                ("allOf", Value::Array(all)) => all.iter().find_map(|one| self.mismatch(one, value)),
                ("anyOf" | "oneOf", Value::Array(some)) => {
                    let whys: Vec<String> = some.iter().filter_map(|one| self.mismatch(one, value)).collect();
                    (whys.len() == some.len()).then(|| whys.join("; "))
                }
                (
                    "$schema" | "$defs" | "title" | "description" | "examples" | "format" | "minimum" | "maximum"
                    | "default" | "pattern" | "minLength" | "maxLength" | "propertyNames",
                    _,
                ) => None,
                _ => panic!("unknown keyword {keyword}"),
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Names of all properties of an object, also of those in its alternatives.
    fn names(&self, schema: &Value) -> BTreeSet<String> {
        let own = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        let own = own.map(|(name, _)| name.clone());
        let parts = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|keyword| schema.get(keyword)?.as_array());
        let referred = schema.get("$ref").and_then(Value::as_str);
        let referred = referred.and_then(|reference| self.root.pointer(reference.strip_prefix('#')?));
        own.chain(parts.flatten().chain(referred).flat_map(|part| self.names(part))).collect()
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}
