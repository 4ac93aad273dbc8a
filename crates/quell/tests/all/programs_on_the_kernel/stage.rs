//! The server, its lab and its clients.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_host::snapshot::{SnapshotScope, take};
use quell_linux::process::{Child, Output, Spawn};
use quell_mode::PartialNapiSettings;
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab};
use quell_test_support::{LabTurn, Lacks, skip, wait_until};

const OUTPUT_KEPT: usize = 64 * 1024;
pub(crate) const WORKERS_ADDRESS: &str = "192.0.2.1:7000";
/// The searches have budgets of at most 120 seconds.
const ENDS_WITHIN: Duration = Duration::from_secs(240);

/// memcached in a lab, and clients that send requests.
pub(crate) struct Stage {
    pub(crate) lab: TestLab,
    pub(crate) server: Child,
    asks: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
    pub(crate) dir: tempfile::TempDir,
    before: BTreeMap<String, String>,
    _turn: LabTurn,
}

impl Stage {
    /// With one client that sends requests one after another.
    pub(crate) fn enter(test: &str) -> Option<Self> {
        Self::enter_with(test, Duration::ZERO)
    }

    /// With one client that sends at this interval and does not wait for responses. On a busy machine, its rate is the same.
    pub(crate) fn enter_with(test: &str, pause: Duration) -> Option<Self> {
        Self::enter_on(test, 1, pause)
    }

    /// The same on a device with this number of queues.
    pub(crate) fn enter_on(test: &str, queues: u32, pause: Duration) -> Option<Self> {
        // Latencies are measured: no load of another lab may take the CPUs.
        let turn = LabTurn::wait();
        let mut lab = TestLab::raise_beside_others(test, queues)?;
        if Command::new("memcached").arg("-V").output().is_err() {
            skip(Lacks::Server("memcached"), "memcached is not installed");
            return None;
        }
        let server = lab.start(memcached());
        let mut stage = Self::without_clients(lab, server, turn);
        stage.add_client(pause);
        stage.before = stage.state();
        Some(stage)
    }

    fn without_clients(lab: TestLab, server: Child, turn: LabTurn) -> Self {
        let (asks, clients, before) = (Arc::new(AtomicBool::new(true)), Vec::new(), BTreeMap::new());
        Self { lab, server, asks, clients, dir: tempfile::tempdir().unwrap(), before, _turn: turn }
    }

    /// With a server of two workers, each with its own listening socket, on two queues, and without clients.
    pub(crate) fn of_workers(test: &str) -> Option<Self> {
        let turn = LabTurn::wait();
        let mut lab = TestLab::raise_beside_others(test, 2)?;
        let spawn = Spawn::new(env!("CARGO_BIN_EXE_quell")).args(["respond", WORKERS_ADDRESS, "--workers", "2"]);
        let server = lab.start(spawn.stderr(Output::Tail(OUTPUT_KEPT)));
        let said = || String::from_utf8(server.stderr_tail().unwrap()).unwrap();
        wait_until(|| if said().contains("listening on") { Ok(()) } else { Err(said()) });
        let mut stage = Self::without_clients(lab, server, turn);
        stage.begin_here();
        Some(stage)
    }

    /// Command of a load of 16 connections on the server of [`Self::of_workers`], from the client's namespace.
    pub(crate) fn load_of_workers(&self) -> String {
        let (quell, client) = (env!("CARGO_BIN_EXE_quell"), self.lab.server_name.replace("-server", "-client"));
        let load =
            format!("{WORKERS_ADDRESS} --protocol request-response -c 16 --rate 1K --polling epoll --seconds 600");
        format!("nsenter --net=/run/netns/{client} {quell} load {load}")
    }

