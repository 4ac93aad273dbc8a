//! Which processes are meant: those that were named, with whatever they start, or those of a control group. Processes come
//! and go while an attachment lasts, so they are looked for again at every pass.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::Pid;
use quell_linux::cgroup::{Cgroup, CgroupError};
use quell_linux::proc::{BootId, ProcError, ProcRoot, ProcessIdentity, Ticks};
use quell_linux::visible;

use crate::journal::Target;

/// How the processes were named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// These, and their children.
    Processes(Vec<Pid>),
    /// Those of a control group, and their children.
    Cgroup(Cgroup),
}

/// The processes that are meant, as they were when they were last looked for.
#[derive(Debug, Clone)]
pub struct Targets {
    selection: Selection,
    proc: ProcRoot,
    boot_id: BootId,
    living: BTreeMap<Pid, Target>,
}

/// Which processes came and went between two looks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turnover {
    /// New ones.
    pub came: Vec<Target>,
    /// Ended ones.
    pub ended: Vec<Target>,
}

/// Why the processes could not be found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// There is no process of that number.
    #[error("there is no process {0}")]
    NoSuchProcess(Pid),
    /// The group has no processes.
    #[error("there is no process in {}", visible::path(.0.path()))]
    Empty(Cgroup),
    /// They come and go faster than they can be looked at.
    #[error("the processes come and go faster than they can be looked at")]
    Gone,
    /// The group could not be read.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The processes could not be listed.
    #[error(transparent)]
    Proc(#[from] ProcError),
}

/// What `/proc/PID/stat` says of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    parent: Option<Pid>,
    start_time_ticks: u64,
    name: String,
}

impl Targets {
    /// Looks for them.
    ///
    /// # Errors
    /// When there are none, or the processes cannot be listed.
    pub fn find(selection: Selection) -> Result<Self, TargetError> {
        let proc = ProcRoot::default();
        let boot_id = proc.boot_id()?;
        let mut targets = Self { selection, proc, boot_id, living: BTreeMap::new() };
        let seen = targets.see()?;
        let roots = match &targets.selection {
            Selection::Processes(pids) => match pids.iter().find(|pid| !seen.contains_key(pid)) {
                Some(missing) => return Err(TargetError::NoSuchProcess(*missing)),
                None => pids.clone(),
            },
            Selection::Cgroup(cgroup) => cgroup.processes()?,
        };
        targets.living = with_descendants(&seen, &roots);
        match &targets.selection {
            Selection::Cgroup(cgroup) if targets.living.is_empty() => Err(TargetError::Empty(cgroup.clone())),
            _ => Ok(targets),
        }
    }

    /// Those of `known` that still live, and what descends from them.
    ///
    /// # Errors
    /// When the processes cannot be listed.
    pub(crate) fn still_living<'a>(known: impl Iterator<Item = &'a Target>) -> Result<Vec<Target>, TargetError> {
        let seen = Self::find(Selection::Processes(Vec::new()))?.see()?;
        let living = known.filter_map(|target| {
            let pid = Pid::from_kernel(target.pid)?;
            seen.get(&pid).filter(|seen| seen.start_time_ticks == target.start_time_ticks).map(|_| pid)
        });
        Ok(with_descendants(&seen, &living.collect::<Vec<_>>()).into_values().collect())
    }

    /// Looks again.
    ///
    /// # Errors
    /// When the processes cannot be listed.
    pub fn refresh(&mut self) -> Result<Turnover, TargetError> {
        let seen = self.see()?;
        let is_same = |target: &&Target| {
            let now = Pid::from_kernel(target.pid).and_then(|pid| seen.get(&pid));
            now.is_some_and(|now| now.start_time_ticks == target.start_time_ticks)
        };
        let (still, ended): (Vec<&Target>, Vec<&Target>) = self.living.values().partition(is_same);
        let mut roots: Vec<Pid> = still.iter().filter_map(|target| Pid::from_kernel(target.pid)).collect();
        let ended = ended.into_iter().cloned().collect();
        if let Selection::Cgroup(cgroup) = &self.selection {
            roots.extend(cgroup.processes()?);
        }
        let living = with_descendants(&seen, &roots);
        let is_new =
            |(pid, target): &(&Pid, &Target)| self.living.get(pid).is_none_or(|known| !known.is_same_process(target));
        let came = living.iter().filter(is_new).map(|(_, target)| target.clone()).collect();
        self.living = living;
        Ok(Turnover { came, ended })
    }

    /// Those that lived when they were last looked for, ascending.
    pub fn living(&self) -> impl Iterator<Item = &Target> {
        self.living.values()
    }

    /// Their numbers.
    #[must_use]
    pub fn pids(&self) -> BTreeSet<Pid> {
        self.living.keys().copied().collect()
    }

    /// How they were named.
    #[must_use]
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// A process of this boot, told from all others that get its number.
    #[must_use]
    pub fn identity(&self, pid: Pid, start_time_ticks: u64) -> ProcessIdentity {
        ProcessIdentity { pid, starttime: Ticks(start_time_ticks), boot_id: self.boot_id }
    }

    fn see(&self) -> Result<BTreeMap<Pid, Seen>, TargetError> {
        let look = |pid: Pid| {
            // One that ended meanwhile, or waits for its parent to hear of its end, is none.
            let stat = self.proc.process(pid).stat().ok().filter(|stat| !stat.process_has_ended())?;
            let name = stat.name();
            Some((pid, Seen { parent: stat.ppid, start_time_ticks: stat.starttime.0, name }))
        };
        Ok(self.proc.pids()?.into_iter().filter_map(look).collect())
    }
}

