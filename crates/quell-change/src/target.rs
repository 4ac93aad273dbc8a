//! Finds the processes of a program: those selected by PID or name with their descendants, or those of a cgroup. Each
//! pass searches again, because processes start and exit during an attachment.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::cgroup::{Cgroup, CgroupError};
use quell_linux::proc::{BootId, ProcError, ProcRoot, ProcessIdentity, Ticks};
use quell_linux::{Pid, visible};
use quell_mode::{did_you_mean, nearest};
use tracing::info;

use crate::journal::TargetProgram;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// These processes and their descendants.
    Processes(Vec<Pid>),
    Cgroup(Cgroup),
}

#[derive(Debug, Clone)]
pub struct Targets {
    selection: Selection,
    proc: ProcRoot,
    boot_id: BootId,
    living: BTreeMap<Pid, TargetProgram>,
    /// Of them, those that have children, or that are no children of others.
    parents: Vec<Pid>,
}

/// Processes that started and exited between two searches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turnover {
    pub started: Vec<TargetProgram>,
    pub ended: Vec<TargetProgram>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    #[error("there is no process {0}")]
    NoSuchProcess(Pid),
    #[error(
        "no running program is called {}{}; `quell` lists the servers of this host",
        visible::name(name), visible::name(&did_you_mean(name, nearest.as_deref()))
    )]
    NoSuchName {
        name: String,
        /// Name of a running program that is similar.
        nearest: Option<String>,
    },
    #[error(
        "{} programs are called {}: select them by PID: {}",
        pids.len(), visible::name(name), pids.iter().map(Pid::to_string).collect::<Vec<_>>().join(",")
    )]
    AmbiguousName { name: String, pids: Vec<Pid> },
    #[error("no process in {}", visible::path(.0.path()))]
    Empty(Cgroup),
    #[error("the processes exit before they can be inspected")]
    Gone,
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Proc(#[from] ProcError),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    parent: Option<Pid>,
    start_time_ticks: u64,
    name: String,
}

/// Maximum length of a process name (`TASK_COMM_LEN` without the final 0).
const NAME_MAX: usize = 15;

impl Selection {
    /// The program of this name: of the processes whose name or executable file it is, the one that no other descends
    /// from.
    ///
    /// # Errors
    /// When no process, or several unrelated processes, have the name.
    pub fn named(name: &str) -> Result<Self, TargetError> {
        let proc = ProcRoot::default();
        let seen = see(&proc)?;
        let is_named = |(pid, of): &(&Pid, &Seen)| {
            let executable = || proc.process(**pid).executable_path().ok()?.file_name().map(|file| file == name);
            of.name == name || has_long_name(&of.name, name) || executable().unwrap_or(false)
        };
        let this = Pid::of_this_process();
        let named: BTreeSet<Pid> =
            seen.iter().filter(is_named).map(|(pid, _)| *pid).filter(|pid| *pid != this).collect();
        match roots(&seen, &named)[..] {
            [] => {
                let others = seen.iter().filter(|(pid, _)| **pid != this).map(|(_, of)| &*of.name);
                let nearest = nearest(name, others).map(str::to_owned);
                Err(TargetError::NoSuchName { name: name.to_owned(), nearest })
            }
            [root] => Ok(Self::Processes(vec![root])),
            ref several => Err(TargetError::AmbiguousName { name: name.to_owned(), pids: several.to_vec() }),
        }
    }
}

/// Whether the kernel has cut `name` to the name of a process.
fn has_long_name(process: &str, name: &str) -> bool {
    process.len() == NAME_MAX && name.len() > NAME_MAX && name.starts_with(process)
}

/// Those of `named` that descend from no other one.
fn roots(seen: &BTreeMap<Pid, Seen>, named: &BTreeSet<Pid>) -> Vec<Pid> {
    let descends = |pid: &&Pid| {
        let parent = |pid: &Pid| seen.get(pid)?.parent;
        std::iter::successors(parent(pid), parent).take(seen.len()).any(|ancestor| named.contains(&ancestor))
    };
    named.iter().filter(|pid| !descends(pid)).copied().collect()
}

