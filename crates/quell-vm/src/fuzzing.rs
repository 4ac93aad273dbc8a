//! Entry point for the fuzz target that covers guest files and messages. It exists only in instrumented builds and in
//! unit tests, which replay the stored corpus.

use crate::elf_trim::{interpreter, loaded_part};
use crate::kernel_image;
use crate::message::Message;

/// Parses bytes as a program, a kernel and a message, and checks these properties. A trimmed program is not longer, has
/// the same dynamic linker, and does not change if it is trimmed again. A parsed message serializes to an equal
/// message.
pub fn guest_files(bytes: &[u8]) {
    let cut = loaded_part(bytes.to_vec());
    assert!(cut.len() <= bytes.len());
    assert_eq!(loaded_part(cut.clone()), cut);
    if let Some(linker) = interpreter(&cut) {
        assert_eq!(interpreter(bytes), Some(linker));
    }
    let _ = kernel_image::vmlinux(bytes);
    if let Ok(message) = Message::parse(bytes) {
        assert_eq!(Message::parse(message.to_line().as_bytes()).ok(), Some(message));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_stored_corpus_of_programs_kernels_and_messages_parses_safely() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/guest_files");
        let files: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty(), "no corpus files in {}", directory.display());
        files.iter().for_each(|file| super::guest_files(&fs::read(file).unwrap()));
    }
}
