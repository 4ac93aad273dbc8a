//! Records the state of this machine that a bench run could change, as text by name. Two records can be compared.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::path::Path;

use quell_linux::Pid;
use quell_linux::link::Links;
use quell_linux::netdev::Netdev;
use quell_linux::netns::{Namespace, NamespaceName};
use quell_linux::proc::ProcRoot;
use quell_linux::sched;

/// State of the machine: values by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MachineState(BTreeMap<String, String>);

impl MachineState {
    /// Records the state. Includes the processes that have `mark` in their environment, which child processes of a test
    /// inherit.
    pub(crate) fn now(mark: &str) -> Self {
        let mut state = Self(BTreeMap::new());
        state.named_namespaces();
        state.network_of_the_initial_namespace();
        state.settings_under(Path::new("/proc/sys/net"));
        state.settings_under(Path::new("/proc/sys/kernel"));
        state.interrupt_affinities();
        state.mounts();
        state.own_threads();
        state.processes(mark);
        state
    }

    /// Lists the lines that are only in `self` (`-`) or only in `later` (`+`). The list is empty if the states are
    /// equal.
    pub(crate) fn diff(&self, later: &Self) -> String {
        let mut lines = String::new();
        let keys: std::collections::BTreeSet<&String> = self.0.keys().chain(later.0.keys()).collect();
        for key in keys.into_iter().filter(|key| self.0.get(*key) != later.0.get(*key)) {
            for (sign, state) in [('-', self), ('+', later)] {
                if let Some(value) = state.0.get(key) {
                    lines.push_str(&format!("{sign} {key}: {}\n", value.trim_end()));
                }
            }
        }
        lines
    }

    fn insert(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.0.insert(key.into(), value.into());
    }

    /// NAPI threads are left out: every container sees those of all others, whose namespaces have no name here.
    fn named_namespaces(&mut self) {
        for name in Namespace::list_named().unwrap().into_iter().filter(|name| !is_somebody_elses(name)) {
            self.insert(format!("network namespace {name}"), "");
        }
    }

    fn network_of_the_initial_namespace(&mut self) {
        let mut netdev = Netdev::open().unwrap();
        for link in Links::open().unwrap().list().unwrap() {
            self.insert(format!("link {}", link.name), text(&link));
            for napi in netdev.napis(link.index).unwrap_or_default() {
                self.insert(format!("NAPI {} of {}", napi.id.get(), link.name), text(&napi));
            }
            for file in ["threaded", "gro_flush_timeout", "napi_defer_hard_irqs"] {
                let path = format!("/sys/class/net/{}/{file}", link.name);
                self.insert(path.clone(), fs::read_to_string(path).unwrap_or_default());
            }
        }
    }

    fn settings_under(&mut self, path: &Path) {
        let changes_by_itself = ["random", "ns_last_pid", "pty", "keys"];
        for entry in fs::read_dir(path).unwrap().map(|entry| entry.unwrap()) {
            let (path, name) = (entry.path(), entry.file_name());
            if changes_by_itself.iter().any(|known| name == *known) {
                continue;
            }
            match path.is_dir() {
                true => self.settings_under(&path),
                false => self.insert(path.display().to_string(), fs::read_to_string(&path).unwrap_or_default()),
            }
        }
    }

    fn interrupt_affinities(&mut self) {
        for entry in fs::read_dir("/proc/irq").into_iter().flatten().map(|entry| entry.unwrap()) {
            let path = entry.path().join("smp_affinity_list");
            let Ok(cpus) = fs::read_to_string(&path) else { continue };
            self.insert(path.display().to_string(), cpus);
        }
    }

    /// Named namespaces are mounts too. They are skipped, because they are listed by name.
    fn mounts(&mut self) {
        for line in fs::read_to_string("/proc/self/mountinfo").unwrap().lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            if fields[4].starts_with("/run/netns/") {
                continue;
            }
            self.insert(format!("mount {} on {}", fields[0], fields[4]), fields[5..].join(" "));
        }
    }

    fn own_threads(&mut self) {
        let tid = Pid::of_this_thread();
        self.insert("affinity of the test", text(&sched::affinity(tid).unwrap()));
        self.insert("scheduling of the test", text(&sched::scheduling(tid).unwrap()));
    }

    fn processes(&mut self, mark: &str) {
        for pid in started_with(mark) {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            self.insert(format!("process {pid}"), String::from_utf8_lossy(&command).replace('\0', " "));
        }
    }
}

/// Returns the processes that have `mark` in their environment.
pub(crate) fn started_with(mark: &str) -> Vec<Pid> {
    let environment = |pid: &Pid| fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let holds = |pid: &Pid| environment(pid).split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
    ProcRoot::default().pids().unwrap().into_iter().filter(holds).collect()
}

/// Returns the name of a process, or an empty string if it has exited.
pub(crate) fn comm_of(pid: Pid) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

fn text(value: &impl Debug) -> String {
    format!("{value:?}")
}

/// Returns whether the namespace belongs to another lab (`quell-HEX-…`, where HEX is a process ID) or to a test of
/// another crate (`qt-…`).
fn is_somebody_elses(name: &NamespaceName) -> bool {
    let mut parts = name.as_str().split('-');
    let runs = |pid: u32| Path::new("/proc").join(pid.to_string()).exists();
    match parts.next() {
        Some("quell") => parts.next().and_then(|pid| u32::from_str_radix(pid, 16).ok()).is_some_and(runs),
        first => first == Some("qt"),
    }
}
