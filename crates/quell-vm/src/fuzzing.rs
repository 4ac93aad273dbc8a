//! Entry point for the fuzz target that covers messages of a guest. It exists only in instrumented builds and in unit
//! tests, which replay the stored corpus.

use crate::message::Message;

/// Parses bytes as a message. A parsed message serializes to an equal message.
pub fn guest_messages(bytes: &[u8]) {
    if let Ok(message) = Message::parse(bytes) {
        assert_eq!(Message::parse(message.to_line().as_bytes()).ok(), Some(message));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_stored_messages_parse_safely() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/guest_messages");
        let files: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty(), "no corpus files in {}", directory.display());
        files.iter().for_each(|file| super::guest_messages(&fs::read(file).unwrap()));
    }
}
