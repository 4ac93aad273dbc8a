//! Converts the Markdown of `docs/` to the macros of man(7): headings, paragraphs, lists, tables and code blocks, with
//! bold, italic, code and links in them.

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

/// A manual page, from `docs/`: for links to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guide {
    pub(super) file: &'static str,
    /// Name of the manual page that has its text.
    pub(super) page: &'static str,
    pub(super) section: &'static str,
}

#[derive(Debug, Default)]
pub(super) struct Converted {
    pub(super) title: String,
    /// Everything before the first section.
    pub(super) introduction: Roff,
    pub(super) sections: Vec<(String, Roff)>,
    /// Manual pages that the text links to, in order of appearance.
    pub(super) linked: Vec<Guide>,
}

/// Converts a document. Links to one of `guides` name its manual page.
pub(super) fn convert(markdown: &str, guides: &[Guide]) -> Converted {
    let mut converter = Converter { guides, converted: Converted::default() };
    let mut lines = markdown.lines().peekable();
    while let Some(line) = lines.next() {
        let mut block = |is_part: &dyn Fn(&str) -> bool| -> Vec<&str> {
            std::iter::from_fn(|| lines.next_if(|next| is_part(next))).collect()
        };
        if let Some(heading) = line.strip_prefix("# ") {
            heading.clone_into(&mut converter.converted.title);
        } else if let Some(heading) = line.strip_prefix("## ") {
            converter.converted.sections.push((heading.replace('`', ""), Roff::new()));
        } else if let Some(heading) = line.strip_prefix("### ") {
            converter.roff().control("SS", [quoted(&heading.replace('`', "")).as_str()]);
        } else if is_fence(line) {
            let code = block(&|next| !is_fence(next));
            lines.next();
            converter.code(&code);
        } else if is_row(line) {
            let rows = block(&is_row);
            let of_item = !line.starts_with('|');
            if of_item {
                converter.roff().control("RS", ["3"]);
            }
            converter.table(line, &rows);
            if of_item {
                converter.roff().control("RE", []);
            }
        } else if let Some((mark, first)) = list_item(line) {
            let is_part =
                |next: &str| next.starts_with(' ') && !next.trim().is_empty() && !is_fence(next) && !is_row(next);
            let rest = block(&is_part);
            converter.item(mark, &joined(first, &rest));
        } else if !line.trim().is_empty() && !line.starts_with("![") {
            let rest = block(&is_paragraph);
            converter.roff().control("PP", []);
            converter.text(&joined(line, &rest));
        }
    }
    converter.converted
}

fn is_paragraph(line: &str) -> bool {
    !(line.trim().is_empty() || line.starts_with('#') || is_row(line) || is_fence(line) || list_item(line).is_some())
}

/// Whether the line begins or ends a code block. That of an item is indented.
fn is_fence(line: &str) -> bool {
    line.trim_start().starts_with("```")
}

/// Whether the line is a row of a table. That of an item is indented.
fn is_row(line: &str) -> bool {
    line.trim_start().starts_with('|')
}

/// The mark and the text of a line that begins an item of a list.
fn list_item(line: &str) -> Option<(&str, &str)> {
    if let Some(text) = line.strip_prefix("- ") {
        return Some(("\\(bu", text));
    }
    let (number, text) = line.split_once(". ")?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some((number, text))
}

fn joined(first: &str, rest: &[&str]) -> String {
    rest.iter().fold(first.trim().to_owned(), |text, line| text + " " + line.trim())
}

/// An argument of a macro. `Roff` quotes it only if it has blanks.
pub(super) fn quoted(argument: &str) -> String {
    argument.replace('"', "")
}

struct Converter<'a> {
    guides: &'a [Guide],
    converted: Converted,
}

