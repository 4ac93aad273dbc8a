//! Extracts the uncompressed kernel from a bzImage (`Documentation/arch/x86/boot.rst`). Booting it directly (PVH)
//! avoids decompression in the guest, which takes two seconds under emulation. Supported compressions are `KERNEL_ZSTD`
//! and `KERNEL_LZ4`.

use std::io::{self, Read};

use object::elf::FileHeader64;
use object::{Endianness, read::elf::FileHeader as _};
use thiserror::Error;

/// Offset and value of the `HdrS` magic in the setup header.
const HEADER_MAGIC: (usize, &[u8]) = (0x202, b"HdrS");
/// Offset of `setup_sects`, the number of sectors between the boot sector and the protected-mode code. 0 means 4.
const SETUP_SECTS: usize = 0x1f1;
const SECTOR_BYTES: usize = 512;
/// Offset of `payload_offset`, which is relative to the protected-mode code. `payload_length` follows it.
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
/// Size of the trailer in bytes. The kernel build appends the uncompressed size, a 32-bit number, to the compressed
/// data.
const SIZE_BYTES: usize = 4;

const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const LZ4_LEGACY_MAGIC: &[u8] = &[0x02, 0x21, 0x4c, 0x18];

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImageError {
    #[error("not a kernel image: {0}")]
    NotAnImage(&'static str),
    #[error("unknown compression with magic {0:02x?}; supported: zstd and LZ4")]
    Format(Vec<u8>),
    #[error("could not decompress the kernel: {0}")]
    Decompress(#[from] io::Error),
}

/// Extracts the kernel's ELF file from a bzImage.
///
/// # Errors
/// [`ImageError`]. No input causes a panic.
pub(crate) fn vmlinux(image: &[u8]) -> Result<Vec<u8>, ImageError> {
    let payload = payload(image).ok_or(ImageError::NotAnImage("it has no setup header with a payload"))?;
    let kernel = decompress(payload)?;
    FileHeader64::<Endianness>::parse(kernel.as_slice())
        .map_err(|_| ImageError::NotAnImage("its payload is not an ELF file"))?;
    Ok(kernel)
}

fn payload(image: &[u8]) -> Option<&[u8]> {
    let (at, magic) = HEADER_MAGIC;
    if image.get(at..)?.get(..magic.len())? != magic {
        return None;
    }
    let setup_sects = match *image.get(SETUP_SECTS)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let begin = (setup_sects + 1) * SECTOR_BYTES + number(image, PAYLOAD_OFFSET)?;
    image.get(begin..)?.get(..number(image, PAYLOAD_LENGTH)?.checked_sub(SIZE_BYTES)?)
}

fn number(image: &[u8], at: usize) -> Option<usize> {
    let bytes: [u8; 4] = image.get(at..)?.get(..4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

fn decompress(payload: &[u8]) -> Result<Vec<u8>, ImageError> {
    let mut kernel = Vec::new();
    if payload.starts_with(ZSTD_MAGIC) {
        let mut decoder = ruzstd::decoding::StreamingDecoder::new(payload).map_err(io::Error::other)?;
        decoder.read_to_end(&mut kernel)?;
    } else if payload.starts_with(LZ4_LEGACY_MAGIC) {
        lz4_flex::frame::FrameDecoder::new(payload).read_to_end(&mut kernel)?;
    } else {
        return Err(ImageError::Format(payload.iter().take(4).copied().collect()));
    }
    Ok(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Creates an image with the structure of the boot protocol.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 2 * SECTOR_BYTES];
        image[SETUP_SECTS] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&(payload.len() as u32 + 4).to_le_bytes());
        image.extend_from_slice(payload);
        image.extend_from_slice(&[0; SIZE_BYTES]);
        image
    }

    #[test]
    fn invalid_and_truncated_images_are_refused() {
        assert!(matches!(vmlinux(b"#!/bin/sh"), Err(ImageError::NotAnImage(_))));
        let mut cut = image(&[0; 64]);
        cut.truncate(2 * SECTOR_BYTES + 8);
        assert!(matches!(vmlinux(&cut), Err(ImageError::NotAnImage(_))));
    }

    #[test]
    fn an_unknown_compression_is_reported() {
        let error = vmlinux(&image(b"\x1f\x8b\x08\x00 gzip")).unwrap_err();
        assert!(error.to_string().contains("1f, 8b, 08, 00"), "{error}");
    }

    #[test]
    fn a_payload_without_kernel_is_refused() {
        let compressed =
            ruzstd::encoding::compress_to_vec(&b"no kernel"[..], ruzstd::encoding::CompressionLevel::Fastest);
        assert!(matches!(vmlinux(&image(&compressed)), Err(ImageError::NotAnImage("its payload is not an ELF file"))));
    }

    proptest! {
        #[test]
        fn arbitrary_payloads_never_panic(payload in proptest::collection::vec(any::<u8>(), 0..200), zstd: bool) {
            let magic = if zstd { ZSTD_MAGIC } else { LZ4_LEGACY_MAGIC };
            let _ = vmlinux(&image(&[magic, &payload].concat()));
        }
    }
}
