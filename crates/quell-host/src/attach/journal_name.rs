//! Builds the journal name of an attachment or an experiment from its programs. Two of a kind on the same programs get
//! the same name. The name is short enough for a file name, however many programs there are.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use quell_linux::Pid;

use quell_change::target::Selection;

/// Maximum number of characters taken from a cgroup name. A character has up to four bytes, and a file name has at most
/// 255 bytes.
const GROUP_NAME_CHARS: usize = 40;

/// Journal name of an attachment to these programs, without an extension.
pub(crate) fn of_attachment(selection: &Selection) -> String {
    match selection {
        Selection::Processes(pids) if pids.is_empty() => format!("run-{}", Pid::of_this_process()),
        _ => format!("attach-{}", of(selection)),
    }
}

/// Journal name of an experiment that switches these programs.
pub(crate) fn of_experiment(selection: &Selection) -> String {
    format!("switch-{}", of(selection))
}

fn of(selection: &Selection) -> String {
    match selection {
        Selection::Processes(pids) => of_processes(pids),
        Selection::Cgroup(cgroup) => of_cgroup(cgroup.path()),
    }
}

/// The lowest PID, and the number of further processes. No other attachment or experiment can contain that PID.
fn of_processes(pids: &[Pid]) -> String {
    let pids: BTreeSet<Pid> = pids.iter().copied().collect();
    match (pids.first(), pids.len()) {
        (None, _) => String::new(),
        (Some(only), 1) => only.to_string(),
        (Some(lowest), count) => format!("{lowest}+{}", count - 1),
    }
}

/// The last component of the path for readability, and a checksum of the whole path, because cgroups in different
/// directories often share a name.
fn of_cgroup(path: &Path) -> String {
    let name = path.file_name().map_or_else(|| "root".into(), |name| name.to_string_lossy());
    let slug: String = name.chars().take(GROUP_NAME_CHARS).collect();
    format!("{slug}-{:08x}", crc32fast::hash(path.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes(pids: impl IntoIterator<Item = i32>) -> String {
        of_attachment(&Selection::Processes(pids.into_iter().filter_map(Pid::new).collect()))
    }

    #[test]
    fn the_name_contains_the_lowest_of_several_pids() {
        assert_eq!(processes([1_234]), "attach-1234");
        assert_eq!(processes([1_236, 1_234, 1_235, 1_236]), "attach-1234+2");
        assert_eq!(processes((4_194_000..=4_194_064).rev()), "attach-4194000+64");
    }

    #[test]
    fn a_launched_program_is_named_after_its_launcher() {
        assert_eq!(processes([]), format!("run-{}", std::process::id()));
    }

    #[test]
    fn groups_of_the_same_name_get_different_journal_names() {
        let [one, other] =
            ["/sys/fs/cgroup/a/payload", "/sys/fs/cgroup/b/payload"].map(|path| of_cgroup(path.as_ref()));
        assert!(one.starts_with("payload-") && other.starts_with("payload-"), "{one} {other}");
        assert_ne!(one, other);
        assert_eq!(one, of_cgroup("/sys/fs/cgroup/a/payload".as_ref()));
    }

    #[test]
    fn a_long_group_name_gives_a_valid_file_name() {
        let name = of_cgroup(&Path::new("/sys/fs/cgroup").join("\u{1F980}".repeat(63)));
        assert!(name.starts_with(&format!("{}-", "\u{1F980}".repeat(GROUP_NAME_CHARS))), "{name}");
        assert!(format!("attach-{name}.4194304.journal-new").len() <= 255);
    }
}
