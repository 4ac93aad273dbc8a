//! Machines of a test: network namespaces with a host name of their own, connected by a bridge in another one. `mpirun` starts its
//! daemons in them by a launch agent, as it does by ssh.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_linux::capability::{Capability, effective};
use quell_linux::netns::{Namespace, NamespaceName};
use quell_linux::proc::ProcRoot;
use quell_load::{RequestResponse, Responder, ResponderSpec, ServeShape, Transport};
use quell_test_support::{Lacks, skip, wait_until};

/// Address of the server, and of the launcher.
pub(crate) const SERVER: &str = "10.77.0.254";
/// Second address of the server, which clients reach unless a test removes their route.
pub(crate) const SECOND_SERVER: &str = "10.78.0.254";

/// Port of the server.
pub(crate) const PORT: u16 = 7000;

/// Runs the labs one after another: their ranks share two CPUs.
static TURN: Mutex<()> = Mutex::new(());

/// A server's machine and clients, which are removed on drop.
pub(crate) struct Machines {
    prefix: String,
    clients: u32,
    dir: tempfile::TempDir,
    server: Option<Responder>,
    _turn: MutexGuard<'static, ()>,
}

/// A started command.
pub(crate) struct Job {
    child: Child,
}

impl Machines {
    /// Creates a server's machine and `clients` clients with the numbers from 1. `None`, and a skipped test, without root.
    pub(crate) fn new(clients: u32) -> Option<Self> {
        let needed = [Capability::NetAdmin, Capability::SysAdmin];
        let missing = effective(&ProcRoot::default()).unwrap().map(|have| have.missing(&needed));
        if missing.as_ref().is_none_or(|missing| !missing.is_empty()) {
            skip(Lacks::Root, format_args!("needs CAP_NET_ADMIN and CAP_SYS_ADMIN, missing {missing:?}"));
            return None;
        }
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let machines = Self {
            prefix: format!("qmpi{}-", std::process::id()),
            clients,
            dir: tempfile::tempdir().unwrap(),
            server: None,
            _turn: turn,
        };
        let (server, switch) = (machines.namespace(0), machines.switch());
        ip(&format!("netns add {switch}"));
        ip(&format!("-n {switch} link add name br0 type bridge"));
        ip(&format!("-n {switch} link set br0 up"));
        machines.plug(0, &server, &[SERVER, SECOND_SERVER]);
        for number in 1..=clients {
            let client = machines.namespace(number);
            machines.plug(number, &client, &[&address(number)]);
            ip(&format!("-n {client} route add 10.78.0.0/24 dev eth0"));
        }
        // With TSO at the other end, a veth delivers without NAPI.
        for feature in
            ["tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation"]
        {
            ip(&format!("netns exec {switch} ethtool -K port0 {feature} off"));
        }
        ip(&format!("netns exec {server} ethtool -K eth0 gro on"));
        machines.write_agent();
        Some(machines)
    }

    /// Creates a machine and connects it to the switch.
    fn plug(&self, number: u32, machine: &str, addresses: &[&str]) {
        let switch = self.switch();
        ip(&format!("netns add {machine}"));
        ip(&format!("-n {machine} link set lo up"));
        ip(&format!("-n {switch} link add name port{number} type veth peer name eth0 netns {machine}"));
        ip(&format!("-n {switch} link set port{number} master br0"));
        ip(&format!("-n {switch} link set port{number} up"));
        for address in addresses {
            ip(&format!("-n {machine} addr add {address}/24 dev eth0"));
        }
        ip(&format!("-n {machine} link set eth0 up"));
    }

    /// Name of the namespace with the bridge between all machines. Client N is at `portN`.
    pub(crate) fn switch(&self) -> String {
        format!("{}switch", self.prefix)
    }

    /// The agent gets the host's address and a command for its shell, as ssh does. It looks up the namespace by the last
    /// number of the address.
    fn write_agent(&self) {
        let script = format!(
            "#!/bin/sh\nnumber=${{1##*.}}; shift\nexec ip netns exec {}$number unshare --uts sh -c 'hostname client$1; shift; \
             exec sh -c \"$*\"' sh $number \"$@\"\n",
            self.prefix
        );
        fs::write(self.agent(), script).unwrap();
        fs::set_permissions(self.agent(), fs::Permissions::from_mode(0o755)).unwrap();
        let hosts: String = (1..=self.clients).map(|number| format!("{} slots=1\n", address(number))).collect();
        fs::write(self.hostfile(), hosts).unwrap();
    }

