//! The host's view of a guest. QEMU runs without privileges. It boots a kernel from the store with this program as init
//! and two NICs on one hub. The guest runs one command, sends the command's output to the host, and ends. A time limit
//! ends a guest that hangs or panics. The error then contains the console output.

use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::ops::ControlFlow;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use quell_linux::proc::{ProcRoot, Schedstat};
use quell_linux::process::{Child, Output, Spawn};

use crate::guest::{Run, SHELL, TASK, Task};
use crate::initramfs::Initramfs;
pub use crate::machine_error::MachineError;
use crate::machine_error::prepare;
use crate::message::Message;
use crate::nic::MAC_ADDRESSES;
use crate::program::{self, LIBRARIES, PROGRAM, interpreter};
use crate::store::StoredKernel;

/// The QEMU binary. It emulates the architecture for which this program is built.
const QEMU: &str = "qemu-system-x86_64";
/// Command of this program that runs as process 1 of a guest.
pub const GUEST_COMMAND: &str = "vm-guest";
/// Memory for the kernel and the program, in MiB. The archive needs additional memory, because its packed and unpacked
/// forms exist at the same time during boot.
const MEMORY_BASE_MIB: u64 = 320;
/// Interval at which the host checks whether the user interrupted the run.
const TICK: Duration = Duration::from_millis(100);
const LEAVING: Duration = Duration::from_secs(5);
const CONSOLE_SHOWN: usize = 5_000;
/// Number of bytes at the end of QEMU's output that are stored.
const QEMU_TAIL: usize = 1_000;
/// Maximum number of boot attempts. Emulation on a busy host is unreliable: kernels have panicked in code that works on
/// real CPUs.
const BOOT_ATTEMPTS: u32 = 3;

/// NIC models of a guest. QEMU's other models do not honour interrupt masking, which deferral requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Nic {
    /// `virtio-net-pci`, which every kernel supports. Netlink does not report its interrupt.
    #[default]
    Virtio,
    /// `e1000e`, whose interrupt netlink reports. It raises two interrupts per request, and only full kernels have its
    /// driver.
    E1000e,
}

impl Nic {
    fn device(self) -> &'static str {
        match self {
            Self::Virtio => "virtio-net-pci",
            Self::E1000e => "e1000e",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Emulator {
    program: PathBuf,
}

impl Emulator {
    pub fn find() -> Result<Self, MachineError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).map(|dir| dir.join(QEMU)).find(|program| program.is_file());
        found.map(|program| Self { program }).ok_or(MachineError::NoEmulator { program: QEMU })
    }
}

#[derive(Debug, Clone)]
pub struct Machine {
    pub emulator: Emulator,
    pub kernel: StoredKernel,
    pub nic: Nic,
    /// Number of virtual CPUs, at least 1.
    pub cpus: u32,
    /// Time limit for the guest, counted from the start of QEMU.
    pub limit: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Release of the guest's kernel, for example `6.12.107+deb13-cloud-amd64`.
    pub release: String,
    /// Time from the start of QEMU to the start of the command.
    pub boot: Duration,
    pub code: Option<i32>,
    pub diagnostics: String,
}

