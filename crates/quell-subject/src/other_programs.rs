//! Programs besides the server that use its CPUs. Processes are read before the first slice and after the last one, never
//! in between: on a host with many processes, a reading takes milliseconds.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::time::Duration;

use quell_experiment::SliceFlag;
use quell_linux::proc::{PidStat, ProcRoot};
use quell_linux::{CpuList, Pid, clock, sched};
use quell_result::facts::OtherProgramFacts;

use crate::counters::{CpuUse, Instruments, Watched};
use crate::experiment::server_side;

/// Time for which other programs are observed before the first slice.
const OBSERVED: Duration = Duration::from_millis(500);
/// Number of programs that are named.
const NAMED_MAX: usize = 3;
/// Smallest use of a program that is named, in CPUs.
const CPUS_MIN: f64 = 0.05;
/// Number of ancestors that are looked at. The two readings can disagree about parents, so that there may be a cycle.
const DEPTH_MAX: usize = 64;

/// What other programs would distort now.
#[derive(Debug, Default)]
pub struct Contention {
    /// The flags that slices would have.
    pub flags: BTreeSet<SliceFlag>,
    /// The programs, the busiest one first.
    pub programs: Vec<OtherProgramFacts>,
}

impl Contention {
    /// Observes for a short time. Returns the use of the server's CPUs, too. Returns no contention if `stopped` returned true
    /// before its end.
    pub(crate) fn observe(watched: &Watched, stopped: &dyn Fn() -> bool) -> (Self, Option<CpuUse>) {
        let (proc, mut none) = (ProcRoot::default(), Instruments::default());
        let processes = ProcessTimes::read(&proc);
        let first = watched.snapshot(&proc, &mut none);
        if !server_side::sleep(OBSERVED, stopped) {
            return (Self::default(), None);
        }
        let counters = watched.between(&first, &watched.snapshot(&proc, &mut none));
        let flags = server_side::flags_of_other_programs(watched, &counters);
        let programs = processes
            .and_then(|processes| processes.others_since(&proc, watched.server_threads(), &watched.server_cpus));
        (Self { flags, programs: programs.unwrap_or_default() }, counters.server_cpus)
    }
}

/// CPU times of all processes at one time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ProcessTimes {
    at_ns: u64,
    /// By PID and start time, because a PID can be reused.
    processes: BTreeMap<(Pid, Duration), ProcessTime>,
}

#[derive(Debug, Clone, PartialEq)]
struct ProcessTime {
    name: String,
    used: Duration,
    /// CPU time of children that have ended.
    children_used: Duration,
    parent: Option<Pid>,
}

impl ProcessTimes {
    /// Returns `None` if the processes cannot be listed.
    pub(crate) fn read(proc: &ProcRoot) -> Option<Self> {
        let pids = proc.pids().ok()?;
        // Processes that have exited in the meantime are not errors.
        let stats = pids.into_iter().filter_map(|pid| proc.process(pid).stat().ok());
        Some(Self::of(clock::monotonic_ns(), stats))
    }

    fn of(at_ns: u64, stats: impl Iterator<Item = PidStat>) -> Self {
        // The counters of a slice take `ksoftirqd` for softirqs, too.
        let is_program = |stat: &PidStat| stat.session.is_some() || !stat.comm.starts_with(b"ksoftirqd/");
        let time = |stat: PidStat| {
            let used = stat.utime.duration() + stat.stime.duration();
            let (name, children_used, parent) = (stat.name(), stat.children_time.duration(), stat.ppid);
            ((stat.pid, stat.starttime.duration()), ProcessTime { name, used, children_used, parent })
        };
        Self { at_ns, processes: stats.filter(is_program).map(time).collect() }
    }