impl Converter<'_> {
    fn roff(&mut self) -> &mut Roff {
        self.converted.sections.last_mut().map_or(&mut self.converted.introduction, |(_, roff)| roff)
    }

    fn text(&mut self, markdown: &str) {
        let mut inlines = Vec::new();
        self.inlines(markdown, roman, &mut inlines);
        self.roff().text(inlines);
    }

    fn code(&mut self, lines: &[&str]) {
        let roff = self.roff();
        roff.control("PP", []).control("RS", ["4"]).control("EX", []);
        for line in lines {
            // An empty line of text would be a paragraph.
            if line.is_empty() {
                roff.control("sp", [])
            } else {
                roff.text([roman(*line)])
            };
        }
        roff.control("EE", []).control("RE", []);
    }

    fn item(&mut self, mark: &str, text: &str) {
        self.roff().control("IP", [mark, "3"]);
        self.text(text);
    }

    /// A table becomes a list, because its rows are wider than a terminal: the first cell is the term, and the other
    /// cells have the heading of their column if there are several. A row without a term continues the one above.
    fn table(&mut self, heading: &str, rows: &[&str]) {
        let columns = cells(heading);
        for row in rows.iter().skip(1).map(|row| cells(row)) {
            if let Some(term) = row.first().filter(|term| !term.is_empty()) {
                self.roff().control("TP", []);
                self.text(term);
            } else {
                self.roff().control("IP", []);
            }
            let filled = row.iter().zip(&columns).skip(1).filter(|(cell, _)| !cell.is_empty());
            let described: Vec<String> = match columns.len() {
                ..=2 => filled.map(|(cell, _)| cell.clone()).collect(),
                _ => filled.map(|(cell, column)| format!("{column}: {cell}")).collect(),
            };
            self.text(&described.join("; "));
        }
    }

    /// Appends `markdown`, in `font` where it sets none itself.
    fn inlines(&mut self, markdown: &str, font: fn(String) -> Inline, into: &mut Vec<Inline>) {
        let mut rest = markdown;
        while let Some(at) = rest.find(['`', '*', '[', '\\']) {
            let (plain, marked) = rest.split_at(at);
            push(into, font, plain);
            rest = self.marked(marked, font, into).unwrap_or_else(|| {
                push(into, font, &marked[..1]);
                &marked[1..]
            });
        }
        push(into, font, rest);
    }

    /// Appends the span at the beginning of `text`, and returns what follows it. `None` if no span begins there.
    fn marked<'t>(&mut self, text: &'t str, font: fn(String) -> Inline, into: &mut Vec<Inline>) -> Option<&'t str> {
        if let Some(escaped) = text.strip_prefix('\\') {
            let next = escaped.chars().next().filter(char::is_ascii_punctuation)?;
            push(into, font, &escaped[..next.len_utf8()]);
            return Some(&escaped[next.len_utf8()..]);
        }
        if let Some((code, rest)) = text.strip_prefix('`').and_then(|text| text.split_once('`')) {
            push(into, bold, &code.replace("\\|", "|"));
            return Some(rest);
        }
        if let Some((inner, rest)) = text.strip_prefix("**").and_then(|text| text.split_once("**")) {
            self.inlines(inner, bold, into);
            return Some(rest);
        }
        if let Some((inner, rest)) = text.strip_prefix('*').and_then(|text| text.split_once('*')) {
            self.inlines(inner, italic, into);
            return Some(rest);
        }
        let (label, rest) = text.strip_prefix('[')?.split_once("](")?;
        let (target, rest) = rest.split_once(')')?;
        let file = target.split('#').next().unwrap_or_default();
        let Some(guide) = self.guides.iter().find(|guide| guide.file == file) else {
            self.inlines(label, font, into);
            // Other files of the repository are not installed.
            if target.starts_with("http") {
                push(into, roman, &format!(" <{target}>"));
            }
            return Some(rest);
        };
        let section = format!("({})", guide.section);
        if label == file {
            into.extend([bold(guide.page), roman(section)]);
        } else {
            self.inlines(label, font, into);
            into.extend([roman(" ("), bold(guide.page), roman(section + ")")]);
        }
        if self.converted.linked.iter().all(|linked| linked.file != guide.file) {
            self.converted.linked.push(*guide);
        }
        Some(rest)
    }
}

fn push(into: &mut Vec<Inline>, font: fn(String) -> Inline, text: &str) {
    if !text.is_empty() {
        into.push(font(text.to_owned()));
    }
}

