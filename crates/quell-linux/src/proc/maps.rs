//! `/proc/PID/maps` and `/proc/PID/mem`: the files from which a process executes code, the address at which a file is
//! loaded, and memory contents.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::text::{Malformed, lines};
use super::{ProcDir, ProcError};

/// Number of fields before the path: address range, permissions, offset, device and inode.
const FIELDS_BEFORE_PATH: usize = 5;

/// Parses the file and returns the paths of executable mappings, each once, in order of address. Mappings without a
/// file (`[vdso]`) and deleted files are skipped.
pub fn parse_executable_files(bytes: &[u8]) -> Result<Vec<PathBuf>, Malformed> {
    let mut files = Vec::new();
    for line in lines(bytes) {
        let rights =
            line.fields().nth(1).ok_or_else(|| line.malformed("an address range and permissions", line.bytes))?;
        let Some(path) = path(line.bytes) else { continue };
        let path = PathBuf::from(OsStr::from_bytes(path));
        if rights.contains(&b'x') && !files.contains(&path) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Parses the file and returns the address at which the beginning of a file with this name is mapped. The directory of
/// the file does not matter. Returns `None` if the file is not mapped.
pub fn parse_load_address(bytes: &[u8], file_name: &OsStr) -> Result<Option<u64>, Malformed> {
    for line in lines(bytes) {
        let malformed = || line.malformed("an address", line.bytes);
        let range = line.fields().next().and_then(|range| std::str::from_utf8(range).ok()).ok_or_else(malformed)?;
        let start = range.split('-').next().and_then(|start| u64::from_str_radix(start, 16).ok());
        let start = start.ok_or_else(malformed)?;
        let is_beginning = line.fields().nth(2).is_some_and(|offset| offset.iter().all(|digit| *digit == b'0'));
        let name = path(line.bytes).and_then(|path| path.rsplit(|byte| *byte == b'/').next());
        if is_beginning && name == Some(file_name.as_bytes()) {
            return Ok(Some(start));
        }
    }
    Ok(None)
}

/// Path at the end of a line, which may contain blanks.
fn path(line: &[u8]) -> Option<&[u8]> {
    let mut rest = line;
    for _ in 0..FIELDS_BEFORE_PATH {
        let end = rest.iter().position(u8::is_ascii_whitespace)?;
        rest = rest[end..].trim_ascii_start();
    }
    (rest.starts_with(b"/") && !rest.ends_with(b" (deleted)")).then_some(rest)
}

impl ProcDir {
    /// Files from which the process executes code: program, libraries, dynamic linker.
    pub fn executable_files(&self) -> Result<Vec<PathBuf>, ProcError> {
        self.read("maps", parse_executable_files)
    }

    /// Address at which a file with this name is loaded in the process; `None` if it is not loaded.
    pub fn load_address(&self, file_name: &OsStr) -> Result<Option<u64>, ProcError> {
        self.read("maps", |bytes| parse_load_address(bytes, file_name))
    }

    /// Reads `N` bytes of the process's memory. Fails if the caller lacks ptrace access, or the process has no memory
    /// at this address.
    pub fn memory<const N: usize>(&self, address: u64) -> Result<[u8; N], ProcError> {
        let path = self.0.join("mem");
        let refused = |source| ProcError::refused(&path, source);
        let mut bytes = [0; N];
        File::open(&path).map_err(refused)?.read_exact_at(&mut bytes, address).map_err(refused)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pid;
    use crate::proc::ProcRoot;

    #[test]
    fn only_files_with_code_are_returned_and_each_once() {
        let maps = "\
55d0-55d1 r--p 00000000 fe:01 1234 /opt/a program/quell
55d1-55d2 r-xp 00001000 fe:01 1234 /opt/a program/quell
55d2-55d3 r-xp 00002000 fe:01 1234 /opt/a program/quell
7f00-7f01 r-xp 00000000 fe:01 99   /usr/lib/libc.so.6
7f02-7f03 r-xp 00000000 fe:01 98   /usr/lib/old.so (deleted)
7f04-7f05 rwxp 00000000 00:00 0
7ffe-7fff r-xp 00000000 00:00 0    [vdso]
";
        let files = parse_executable_files(maps.as_bytes()).unwrap();
        assert_eq!(files, [PathBuf::from("/opt/a program/quell"), PathBuf::from("/usr/lib/libc.so.6")]);
    }

    #[test]
    fn a_line_without_permissions_is_refused_with_its_position() {
        assert!(parse_executable_files(b"55d0-55d1\n").unwrap_err().to_string().starts_with("line 1: "));
    }

    #[test]
    fn the_load_address_is_where_the_beginning_of_the_file_is_mapped() {
        let maps = "\
7f10-7f11 r--p 00001000 fe:01 9 /x/lib a.so
7f00-7f01 r--p 00000000 fe:01 9 /x/lib a.so
7f01-7f02 r--p 00000000 fe:01 8 /x/lib b.so (deleted)
";
        let address = |name: &str| parse_load_address(maps.as_bytes(), OsStr::new(name)).unwrap();
        assert_eq!((address("lib a.so"), address("a.so"), address("lib b.so")), (Some(0x7f00), None, None));
        assert!(parse_load_address(b"nowhere r--p\n", OsStr::new("a")).is_err());
    }

    #[test]
    fn memory_of_a_process_is_read_at_an_address() {
        let value = Box::new(0x1234_5678_9abc_def0_u64);
        let own = ProcRoot::default().process(Pid::of_this_process());
        let bytes: [u8; 8] = own.memory(std::ptr::from_ref(&*value).addr() as u64).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), *value);
        assert!(own.memory::<1>(0).is_err());
    }

    #[test]
    fn this_program_executes_code_from_its_own_file() {
        let files = ProcRoot::default().process(Pid::of_this_process()).executable_files().unwrap();
        assert!(files.contains(&std::env::current_exe().unwrap()));
    }
}
