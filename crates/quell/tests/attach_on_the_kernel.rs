//! `quell attach` and `quell detach` as a user or a service manager runs them, on an unmodified memcached in namespaces of
//! the test's own, and what is left of it when it, its keeper or the program is killed. Needs root, Linux 6.13, memcached.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use quell_linux::Pid;
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::process::Spawn;
use quell_test_support::lab::{ARRIVES_WITHIN, Lab};
use quell_test_support::{Lacks, skip};
use serde_json::Value;
use tempfile::TempDir;

const ADDRESS: &str = "192.0.2.1:11211";
const MODE: &str = "suspend200";

/// A lab with memcached in it, and a place for journals.
struct Stage {
    lab: Lab,
    server: quell_linux::process::Child,
    connections: Vec<TcpStream>,
    dir: TempDir,
}

impl Stage {
    /// `None`, with the reason on stderr, where that cannot be.
    fn enter(test: &str) -> Option<Self> {
        let mut stage = Self::without_connections(test)?;
        // So many that none of the two queues is left out.
        stage.connect(24);
        Some(stage)
    }

    fn without_connections(test: &str) -> Option<Self> {
        Self::with_workers(test, 2)
    }

    fn with_workers(test: &str, workers: u32) -> Option<Self> {
        if Command::new("memcached").arg("-V").output().is_err() {
            skip(Lacks::Server("memcached"), "there is no memcached");
            return None;
        }
        let mut lab = Lab::raise(test, 2)?;
        let workers = workers.to_string();
        let words = ["-u", "root", "-U", "0", "-t", &workers, "-l", "192.0.2.1", "-p", "11211"];
        let server = lab.start(Spawn::new("memcached").args(words));
        Some(Self { lab, server, connections: Vec::new(), dir: tempfile::tempdir().unwrap() })
    }

    fn connect(&mut self, count: usize) {
        let deadline = Instant::now() + ARRIVES_WITHIN;
        let connect = || {
            loop {
                match TcpStream::connect(ADDRESS) {
                    Ok(connection) => return connection,
                    Err(error) => assert!(Instant::now() < deadline, "memcached is deaf: {error}"),
                }
                std::thread::yield_now();
            }
        };
        self.connections.extend(self.lab.client.run(|| (0..count).map(|_| connect()).collect::<Vec<_>>()).unwrap());
        self.answers();
    }

    /// Every connection gets its answer.
    fn answers(&mut self) {
        for connection in &mut self.connections {
            connection.set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
            connection.write_all(b"version\r\n").unwrap();
            let mut answer = [0; 64];
            let read = connection.read(&mut answer).unwrap();
            assert!(answer[..read].starts_with(b"VERSION"), "{:?}", &answer[..read]);
        }
    }

    fn pid(&self) -> String {
        self.server.pid().to_string()
    }

    fn quell(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
        command.args(arguments).env("QUELL_JOURNAL_DIR", self.journals()).stdin(Stdio::null());
        command
    }

    fn journals(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    /// What it says when it exits with `code`.
    fn says(&self, code: i32, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.quell(arguments).output().unwrap();
        let text = String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(code), "quell {}\n{text}", arguments.join(" "));
        text
    }

    fn is_set(&self) -> bool {
        self.lab.napi().irq_suspend_timeout_ns == Some(20_000_000)
    }

    /// Fails unless everything is as it was before any attachment, within some time.
    fn assert_back(&self) {
        let count = || std::fs::read_dir(self.journals()).map_or(0, Iterator::count);
        wait_until(|| count() == 0, "its journal is there");
        assert!(!self.is_set());
    }

    /// The process that the journal names as the one to ask for the end.
    fn keeper(&self) -> PidFd {
        let journal = std::fs::read_dir(self.journals()).unwrap().next().unwrap().unwrap().path();
        let text = std::fs::read_to_string(journal).unwrap();
        let kept_by = text.lines().rfind(|line| line.contains("kept-by")).unwrap();
        let record: Value = serde_json::from_str(kept_by.split_once(' ').unwrap().1).unwrap();
        PidFd::open(Pid::new(i32::try_from(record["pid"].as_i64().unwrap()).unwrap()).unwrap()).unwrap()
    }