    /// The busiest programs since this reading that may run on the CPUs of the server, without the server, this process and
    /// the programs that they started. A program that has exited is known by the time of its parent. The commands that this
    /// process started are named if no other program used more. Returns `None` if the processes cannot be listed.
    pub(crate) fn others_since(
        &self,
        proc: &ProcRoot,
        server: impl Iterator<Item = Pid>,
        server_cpus: &CpuList,
    ) -> Option<Vec<OtherProgramFacts>> {
        let may_run_there = |pid: Pid| {
            let shares = |cpus: CpuList| !cpus.intersection(server_cpus).is_empty();
            sched::affinity(pid).map_or(true, shares)
        };
        Some(self.busiest(&Self::read(proc)?, Pid::of_this_process(), &server.collect(), may_run_there))
    }

    fn busiest(
        &self,
        later: &Self,
        this: Pid,
        server: &BTreeSet<Pid>,
        may_run_there: impl Fn(Pid) -> bool,
    ) -> Vec<OtherProgramFacts> {
        let elapsed_s = Duration::from_nanos(later.at_ns.saturating_sub(self.at_ns)).as_secs_f64();
        if elapsed_s <= 0.0 {
            return Vec::new();
        }
        let parents: BTreeMap<Pid, Pid> = self.parents().chain(later.parents()).collect();
        let with_ancestors = |pid: Pid| iter::successors(Some(pid), |of| parents.get(of).copied()).take(DEPTH_MAX);
        let alive: BTreeSet<Pid> = later.processes.keys().map(|(pid, _)| *pid).collect();
        // The time of a child that has been waited for is all its time, that before this reading, too.
        let mut before: BTreeMap<Pid, Duration> = BTreeMap::new();
        for ((pid, _), gone) in self.processes.iter().filter(|(id, _)| !later.processes.contains_key(*id)) {
            if let Some(waited) = with_ancestors(*pid).skip(1).find(|pid| alive.contains(pid)) {
                *before.entry(waited).or_default() += gone.used + gone.children_used;
            }
        }
        let mut commands = Duration::ZERO;
        let mut busy: Vec<OtherProgramFacts> = Vec::new();
        for (id, now) in &later.processes {
            let pid = id.0;
            let first = self.processes.get(id);
            let used = now.used.saturating_sub(first.map_or(Duration::ZERO, |first| first.used));
            let of_children =
                now.children_used.saturating_sub(first.map_or(Duration::ZERO, |first| first.children_used));
            let of_exited = of_children.saturating_sub(before.get(&pid).copied().unwrap_or_default());
            if with_ancestors(pid).any(|of| server.contains(&of)) {
                continue;
            }
            if with_ancestors(pid).any(|of| of == this) {
                commands += if pid == this { of_exited } else { used + of_exited };
                continue;
            }
            for (time, has_exited) in [(used, false), (of_exited, true)] {
                let (pid, name, cpus) = (pid.get().unsigned_abs(), now.name.clone(), time.as_secs_f64() / elapsed_s);
                busy.push(OtherProgramFacts { pid, name, cpus, has_exited, is_of_measurement: false });
            }
        }
        busy.retain(|program| program.cpus >= CPUS_MIN && Pid::from_kernel(program.pid).is_some_and(&may_run_there));
        busy.sort_by(|one, other| other.cpus.total_cmp(&one.cpus));
        let cpus = commands.as_secs_f64() / elapsed_s;
        if cpus >= CPUS_MIN && busy.first().is_none_or(|busiest| busiest.cpus < cpus) {
            let (pid, name) = (this.get().unsigned_abs(), "quell".to_owned());
            busy.insert(0, OtherProgramFacts { pid, name, cpus, has_exited: false, is_of_measurement: true });
        }
        busy.truncate(NAMED_MAX);
        busy
    }

