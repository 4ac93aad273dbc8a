//! `/proc/PID/maps`: files from which a process executes code. Addresses and other mappings are not used.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use super::text::{Malformed, lines};
use super::{ProcDir, ProcError};

/// Fields before the path: address range, permissions, offset, device and inode.
const FIELDS_BEFORE_PATH: usize = 5;

/// Parses the file. Returns the paths of executable mappings, each once, in order of address. Mappings without
/// a file (`[vdso]`) and deleted files are skipped.
///
/// # Errors
/// When a line lacks permissions.
pub fn parse_executable_files(bytes: &[u8]) -> Result<Vec<PathBuf>, Malformed> {
    let mut files = Vec::new();
    for line in lines(bytes) {
        let rights = line.fields().nth(1).ok_or_else(|| line.malformed("address and rights", line.bytes))?;
        let Some(path) = path(line.bytes) else { continue };
        let path = PathBuf::from(OsStr::from_bytes(path));
        if rights.contains(&b'x') && !files.contains(&path) {
            files.push(path);
        }
    }
    Ok(files)
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
    ///
    /// # Errors
    /// When `maps` cannot be read or parsed.
    pub fn executable_files(&self) -> Result<Vec<PathBuf>, ProcError> {
        self.read("maps", parse_executable_files)
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
    fn this_program_executes_code_from_its_own_file() {
        let files = ProcRoot::default().process(Pid::of_this_process()).executable_files().unwrap();
        assert!(files.contains(&std::env::current_exe().unwrap()));
    }
}