    /// `quell attach --follow`, once it has told that it is ready.
    fn follow(&self) -> Child {
        let path = self.dir.path().join("notify");
        let notified = UnixDatagram::bind(&path).unwrap();
        notified.set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
        let mut command = self.quell(&["attach", MODE, &self.pid(), "--follow", "--yes", "--seconds", "0"]);
        let child = command.env("NOTIFY_SOCKET", &path).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 512];
        let read = notified.recv(&mut said).unwrap();
        let said = std::str::from_utf8(&said[..read]).unwrap();
        assert!(said.lines().any(|line| line == "READY=1") && said.contains("STATUS=1 process"), "{said}");
        std::fs::remove_file(&path).unwrap();
        child
    }
}

fn wait_until(is_so: impl Fn() -> bool, otherwise: &str) {
    let deadline = Instant::now() + ARRIVES_WITHIN;
    while !is_so() {
        assert!(Instant::now() < deadline, "{otherwise}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn kill(process: &PidFd) {
    process.signal(Signal::KILL).unwrap();
    assert!(process.wait_for_exit(ARRIVES_WITHIN).unwrap());
}

#[test]
fn a_running_memcached_gets_a_mode_and_is_detached_from() {
    let Some(mut stage) = Stage::enter("cli") else { return };
    let pid = stage.pid();
    let planned = stage.says(0, &["attach", MODE, &pid, "--dry-run"]);
    assert!(planned.contains("server0 rx 0-1") && planned.contains("nobody else"), "{planned}");
    assert!(!stage.is_set());
    assert!(stage.says(1, &["attach", MODE, &pid]).contains("--yes"), "nobody is there to be asked");
    assert!(!stage.is_set());

    let said = stage.says(0, &["attach", MODE, &pid, "--yes"]);
    assert!(said.contains("busy poll 0/0/0 → 0/64/1") && said.contains("at this load"), "{said}");
    assert!(stage.is_set());
    stage.answers();
    assert!(stage.says(1, &["attach", "base", &pid, "--yes"]).contains("quell detach"));
    let status = stage.says(0, &["status"]);
    assert!(status.contains("memcached") && status.contains(MODE), "{status}");

    let detached = stage.says(0, &["detach", &pid]);
    assert!(detached.contains("memcached") && detached.contains("restored"), "{detached}");
    stage.assert_back();
    stage.answers();
    assert!(stage.says(1, &["detach", &pid]).contains("is not attached to"));
}

#[test]
fn who_attaches_to_an_idle_program_is_told_last_what_the_mode_does_not_reach_yet() {
    let Some(mut stage) = Stage::without_connections("cli-idle") else { return };
    let pid = stage.pid();
    let last_words = || {
        let planned = stage.says(0, &["attach", MODE, &pid, "--dry-run"]);
        planned.split_once("NOTHING IS REACHED YET").map(|(_, last)| last.to_owned()).unwrap_or(planned)
    };
    let names_both_workers = || last_words().lines().any(|line| line.contains("epolls") && line.contains("left alone"));
    wait_until(names_both_workers, "its workers have no epolls");
    let idle = last_words();
    assert!(idle.contains("listening sockets only") && idle.contains("only with --follow"), "{idle}");
    stage.connect(24);
    let busy = stage.says(0, &["attach", MODE, &pid, "--dry-run"]);
    assert!(busy.contains("not reached yet") && !busy.contains("left alone"), "the one that listens stays: {busy}");
}

#[test]
fn revert_takes_attachments_back_too() {
    let Some(stage) = Stage::enter("cli-rev") else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    assert!(stage.says(0, &["revert"]).contains("detached memcached"));
    stage.assert_back();
}

#[test]
fn the_capabilities_of_the_service_are_enough() {
    let Some(stage) = Stage::enter("cli-caps") else { return };
    let unit = include_str!("../../../dist/quell-attach@.service");
    let bounds = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let bounds: Vec<String> = bounds.split(' ').map(|name| name.replace("CAP_", "+").to_lowercase()).collect();
    let quell = env!("CARGO_BIN_EXE_quell");
    let mut command = Command::new("setpriv");
    command.args(["--inh-caps=-all", &format!("--bounding-set=-all,{}", bounds.join(","))]);
    command.args([quell, "attach", MODE, &stage.pid(), "--yes"]).env("QUELL_JOURNAL_DIR", stage.journals());
    match command.output() {
        Err(error) => return skip(Lacks::Tool("setpriv"), &error),
        Ok(said) if String::from_utf8_lossy(&said.stderr).contains("setpriv:") => {
            return skip(Lacks::Tool("setpriv"), String::from_utf8_lossy(&said.stderr));
        }
        Ok(said) => {
            assert!(said.status.success(), "{said:?}");
            assert!(String::from_utf8_lossy(&said.stdout).contains("at this load"), "polls are counted: {said:?}");
        }
    }
    assert!(stage.is_set());
    // Its keeper has no more than it has.
    stage.says(0, &["detach", "--all"]);
    stage.assert_back();
}

#[test]
fn no_profile_is_applied_below_an_attachment() {
    let Some(stage) = Stage::enter("cli-below") else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    let profile = stage.dir.path().join("profile.toml");
    std::fs::write(&profile, "[device.lab]\nname = \"server0\"\n[device.lab.queues.all]\nmode = \"defer20\"\n")
        .unwrap();
    let refused = stage.says(1, &["apply", "--netns", &stage.lab.server_name, profile.to_str().unwrap()]);
    assert!(refused.contains("quell detach"), "{refused}");
    assert!(stage.is_set());
    stage.says(0, &["detach", "--all"]);
    stage.assert_back();
}

#[test]
fn what_cannot_be_had_is_refused_and_nothing_is_changed() {
    let Some(stage) = Stage::enter("cli-no") else { return };
    assert!(stage.says(5, &["attach", "eventspin50", &stage.pid(), "--yes"]).contains("nothing was changed"));
    assert!(stage.says(1, &["attach", MODE, "1073741824", "--yes"]).contains("there is no process"));
    assert!(stage.says(1, &["attach", MODE, "--unit", "qt-nothing.service", "--yes"]).contains("qt-nothing.service"));
    stage.assert_back();
}

#[test]
fn a_report_for_programs_says_what_was_set() {
    let Some(stage) = Stage::enter("cli-json") else { return };
    let said = stage.quell(&["attach", MODE, &stage.pid(), "--yes", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(report["schema"], "quell-attach/1");
    let steps = report["plan"]["steps"].as_array().unwrap();
    assert!(steps.iter().any(|step| step["kind"] == "queue" && step["new"]["irq-suspend-timeout"] == 20_000_000));
    assert!(steps.iter().any(|step| step["kind"] == "epoll" && step["new"]["prefer_busy_poll"] == true));
    let detached: Value =
        serde_json::from_slice(&stage.quell(&["detach", "--all", "--json"]).output().unwrap().stdout).unwrap();
    assert_eq!(detached["detached"][0]["undone"].as_array().unwrap().len(), steps.len(), "{detached}");
    stage.assert_back();
}

#[test]
fn when_the_program_is_killed_everything_goes_back() {
    let Some(stage) = Stage::enter("cli-end") else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    assert!(stage.is_set());
    PidFd::open(stage.server.pid()).unwrap().signal(Signal::KILL).unwrap();
    stage.assert_back();
}

#[test]
fn what_is_detached_while_the_link_is_down_waits_until_it_is_up() {
    let Some(stage) = Stage::enter("at-down") else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    let index = stage.lab.server_index;
    quell_linux::link::Links::open_in(&stage.lab.server).unwrap().set_down(index).unwrap();
    let detached = stage.says(3, &["detach", &stage.pid()]);
    assert!(
        detached.contains("  waits: queue 0 of server0") && detached.contains("wait for their queues"),
        "{detached}"
    );
    let status = stage.says(0, &["status"]);
    assert!(status.contains("nothing is applied") && status.contains("reverted but for 2 settings"), "{status}");
    quell_linux::link::Links::open_in(&stage.lab.server).unwrap().set_up(index).unwrap();
    let reverted = stage.says(0, &["revert"]);
    assert!(reverted.contains("2 settings restored"), "{reverted}");
    let napis = quell_linux::netdev::Netdev::open_in(&stage.lab.server).unwrap().napis(index).unwrap();
    assert!(napis.iter().all(|napi| napi.irq_suspend_timeout_ns == Some(0)), "{napis:?}");
    assert_eq!(std::fs::read_dir(stage.journals()).unwrap().count(), 0);
}

#[test]
fn when_the_keeper_is_killed_the_next_command_says_so_and_puts_back() {
    let Some(stage) = Stage::enter("cli-keep") else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    kill(&stage.keeper());
    assert!(stage.is_set());
    let status = stage.says(0, &["status"]);
    assert!(status.contains("left behind") && status.contains("quell revert"), "{status}");
    assert!(stage.says(0, &["detach", "--all"]).contains("restored"));
    stage.assert_back();
}

#[test]
fn a_follower_tells_that_it_is_ready_finds_what_comes_later_and_puts_back_when_it_is_told_to_end() {
    let Some(mut stage) = Stage::without_connections("cli-follow") else { return };
    let mut follower = stage.follow();
    assert!(!stage.is_set(), "no packet has come by a queue");
    stage.connect(24);
    wait_until(|| stage.is_set(), "the follower does not keep up");
    PidFd::open(Pid::from_kernel(follower.id()).unwrap()).unwrap().signal(Signal::TERM).unwrap();
    assert!(follower.wait().unwrap().success());
    let mut said = String::new();
    follower.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("everything was put back"), "{said}");
    stage.assert_back();
    stage.answers();
}

#[test]
fn a_follower_is_ended_by_detach() {
    let Some(stage) = Stage::enter("cli-f-det") else { return };
    let mut follower = stage.follow();
    assert!(stage.says(0, &["detach", &stage.pid()]).contains("restored"));
    assert!(follower.wait().unwrap().success());
    stage.assert_back();
}

#[test]
fn a_follower_ends_with_its_program() {
    let Some(stage) = Stage::enter("cli-f-end") else { return };
    let mut follower = stage.follow();
    PidFd::open(stage.server.pid()).unwrap().signal(Signal::KILL).unwrap();
    assert!(follower.wait().unwrap().success());
    stage.assert_back();
}

#[test]
fn when_a_follower_is_killed_its_keeper_puts_back() {
    let Some(mut stage) = Stage::enter("cli-f-kill") else { return };
    let mut follower = stage.follow();
    follower.kill().unwrap();
    follower.wait().unwrap();
    stage.assert_back();
    stage.answers();
}

#[test]
fn an_attachment_whose_report_cannot_be_written_stays_and_is_not_called_restored() {
    let Some(stage) = Stage::enter("cli-full") else { return };
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = stage.quell(&["attach", MODE, &stage.pid(), "--yes", "--json"]);
    let said = command.stdout(full()).output().unwrap();
    let text = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said.status.code(), Some(2), "{text}");
    assert!(text.contains("No space left on device") && text.contains("the mode is set, and stays"), "{text}");
    assert!(stage.is_set() && stage.says(0, &["status"]).contains(MODE));
    stage.says(0, &["detach", &stage.pid()]);
    stage.assert_back();
}

#[test]
fn detach_without_a_pid_lists_what_there_is_and_asks() {
    let Some(stage) = Stage::enter("cli-ask") else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    let asked = stage.says(1, &["detach"]);
    assert!(asked.contains(&format!("memcached {} ({MODE})", stage.pid())) && asked.contains("--all"), "{asked}");
    assert!(stage.is_set());
    assert!(stage.says(0, &["detach", "--all"]).contains("restored"));
    stage.assert_back();
}

#[test]
fn detach_of_a_pid_leaves_what_a_killed_keeper_of_another_left() {
    let Some(stage) = Stage::enter("cli-orphan") else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    kill(&stage.keeper());
    assert!(stage.says(1, &["detach", "1"]).contains("process 1 is not attached to"));
    assert!(stage.is_set() && stage.says(0, &["status"]).contains("left behind"));
    assert!(stage.says(0, &["detach", &stage.pid()]).contains("restored"));
    stage.assert_back();
}

#[test]
fn every_process_is_selected_on_purpose_or_not_at_all() {
    let Some(stage) = Stage::enter("cli-every") else { return };
    for programs in
        [&["1"][..], &[&stage.pid(), "1"], &["--cgroup", ""], &["--cgroup", "/"], &["--cgroup", "/sys/fs/cgroup"]]
    {
        let said = stage.says(1, &[&["attach", "base", "--dry-run"], programs].concat());
        // Not everywhere are there control groups.
        assert!(said.contains("--all-processes") || said.contains("there is no control group"), "{programs:?}: {said}");
    }
    let all = stage.quell(&["attach", MODE, "1", "--dry-run", "--all-processes"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&all.stderr).contains("--all-processes"), "{all:?}");
}

#[test]
fn an_attachment_of_another_pid_namespace_is_held_by_a_process_that_is_not_visible() {
    let Some(stage) = Stage::enter("cli-pidns") else { return };
    let quell = env!("CARGO_BIN_EXE_quell");
    let script = format!(
        "memcached -u root -U 0 -t 1 -l 127.0.0.1 -p 11999 & \
         while ! {quell} attach {MODE} $! --yes --follow --seconds 0; do sleep 0.2; done"
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script]);
    unshare.env("QUELL_JOURNAL_DIR", stage.journals()).stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null());
    let Ok(mut inside) = unshare.spawn() else { return skip(Lacks::Tool("unshare"), "there is no unshare") };
    let count = || std::fs::read_dir(stage.journals()).map_or(0, Iterator::count);
    let shows = || String::from_utf8(stage.quell(&["status"]).output().unwrap().stdout).unwrap();
    wait_until(|| count() > 0 && shows().contains("not visible here"), "the attachment inside does not come");
    for command in [&["detach", "--all"][..], &["revert"]] {
        assert!(stage.says(2, command).contains("not visible here"), "{command:?}");
    }
    inside.kill().unwrap();
    inside.wait().unwrap();
    wait_until(|| !shows().contains("not visible here"), "its owners are gone");
    stage.quell(&["revert"]).output().unwrap();
}

