//! Suggestions for misspelled names.

/// Fewest letters of a beginning that suggests a name.
const BEGINNING_MIN: usize = 3;

/// The known name that is most similar to `word`: it begins with `word`, or at most a third of the letters of the longer
/// one differ.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let is_beginning = |candidate: &str| word.len() >= BEGINNING_MIN && candidate.starts_with(word);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, candidate)| distance * 3 <= candidate.len().max(word.len()) || is_beginning(candidate))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// ` (did you mean NAME?)`. Empty if no known name is similar.
#[must_use]
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or_else(String::new, |name| format!(" (did you mean {name}?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_slip_or_its_beginning_suggests_the_name_and_other_words_suggest_nothing() {
        let known = ["memcached", "redis-server", "nginx"];
        let suggested = |word| nearest(word, known);
        assert_eq!(suggested("memcahced"), Some("memcached"));
        assert_eq!(suggested("redis"), Some("redis-server"));
        assert_eq!(nearest("rxx", ["rx", "tx"]), Some("rx"));
        assert_eq!([suggested("haproxy"), suggested("re"), suggested("")], [None; 3]);
        assert_eq!(did_you_mean("ngnix", known), " (did you mean nginx?)");
        assert_eq!(did_you_mean("haproxy", known), "");
    }
}
