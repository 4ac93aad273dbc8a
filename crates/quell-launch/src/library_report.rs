//! Reports which functions of the preload library a process has called. The library sets flags in its memory (`report`
//! in `preload/preload.c`), and this module reads them from outside. It needs no file and no descriptor of the process.

use std::ffi::OsStr;
use std::sync::LazyLock;

use object::Endianness;
use object::elf::{FileHeader64, SHT_DYNSYM};
use object::read::elf::{FileHeader as _, Sym as _};
use quell_linux::proc::ProcDir;

use crate::library::{LIBRARY, file_name};

const SYMBOL: &[u8] = b"quell_report";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    Absent,
    /// The library is loaded, and the process has made these calls.
    Loaded(Calls),
    /// It is unknown whether the library is loaded, or its report could not be read.
    Unknown,
}

/// Calls that a process has made through the library since the process started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    /// Whether the process has called a wait function. The library records it only if its settings change waits.
    pub waited: bool,
    /// Whether the process has created an internet socket. The library records it only if its settings change sockets.
    pub made_socket: bool,
    /// Whether the kernel refused `SO_BUSY_POLL` on such a socket.
    pub refused_socket: bool,
}

impl Library {
    #[must_use]
    pub fn of(process: &ProcDir) -> Self {
        static FILE: LazyLock<String> = LazyLock::new(file_name);
        static OFFSET: LazyLock<Option<u64>> = LazyLock::new(offset_of_report);
        let loaded_at = match process.load_address(OsStr::new(&*FILE)) {
            Ok(Some(address)) => address,
            Ok(None) => return Self::Absent,
            Err(_) => return Self::Unknown,
        };
        let address = OFFSET.and_then(|offset| loaded_at.checked_add(offset));
        match address.map(|address| process.memory::<4>(address)) {
            Some(Ok([0, calls @ ..])) => {
                let [waited, made_socket, refused_socket] = calls.map(|flag| flag != 0);
                Self::Loaded(Calls { waited, made_socket, refused_socket })
            }
            // In the first case, the flags may belong to the parent process.
            Some(Ok(_) | Err(_)) | None => Self::Unknown,
        }
    }
}

fn offset_of_report() -> Option<u64> {
    let header = FileHeader64::<Endianness>::parse(LIBRARY).ok()?;
    let endian = header.endian().ok()?;
    let symbols = header.sections(endian, LIBRARY).ok()?.symbols(endian, LIBRARY, SHT_DYNSYM).ok()?;
    let report = symbols.iter().find(|symbol| symbol.name(endian, symbols.strings()) == Ok(SYMBOL))?;
    Some(report.st_value(endian))
}

#[cfg(test)]
mod tests {
    use quell_linux::Pid;
    use quell_linux::proc::ProcRoot;

    use super::*;

    #[test]
    fn the_library_exports_its_report() {
        assert!(offset_of_report().is_some_and(|offset| offset > 0));
    }

    #[test]
    fn a_process_without_the_library_has_no_report() {
        assert_eq!(Library::of(&ProcRoot::default().process(Pid::of_this_process())), Library::Absent);
    }
}
