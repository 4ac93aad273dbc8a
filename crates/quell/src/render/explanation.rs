//! An explained mode as text: moments on the left, sentences set beside them.

use quell_sim::explain::{Explanation, Sentence};

use super::terminal::Terminal;

/// Both stories.
#[must_use]
pub(crate) fn render(told: &Explanation, host: &str, terminal: Terminal) -> String {
    let columns = terminal.prose_columns();
    let one = story(&told.one_request, columns);
    let busy = story(&told.busy_period, columns);
    format!(
        "{} on {host}, one queue, one worker; µs since the first packet reached the NIC\n\n\
         One request, and nothing else going on\n\n{one}\n\
         A busy period: eight more requests arrive while the first is being served\n\n{busy}",
        told.mode
    )
}

fn story(sentences: &[Sentence], columns: usize) -> String {
    sentences.iter().map(|sentence| set(sentence, columns)).collect()
}

fn set(sentence: &Sentence, columns: usize) -> String {
    let moment = format!("{:>10.2}  ", sentence.at_us);
    let indent = " ".repeat(moment.chars().count());
    let options = textwrap::Options::new(columns).initial_indent(&moment).subsequent_indent(&indent);
    textwrap::fill(&sentence.text, options) + "\n"
}