    /// Starts another client, which exits when the server closes its connection.
    pub(crate) fn add_client(&mut self, pause: Duration) {
        let connect = || wait_until(|| TcpStream::connect("192.0.2.1:11211").map_err(|error| error.to_string()));
        let mut connection = BufReader::new(self.lab.client.run(connect).unwrap());
        connection.get_ref().set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
        ask(&mut connection).unwrap();
        let goes_on = Arc::clone(&self.asks);
        self.clients.push(std::thread::spawn(move || {
            let mut due = Instant::now();
            let mut sent = || if pause.is_zero() { ask(&mut connection) } else { send(&mut connection) };
            while goes_on.load(Ordering::Relaxed) && sent().is_ok() {
                due += pause;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        }));
    }

    /// Kills the server, starts it again, and connects a client to it.
    pub(crate) fn restart_server(&mut self, pause: Duration) {
        self.server.terminate(Duration::ZERO).unwrap();
        self.stop_clients();
        self.server = self.lab.start(memcached());
        self.asks.store(true, Ordering::Relaxed);
        self.add_client(pause);
    }

    /// Command of a load on the server, from the client's namespace.
    pub(crate) fn load(&self, options: &str) -> String {
        let (quell, client) = (env!("CARGO_BIN_EXE_quell"), self.lab.server_name.replace("-server", "-client"));
        let load = "192.0.2.1:11211 -c 4 --keys 100 --polling epoll";
        format!("nsenter --net=/run/netns/{client} {quell} load {load} {options}")
    }

    /// Compiles a library that a program can preload. Records a skip without a compiler.
    pub(crate) fn compile_library(&self, name: &str) -> Option<PathBuf> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs_on_the_kernel").join(name);
        let library = self.dir.path().join(name).with_extension("so");
        let cc =
            Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source.with_extension("c")).output();
        match cc {
            Ok(output) if output.status.success() => Some(library),
            failed => {
                skip(Lacks::Tool("C compiler"), format_args!("{failed:?}"));
                None
            }
        }
    }

    /// Stops all clients.
    pub(crate) fn stop_clients(&mut self) {
        self.asks.store(false, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            let _ = client.join();
        }
    }

    /// Makes the present settings those that must be there at the end. Returns the earlier ones.
    pub(crate) fn begin_here(&mut self) -> BTreeMap<String, String> {
        let now = self.state();
        std::mem::replace(&mut self.before, now)
    }

    /// Sets the queue to `base,defer-hard-irqs=3,gro-flush-timeout=123us`, which must be there at the end.
    pub(crate) fn set_as_an_operator(&mut self) {
        self.lab.set_napi(&PartialNapiSettings {
            defer_hard_irqs: Some(3),
            gro_flush_timeout_ns: Some(123_000),
            ..PartialNapiSettings::default()
        });
        self.before = self.state();
    }

    /// Makes these settings those that must be there at the end.
    pub(crate) fn expect(&mut self, settings: BTreeMap<String, String>) {
        self.before = settings;
    }

    /// Waits until the queue has this irq-suspend-timeout, which one mode of an experiment sets.
    pub(crate) fn wait_until_suspended_for(&self, timeout_ns: u64) {
        let now = || self.lab.napi().settings.irq_suspend_timeout_ns;
        wait_until(|| if now() == Some(timeout_ns) { Ok(()) } else { Err(format!("{:?}", now())) });
    }

    /// Runs `quell` with these arguments to its end. Returns what it prints.
    pub(crate) fn says(&self, code: i32, command: &[&str]) -> String {
        let (status, stdout, stderr) = end(self.start_without_pid(command));
        assert_eq!(status, Some(code), "{command:?}: {stdout}{stderr}");
        stdout + &stderr
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("result.json")
    }

    /// Starts `quell` with this command, its options, and `--pid`.
    pub(crate) fn start(&self, command: &[&str]) -> Child {
        self.start_without_pid(&[command, &["--pid", &self.server.pid().to_string()]].concat())
    }

    /// Starts `quell` with this command and its options.
    pub(crate) fn start_without_pid(&self, command: &[&str]) -> Child {
        self.start_with(command, |spawn| spawn)
    }

    /// Starts a search on a command in the server's namespace.
    pub(crate) fn start_command(&self, options: &[&str], command: &str) -> Child {
        let file = self.file();
        let command: Vec<&str> = command.split(' ').collect();
        let fixed = ["tune", "--seed=1", "--output", file.to_str().unwrap()];
        let words = [&fixed[..], options, &["--"], &command].concat();
        self.start_with(&words, |spawn| spawn.netns(&self.lab.server))
    }

    /// Starts `quell` with this command and its options, and with what `more` adds.
    pub(crate) fn start_with<'a>(&self, command: &[&str], more: impl FnOnce(Spawn<'a>) -> Spawn<'a>) -> Child {
        let spawn = Spawn::new(env!("CARGO_BIN_EXE_quell")).args(command.iter().copied());
        let spawn = spawn.env("QUELL_JOURNAL_DIR", self.dir.path().join("journal"));
        more(spawn).stdout(Output::Tail(OUTPUT_KEPT)).stderr(Output::Tail(OUTPUT_KEPT)).start().unwrap()
    }

    pub(crate) fn result(&self) -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(self.file()).unwrap()).unwrap()
    }

    /// Returns the settings of the server's queue and epolls, by name.
    fn state(&self) -> BTreeMap<String, String> {
        let scope = SnapshotScope { netns: Some(self.lab.server_name.clone()), ..SnapshotScope::default() };
        let snapshot = take(&scope).unwrap().0;
        let napis = snapshot.devices.iter().flat_map(|device| device.napis.known_elements());
        let mut state: BTreeMap<String, String> =
            napis.map(|napi| (format!("NAPI {}", napi.id), format!("{napi:?}"))).collect();
        for process in snapshot.processes.iter().filter(|process| process.pid == self.server.pid()) {
            for epoll in &process.files.known().unwrap().epolls {
                state.insert(format!("epoll {}", epoll.fd), format!("{:?}", epoll.params));
            }
        }
        state
    }

    pub(crate) fn wait_until_switched(&self) {
        let suspends = || self.lab.napi().settings.irq_suspend_timeout_ns.is_some_and(|timeout| timeout > 0);
        wait_until(|| if suspends() { Ok(()) } else { Err("suspend200 was never set".to_owned()) });
    }

    /// Waits until a slice of suspend200 is complete, which shows as a change to another mode.
    pub(crate) fn wait_until_a_slice_was_measured(&self) {
        self.wait_until_switched();
        let base = || self.lab.napi().settings.irq_suspend_timeout_ns == Some(0);
        wait_until(|| if base() { Ok(()) } else { Err("the mode never changed again".to_owned()) });
    }

    /// Waits until some blocks are complete. The present setting is in every block.
    pub(crate) fn wait_until_slices_of_the_present_setting_were_measured(&self) {
        let now = || self.lab.napi().settings;
        let mut last = now();
        for _ in 0..60 {
            last = wait_until(|| Some(now()).filter(|now| *now != last).ok_or("the mode did not change".to_owned()));
        }
    }

    pub(crate) fn assert_settings_as_before(&self) {
        wait_until(|| {
            let now = self.state();
            if now == self.before { Ok(()) } else { Err(format!("before {:?}, now {now:?}", self.before)) }
        });
    }

    /// Settings of the server's epolls.
    pub(crate) fn epolls(&self) -> Vec<String> {
        self.state().into_iter().filter(|(name, _)| name.starts_with("epoll")).map(|(_, params)| params).collect()
    }

    /// Checks the settings of the queues only, for a server that has exited.
    pub(crate) fn assert_queues_as_before(&self) {
        let queues = |state: &BTreeMap<String, String>| -> Vec<String> {
            state.iter().filter(|(name, _)| name.starts_with("NAPI")).map(|(_, napi)| napi.clone()).collect()
        };
        wait_until(|| {
            let now = self.state();
            if queues(&now) == queues(&self.before) {
                Ok(())
            } else {
                Err(format!("before {:?}, now {now:?}", self.before))
            }
        });
    }

    /// Checks the settings, and that no journal is left.
    pub(crate) fn assert_as_before(&self) {
        self.assert_settings_as_before();
        self.assert_no_journal_remains();
    }

    pub(crate) fn assert_no_journal_remains(&self) {
        wait_until(|| {
            let left = crate::command::journals_in(&self.dir.path().join("journal"));
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
    }
}

fn memcached() -> Spawn<'static> {
    Spawn::new("memcached").args(["-u", "root", "-U", "0", "-t", "1", "-l", "192.0.2.1"])
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop_clients();
    }
}

