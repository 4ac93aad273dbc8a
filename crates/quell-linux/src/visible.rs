//! Text of others as a terminal may get it. The kernel lets any process choose its name, and whoever makes an interface or
//! a file the name of that: escape sequences, line ends and bidirectional overrides included. Printed as they are they
//! would write what this program did not say. Each such character becomes its code here, as `\\u{1b}`.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::Path;

/// What stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Nothing that is not visible: the text is a name, on a line of ours.
    Nothing,
    /// Line ends and tabs.
    Layout,
    /// Line ends, tabs, and sequences that set colours (SGR).
    LayoutAndStyle,
}

/// A name that others have chosen, on one line.
#[must_use]
pub fn name(name: &str) -> Cow<'_, str> {
    text(name, Kept::Nothing)
}

/// A path, on one line.
#[must_use]
pub fn path(path: &Path) -> String {
    name(&path.to_string_lossy()).into_owned()
}

/// A text of ours that may hold what others have chosen.
#[must_use]
pub fn text(text: &str, kept: Kept) -> Cow<'_, str> {
    if text.chars().all(is_visible) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let style = if kept == Kept::LayoutAndStyle { style_bytes(rest) } else { 0 };
        let bytes = style.max(letter.len_utf8());
        let is_layout = kept != Kept::Nothing && matches!(letter, '\n' | '\t');
        if style > 0 || is_visible(letter) || is_layout {
            out.push_str(&rest[..bytes]);
        } else {
            out.extend(letter.escape_debug());
        }
        rest = &rest[bytes..];
    }
    Cow::Owned(out)
}

/// JSON with every character that a terminal would obey or hide as its code. Such characters are in strings alone: line
/// ends between its parts stay.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    let is_fine = |letter: char| letter == '\n' || is_visible(letter);
    if text.chars().all(is_fine) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if is_fine(letter) {
            out.push(letter);
        } else {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    Cow::Owned(out)
}

/// JSON of others as JSON in which no string has a line end or another control character: each becomes its code as text.
/// What is read from it stays on the line that it is printed on.
#[must_use]
pub fn json_of_others(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    // Backslashes are in strings alone, each with what it escapes.
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let is_control = escape[1..].starts_with(['b', 'f', 'n', 'r', 't', 'u'])
            && escape.strip_prefix("\\u").is_none_or(|code| code.starts_with("00"));
        out.push_str(if is_control { "\\\\" } else { "\\" });
        let escaped = escape[1..].chars().next().map_or("", |letter| &escape[1..1 + letter.len_utf8()]);
        out.push_str(escaped);
        rest = &escape[1 + escaped.len()..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Printed as itself: neither a control character (C0, DEL, C1) nor one that is invisible or changes the direction of
/// what follows (format characters, separators of lines and paragraphs).
fn is_visible(letter: char) -> bool {
    match letter {
        ' '..='~' => true,
        '\u{0}'..='\u{9f}' => false,
        // Combining characters are visible within a name, and escaped by this at its beginning alone.
        _ => letter.escape_debug().len() == 1 || is_combining(letter),
    }
}

/// Extends the letter before it, and is no format character: those are escaped also behind a letter.
fn is_combining(letter: char) -> bool {
    let behind_a_letter = ['a', letter].iter().collect::<String>();
    behind_a_letter.escape_debug().count() == 2
}

/// The length of the sequence that sets colours at the beginning of `text`, 0 when there is none.
fn style_bytes(text: &str) -> usize {
    let Some(parameters) = text.strip_prefix("\u{1b}[") else { return 0 };
    match parameters.find(|letter: char| !letter.is_ascii_digit() && letter != ';') {
        Some(end) if parameters[end..].starts_with('m') => text.len() - parameters.len() + end + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOSTILE: [&str; 8] = [
        "\u{1b}[2J\u{1b}[H",
        "a\nset it? [y/N] y",
        "a\r\u{8}",
        "\u{9b}31m",
        "\u{202e}gpj.exe",
        "\u{2066}a\u{2069}\u{200f}\u{61c}",
        "\u{2028}\u{2029}\u{feff}\u{ad}",
        "\u{7f}\u{0}\u{85}\u{e0041}",
    ];

    fn obeyed(text: &str) -> bool {
        text.chars().any(|c| c.is_control() || HOSTILE[4..].concat().chars().any(|h| h == c && !h.is_ascii_graphic()))
    }

    #[test]
    fn what_a_terminal_obeys_is_printed_as_its_code() {
        for hostile in HOSTILE {
            assert!(!obeyed(&name(hostile)), "{:?}", name(hostile));
            assert!(!obeyed(&json(&hostile.replace('\n', ""))), "{hostile:?}");
            assert!(!obeyed(&text(hostile, Kept::Layout).replace('\n', "")), "{hostile:?}");
        }
        assert_eq!(name("\u{1b}[2J"), "\\u{1b}[2J");
    }

    #[test]
    fn what_people_call_things_stays() {
        for plain in ["memcached", "kworker/0:1-events", "nginx: worker", "Zoë", "サーバー", "e\u{301}", "it's \"so\""]
        {
            assert_eq!(name(plain), plain);
        }
    }

    #[test]
    fn colours_stay_where_this_program_has_set_them_and_nothing_else_does() {
        let painted = "\u{1b}[1;31mred\u{1b}[0m\n";
        assert_eq!(text(painted, Kept::LayoutAndStyle), painted);
        assert_eq!(text("\u{1b}[2J\u{1b}[1mb", Kept::LayoutAndStyle), "\\u{1b}[2J\u{1b}[1mb");
        assert!(!obeyed(&text(painted, Kept::Nothing)));
    }

    #[test]
    fn what_is_read_from_json_of_others_stays_on_its_line() {
        let read = |json: &str| serde_json::from_str::<String>(&json_of_others(json)).unwrap();
        assert_eq!(read(r#""a\nb\u000ac\td""#), r"a\nb\u000ac\td");
        assert_eq!(read(r#""a\\n \"b\" \ud83d\ude00 é""#), r#"a\n "b" 😀 é"#);
    }

    proptest! {
        #[test]
        fn json_of_others_stays_json_without_control_characters(any: String) {
            let written = serde_json::to_string(&any).unwrap();
            let read: String = serde_json::from_str(&json_of_others(&written)).unwrap();
            prop_assert!(!read.chars().any(|letter| letter < ' '), "{read:?}");
        }

        #[test]
        fn no_name_whatever_holds_what_a_terminal_obeys(any: String) {
            prop_assert!(!name(&any).chars().any(char::is_control));
        }

        #[test]
        fn json_means_the_same(any: String) {
            let written = serde_json::to_string(&any).unwrap();
            prop_assert_eq!(serde_json::from_str::<String>(&json(&written)).unwrap(), any);
        }
    }
}