/// The cells of a row. `\|` is no border.
fn cells(row: &str) -> Vec<String> {
    let row = row.trim().trim_matches('|').replace("\\|", "\u{1}");
    row.split('|').map(|cell| cell.trim().replace('\u{1}', "\\|")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUIDES: [Guide; 1] = [Guide { file: "undo.md", page: "quell-undo", section: "7" }];

    fn introduction(markdown: &str) -> String {
        convert(markdown, &GUIDES).introduction.to_roff()
    }

    #[test]
    fn spans_become_fonts_and_escapes_disappear() {
        assert_eq!(introduction("a **b** *c* `d` e\\*f 2 * 3"), ".PP\na \\fBb\\fR \\fIc\\fR \\fBd\\fR e*f 2 * 3\n");
    }

    #[test]
    fn links_name_a_manual_page_or_an_address() {
        assert_eq!(introduction("[how](undo.md#when)"), ".PP\nhow (\\fBquell\\-undo\\fR(7))\n");
        assert_eq!(introduction("[undo.md](undo.md)"), ".PP\n\\fBquell\\-undo\\fR(7)\n");
        assert_eq!(introduction("[how](https://example.org)"), ".PP\nhow <https://example.org>\n");
        assert_eq!(introduction("[unit](../dist/quell.service)"), ".PP\nunit\n");
    }

    #[test]
    fn rows_of_a_table_become_items_with_the_headings_of_their_columns() {
        let two = "| key | meaning |\n| --- | --- |\n| `a\\|b` | text |\n";
        assert_eq!(introduction(two), ".TP\n\\fBa|b\\fR\ntext\n");
        let three = "| key | unit | meaning |\n| --- | --- | --- |\n| a | ns | text |\n| b | | other |\n";
        assert_eq!(introduction(three), ".TP\na\nunit: ns; meaning: text\n.TP\nb\nmeaning: other\n");
    }

    #[test]
    fn a_row_with_an_empty_first_cell_continues_the_row_above() {
        let table = "| key | meaning |\n| --- | --- |\n| a | text |\n| | other |\n";
        assert_eq!(introduction(table), ".TP\na\ntext\n.IP\nother\n");
    }

    #[test]
    fn lines_of_a_paragraph_and_of_an_item_are_joined() {
        assert_eq!(introduction("a\nb\n\n- c\n  d\n2. e\n"), ".PP\na b\n.IP \\(bu 3\nc d\n.IP 2 3\ne\n");
    }

    #[test]
    fn code_is_neither_filled_nor_interpreted() {
        assert_eq!(introduction("```sh\n.a *b*\n\nc\n```\n"), ".PP\n.RS 4\n.EX\n\\&.a *b*\n.sp\nc\n.EE\n.RE\n");
    }

    #[test]
    fn code_of_an_item_is_indented() {
        let item = "- a\n  b\n\n  ```sh\n  c\n  ```\n- d\n";
        let code = ".PP\n.RS 4\n.EX\n  c\n.EE\n.RE\n";
        assert_eq!(introduction(item), format!(".IP \\(bu 3\na b\n{code}.IP \\(bu 3\nd\n"));
        assert_eq!(introduction(&item.replacen("\n\n", "\n", 1)), introduction(item));
    }

    #[test]
    fn a_table_of_an_item_is_an_indented_list() {
        let item = "- a\n\n  | b | c |\n  | --- | --- |\n  | d | e |\n- f\n";
        let table = ".RS 3\n.TP\nd\ne\n.RE\n";
        assert_eq!(introduction(item), format!(".IP \\(bu 3\na\n{table}.IP \\(bu 3\nf\n"));
        assert_eq!(introduction(&item.replacen("\n\n", "\n", 1)), introduction(item));
    }

    #[test]
    fn second_headings_begin_sections() {
        let converted = convert("# Title\n\na\n\n## `One` two\n\nb\n", &GUIDES);
        assert_eq!(converted.title, "Title");
        assert_eq!(converted.sections[0].0, "One two");
        assert_eq!(converted.sections[0].1.to_roff(), ".PP\nb\n");
    }
}
