//! Identity of a process that is safe against PID reuse: PID, start time and boot id. The journal stores it to find
//! processes again after a crash or a reboot.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::stat::Ticks;
use super::text::{Malformed, first_line};
use super::{ProcError, ProcRoot};
use crate::Pid;

/// Random id of a boot (`/proc/sys/kernel/random/boot_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BootId(u128);

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid boot ID `{text}`: expected 8-4-4-4-12 hexadecimal digits")]
pub struct BootIdError {
    text: String,
}

impl BootId {
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let line = first_line(bytes);
        std::str::from_utf8(line.bytes)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| line.malformed("a boot id", line.bytes))
    }
}

impl FromStr for BootId {
    type Err = BootIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || BootIdError { text: text.into() };
        let groups: Vec<&str> = text.split('-').collect();
        let lengths = groups.iter().map(|group| group.len());
        let digits = groups.concat();
        if !lengths.eq([8, 4, 4, 4, 12]) || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(error());
        }
        u128::from_str_radix(&digits, 16).map(Self).map_err(|_| error())
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.0);
        let (a, b, c) = (&digits[..8], &digits[8..12], &digits[12..16]);
        write!(f, "{a}-{b}-{c}-{}-{}", &digits[16..20], &digits[20..])
    }
}

/// Identity of a process, which no other process with the same PID has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessIdentity {
    pub pid: Pid,
    /// Start time since boot.
    pub starttime: Ticks,
    pub boot_id: BootId,
}

impl ProcessIdentity {
    pub fn of(proc: &ProcRoot, pid: Pid) -> Result<Self, ProcError> {
        let starttime = proc.process(pid).stat()?.starttime;
        Ok(Self { pid, starttime, boot_id: proc.boot_id()? })
    }

    /// Whether the process is running; a zombie is not.
    pub fn is_running(&self, proc: &ProcRoot) -> Result<bool, ProcError> {
        if proc.boot_id()? != self.boot_id {
            return Ok(false);
        }
        match proc.process(self.pid).stat() {
            Ok(stat) => Ok(stat.starttime == self.starttime && !stat.process_has_ended()),
            Err(error) if error.is_absent() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl ProcRoot {
    pub fn boot_id(&self) -> Result<BootId, ProcError> {
        self.read("sys/kernel/random/boot_id", BootId::parse)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn this_process_runs() {
        let proc = ProcRoot::default();
        let this = ProcessIdentity::of(&proc, Pid::of_this_process()).unwrap();
        assert!(this.is_running(&proc).unwrap());
    }

    #[test]
    fn a_process_with_another_boot_or_start_time_does_not_run() {
        let proc = ProcRoot::default();
        let this = ProcessIdentity::of(&proc, Pid::of_this_process()).unwrap();
        let other_start = ProcessIdentity { starttime: Ticks(this.starttime.0 + 1), ..this };
        assert!(!other_start.is_running(&proc).unwrap());
        let other_boot = ProcessIdentity { boot_id: BootId(7), ..this };
        assert!(!other_boot.is_running(&proc).unwrap());
    }

    #[test]
    fn a_boot_id_with_wrong_groups_is_refused() {
        assert!("80b78ba8635-1426e-9430-1270-d2b1c360abcd".parse::<BootId>().is_err());
        assert!(BootId::parse(b"").is_err());
    }

    proptest! {
        #[test]
        fn a_displayed_boot_id_parses_to_the_same_id(id: u128) {
            prop_assert_eq!(BootId(id).to_string().parse::<BootId>(), Ok(BootId(id)));
        }
    }
}