impl Machine {
    /// Runs this program in the guest with these arguments. Passes each line of the command's stdout to `on_line`, with
    /// the host's `schedstat` of QEMU's threads if available. If `on_line` returns `Break`, the guest is killed and the
    /// result is `None`. `stopped` is called often, and the run ends early when it returns true. No process remains
    /// after an error.
    pub fn run(
        &self,
        arguments: &[String],
        on_line: &mut dyn FnMut(&str, Option<Schedstat>) -> ControlFlow<()>,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Ended>, MachineError> {
        let mut initramfs = Initramfs::new();
        let files = self.files(&mut initramfs, Run::Command(arguments.to_vec()))?;
        let files = files.write(initramfs)?;
        let mut attempts = 1;
        loop {
            match self.start(&files, on_line, stopped) {
                Err(MachineError::Boot { .. }) if attempts < BOOT_ATTEMPTS => attempts += 1,
                Err(MachineError::Boot { qemu, console, .. }) => {
                    return Err(MachineError::Boot { attempts, qemu, console });
                }
                other => return other,
            }
        }
    }

    fn start(
        &self,
        files: &Files,
        on_line: &mut dyn FnMut(&str, Option<Schedstat>) -> ControlFlow<()>,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Ended>, MachineError> {
        let listener = files.listener()?;
        let started = Instant::now();
        let qemu = Spawn::new(&self.emulator.program)
            .args(self.arguments(files))
            .args(["-chardev", &format!("file,id=console,path={}", files.console().display())])
            .args(["-serial", "chardev:console"])
            .args(["-chardev", &format!("socket,id=messages,path={}", files.port().display())])
            .args(["-serial", "chardev:messages"])
            .stderr(Output::Tail(QEMU_TAIL))
            .dies_with_this_thread()
            .start()
            .map_err(MachineError::Qemu)?;
        let received = Received::default();
        let mut run = GuestRun { machine: self, files, qemu, started, on_line, stopped, received };
        let port = run.accept(&listener)?;
        run.listen(port)
    }

    pub fn shell(&self) -> Result<(), MachineError> {
        let mut initramfs = Initramfs::new();
        initramfs.file(Path::new(SHELL), static_busybox()?);
        let files = self.files(&mut initramfs, Run::Shell)?;
        let files = files.write(initramfs)?;
        let mut qemu = Command::new(&self.emulator.program);
        qemu.args(self.arguments(&files)).args(["-serial", "mon:stdio", "-serial", "null"]);
        let ended = qemu.status().map_err(prepare(&self.emulator.program))?;
        match ended.success() {
            true => Ok(()),
            false => Err(MachineError::Lost { qemu: ended.to_string(), console: String::new() }),
        }
    }

    fn files(&self, initramfs: &mut Initramfs, run: Run) -> Result<Files, MachineError> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(MachineError::Architecture);
        }
        program::add_this_program(initramfs)?;
        let mut modules = Vec::new();
        for module in self.kernel.modules()? {
            let place = Path::new("/modules").join(module.file_name().unwrap_or_default());
            initramfs.file(&place, fs::read(&module).map_err(prepare(&module))?);
            modules.push(place);
        }
        let task = serde_json::to_vec(&Task { modules, run }).map_err(|error| MachineError::Listen(error.into()))?;
        initramfs.file(Path::new(TASK), task);
        let dir = tempfile::Builder::new().prefix("quell-vm-").tempdir();
        Ok(Files { dir: dir.map_err(prepare(&std::env::temp_dir()))?, archive_bytes: 0 })
    }

    fn arguments(&self, files: &Files) -> Vec<String> {
        let memory_mib = MEMORY_BASE_MIB + 2 * (files.archive_bytes >> 20);
        let machine = format!(
            "-M q35 -accel tcg,thread=multi -cpu {CPU} -smp {} -m {memory_mib} \
             -nodefaults -no-user-config -display none -no-reboot",
            self.cpus
        );
        let mut arguments: Vec<String> = machine.split(' ').map(str::to_owned).collect();
        for (end, address) in MAC_ADDRESSES.iter().enumerate() {
            arguments.extend(["-netdev".to_owned(), format!("hubport,hubid=0,id=nic{end}")]);
            let device = self.nic.device();
            let address = address.map(|byte| format!("{byte:02x}")).join(":");
            arguments.extend(["-device".to_owned(), format!("{device},netdev=nic{end},mac={address},romfile=")]);
        }
        arguments.extend(["-kernel".to_owned(), self.kernel.image().display().to_string()]);
        arguments.extend(["-initrd".to_owned(), files.archive().display().to_string()]);
        arguments.extend(["-append".to_owned(), kernel_arguments()]);
        arguments
    }
}

/// CPU model of the guest. It omits five-level page tables (`la57`), which the lab does not need. It omits `cmpxchg16b`
/// (`cx16`), because kernels ended in a double fault after this instruction, with EFLAGS values that QEMU took from
/// another register.
const CPU: &str = "max,-la57,-cx16";