    fn parents(&self) -> impl Iterator<Item = (Pid, Pid)> {
        self.processes.iter().filter_map(|((pid, _), time)| Some((*pid, time.parent?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIS: Pid = pid(70);

    const fn pid(of: i32) -> Pid {
        Pid::new(of).unwrap()
    }

    /// A reading of processes: PID, parent, name, start time, CPU time and that of children that have ended, in ticks of 10 ms.
    fn reading(at_s: u64, processes: &[(i32, i32, &str, u64, u64, u64)]) -> ProcessTimes {
        let stat = |(pid, parent, name, started, used, children): &(i32, i32, &str, u64, u64, u64)| {
            let session = if name.starts_with("ksoftirqd") { 0 } else { 1 };
            let times = format!("{used} 0 {children} 0");
            let text =
                format!("{pid} ({name}) R {parent} {pid} {session} 0 -1 0 0 0 0 0 {times} 20 0 1 0 {started} 0 0");
            PidStat::parse(text.as_bytes()).unwrap()
        };
        ProcessTimes::of(at_s * 1_000_000_000, processes.iter().map(stat))
    }

    fn named(first: &ProcessTimes, later: &ProcessTimes) -> Vec<String> {
        let busiest = first.busiest(later, THIS, &BTreeSet::from([pid(7)]), |of| of != pid(13));
        busiest.iter().map(|one| OtherProgramFacts::which(std::slice::from_ref(one))).collect()
    }

    #[test]
    fn the_busiest_other_programs_are_named_with_the_cpus_that_they_used() {
        let first = [(1, 0, "init", 0, 900, 0), (7, 1, "server", 5, 0, 0), (8, 1, "stress", 5, 100, 0)];
        let later = [
            (1, 0, "init", 0, 900, 0),
            (7, 1, "server", 5, 100, 0),
            (8, 1, "stress", 5, 200, 0),
            (9, 1, "new", 6, 20, 0),
            (10, 1, "born later", 9, 50, 0),
            (11, 1, "fourth", 9, 10, 0),
            (12, 0, "ksoftirqd/0", 0, 90, 0),
            (13, 1, "elsewhere", 0, 99, 0),
            (14, 7, "worker", 9, 80, 0),
        ];
        assert_eq!(
            named(&reading(0, &first), &reading(1, &later)),
            ["stress 8: 100 % of a CPU", "born later 10: 50 % of a CPU", "new 9: 20 % of a CPU"]
        );
    }

    #[test]
    fn two_readings_at_one_time_name_nobody() {
        assert_eq!(named(&reading(1, &[]), &reading(1, &[(8, 1, "stress", 5, 200, 0)])), [""; 0]);
    }

    #[test]
    fn a_program_that_has_exited_is_known_by_its_parent_without_its_time_before_the_measurement() {
        let first =
            [(1, 0, "init", 0, 0, 0), (30, 1, "bash", 1, 0, 500), (31, 30, "sh", 2, 1, 2), (32, 31, "py", 2, 47, 0)];
        let later = [(1, 0, "init", 0, 0, 0), (30, 1, "bash", 1, 0, 610)];
        assert_eq!(
            named(&reading(0, &first), &reading(1, &later)),
            ["a program of bash 30 that has exited: 60 % of a CPU"]
        );
    }

    #[test]
    fn commands_of_the_measurement_and_their_children_are_named_if_no_other_program_used_more() {
        let of = |at_s: u64, judges: u64, load: u64, spinner: u64| {
            let quell = [(70, 1, "quell", 5, 99 * at_s, judges), (71, 70, "sh", 6, 0, 0), (72, 71, "wrk", 6, load, 0)];
            reading(at_s, &[quell[0], quell[1], quell[2], (80, 1, "python3", 5, spinner, 0)])
        };
        let with = |spinner: u64| named(&of(0, 10, 0, 0), &of(1, 88, 20, spinner));
        assert_eq!(with(120), ["python3 80: 120 % of a CPU"]);
        assert_eq!(with(60), ["the commands that load and measure: 98 % of a CPU", "python3 80: 60 % of a CPU"]);
        assert_eq!(with(0), ["the commands that load and measure: 98 % of a CPU"]);
    }
}
