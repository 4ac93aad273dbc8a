//! Reads host-wide data: kernel, privileges, sysctls, interrupts and services.

use std::collections::BTreeSet;
use std::path::Path;

use quell_linux::capability::{self, Capability};
use quell_linux::kernel::Kernel as RunningKernel;
use quell_linux::netdev::Netdev;
use quell_linux::netns::Namespace;
use quell_linux::proc::{Interrupts, ProcRoot};
use quell_linux::settings_files::{self, IrqBans};
use quell_linux::{Pid, visible};

use super::super::{
    ConfiguredFile, Irq, Privileges, Reading, Service, SnapshotKernel, SnapshotScope, Sysctls, UnknownReason,
};
use super::namespaces::Space;
use super::outcome::Outcome as _;
use super::processes::Candidate;

/// Process names of programs that set interrupts, CPUs or sysctls by their own rules.
const SERVICES: &[&str] = &[IRQBALANCE, "tuned", "numad", "cpufreqd", "auto-cpufreq", "google_guest_ag"];
const IRQBALANCE: &str = "irqbalance";

pub(super) fn kernel() -> SnapshotKernel {
    let RunningKernel { release, version, machine } = RunningKernel::running();
    let threaded_busy_poll = Netdev::open().and_then(|mut netdev| netdev.takes_threaded_busy_poll()).outcome();
    SnapshotKernel { release, version, machine, threaded_busy_poll }
}

pub(super) fn privileges(proc: &ProcRoot) -> Privileges {
    let held = |set: capability::CapabilitySet| Capability::ALL.into_iter().filter(|one| set.has(*one)).collect();
    let capabilities = match capability::effective(proc) {
        Ok(Some(set)) => Reading::Known(held(set)),
        Ok(None) => {
            Reading::unknown(UnknownReason::UnsupportedByKernel, "read /proc/thread-self/status: it has no line CapEff")
        }
        Err(error) => Err(error).outcome(),
    };
    Privileges { capabilities, in_initial_user_namespace: capability::in_initial_user_namespace(proc).outcome() }
}

/// Host-wide settings. The kernel shows them only in the initial network namespace.
pub(super) fn sysctls(proc: &ProcRoot, spaces: &[Space]) -> Sysctls {
    let is_shown = |sysctls: &Sysctls| sysctls.busy_poll_us.known().is_some();
    let here = sysctls_here(proc);
    if is_shown(&here) {
        return here;
    }
    let init = Pid::new(1).and_then(|init| Namespace::open_pid(proc.path(), init).ok());
    let namespaces = init.iter().chain(spaces.iter().map(|space| &space.namespace));
    let there = namespaces.filter_map(|namespace| namespace.run(|| sysctls_here(proc)).ok());
    there.into_iter().find(is_shown).unwrap_or(here)
}

fn sysctls_here(proc: &ProcRoot) -> Sysctls {
    let net_core = |name| proc.net_core(name).outcome();
    Sysctls {
        busy_poll_us: proc.busy_poll_us().outcome(),
        busy_read_us: proc.busy_read_us().outcome(),
        netdev_budget: net_core("netdev_budget"),
        netdev_budget_us: net_core("netdev_budget_usecs"),
        dev_weight: net_core("dev_weight"),
        netdev_max_backlog: net_core("netdev_max_backlog"),
        rps_sock_flow_entries: net_core("rps_sock_flow_entries"),
    }
}

pub(super) fn services(proc: &ProcRoot, candidates: &[Candidate]) -> Vec<Service> {
    let known = candidates.iter().filter(|candidate| SERVICES.contains(&candidate.name.as_str()));
    let service = |candidate: &Candidate| Service {
        name: candidate.name.clone(),
        pid: candidate.pid,
        irq_bans: match &*candidate.name {
            IRQBALANCE => {
                let arguments = proc.process(candidate.pid).arguments().outcome();
                arguments.map(|arguments| IrqBans::parse(arguments.iter().map(String::as_str)))
            }
            _ => Reading::unknown(UnknownReason::NotAsked, "only irqbalance excludes interrupts"),
        },
    };
    known.map(service).collect()
}

pub(super) fn configured_files(scope: &SnapshotScope) -> Reading<Vec<ConfiguredFile>> {
    if !scope.configured_files {
        return Reading::unknown(UnknownReason::NotAsked, "configuration files were not requested");
    }
    let file = |file: settings_files::SettingsFile| ConfiguredFile {
        owner: file.owner,
        path: visible::path(&file.path),
        content: file.content.outcome(),
    };
    Reading::Known(settings_files::read(Path::new("/")).into_iter().map(file).collect())
}

pub(super) fn irqs(proc: &ProcRoot, interrupts: &Reading<Interrupts>, numbers: &BTreeSet<u32>) -> Reading<Vec<Irq>> {
    let irq = |&number: &u32| {
        let line = match interrupts {
            Reading::Known(interrupts) => match interrupts.irq(number) {
                Some(line) => Reading::Known(line),
                None => {
                    Reading::unknown(UnknownReason::Absent, format!("read /proc/interrupts: it has no line {number}"))
                }
            },
            Reading::Unknown(unknown) => Reading::Unknown(unknown.clone()),
        };
        let counts = line.clone().map(|line| line.per_cpu.clone().unwrap_or_default());
        Irq {
            number,
            description: line.map(|line| line.description.clone()),
            affinity: proc.irq_affinity(number).outcome(),
            effective_affinity: proc.irq_effective_affinity(number).outcome(),
            counts: counts.map(|counts| counts.into_iter().filter(|(_, count)| *count > 0).collect()),
        }
    };
    Reading::Known(numbers.iter().map(irq).collect())
}