    fn agent(&self) -> PathBuf {
        self.dir.path().join("agent")
    }

    /// File with the clients' addresses.
    pub(crate) fn hostfile(&self) -> PathBuf {
        self.dir.path().join("hosts")
    }

    /// Name of the namespace of client `number`, or of the server's for 0.
    pub(crate) fn namespace(&self, number: u32) -> String {
        format!("{}{number}", self.prefix)
    }

    /// Starts the server: a responder at both addresses, in this process but in the server's namespace.
    pub(crate) fn with_server(mut self) -> Self {
        let name = NamespaceName::new(self.namespace(0)).unwrap();
        let namespace = Arc::new(Namespace::open_named(&name).unwrap());
        let spec = ResponderSpec {
            address: (Ipv4Addr::UNSPECIFIED, PORT).into(),
            transport: Transport::Tcp,
            shape: ServeShape::Epoll,
            sizes: RequestResponse { request_bytes: 64, response_bytes: 64, check_content: false },
            work_us: 0,
            workers: 1,
            cpus: Vec::new(),
        };
        self.server = Some(Responder::start(spec, Some(namespace)).unwrap());
        self
    }

    /// Directory of the test.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A command on the server's machine.
    pub(crate) fn on_server(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(0), program]);
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("OMPI_MCA_plm_rsh_agent", self.agent());
        command
    }

    /// `mpirun` with one rank per client.
    pub(crate) fn mpirun(&self) -> Command {
        let mut command = self.on_server("mpirun");
        command.arg("--hostfile").arg(self.hostfile()).args(["--bind-to", "none"]);
        command
    }

    /// Process IDs of the programs called `name` on client `number`.
    pub(crate) fn pids(&self, number: u32, name: &str) -> Vec<String> {
        let pids = Command::new("ip").args(["netns", "pids", &self.namespace(number)]).output().unwrap().stdout;
        let pids = String::from_utf8(pids).unwrap();
        let is_called =
            |pid: &&str| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
        pids.lines().filter(is_called).map(str::to_owned).collect()
    }

    /// Waits until no process is left on any client.
    pub(crate) fn expect_nothing_left(&self) {
        let left = || -> Vec<String> {
            let of =
                |number| Command::new("ip").args(["netns", "pids", &self.namespace(number)]).output().unwrap().stdout;
            (1..=self.clients)
                .flat_map(|number| {
                    String::from_utf8(of(number)).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
                })
                .collect()
        };
        wait_until(|| match left() {
            left if left.is_empty() => Ok(()),
            left => Err(format!("processes {left:?} are left on the clients")),
        });
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        drop(self.server.take());
        for number in 0..=self.clients {
            let name = self.namespace(number);
            let pids = Command::new("ip").args(["netns", "pids", &name]).output().unwrap().stdout;
            for pid in String::from_utf8_lossy(&pids).lines() {
                let _ = Command::new("kill").args(["-9", pid]).status();
            }
            let _ = Command::new("ip").args(["netns", "del", &name]).status();
        }
        let _ = Command::new("ip").args(["netns", "del", &self.switch()]).status();
    }
}

impl Job {
    /// Starts a command whose output is read at its end.
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: command.spawn().unwrap() }
    }

    /// Sends a signal to the command itself: `ip netns exec` executes it in its own place.
    pub(crate) fn signal(&self, signal: &str) {
        signal_pid(&self.child.id().to_string(), signal);
    }

    /// Process ID of the command.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end.
    pub(crate) fn output(self) -> Output {
        self.child.wait_with_output().unwrap()
    }
}

/// Sends a signal to a process.
pub(crate) fn signal_pid(pid: &str, signal: &str) {
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
}

/// Address of client `number`.
pub(crate) fn address(number: u32) -> String {
    format!("10.77.0.{number}")
}

/// Runs `ip`.
pub(crate) fn ip(arguments: &str) {
    run("ip", arguments);
}

/// Runs a program with arguments separated by spaces.
pub(crate) fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