fn ask(connection: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    connection.get_mut().write_all(b"version\r\n")?;
    match connection.skip_until(b'\n')? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// Sends a request, and reads the responses that are there.
fn send(connection: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    let socket = connection.get_mut();
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    let would_block = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    match socket.write_all(b"version\r\n").and_then(|()| socket.read(&mut [0; 4096])) {
        Ok(0) => Err(std::io::ErrorKind::UnexpectedEof.into()),
        Err(error) if !would_block(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Begins the answer of a search that is withheld because of other tests, which is no failure.
const WITHHELD: &str = "no answer: other programs used most of the busy time";

/// Waits until `quell` exits. Returns exit code, stdout and stderr.
pub(crate) fn end(mut quell: Child) -> (Option<i32>, String, String) {
    let status = quell.wait(ENDS_WITHIN).unwrap().expect("quell exits in time");
    let text = |bytes: Option<Vec<u8>>| String::from_utf8(bytes.unwrap()).unwrap();
    let (stdout, stderr) = (text(quell.stdout_tail()), text(quell.stderr_tail()));
    let has_answered = stderr.contains("was not decided");
    let is_withheld = status.code() == Some(3) && stdout.contains(WITHHELD) && has_answered;
    (if is_withheld { Some(0) } else { status.code() }, stdout, stderr)
}

/// Requires that the settings in a result are those of every mode and equal before and after the measurement.
pub(crate) fn assert_reported_and_restored(settings: &serde_json::Value, modes: &[&str]) {
    for objects in [&settings["queues"], &settings["epolls"]].map(|objects| objects.as_array().unwrap()) {
        assert!(!objects.is_empty(), "{settings}");
        for values in objects.iter().map(|object| &object["values"]) {
            let under = |mode: &&str| values["modes"].as_array().unwrap().iter().any(|under| under["mode"] == **mode);
            assert!(values["before"] == values["after"] && modes.iter().all(under), "{values}");
        }
    }
}
