//! The explanation of a mode as text: times and durations on the left, sentences on the right.

use quell_sim::explain::{BUSY_REQUESTS, Explanation, Sentence};

use super::terminal::Terminal;

#[must_use]
pub(crate) fn render(explanation: &Explanation, terminal: Terminal) -> String {
    let heading = format!("{:>9} {:>8}\n", "at µs", "for µs");
    let one = lines(&explanation.one_request, terminal);
    let busy = lines(&explanation.busy_period, terminal);
    let header = format!(
        "{} on {}: one queue and one worker on one CPU in its lightest idle state{}; times are relative to the \
         arrival of the first packet at the NIC",
        explanation.mode,
        explanation.host,
        if explanation.mode.poller().is_some() { ", the polling thread on another" } else { "" },
    );
    format!(
        "{}\n\n\
         ONE REQUEST on an idle host\n\n{heading}{one}\n\
         {}\n\n{heading}{busy}",
        terminal.fill(&header, "", ""),
        terminal.fill(
            &format!("A BUSY PERIOD: {BUSY_REQUESTS} more requests, faster than the server handles them"),
            "",
            ""
        )
    )
}

fn lines(sentences: &[Sentence], terminal: Terminal) -> String {
    sentences.iter().map(|sentence| set(sentence, terminal)).collect()
}

fn set(sentence: &Sentence, terminal: Terminal) -> String {
    let lasts = sentence.lasts_us.map_or_else(String::new, |us| format!("{us:.2}"));
    let beside = format!("{:>9.2} {lasts:>8}  ", sentence.at_us);
    let indent = " ".repeat(beside.chars().count());
    terminal.fill(&sentence.text, &beside, &indent) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_sentence_is_wrapped_beside_its_time() {
        let text = "The packet reaches its socket, and the epoll hears of it.".to_owned();
        let shown = set(&Sentence { at_us: 7.52, lasts_us: None, text }, Terminal::of_columns(50));
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines.len() > 1 && lines.iter().all(|line| line.chars().count() <= 50), "{shown}");
        assert!(lines[0].starts_with("     7.52           The packet"), "{shown}");
        assert!(lines[1].starts_with(&" ".repeat(20)), "{shown}");
    }
}