/// Kernel command line. With `maxcpus=1`, the kernel boots on one CPU and init starts the others, because patching code
/// is unsafe with several emulated CPUs. A CPU that executes code while another one patches it can keep the old bytes.
/// QEMU retranslates the code after the patching CPU announced the write, but before the write itself. The CPU then
/// hits the breakpoint of `text_poke_bp` after the kernel removed it, and the guest panics. `panic=-1` together with
/// QEMU's `-no-reboot` ends the machine on a panic. Unknown arguments before `--` become environment variables of init.
fn kernel_arguments() -> String {
    format!(
        "console=ttyS0 quiet panic=-1 maxcpus=1 mitigations=off nokaslr tsc=unstable rdinit={PROGRAM} \
         LD_LIBRARY_PATH={LIBRARIES} -- {GUEST_COMMAND}"
    )
}

fn static_busybox() -> Result<Vec<u8>, MachineError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).find_map(|dir| fs::read(dir.join("busybox")).ok());
    found.filter(|content| interpreter(content).is_none()).ok_or(MachineError::NoBusybox)
}

/// Temporary files for one start of a guest. Dropping the value removes them.
struct Files {
    dir: tempfile::TempDir,
    archive_bytes: u64,
}

impl Files {
    fn write(mut self, initramfs: Initramfs) -> Result<Self, MachineError> {
        let archive = self.archive();
        let size = || fs::metadata(&archive).map(|metadata| metadata.len());
        self.archive_bytes = initramfs.write(&archive).and_then(|()| size()).map_err(prepare(&archive))?;
        Ok(self)
    }

    fn archive(&self) -> PathBuf {
        self.dir.path().join("initramfs")
    }

    fn port(&self) -> PathBuf {
        self.dir.path().join("messages")
    }

    /// Creates the socket of the message port for one start.
    fn listener(&self) -> Result<UnixListener, MachineError> {
        // A socket may remain from an earlier start.
        let _ = fs::remove_file(self.port());
        let listener = UnixListener::bind(self.port()).map_err(prepare(&self.port()))?;
        listener.set_nonblocking(true).map_err(MachineError::Listen)?;
        Ok(listener)
    }

    fn console(&self) -> PathBuf {
        self.dir.path().join("console")
    }
}

/// A running guest. Dropping the value kills it.
struct GuestRun<'a> {
    machine: &'a Machine,
    files: &'a Files,
    qemu: Child,
    started: Instant,
    on_line: &'a mut dyn FnMut(&str, Option<Schedstat>) -> ControlFlow<()>,
    stopped: &'a dyn Fn() -> bool,
    received: Received,
}

