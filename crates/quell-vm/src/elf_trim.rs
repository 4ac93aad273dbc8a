//! Removes everything from an ELF file that is never loaded, such as debug information and symbols. A guest keeps all
//! its files in memory, and a program with debug information would not fit.

use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, pod};

/// Truncates the file after the last byte of its loaded segments and removes the section table. A file that is not
/// 64-bit ELF, or whose program headers or dynamic linker would change, is returned unchanged.
pub(crate) fn loaded_part(file: Vec<u8>) -> Vec<u8> {
    let trimmed = trimmed(&file).filter(|trimmed| segments(trimmed) == segments(&file));
    trimmed.filter(|trimmed| interpreter(trimmed) == interpreter(&file)).unwrap_or(file)
}

fn trimmed(file: &[u8]) -> Option<Vec<u8>> {
    let (mut header, end) = header_and_loaded_end(file)?;
    let mut trimmed = file[..end.min(file.len())].to_vec();
    let endian = Endianness::Little;
    header.e_shoff.set(endian, 0);
    header.e_shnum.set(endian, 0);
    header.e_shstrndx.set(endian, object::elf::SHN_UNDEF);
    let header = pod::bytes_of(&header);
    trimmed.get_mut(..header.len())?.copy_from_slice(header);
    Some(trimmed)
}

fn segments(file: &[u8]) -> Option<&[u8]> {
    let header = FileHeader64::<Endianness>::parse(file).ok()?;
    let segments = header.program_headers(header.endian().ok()?, file).ok()?;
    Some(pod::bytes_of_slice(segments))
}

fn header_and_loaded_end(file: &[u8]) -> Option<(FileHeader64<Endianness>, usize)> {
    let header = FileHeader64::<Endianness>::parse(file).ok()?;
    let endian = header.endian().ok().filter(|endian| *endian == Endianness::Little)?;
    let segments = header.program_headers(endian, file).ok()?;
    let loaded = segments.iter().filter(|segment| segment.p_type(endian) == PT_LOAD);
    let end = loaded.filter_map(|segment| segment.p_offset(endian).checked_add(segment.p_filesz(endian))).max()?;
    Some((*header, usize::try_from(end).ok()?))
}

/// Path of an ELF file's dynamic linker. `None` if the file is statically linked.
pub(crate) fn interpreter(file: &[u8]) -> Option<String> {
    let header = FileHeader64::<Endianness>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, file).ok()?;
    let path = segments.iter().find_map(|segment| segment.interpreter(endian, file).ok().flatten())?;
    String::from_utf8(path.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::LazyLock;

    fn this_program() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn a_trimmed_program_is_smaller_and_still_runs() {
        let whole = this_program();
        let trimmed = loaded_part(whole.clone());
        assert!(trimmed.len() < whole.len());
        let file = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        std::fs::write(&file, trimmed).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let ran = std::process::Command::new(&*file).arg("--list").output().unwrap();
        assert!(String::from_utf8(ran.stdout).unwrap().contains("a_trimmed_program_is_smaller_and_still_runs"));
    }

    #[test]
    fn a_file_that_is_not_elf_is_unchanged() {
        assert_eq!(loaded_part(b"#!/bin/sh\n".to_vec()), b"#!/bin/sh\n");
        assert_eq!(interpreter(b"#!/bin/sh\n"), None);
    }

    proptest! {
        #[test]
        fn a_damaged_header_never_panics(at in 0_usize..512, byte: u8) {
            static HEAD: LazyLock<Vec<u8>> = LazyLock::new(|| this_program()[..4096].to_vec());
            let mut file = HEAD.clone();
            file[at] = byte;
            let _ = interpreter(&file);
            let _ = loaded_part(file);
        }
    }
}
