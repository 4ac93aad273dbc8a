//! Renders trees for a terminal. A line consists of parts and wraps between them; a part wraps only if it is wider than
//! the terminal.

use clap::builder::styling::{AnsiColor, Style};
use textwrap::core::display_width;

use super::terminal::Terminal;
use crate::output::on_one_line;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    Plain,
    Name,
    /// Value other than the kernel's default.
    Set,
    /// Needs attention.
    Notable,
    Faint,
}

impl Meaning {
    const fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Name => Style::new().bold(),
            Self::Set => AnsiColor::Cyan.on_default(),
            Self::Notable => AnsiColor::Yellow.on_default(),
            Self::Faint => Style::new().dimmed(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    text: String,
    meaning: Meaning,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Node {
    parts: Vec<Part>,
    children: Vec<Node>,
}

impl Node {
    pub(crate) fn named(name: impl Into<String>) -> Self {
        Self::default().with(Meaning::Name, name)
    }

    pub(crate) fn with(mut self, meaning: Meaning, text: impl Into<String>) -> Self {
        self.add(meaning, text);
        self
    }

    pub(crate) fn add(&mut self, meaning: Meaning, text: impl Into<String>) {
        self.parts.push(Part { text: on_one_line(&text.into()), meaning });
    }

    pub(crate) fn add_if(&mut self, meaning: Meaning, text: Option<String>) {
        if let Some(text) = text {
            self.add(meaning, text);
        }
    }

    pub(crate) fn push(&mut self, child: Node) {
        self.children.push(child);
    }

    pub(crate) fn extend(&mut self, children: impl IntoIterator<Item = Node>) {
        self.children.extend(children);
    }
}

const GAP: usize = 2;
/// Additional indent of continuation lines.
const HANGING: usize = 4;

pub(crate) fn render(roots: &[Node], terminal: Terminal) -> String {
    let mut out = String::new();
    for root in roots {
        render_node(root, "", "", terminal, &mut out);
    }
    out
}

fn render_node(node: &Node, first: &str, rest: &str, terminal: Terminal, out: &mut String) {
    let stem = if node.children.is_empty() { "" } else { "│" };
    line(node, first, &format!("{rest}{stem:<HANGING$}"), terminal, out);
    for (index, child) in node.children.iter().enumerate() {
        let (branch, below) = if index + 1 == node.children.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        render_node(child, &format!("{rest}{branch}"), &format!("{rest}{below}"), terminal, out);
    }
}

fn line(node: &Node, first: &str, hanging: &str, terminal: Terminal, out: &mut String) {
    out.push_str(first);
    let mut column = display_width(first);
    let mut starts = true;
    for part in &node.parts {
        for (piece, gap) in pieces(part, terminal, display_width(hanging)) {
            let width = display_width(piece);
            if !starts && !terminal.fits(column + gap + width) {
                out.push('\n');
                out.push_str(hanging);
                column = display_width(hanging);
            } else if !starts {
                out.push_str(&" ".repeat(gap));
                column += gap;
            }
            starts = false;
            push_styled(piece, part.meaning, terminal, out);
            column += width;
        }
    }
    out.push('\n');
}

/// A part and the spaces before each piece: whole, or split into words if it is wider than a line.
fn pieces(part: &Part, terminal: Terminal, indent: usize) -> Vec<(&str, usize)> {
    if terminal.fits(indent + display_width(&part.text)) {
        return vec![(&part.text, GAP)];
    }
    part.text.split(' ').enumerate().map(|(index, word)| (word, if index == 0 { GAP } else { 1 })).collect()
}

fn push_styled(text: &str, meaning: Meaning, terminal: Terminal, out: &mut String) {
    if !terminal.colour || meaning == Meaning::Plain {
        out.push_str(text);
        return;
    }
    let style = meaning.style();
    out.push_str(&format!("{style}{text}{style:#}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Node {
        let mut root = Node::named("eth0").with(Meaning::Plain, "up").with(Meaning::Set, "threaded");
        let mut queue = Node::named("rx 0-15").with(Meaning::Plain, "NAPI 1-16");
        queue.push(Node::named("irq 7"));
        root.push(queue);
        root.push(Node::named("rss 0"));
        root
    }

    #[test]
    fn a_wide_terminal_has_one_line_per_node() {
        let wide = Terminal::of_columns(80);
        let wanted = "eth0  up  threaded\n├─ rx 0-15  NAPI 1-16\n│  └─ irq 7\n└─ rss 0\n";
        assert_eq!(render(&[tree()], wide), wanted);
    }

    #[test]
    fn a_narrow_terminal_wraps_between_parts_and_keeps_the_branches() {
        let narrow = Terminal::of_columns(16);
        let wanted = "eth0  up\n│   threaded\n├─ rx 0-15\n│  │   NAPI 1-16\n│  └─ irq 7\n└─ rss 0\n";
        assert_eq!(render(&[tree()], narrow), wanted);
    }

    #[test]
    fn terminals_get_colors() {
        let colourful = render(&[tree()], Terminal { colour: true, ..Terminal::of_columns(80) });
        assert!(colourful.contains("\u{1b}[36mthreaded\u{1b}[0m"), "{colourful:?}");
    }
}
