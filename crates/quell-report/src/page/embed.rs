//! What a page holds besides its pictures: the document, compressed, and its latencies as HDR histogram logs. Both are
//! links to data in base64, so that neither a script nor an escape is needed.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::Compression;
use flate2::write::GzEncoder;
use maud::{Markup, html};
use quell_experiment::pooled_latency;
use serde_json::Value;

use super::ReportSource;
use crate::draw::shown;
use crate::part::Part;

/// A file in the page.
pub(crate) struct Download {
    /// Name of the saved file.
    file: String,
    /// What it is.
    text: String,
    data: Data,
}

enum Data {
    /// An HDR histogram log.
    Log(String),
    /// A document. Without the histograms of slices it is shorter.
    Document(Value),
}

impl Download {
    pub(crate) fn document(source: &ReportSource) -> Self {
        let value = serde_json::to_value(&source.document).unwrap_or_default();
        let text = format!("{}: the document that this page is made from, compressed", shown(&source.name));
        Self { file: format!("{}.json.gz", stem(&source.name)), text, data: Data::Document(value) }
    }

    /// The latencies of all parts, pooled by mode and load. `None` without latencies.
    pub(crate) fn latencies(source: &ReportSource, parts: &[Part<'_>], started_unix_s: u64) -> Option<Self> {
        let mut log = format!(
            "#[Histogram log format version 1.3]\n#[StartTime: {started_unix_s}.000 (seconds since epoch)]\n\
             \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n"
        );
        let head = log.len();
        for part in parts {
            let record = &part.experiment.record;
            for mode in part.experiment.treatment_names() {
                let latency = pooled_latency(record, mode);
                let Some(max) = latency.max() else { continue };
                let arms = part.experiment.arms_of(mode);
                let seconds = arms.iter().flat_map(|arm| record.of_arm(*arm)).count() as f64
                    * f64::from(record.design.slice_ms)
                    / 1e3;
                let tag = tag(&format!("{mode}@{}", part.load));
                log += &format!("Tag={tag},0.000,{seconds:.3},{:.6},{latency}\n", max.as_secs_f64() * 1e3);
            }
        }
        let text = format!("{}: latencies in ns by mode and load, as an HDR histogram log", shown(&source.name));
        let download = Self { file: format!("{}.hlog", stem(&source.name)), text, data: Data::Log(log) };
        let Data::Log(log) = &download.data else { return None };
        (log.len() > head).then_some(download)
    }

    /// Link to the data.
    fn href(&self, is_short: bool) -> String {
        match &self.data {
            Data::Log(log) => format!("data:text/plain;base64,{}", BASE64.encode(log)),
            Data::Document(value) => {
                let mut value = value.clone();
                if is_short {
                    remove_histograms(&mut value);
                }
                format!("data:application/gzip;base64,{}", BASE64.encode(compressed(&value.to_string())))
            }
        }
    }
}

/// The list of what can be saved.
pub(crate) fn section(downloads: &[Download], is_short: bool) -> Markup {
    let has_latencies = downloads.iter().any(|download| matches!(download.data, Data::Log(_)));
    html! {
        section.downloads {
            h2 { "Data" }
            ul { @for download in downloads {
                li { a href=(download.href(is_short)) download=(download.file) { (download.file) } " " (download.text) }
            } }
            @if is_short && has_latencies {
                p.note {
                    "To keep this page below 1 MB, the embedded document has no histograms of single slices. The original "
                    "file has them; the log has their sum by mode and load."
                }
            }
        }
    }
}

/// Histograms of slices are absent in the short document.
fn remove_histograms(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.iter_mut().for_each(|(name, field)| match (name.as_str(), &field) {
            ("latency", Value::String(_)) => *field = Value::Null,
            _ => remove_histograms(field),
        }),
        Value::Array(elements) => elements.iter_mut().for_each(remove_histograms),
        _ => {}
    }
}

fn compressed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing to memory does not fail.
    let _ = encoder.write_all(text.as_bytes());
    encoder.finish().unwrap_or_default()
}

/// Name of a file without directory and extension, in letters that every file system takes.
fn stem(name: &str) -> String {
    let file = name.rsplit('/').next().unwrap_or(name);
    let stem = tag(file.strip_suffix(".json").unwrap_or(file));
    if stem.is_empty() { "result".to_owned() } else { stem }
}

/// A name without separators of logs and paths.
fn tag(name: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.@%".contains(letter);
    shown(name).chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect()
}
