//! Quotes words for a POSIX shell, so that a printed command can be pasted, whatever names it contains.

use crate::visible;

/// The command line that a shell splits into these words.
#[must_use]
pub fn command<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> String {
    words.into_iter().map(|one| word(one.as_ref())).collect::<Vec<_>>().join(" ")
}

/// A word as it is typed. Uses `printf` for characters that cannot be displayed or typed. Only trailing newlines are lost.
#[must_use]
pub fn word(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-+=:,./@%".contains(&byte);
    if !word.starts_with(['=', '~']) && !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    if visible::name(word) == word {
        return shell_words::quote(word).into_owned();
    }
    let written = |byte: u8| match byte {
        b' '..=b'~' if !matches!(byte, b'\\' | b'\'' | b'%') => char::from(byte).to_string(),
        other => format!("\\{other:03o}"),
    };
    // `printf` treats a leading hyphen as an option.
    let no_options = if word.starts_with('-') { "-- " } else { "" };
    format!("\"$(printf {no_options}'{}')\"", word.bytes().map(written).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_begins_with_a_hyphen_is_not_an_option() {
        let words = ["-a\u{7}", "--\u{7}"];
        assert_eq!(parsed_by_sh(&command(words)), words);
    }

    /// Words that a shell parses from a command.
    fn parsed_by_sh(command: &str) -> Vec<String> {
        let script = format!("printf '%s\\0' {command}");
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{script}: {output:?}");
        let words = String::from_utf8(output.stdout).unwrap();
        words.split_terminator('\0').map(ToOwned::to_owned).collect()
    }

    #[test]
    fn a_name_with_shell_syntax_is_one_word_of_the_command() {
        for name in
            ["$(id)", "`id`", "a;b", "a b", "a'b", "\\", "#", "~", "*", "-rf", "\u{1b}[2J%s", "\u{202e}a", "!!", ""]
        {
            assert_eq!(parsed_by_sh(&command(["ethtool", "-K", name, "gro"])), ["ethtool", "-K", name, "gro"]);
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config::with_cases(64))]
        #[test]
        fn a_shell_parses_a_command_back_to_its_words(
            words in proptest::collection::vec("[^\\x00]{0,12}", 1..4),
        ) {
            let words: Vec<String> = words.iter().map(|word| word.trim_end_matches('\n').to_owned()).collect();
            proptest::prop_assert_eq!(parsed_by_sh(&command(&words)), words);
        }
    }
}
