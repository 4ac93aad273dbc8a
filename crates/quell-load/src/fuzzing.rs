//! Entry points for the fuzz targets that parse server answers. They exist only in instrumented builds and in the unit
//! tests, which replay the stored corpus.

use crate::response::{Answer, Parsed, ResponseReader, parse_get, parse_set};

/// Parses bytes as answers to `get` and `set`, first in one piece and then split in two. The first byte selects where
/// they are split.
pub fn memcached_answers(bytes: &[u8]) {
    let Some((&cut, stream)) = bytes.split_first() else { return };
    let (first, second) = stream.split_at(stream.len().min(cut.into()));
    for parse in [|bytes: &[u8]| parse_get(bytes, b"key", b"abc"), parse_set] {
        assert_eq!(read(&[first, second], parse), read(&[stream], parse));
    }
}

fn read(pieces: &[&[u8]], parse: fn(&[u8]) -> Parsed) -> (Vec<Answer>, bool) {
    let mut reader = ResponseReader::default();
    let mut answers = Vec::new();
    let mut each = |bytes: &[u8]| {
        let parsed = parse(bytes);
        if let Parsed::Complete { bytes: length, answer } = parsed {
            assert!((1..=bytes.len()).contains(&length), "{length} of {} bytes", bytes.len());
            answers.push(answer);
        }
        parsed
    };
    let understood = pieces.iter().all(|piece| reader.feed(piece, &mut each));
    (answers, understood)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    #[test]
    fn stored_memcached_answers_parse_the_same_in_one_piece_and_in_two() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/memcached_answers");
        let files: Vec<_> = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty());
        files.iter().for_each(|file| super::memcached_answers(&fs::read(file).unwrap()));
    }
}
