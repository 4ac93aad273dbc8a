//! Text for terminals: counts with their nouns, and text from other sources. The kernel lets any process choose its
//! name, and users choose the names of interfaces and files. Such names may contain escape sequences, line breaks and
//! bidirectional overrides, which could forge output of this program. Each such character is replaced by its code, for
//! example `\u{1b}`.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// No control characters. The text is a name within a line.
    Nothing,
    /// Line breaks.
    Layout,
    /// Line breaks, and color sequences (SGR).
    LayoutAndStyle,
}

/// Escapes a name from another source for a single line.
#[must_use]
pub fn name(name: &str) -> Cow<'_, str> {
    text(name, Kept::Nothing)
}

#[must_use]
pub fn path(path: &Path) -> String {
    name(&path.to_string_lossy()).into_owned()
}

/// Escapes a text of this program that may contain names from other sources.
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
        let is_layout = kept != Kept::Nothing && letter == '\n';
        if style > 0 || is_visible(letter) || is_layout {
            out.push_str(&rest[..bytes]);
        } else {
            out.extend(letter.escape_debug());
        }
        rest = &rest[bytes..];
    }
    Cow::Owned(out)
}

/// `1 packet`, `12,345 packets`.
#[must_use]
pub fn counted<N: fmt::Display + PartialEq + From<u8>>(count: N, one: &str) -> String {
    format!("{} {}", thousands(&count.to_string()), noun(&count, one))
}

/// Separates the thousands in the digits of a number.
#[must_use]
pub fn thousands(digits: &str) -> String {
    let (integer, fraction) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let (sign, integer) = integer.split_at(usize::from(integer.starts_with('-')));
    let mut out = String::from(sign);
    for (index, digit) in integer.chars().enumerate() {
        if index > 0 && (integer.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out + fraction
}

#[must_use]
pub fn noun<N: PartialEq + From<u8>>(count: &N, one: &str) -> String {
    let ending = if one.ends_with(['s', 'x']) { "es" } else { "s" };
    agree(count, one, &format!("{one}{ending}")).to_owned()
}

/// The word that agrees with this count, such as `is` or `are`.
#[must_use]
pub fn agree<'a, N: PartialEq + From<u8>>(count: &N, one: &'a str, many: &'a str) -> &'a str {
    if *count == N::from(1) { one } else { many }
}

/// Escapes characters in JSON that a terminal would interpret or hide. They occur only in strings. Line breaks between
/// values are unchanged.
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

/// Escapes control characters, including line breaks, in the strings of JSON from another source. Values that are read
/// from the result then stay on one output line.
#[must_use]
pub fn json_of_others(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    // Backslashes occur only in strings, each followed by the character that it escapes.
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

/// Whether a character is printed unescaped. It must not be a control character (C0, DEL, C1), be invisible, or change
/// the direction of text (format characters, line and paragraph separators).
fn is_visible(letter: char) -> bool {
    match letter {
        ' '..='~' => true,
        '\u{0}'..='\u{9f}' => false,
        // Combining characters are visible within a name. `escape_debug` escapes them only at the start of a string.
        _ => letter.escape_debug().len() == 1 || is_combining(letter),
    }
}

/// Whether a character combines with the previous one and is not a format character. Format characters are always
/// escaped.
fn is_combining(letter: char) -> bool {
    let behind_a_letter = ['a', letter].iter().collect::<String>();
    behind_a_letter.escape_debug().count() == 2
}

/// Length in bytes of the color sequence at the start of `text`; 0 if there is none.
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
    fn nouns_and_verbs_agree_with_their_count() {
        assert_eq!(
            [0, 1, 2, 999, 4480, 1_234_567].map(|packets: u64| counted(packets, "packet")),
            ["0 packets", "1 packet", "2 packets", "999 packets", "4,480 packets", "1,234,567 packets"]
        );
        assert_eq!([counted(1, "process"), counted(2, "process")], ["1 process", "2 processes"]);
        assert_eq!([agree(&1, "is", "are"), agree(&0, "is", "are")], ["is", "are"]);
    }

    #[test]
    fn terminal_control_characters_are_escaped() {
        for hostile in HOSTILE {
            assert!(!obeyed(&name(hostile)), "{:?}", name(hostile));
            assert!(!obeyed(&json(&hostile.replace('\n', ""))), "{hostile:?}");
            assert!(!obeyed(&text(hostile, Kept::Layout).replace('\n', "")), "{hostile:?}");
        }
        assert_eq!(name("\u{1b}[2J"), "\\u{1b}[2J");
    }

    #[test]
    fn ordinary_names_are_unchanged() {
        for plain in ["memcached", "kworker/0:1-events", "nginx: worker", "Zoë", "サーバー", "e\u{301}", "it's \"so\""]
        {
            assert_eq!(name(plain), plain);
        }
    }

    #[test]
    fn only_colors_of_this_program_are_unchanged() {
        let painted = "\u{1b}[1;31mred\u{1b}[0m\n";
        assert_eq!(text(painted, Kept::LayoutAndStyle), painted);
        assert_eq!(text("\u{1b}[2J\u{1b}[1mb", Kept::LayoutAndStyle), "\\u{1b}[2J\u{1b}[1mb");
        assert!(!obeyed(&text(painted, Kept::Nothing)));
    }

    #[test]
    fn values_from_foreign_json_stay_on_one_line() {
        let read = |json: &str| serde_json::from_str::<String>(&json_of_others(json)).unwrap();
        assert_eq!(read(r#""a\nb\u000ac\td""#), r"a\nb\u000ac\td");
        assert_eq!(read(r#""a\\n \"b\" \ud83d\ude00 é""#), r#"a\n "b" 😀 é"#);
    }

    proptest! {
        #[test]
        fn escaped_foreign_json_is_json_without_control_characters(any: String) {
            let written = serde_json::to_string(&any).unwrap();
            let read: String = serde_json::from_str(&json_of_others(&written)).unwrap();
            prop_assert!(!read.chars().any(|letter| letter < ' '), "{read:?}");
        }

        #[test]
        fn no_name_contains_terminal_control_characters(any: String) {
            prop_assert!(!name(&any).chars().any(char::is_control));
        }

        #[test]
        fn escaped_json_has_the_same_value(any: String) {
            let written = serde_json::to_string(&any).unwrap();
            prop_assert_eq!(serde_json::from_str::<String>(&json(&written)).unwrap(), any);
        }
    }
}
