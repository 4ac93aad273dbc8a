//! `/proc/PID/fdinfo/FD` of an epoll: the files that it watches (`ep_show_fdinfo` in `fs/eventpoll.c`), and of a
//! signalfd: its signals (`signalfd_show_fdinfo` in `fs/signalfd.c`).

use super::pid_status::hexadecimal;
use super::text::{Line, Malformed, lines};
use super::{ProcDir, ProcError};

/// A file that an epoll watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollTarget {
    /// Descriptor number in the process that registered the file. The process may have closed and reused the number
    /// while the epoll still watches the file.
    pub tfd: i32,
    /// Requested events as in `epoll_ctl(2)`, including flags such as `EPOLLET`.
    pub events: u32,
    pub data: u64,
    /// Inode of the watched file; `None` on kernels before 4.7.
    pub inode: Option<u64>,
    /// Device of the inode; `None` on kernels before 4.7.
    pub sdev: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpollInfo {
    pub targets: Vec<EpollTarget>,
}

impl EpollInfo {
    /// Parses the file. For files other than epolls, the list of targets is empty.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let targets =
            lines(bytes).filter(|line| line.bytes.starts_with(b"tfd:")).map(target).collect::<Result<_, _>>()?;
        Ok(Self { targets })
    }
}

fn target(line: Line<'_>) -> Result<EpollTarget, Malformed> {
    let hex = |key, expected: &'static str| {
        let Some(field) = value(line, key) else { return Ok(None) };
        let digits = std::str::from_utf8(field).ok();
        match digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(line.malformed(expected, field)),
        }
    };
    let narrow = |number: Option<u64>, expected| match number.map(u32::try_from).transpose() {
        Ok(number) => Ok(number),
        Err(_) => Err(line.malformed(expected, line.bytes)),
    };
    let missing = |expected| move || line.malformed(expected, line.bytes);

    const TFD: &str = "the number of a watched file after `tfd:`";
    const EVENTS: &str = "32 bits in hexadecimal after `events:`";
    const DATA: &str = "64 bits in hexadecimal after `data:`";
    const SDEV: &str = "a device in hexadecimal after `sdev:`";
    Ok(EpollTarget {
        tfd: line.number(value(line, b"tfd:").unwrap_or_default(), TFD)?,
        events: narrow(hex(b"events:", EVENTS)?, EVENTS)?.ok_or_else(missing(EVENTS))?,
        data: hex(b"data:", DATA)?.ok_or_else(missing(DATA))?,
        inode: hex(b"ino:", "an inode in hexadecimal after `ino:`")?,
        sdev: narrow(hex(b"sdev:", SDEV)?, SDEV)?,
    })
}

/// Returns the value after a key. The kernel pads some keys with blanks.
fn value<'a>(line: Line<'a>, key: &[u8]) -> Option<&'a [u8]> {
    let mut fields = line.fields();
    let field = fields.find(|field| field.starts_with(key))?;
    match &field[key.len()..] {
        [] => fields.next(),
        attached => Some(attached),
    }
}

/// Signals that a signalfd accepts: bit 0 is signal 1. Empty for other files.
fn signals_of_signalfd(bytes: &[u8]) -> Result<u64, Malformed> {
    let line = lines(bytes).find(|line| line.bytes.starts_with(b"sigmask:"));
    let mask = |line: Line<'_>| {
        let value = line.bytes[b"sigmask:".len()..].trim_ascii();
        hexadecimal(line, value, "a set of signals as a hexadecimal number")
    };
    line.map_or(Ok(0), mask)
}

impl ProcDir {
    /// Reads the files that the epoll at a file descriptor of this process watches. Needs ptrace access.
    pub fn epoll(&self, fd: i32) -> Result<EpollInfo, ProcError> {
        self.read(&format!("fdinfo/{fd}"), EpollInfo::parse)
    }

    /// Whether the signalfd at a file descriptor of this process is readable for its main thread. Needs ptrace access.
    pub fn signalfd_is_ready(&self, fd: i32) -> Result<bool, ProcError> {
        let accepted = self.read(&format!("fdinfo/{fd}"), signals_of_signalfd)?;
        Ok(self.status()?.pending_signals.unwrap_or_default() & accepted != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_read() {
        let text = b"pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1057\n\
            tfd:        5 events:       19 data:     7ffe1234  pos:0 ino:5ff sdev:8\n";
        let wanted = EpollTarget { tfd: 5, events: 0x19, data: 0x7ffe_1234, inode: Some(0x5ff), sdev: Some(8) };
        assert_eq!(EpollInfo::parse(text).unwrap().targets, [wanted]);
    }

    #[test]
    fn the_signals_of_a_signalfd_are_read() {
        assert_eq!(signals_of_signalfd(b"pos:\t0\nsigmask:\t0000000000000200\n").unwrap(), 0x200);
        assert_eq!(signals_of_signalfd(b"pos:\t0\n").unwrap(), 0);
        assert!(signals_of_signalfd(b"sigmask:\tx\n").is_err());
    }

    #[test]
    fn a_target_without_inode_is_read() {
        let info = EpollInfo::parse(b"tfd: 5 events: 80000001 data: ffffffffffffffff\n").unwrap();
        assert_eq!((info.targets[0].inode, info.targets[0].data), (None, u64::MAX));
    }

    #[test]
    fn a_target_without_events_is_an_error() {
        let error = EpollInfo::parse(b"pos:\t0\ntfd: 5 data: 1\n").unwrap_err();
        assert_eq!(error.line, 2);
    }
}