impl GuestRun<'_> {
    fn accept(&mut self, listener: &UnixListener) -> Result<UnixStream, MachineError> {
        loop {
            match listener.accept() {
                Ok((port, _)) => return Ok(port),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(MachineError::Listen(error)),
            }
            if self.qemu.wait(TICK).map_err(MachineError::Qemu)?.is_some() {
                return Err(self.lost());
            }
            self.check()?;
        }
    }

    /// Receives messages until the last one, or until the receiver returns `Break`.
    fn listen(mut self, port: UnixStream) -> Result<Option<Ended>, MachineError> {
        port.set_nonblocking(false).and_then(|()| port.set_read_timeout(Some(TICK))).map_err(MachineError::Listen)?;
        let mut lines = BufReader::new(port);
        let mut line = Vec::new();
        loop {
            match lines.read_until(b'\n', &mut line) {
                Ok(0) => return Err(self.lost()),
                Ok(_) if line.ends_with(b"\n") => {
                    if let ControlFlow::Break(ended) = self.take(&line)? {
                        return Ok(ended);
                    }
                    line.clear();
                }
                // The line is incomplete, because the machine ended while it wrote the line.
                Ok(_) => return Err(self.lost()),
                // A partly received line stays in the buffer.
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                Err(error) => return Err(MachineError::Listen(error)),
            }
            self.check()?;
        }
    }

    fn take(&mut self, line: &[u8]) -> Result<ControlFlow<Option<Ended>>, MachineError> {
        match Message::parse(line).map_err(|error| MachineError::Listen(error.into()))? {
            Message::Started { kernel } => self.received.started = Some((kernel, self.started.elapsed())),
            Message::Output(text) => {
                if (self.on_line)(&text, host_time(&self.qemu)).is_break() {
                    return Ok(ControlFlow::Break(None));
                }
            }
            Message::Diagnostic(text) => self.received.diagnostics.push_str(&(text + "\n")),
            Message::Failed(failure) => {
                return Err(MachineError::Guest { failure, console: self.last_words() });
            }
            Message::Ended { code } => {
                let Some((release, boot)) = self.received.started.take() else { return Err(self.lost()) };
                // The guest restarts, and QEMU then exits. Otherwise dropping this value kills QEMU.
                let _ = self.qemu.wait(LEAVING);
                // The console explains why a signal ended the command, for example an out-of-memory kill.
                let console = if code.is_none() { self.last_words() } else { String::new() };
                let diagnostics = std::mem::take(&mut self.received.diagnostics) + &console;
                return Ok(ControlFlow::Break(Some(Ended { release, boot, code, diagnostics })));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn check(&self) -> Result<(), MachineError> {
        if (self.stopped)() {
            return Err(MachineError::Interrupted);
        }
        let limit = self.machine.limit;
        if self.started.elapsed() <= limit {
            return Ok(());
        }
        let boot = self.received.started.as_ref().map(|(_, boot)| *boot);
        Err(MachineError::TimeLimit { limit, boot, host: host_time(&self.qemu), console: self.last_words() })
    }

    /// End of the console output and the command's stderr. The kernel prints only errors, so the first message shows
    /// the first error.
    fn last_words(&self) -> String {
        let console = fs::read(self.files.console()).unwrap_or_default();
        let words = [console.as_slice(), self.received.diagnostics.as_bytes()].map(shortened);
        words.join("\n").trim().to_owned()
    }

    fn lost(&mut self) -> MachineError {
        // The console output is complete only after QEMU exited. QEMU also exits normally when the kernel panics.
        let guest_ended = self.qemu.wait(LEAVING).is_ok_and(|ended| ended.is_some_and(|status| status.success()));
        let qemu = String::from_utf8_lossy(&self.qemu.stderr_tail().unwrap_or_default()).trim().to_owned();
        let console = self.last_words();
        match self.received.started {
            None if guest_ended => MachineError::Boot { attempts: 1, qemu, console },
            _ => MachineError::Lost { qemu, console },
        }
    }
}

fn shortened(text: &[u8]) -> String {
    let half = CONSOLE_SHOWN / 2;
    let shown = |part: &[u8]| String::from_utf8_lossy(part).trim().to_owned();
    if text.len() <= CONSOLE_SHOWN {
        return shown(text);
    }
    format!("{}\n[...]\n{}", shown(&text[..half]), shown(&text[text.len() - half..]))
}

#[derive(Default)]
struct Received {
    started: Option<(String, Duration)>,
    diagnostics: String,
}

/// The host's `schedstat` of QEMU's threads: run time and wait time. Absent if the host does not report it.
fn host_time(qemu: &Child) -> Option<Schedstat> {
    ProcRoot::default().process(qemu.pid()).schedstat_of_all_threads().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_console_output_is_shortened_to_its_beginning_and_end() {
        let console = format!("int3: 0000 [#1]\n{}\nend trace", "x".repeat(2 * CONSOLE_SHOWN));
        let shown = shortened(console.as_bytes());
        assert!(shown.starts_with("int3: 0000 [#1]\nx") && shown.ends_with("x\nend trace"), "{shown}");
        assert!(shown.contains("\n[...]\n") && shown.len() < CONSOLE_SHOWN + 20);
        assert_eq!(shortened(b" a panic\n"), "a panic");
    }
}