impl Stage {
    /// The only journal.
    fn journal(&self) -> PathBuf {
        let is_journal = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "journal");
        let paths = std::fs::read_dir(self.journals()).unwrap().map(|entry| entry.unwrap().path());
        let [journal] = &paths.filter(is_journal).collect::<Vec<_>>()[..] else { panic!("not one journal") };
        journal.clone()
    }

    fn attached_without_keeper(test: &str) -> Option<Self> {
        let stage = Self::enter(test)?;
        stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
        kill(&stage.keeper());
        Some(stage)
    }
}

/// A file system of 192 kB for journals, which goes when it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Option<Self> {
        std::fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        match mount.args(["-t", "tmpfs", "-o", "size=192k,mode=0700", "tmpfs"]).arg(&at).output() {
            Ok(said) if said.status.success() => Some(Self(at)),
            said => {
                skip(Lacks::Root, format_args!("no tmpfs can be mounted: {said:?}"));
                None
            }
        }
    }

    fn fill(&self) {
        let mut filler = std::fs::File::create(self.0.join("filler")).unwrap();
        while filler.write_all(&[0; 4096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn revert_after_the_keeper_was_killed_reports_what_it_has_restored() {
    let Some(stage) = Stage::attached_without_keeper("cli-rev-k") else { return };
    let said = stage.says(0, &["revert"]);
    assert!(said.contains("detached memcached") && !said.contains("not restored"), "{said}");
    stage.assert_back();
}

#[test]
fn on_a_full_disk_detach_restores_and_reports_everything() {
    // What is written of undoing so many epolls does not fit into the rest of a page that the journal has already.
    let Some(mut stage) = Stage::with_workers("cli-disk", 64) else { return };
    stage.connect(128);
    let Some(disk) = SmallDisk::mount(stage.journals()) else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    disk.fill();
    let said = stage.says(0, &["detach", &stage.pid()]);
    assert!(!said.contains("not restored") && !said.contains(": 0 settings"), "{said}");
    assert!(!stage.is_set());
}

#[test]
fn on_a_full_disk_a_profile_is_reverted() {
    let Some(stage) = Stage::enter("cli-disk-p") else { return };
    let Some(disk) = SmallDisk::mount(stage.journals()) else { return };
    let profile = stage.dir.path().join("profile.toml");
    std::fs::write(&profile, "[device.lab]\nname = \"server0\"\n[device.lab.queues.all]\nmode = \"suspend20\"\n")
        .unwrap();
    let before = stage.lab.napi();
    stage.says(0, &["apply", "--netns", &stage.lab.server_name, profile.to_str().unwrap()]);
    assert_ne!(stage.lab.napi(), before);
    disk.fill();
    let said = stage.says(0, &["revert"]);
    assert!(!said.contains(": 0 settings"), "{said}");
    assert_eq!(stage.lab.napi(), before);
}

#[test]
fn of_a_damaged_journal_the_whole_lines_are_undone_and_the_rest_is_said_until_it_is_removed() {
    let Some(stage) = Stage::attached_without_keeper("cli-damage") else { return };
    let journal = stage.journal();
    let text = std::fs::read_to_string(&journal).unwrap();
    let last_intention = text.lines().rfind(|line| line.contains("\"intend\"")).unwrap();
    std::fs::write(&journal, text.replace(last_intention, "what a bad sector left")).unwrap();
    let status = stage.says(0, &["status"]);
    assert!(status.contains("quell revert") && status.contains("damaged"), "{status}");

    let said = stage.says(2, &["revert"]);
    assert!(!stage.is_set(), "the whole lines are undone");
    assert!(said.contains("not read: line") && said.contains("--remove-damaged"), "{said}");
    assert!(!said.contains("nothing was applied"), "{said}");
    assert!(journal.exists());
    let said = stage.says(0, &["revert", "--remove-damaged"]);
    assert!(said.contains("the file is removed"), "{said}");
    assert!(!journal.exists());
}

#[test]
fn a_journal_that_somebody_else_has_locked_is_named_with_who_has_it() {
    let Some(stage) = Stage::attached_without_keeper("cli-lock") else { return };
    let held = std::fs::File::open(stage.journal()).unwrap();
    held.lock().unwrap();
    let said = stage.says(2, &["revert"]);
    assert!(said.contains(&format!("process {} (", std::process::id())) && said.contains("holds its lock"), "{said}");
    drop(held);
    stage.says(0, &["revert"]);
    stage.assert_back();
}

#[test]
fn a_journal_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(stage) = Stage::attached_without_keeper("cli-forged") else { return };
    let set_mode = |mode| std::fs::set_permissions(stage.journal(), std::fs::Permissions::from_mode(mode)).unwrap();
    assert_eq!(stage.journal().metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    set_mode(0o666);
    for command in ["revert", "detach"] {
        let said = stage.says(if command == "revert" { 2 } else { 1 }, &[command]);
        assert!(command == "detach" || said.contains("others than its owner may write to it"), "{said}");
    }
    assert!(stage.is_set());
    set_mode(0o600);
    stage.says(0, &["revert"]);
    stage.assert_back();
}