/// The processes of these numbers and all that descend from them, but for what descends by way of this program.
fn with_descendants(seen: &BTreeMap<Pid, Seen>, roots: &[Pid]) -> BTreeMap<Pid, Target> {
    let roots: BTreeSet<Pid> = roots.iter().copied().collect();
    let this = Pid::of_this_process();
    let is_meant = |pid: Pid| {
        // No line of parents is longer than there are processes.
        let line = std::iter::successors(Some(pid), |pid| seen.get(pid)?.parent).take(seen.len() + 1);
        line.into_iter().find(|pid| roots.contains(pid) || *pid == this).is_some_and(|found| roots.contains(&found))
    };
    let target = |(pid, seen): (&Pid, &Seen)| {
        let (start_time_ticks, name) = (seen.start_time_ticks, seen.name.clone());
        (*pid, Target { pid: pid.get().unsigned_abs(), start_time_ticks, name })
    };
    seen.iter().filter(|(pid, _)| is_meant(**pid)).map(target).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    fn seen(processes: &[(i32, i32)]) -> BTreeMap<Pid, Seen> {
        let one = |&(pid, parent): &(i32, i32)| {
            let name = format!("p{pid}");
            (Pid::new(pid).unwrap(), Seen { parent: Pid::new(parent), start_time_ticks: 7, name })
        };
        processes.iter().map(one).collect()
    }

    fn meant(processes: &[(i32, i32)], roots: &[i32]) -> Vec<u32> {
        let roots: Vec<Pid> = roots.iter().filter_map(|&pid| Pid::new(pid)).collect();
        with_descendants(&seen(processes), &roots).into_values().map(|target| target.pid).collect()
    }

    #[test]
    fn children_and_their_children_are_meant_too() {
        assert_eq!(meant(&[(1, 0), (10, 1), (11, 10), (12, 11), (20, 1)], &[10]), [10, 11, 12]);
    }

    #[test]
    fn what_this_program_starts_is_not_meant_when_its_parent_is() {
        let this = Pid::of_this_process().get();
        assert_eq!(meant(&[(1, 0), (2, 1), (this, 2), (this + 1, this)], &[2]), [2]);
    }

    #[test]
    fn a_child_of_this_program_can_be_meant() {
        let this = Pid::of_this_process().get();
        let child = this + 1;
        assert_eq!(meant(&[(1, 0), (this, 1), (child, this)], &[child]), [child.unsigned_abs()]);
    }

    #[test]
    fn a_line_of_parents_that_bites_its_tail_ends() {
        assert_eq!(meant(&[(5, 6), (6, 5)], &[7]), [0_u32; 0]);
    }

    #[test]
    fn a_child_that_comes_and_ends_is_told() {
        let this = Pid::of_this_process();
        let mut targets = Targets::find(Selection::Processes(vec![this])).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let came = targets.refresh().unwrap();
        assert!(came.came.iter().any(|target| target.pid == child.id()), "{came:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        let ended = targets.refresh().unwrap().ended;
        assert!(ended.iter().any(|target| target.pid == child.id()), "{ended:?}");
    }

    #[test]
    fn a_process_that_is_renamed_is_no_new_one() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "while read name; do printf %s $name >/proc/$$/comm; echo; done"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let (mut names, mut done) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut targets = Targets::find(Selection::Processes(vec![Pid::from_kernel(child.id()).unwrap()])).unwrap();
        for name in ["one", "another"] {
            writeln!(names, "{name}").unwrap();
            done.read_exact(&mut [0]).unwrap();
            assert_eq!(targets.refresh().unwrap(), Turnover::default());
            assert!(targets.living().any(|target| target.name == name), "{targets:?}");
        }
        drop(names);
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        let nobody = Pid::new(1 << 30).unwrap();
        let refused = Targets::find(Selection::Processes(vec![nobody])).unwrap_err();
        assert_eq!(refused.to_string(), "there is no process 1073741824");
    }
}
