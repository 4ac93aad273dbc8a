//! Programs besides the server that use its CPUs. Processes are read before the first slice and after the last one, never
//! in between: on a host with many processes, a reading takes milliseconds.

use std::collections::{BTreeMap, BTreeSet};
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

    /// The busiest programs since this reading that may run on the CPUs of the server, without the server and this process.
    /// The commands that this process started are one program: judges are too short-lived to be in both readings. Returns
    /// `None` if the processes cannot be listed.
    pub(crate) fn others_since(
        &self,
        proc: &ProcRoot,
        server: impl Iterator<Item = Pid>,
        server_cpus: &CpuList,
    ) -> Option<Vec<OtherProgramFacts>> {
        let this = Pid::of_this_process();
        let own: BTreeSet<Pid> = server.chain([this]).collect();
        let may_run_there = |pid: Pid| {
            let shares = |cpus: CpuList| !cpus.intersection(server_cpus).is_empty();
            sched::affinity(pid).map_or(true, shares)
        };
        Some(self.busiest(&Self::read(proc)?, this, |pid| !own.contains(&pid) && may_run_there(pid)))
    }

    fn busiest(&self, later: &Self, this: Pid, is_other: impl Fn(Pid) -> bool) -> Vec<OtherProgramFacts> {
        let elapsed_s = Duration::from_nanos(later.at_ns.saturating_sub(self.at_ns)).as_secs_f64();
        let since = |id: &(Pid, Duration), now: &ProcessTime, of: fn(&ProcessTime) -> Duration| {
            let before = self.processes.get(id).map_or(Duration::ZERO, of);
            of(now).saturating_sub(before).as_secs_f64() / elapsed_s
        };
        let processes = later.processes.iter().filter(|_| elapsed_s > 0.0);
        let mut started = 0.0;
        let mut busy: Vec<OtherProgramFacts> = Vec::new();
        for (id, now) in processes {
            let cpus = since(id, now, |one| one.used);
            match id.0 {
                pid if pid == this => started += since(id, now, |one| one.children_used),
                _ if now.parent == Some(this) => started += cpus,
                pid => {
                    let (pid, name) = (pid.get().unsigned_abs(), now.name.clone());
                    busy.push(OtherProgramFacts { pid, name, cpus, is_of_measurement: false });
                }
            }
        }
        let pid = this.get().unsigned_abs();
        busy.push(OtherProgramFacts { pid, name: String::new(), cpus: started, is_of_measurement: true });
        busy.retain(|program| program.cpus >= CPUS_MIN);
        busy.sort_by(|one, other| other.cpus.total_cmp(&one.cpus));
        let is_named =
            |one: &OtherProgramFacts| one.is_of_measurement || Pid::from_kernel(one.pid).is_some_and(&is_other);
        busy.into_iter().filter(is_named).take(NAMED_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reading of processes: PID, name, start time and CPU time, in ticks of 10 ms.
    fn reading(at_s: u64, processes: &[(i32, &str, u64, u64)]) -> ProcessTimes {
        let stat = |(pid, name, started, used): &(i32, &str, u64, u64)| {
            let session = if name.starts_with("ksoftirqd") { 0 } else { 1 };
            let text = format!("{pid} ({name}) R 1 {pid} {session} 0 -1 0 0 0 0 0 {used} 0 0 0 20 0 1 0 {started} 0 0");
            PidStat::parse(text.as_bytes()).unwrap()
        };
        ProcessTimes::of(at_s * 1_000_000_000, processes.iter().map(stat))
    }

    #[test]
    fn the_busiest_other_programs_are_named_with_the_cpus_that_they_used() {
        let first = reading(0, &[(1, "init", 0, 900), (7, "server", 5, 0), (8, "stress", 5, 100), (9, "old", 5, 900)]);
        let later = [
            (1, "init", 0, 900),
            (7, "server", 5, 100),
            (8, "stress", 5, 200),
            (9, "new", 6, 20),
            (10, "born later", 9, 50),
            (11, "fourth", 9, 10),
            (12, "ksoftirqd/0", 0, 90),
        ];
        let this = Pid::of_this_process();
        let busiest = first.busiest(&reading(1, &later), this, |pid| pid.get() != 7);
        let named: Vec<_> =
            busiest.iter().map(|one| (one.pid, one.name.as_str(), (one.cpus * 100.0).round())).collect();
        assert_eq!(named, [(8, "stress", 100.0), (10, "born later", 50.0), (9, "new", 20.0)]);
    }

    #[test]
    fn two_readings_at_one_time_name_nobody() {
        let this = Pid::of_this_process();
        assert_eq!(reading(1, &[]).busiest(&reading(1, &[(8, "stress", 5, 200)]), this, |_| true), []);
    }

    #[test]
    fn commands_that_the_measurement_started_are_one_program_also_after_they_have_ended() {
        let of = |at_s: u64, children: u64, load: u64| {
            let stat = |text: String| PidStat::parse(text.as_bytes()).unwrap();
            let quell = stat(format!("70 (quell) S 1 70 1 0 -1 0 0 0 0 0 9 9 {children} 0 20 0 1 0 5 0 0"));
            let load = stat(format!("71 (wrk) R 70 71 1 0 -1 0 0 0 0 0 {load} 0 0 0 20 0 1 0 6 0 0"));
            ProcessTimes::of(at_s * 1_000_000_000, [quell, load].into_iter())
        };
        let this = Pid::from_kernel(70).unwrap();
        let [one] = &of(0, 10, 0).busiest(&of(1, 88, 20), this, |_| true)[..] else { panic!("one program") };
        assert_eq!((one.is_of_measurement, (one.cpus * 100.0).round()), (true, 98.0));
        assert_eq!(
            OtherProgramFacts::which(std::slice::from_ref(one)),
            "the commands that load and measure: 98 % of a CPU"
        );
    }
}
