//! Names and numbers that others chose: they reach the page as text, and no number makes it fail.

use std::collections::BTreeSet;

use quell_report::page;
use quell_result::ResultDocument;
use serde_json::{Value, json};

use crate::recorded::{documents, source};

/// Every value with its path; of arrays, the first element and the last one.
fn pointers(value: &Value, at: &str, into: &mut Vec<String>) {
    into.push(at.to_owned());
    match value {
        Value::Array(elements) => {
            let ends = elements.iter().enumerate().filter(|(index, _)| *index == 0 || index + 1 == elements.len());
            ends.for_each(|(index, element)| pointers(element, &format!("{at}/{index}"), into));
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                pointers(field, &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), into);
            }
        }
        _ => {}
    }
}

/// The document with this text in every field that takes it.
pub(crate) fn with_text(document: &Value, text: &str) -> Value {
    let mut all = Vec::new();
    pointers(document, "", &mut all);
    let mut forged = document.clone();
    for pointer in all.iter().filter(|pointer| document.pointer(pointer).is_some_and(Value::is_string)) {
        let mut next = forged.clone();
        *next.pointer_mut(pointer).unwrap() = json!(text);
        if ResultDocument::parse(&next.to_string()).is_ok() {
            forged = next;
        }
    }
    forged
}

/// A document with few slices: histograms take most of the time.
fn short(mut document: Value) -> Value {
    fn truncate(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields.iter_mut() {
                    match (name.as_str(), &mut *field) {
                        ("slices", Value::Array(slices)) => {
                            slices.iter_mut().skip(1).for_each(|slice| slice["observation"]["latency"] = Value::Null);
                        }
                        _ => truncate(field),
                    }
                }
            }
            Value::Array(elements) => elements.iter_mut().for_each(truncate),
            _ => {}
        }
    }
    truncate(&mut document);
    document
}

#[test]
fn text_of_others_is_escaped_and_shortened_in_every_field() {
    let texts = [
        "</script><script>alert(1)</script>".to_owned(),
        "\"><img src=x onerror=alert(1)>".to_owned(),
        "'><svg onload=alert(1)>".to_owned(),
        "a\u{1b}[2J\u{0}\u{202e}\r\nb".to_owned(),
        "x".repeat(10_000),
    ];
    for document in documents().into_iter().map(short) {
        let plain = page::page(&[source("plain", &document)]).unwrap();
        for text in &texts {
            let forged = with_text(&document, text);
            if document["schema"] != "quell-load/1" {
                assert_ne!(forged, document, "no field takes {text:.20}");
            }
            let page = page::page(&[source(text, &forged)]).unwrap();
            assert_eq!(page.matches("<script").count(), 1, "{text:.20} in {}", document["schema"]);
            assert_eq!(page.matches("<svg").count(), page.matches("<svg class=\"chart\"").count());
            assert!(!page.contains("<img"), "{text:.20} in {}", document["schema"]);
            let control = page.chars().find(|letter| letter.is_control() && *letter != '\n');
            assert_eq!(control, None, "{text:.20} in {}", document["schema"]);
            assert!(!page.contains('\u{202e}'));
            // The embedded documents have the text at length.
            let limit = plain.len() + text.len() * 40 + 50_000;
            assert!(page.len() < limit, "{} instead of {} bytes", page.len(), plain.len());
        }
    }
}

/// One path for each kind of field: elements of an array are of one kind.
fn kinds_of_fields(document: &Value) -> Vec<String> {
    let mut all = Vec::new();
    pointers(document, "", &mut all);
    let mut seen = BTreeSet::new();
    all.retain(|pointer| {
        let is_index = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        seen.insert(pointer.split('/').filter(|part| !is_index(part)).collect::<Vec<_>>().join("/"))
    });
    all
}

#[test]
fn no_value_makes_a_page_fail() {
    let values = [json!(1e308), json!(0), json!(u64::MAX)];
    for document in documents().into_iter().map(short) {
        for pointer in kinds_of_fields(&document) {
            for value in &values {
                let mut forged = document.clone();
                *forged.pointer_mut(&pointer).unwrap() = value.clone();
                let Ok(parsed) = ResultDocument::parse(&forged.to_string()) else { continue };
                let page = page::page(&[page::ReportSource { name: "forged".to_owned(), document: parsed }]);
                let page = page.unwrap_or_default();
                // Base64 has any letters.
                let page = page.split(">Data<").next().unwrap_or_default();
                for broken in ["NaN", "inf\"", "inf "] {
                    assert!(!page.contains(broken), "{pointer} = {value}: {broken}");
                }
            }
        }
    }
}