impl Targets {
    pub fn find(selection: Selection) -> Result<Self, TargetError> {
        let proc = ProcRoot::default();
        let boot_id = proc.boot_id()?;
        let mut targets = Self { selection, proc, boot_id, living: BTreeMap::new(), parents: Vec::new() };
        let seen = see(&targets.proc)?;
        let roots = match &targets.selection {
            Selection::Processes(pids) => match pids.iter().find(|pid| !seen.contains_key(pid)) {
                Some(missing) => return Err(TargetError::NoSuchProcess(*missing)),
                None => pids.clone(),
            },
            Selection::Cgroup(cgroup) => cgroup.processes()?,
        };
        targets.living = with_descendants(&seen, &roots);
        targets.parents = parents(&seen, &targets.living);
        for target in targets.living.values() {
            let is_named = roots.contains(&target.pid);
            let why = if is_named { "selected" } else { "descends from a selected process" };
            info!(pid = target.pid.get(), comm = ?target.name, why, "process found");
        }
        match &targets.selection {
            Selection::Cgroup(cgroup) if targets.living.is_empty() => Err(TargetError::Empty(cgroup.clone())),
            _ => Ok(targets),
        }
    }

    /// Returns the still running processes of `known`, and their descendants, with their present names.
    pub fn still_living<'a>(known: impl Iterator<Item = &'a TargetProgram>) -> Result<Vec<TargetProgram>, TargetError> {
        let seen = see(&ProcRoot::default())?;
        let living = known.filter_map(|target| {
            seen.get(&target.pid).filter(|seen| seen.start_time_ticks == target.start_time_ticks).map(|_| target.pid)
        });
        Ok(with_descendants(&seen, &living.collect::<Vec<_>>()).into_values().collect())
    }

    pub fn refresh(&mut self) -> Result<Turnover, TargetError> {
        let seen = see(&self.proc)?;
        let is_same = |target: &&TargetProgram| {
            seen.get(&target.pid).is_some_and(|now| now.start_time_ticks == target.start_time_ticks)
        };
        let (still, ended): (Vec<&TargetProgram>, Vec<&TargetProgram>) = self.living.values().partition(is_same);
        let mut roots: Vec<Pid> = still.iter().map(|target| target.pid).collect();
        let ended: Vec<TargetProgram> = ended.into_iter().cloned().collect();
        if let Selection::Cgroup(cgroup) = &self.selection {
            // A process that moves into the group descends from none of them.
            roots.extend(cgroup.processes()?);
        }
        let living = with_descendants(&seen, &roots);
        let is_new = |(pid, target): &(&Pid, &TargetProgram)| {
            self.living.get(pid).is_none_or(|known| !known.is_same_process(target))
        };
        let started: Vec<TargetProgram> = living.iter().filter(is_new).map(|(_, target)| target.clone()).collect();
        self.living = living;
        self.parents = parents(&seen, &self.living);
        for (target, what) in
            ended.iter().map(|it| (it, "process exited")).chain(started.iter().map(|it| (it, "process found")))
        {
            info!(pid = target.pid.get(), comm = ?target.name, "{what}");
        }
        Ok(Turnover { started, ended })
    }

    /// Whether a process was started since the last search, as far as a look shows that costs little: at the children
    /// of the main threads of processes that start others, and at the cgroup. [`Self::refresh`] finds all.
    #[must_use]
    pub fn has_started_another(&self) -> bool {
        let children = self.parents.iter().flat_map(|&pid| {
            // Without CONFIG_PROC_CHILDREN there is no such file.
            self.proc.process(pid).thread(pid).children().unwrap_or_default()
        });
        let of_cgroup = match &self.selection {
            Selection::Cgroup(cgroup) => cgroup.processes().unwrap_or_default(),
            Selection::Processes(_) => Vec::new(),
        };
        let this = Pid::of_this_process();
        let is_alive = |pid: Pid| self.proc.process(pid).stat().is_ok_and(|stat| !stat.process_has_ended());
        let mut new = children.chain(of_cgroup).filter(|pid| *pid != this && !self.living.contains_key(pid));
        new.any(is_alive)
    }

    pub fn living(&self) -> impl Iterator<Item = &TargetProgram> {
        self.living.values()
    }

    #[must_use]
    pub fn pids(&self) -> BTreeSet<Pid> {
        self.living.keys().copied().collect()
    }

    #[must_use]
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Identity of a process of this boot. A later process with the same PID has another identity.
    #[must_use]
    pub fn identity(&self, pid: Pid, start_time_ticks: u64) -> ProcessIdentity {
        ProcessIdentity { pid, starttime: Ticks(start_time_ticks), boot_id: self.boot_id }
    }
}

