//! Entry point of the fuzz target for frames. It exists only in instrumented builds and in the unit tests, which replay the
//! stored corpus.

use crate::frame::{UdpChecksum, UdpFrame};

/// Parses bytes as a frame. The answer to a valid frame is valid, and the answer to that is the frame again, unless a
/// partial checksum was completed.
pub fn frames(bytes: &[u8]) {
    let Ok(parsed) = UdpFrame::parse(bytes) else { return };
    assert!(parsed.payload().end <= bytes.len());
    let mut turned = bytes.to_vec();
    parsed.turn(&mut turned);
    let answer = UdpFrame::parse(&turned).expect("the answer to a valid frame is valid");
    assert_eq!((answer.source, answer.destination), (parsed.destination, parsed.source));
    assert_eq!(turned[answer.payload()], bytes[parsed.payload()]);
    if parsed.checksum != UdpChecksum::Partial {
        answer.turn(&mut turned);
        assert_eq!(turned, bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    #[test]
    fn stored_frames_have_valid_answers() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/xdp_frames");
        let files: Vec<_> = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty());
        files.iter().for_each(|file| super::frames(&fs::read(file).unwrap()));
    }
}
