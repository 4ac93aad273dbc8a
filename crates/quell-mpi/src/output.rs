//! Output of rank 0: data and lines for an experiment go to standard output, sentences to standard error. Names come from
//! other machines, so characters that a terminal interprets are escaped.

use std::io::{self, Write as _};

use quell_linux::visible::{self, Kept};
use serde::Serialize;

pub fn data(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(visible::text(text, Kept::Layout).as_bytes())?;
    out.flush()
}

/// Writes a value as one line of JSON to standard output.
pub fn json_line(value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string(value)?;
    let mut out = io::stdout().lock();
    out.write_all(format!("{}\n", visible::json(&text)).as_bytes())?;
    out.flush()
}

/// Writes a line to standard error. Errors are ignored: there is no other place to report them.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", visible::text(text, Kept::Layout));
}