/// All running processes. Exited ones and zombies do not count.
fn see(proc: &ProcRoot) -> Result<BTreeMap<Pid, Seen>, ProcError> {
    let look = |pid: Pid| {
        let stat = proc.process(pid).stat().ok().filter(|stat| !stat.process_has_ended())?;
        let name = stat.name();
        Some((pid, Seen { parent: stat.ppid, start_time_ticks: stat.starttime.0, name }))
    };
    Ok(proc.pids()?.into_iter().filter_map(look).collect())
}

/// Those of `living` that are the parent of one of them, or have no parent among them.
fn parents(seen: &BTreeMap<Pid, Seen>, living: &BTreeMap<Pid, TargetProgram>) -> Vec<Pid> {
    let parent_of = |pid: &Pid| seen.get(pid)?.parent.filter(|parent| living.contains_key(parent));
    let parents: BTreeSet<Pid> = living.keys().map(|pid| parent_of(pid).unwrap_or(*pid)).collect();
    parents.into_iter().collect()
}

/// Returns the processes `roots` and their descendants, except descendants of this program.
fn with_descendants(seen: &BTreeMap<Pid, Seen>, roots: &[Pid]) -> BTreeMap<Pid, TargetProgram> {
    let roots: BTreeSet<Pid> = roots.iter().copied().collect();
    let this = Pid::of_this_process();
    let is_meant = |pid: Pid| {
        // Bounds the walk: no ancestor chain is longer than the number of processes.
        let line = std::iter::successors(Some(pid), |pid| seen.get(pid)?.parent).take(seen.len() + 1);
        // The nearest of them decides. If Quell runs in a shell that is selected, its own children are not targets.
        line.into_iter().find(|pid| roots.contains(pid) || *pid == this).is_some_and(|found| roots.contains(&found))
    };
    let target = |(pid, seen): (&Pid, &Seen)| {
        let (start_time_ticks, name) = (seen.start_time_ticks, seen.name.clone());
        (*pid, TargetProgram { pid: *pid, start_time_ticks, name })
    };
    seen.iter().filter(|(pid, _)| is_meant(**pid)).map(target).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use quell_test_support::{Lacks, skip, wait_until};

    use super::*;

    fn seen(processes: &[(i32, i32)]) -> BTreeMap<Pid, Seen> {
        let one = |&(pid, parent): &(i32, i32)| {
            let name = format!("p{pid}");
            (Pid::new(pid).unwrap(), Seen { parent: Pid::new(parent), start_time_ticks: 7, name })
        };
        processes.iter().map(one).collect()
    }

    fn meant(processes: &[(i32, i32)], roots: &[i32]) -> Vec<i32> {
        let roots: Vec<Pid> = roots.iter().filter_map(|&pid| Pid::new(pid)).collect();
        with_descendants(&seen(processes), &roots).into_values().map(|target| target.pid.get()).collect()
    }

    #[test]
    fn descendants_are_included() {
        assert_eq!(meant(&[(1, 0), (10, 1), (11, 10), (12, 11), (20, 1)], &[10]), [10, 11, 12]);
    }

    #[test]
    fn children_of_this_program_are_excluded() {
        let this = Pid::of_this_process().get();
        assert_eq!(meant(&[(1, 0), (2, 1), (this, 2), (this + 1, this)], &[2]), [2]);
    }

    #[test]
    fn a_child_of_this_program_can_be_named() {
        let this = Pid::of_this_process().get();
        let child = this + 1;
        assert_eq!(meant(&[(1, 0), (this, 1), (child, this)], &[child]), [child]);
    }

    #[test]
    fn of_processes_with_one_name_those_without_an_ancestor_of_it_are_the_programs() {
        let roots_of = |named: &[i32]| -> Vec<i32> {
            let named = named.iter().filter_map(|&pid| Pid::new(pid)).collect();
            let all = seen(&[(1, 0), (10, 1), (11, 10), (12, 11), (20, 1), (5, 6), (6, 5)]);
            roots(&all, &named).into_iter().map(Pid::get).collect()
        };
        assert_eq!(roots_of(&[10, 11, 12]), [10]);
        assert_eq!(roots_of(&[10, 12, 20]), [10, 20]);
        assert_eq!(roots_of(&[5, 20]), [20], "a cycle ends");
    }

    #[test]
    fn a_name_that_the_kernel_cut_is_recognised() {
        assert!(has_long_name("prometheus-node", "prometheus-node-exporter"));
        assert!(!has_long_name("prometheus", "prometheus-node-exporter") && !has_long_name("nginx", "nginx"));
    }

    #[test]
    fn a_program_is_found_by_its_name_or_its_file() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let ours = Pid::new(i32::try_from(child.id()).unwrap()).unwrap();
        match Selection::named("sleep") {
            Ok(Selection::Processes(pids)) => assert_eq!(pids, [ours]),
            Err(TargetError::AmbiguousName { pids, .. }) => assert!(pids.contains(&ours)),
            other => panic!("{other:?}"),
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let error = Selection::named("no-such-program").unwrap_err().to_string();
        assert!(error.contains("no running program is called no-such-program"), "{error}");
    }

    #[test]
    fn a_cycle_of_parents_terminates() {
        assert_eq!(meant(&[(5, 6), (6, 5)], &[7]), [0; 0]);
    }

    #[test]
    fn a_child_that_starts_and_exits_is_reported() {
        let this = Pid::of_this_process();
        let mut targets = Targets::find(Selection::Processes(vec![this])).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_kernel(child.id()).unwrap();
        let turnover = targets.refresh().unwrap();
        assert!(turnover.started.iter().any(|target| target.pid == pid), "{turnover:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        let ended = targets.refresh().unwrap().ended;
        assert!(ended.iter().any(|target| target.pid == pid), "{ended:?}");
    }

    #[test]
    fn only_processes_that_start_others_are_looked_at_for_new_ones() {
        let all = seen(&[(1, 0), (10, 1), (11, 10), (12, 10), (13, 12), (20, 1)]);
        let living = with_descendants(&all, &[10, 20].map(|pid| Pid::new(pid).unwrap()));
        assert_eq!(parents(&all, &living).into_iter().map(Pid::get).collect::<Vec<_>>(), [10, 12, 20]);
    }

    #[test]
    fn a_new_worker_is_noticed_until_a_search_has_found_it() {
        if ProcRoot::default().thread_self().children().is_err() {
            return skip(Lacks::KernelFeature, "needs CONFIG_PROC_CHILDREN");
        }
        let start = "read line; sleep 600 & read line; kill $!; wait; echo; read line";
        let pipe = std::process::Stdio::piped;
        let mut master =
            std::process::Command::new("sh").args(["-c", start]).stdin(pipe()).stdout(pipe()).spawn().unwrap();
        let pid = Pid::from_kernel(master.id()).unwrap();
        let mut targets = Targets::find(Selection::Processes(vec![pid])).unwrap();
        assert!(!targets.has_started_another());
        let mut line = |text: &str| master.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
        line("\n");
        wait_until(|| targets.has_started_another().then_some(()).ok_or_else(|| "no child".to_owned()));
        assert_eq!(targets.refresh().unwrap().started.len(), 1);
        assert!(!targets.has_started_another());
        line("\n");
        master.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        assert!(!targets.has_started_another(), "an exit is no start");
        line("\n");
        master.wait().unwrap();
    }

    #[test]
    fn a_renamed_process_is_the_same_process() {
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
    fn a_missing_process_is_named() {
        let nobody = Pid::new(1 << 30).unwrap();
        let refused = Targets::find(Selection::Processes(vec![nobody])).unwrap_err();
        assert_eq!(refused.to_string(), "there is no process 1073741824");
    }
}
