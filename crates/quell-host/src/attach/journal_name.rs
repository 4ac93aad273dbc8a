//! What the journal of an attachment is called: by its programs, so that two to the same programs have the same name, and
//! short enough for a file, however many they are. What is in the journal is not told here.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use quell_linux::Pid;

use super::target::Selection;

/// What the name of the journal of a program that is launched begins with, before the number of its launcher.
const LAUNCHED: &str = "run-";
/// How many characters, of up to four bytes, of a control group's name are told; names of files end at 255 bytes.
const GROUP_NAME_CHARS: usize = 40;

/// The name of the journal of an attachment to these programs, without an extension.
pub(super) fn of(selection: &Selection) -> String {
    match selection {
        Selection::Processes(pids) => of_processes(pids),
        Selection::Cgroup(cgroup) => of_cgroup(cgroup.path()),
    }
}

/// Whether a journal at `path` is that of a program that is launched.
pub(super) fn is_of_a_launched_program(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(LAUNCHED.as_bytes()))
}

/// The lowest number, which no other attachment can have, and how many more there are.
fn of_processes(pids: &[Pid]) -> String {
    let pids: BTreeSet<Pid> = pids.iter().copied().collect();
    match (pids.first(), pids.len()) {
        (None, _) => format!("{LAUNCHED}{}", Pid::of_this_process()),
        (Some(only), 1) => format!("attach-{only}"),
        (Some(lowest), count) => format!("attach-{lowest}+{}", count - 1),
    }
}

/// The last part of the path, for people, and a sum over all of it: groups of different places are often called alike.
fn of_cgroup(path: &Path) -> String {
    let name = path.file_name().map_or_else(|| "root".into(), |name| name.to_string_lossy());
    let told: String = name.chars().take(GROUP_NAME_CHARS).collect();
    format!("attach-{told}-{:08x}", crc32fast::hash(path.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes(pids: impl IntoIterator<Item = i32>) -> String {
        of(&Selection::Processes(pids.into_iter().filter_map(Pid::new).collect()))
    }

    #[test]
    fn one_process_is_named_and_of_several_the_lowest() {
        assert_eq!(processes([1_234]), "attach-1234");
        assert_eq!(processes([1_236, 1_234, 1_235, 1_236]), "attach-1234+2");
        assert_eq!(processes((4_194_000..=4_194_064).rev()), "attach-4194000+64");
    }

    #[test]
    fn a_launched_program_has_the_name_of_its_launcher() {
        let launched = processes([]);
        assert_eq!(launched, format!("run-{}", std::process::id()));
        assert!(is_of_a_launched_program(&Path::new("/run/quell").join(launched)));
        assert!(!is_of_a_launched_program(Path::new("/run/quell/attach-1.journal")));
    }

    #[test]
    fn groups_that_are_called_alike_have_names_of_their_own() {
        let [one, other] =
            ["/sys/fs/cgroup/a/payload", "/sys/fs/cgroup/b/payload"].map(|path| of_cgroup(path.as_ref()));
        assert!(one.starts_with("attach-payload-") && other.starts_with("attach-payload-"), "{one} {other}");
        assert_ne!(one, other);
        assert_eq!(one, of_cgroup("/sys/fs/cgroup/a/payload".as_ref()));
    }

    #[test]
    fn however_long_a_groups_name_is_the_journal_fits_into_a_directory() {
        let name = of_cgroup(&Path::new("/sys/fs/cgroup").join("\u{1F980}".repeat(63)));
        assert!(name.starts_with(&format!("attach-{}-", "\u{1F980}".repeat(GROUP_NAME_CHARS))), "{name}");
        assert!(format!("{name}.4194304.journal-new").len() <= 255);
    }
}
