//! Test support: runs commands of this program in a guest with two NICs and a loaded server, and prints the outcome of
//! each command as a line of JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use quell_linux::af_xdp::{self, CopyMode, XdpSocketSpec};
use quell_linux::kernel;
use quell_linux::netlink::NetlinkError;
use quell_linux::netns::Namespace;
use quell_linux::pidfd::PidFd;
use quell_linux::proc::{FdKind, ProcRoot};
use quell_linux::sock_diag::{InetFamily, InetProtocol, SockDiag};
use quell_linux::socket_options::incoming_napi_id;
use quell_linux::sysfs::Sysfs;
use quell_linux::tcp::TcpConnection;
use quell_linux::{Ifindex, InterfaceName, NapiId, Pid};
use quell_sampler::{QueueSample, Sampler, xdp_bindings};
use quell_vm::nic::{End, GuestNic};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::output;

/// The hidden command. Its argument is a JSON array of commands, each an array of words; `{pid}` is the server's PID.
/// [`READ`] and [`WRITE`] replace the tools that a guest lacks; [`IN_SERVER`] as the first word selects the server's
/// network namespace. [`SAMPLE`] reads the sampler, [`XDP_SOCKETS`] lists AF_XDP sockets.
pub(crate) const COMMAND: &str = "vm-commands";
const READ: &str = "read";
const WRITE: &str = "write";
const IN_SERVER: &str = "in-server";
/// `sample HARD_IRQS TIMEOUT_NS`: sets the deferral of the server's device, and prints what the sampler counts in the time
/// [`SAMPLED`]. It needs no netlink, so it also works on kernels that do not list NAPI instances.
const SAMPLE: &str = "sample";
/// `xdp-sockets`: prints the AF_XDP sockets of the server's namespace as XDP_DIAG and the BPF iterator list them, while
/// this program has one that is bound to the first queue of the server's device.
const XDP_SOCKETS: &str = "xdp-sockets";
const SAMPLED: Duration = Duration::from_secs(2);

const SERVER_CPU: u32 = 0;
const CLIENT_CPU: u32 = 1;
const PORT: u16 = 7_000;
const CONNECTIONS: usize = 4;

#[derive(Debug, Serialize)]
struct Done {
    command: Vec<String>,
    code: Option<i32>,
    output: String,
    diagnostics: String,
}

pub(crate) fn run(commands: &str) -> Result<(), Failure> {
    let commands: Vec<Vec<String>> = serde_json::from_str(commands).map_err(Failure::usage)?;
    let refused = |error: io::Error| Failure::new(Exit::KernelRefused, error);
    let raise = |end, cpu| GuestNic::raise(end, cpu).map_err(|error| Failure::new(Exit::KernelRefused, error));
    let server = raise(End::Server, SERVER_CPU)?;
    let client = raise(End::Client, CLIENT_CPU)?;
    let address = format!("{}:{PORT}", server.address);
    let mut responder = start(&server.namespace, &["respond", &address]).map_err(refused)?;
    wait_for_listener(&client.namespace, &address)?;
    let connections = CONNECTIONS.to_string();
    let load = ["load", &address, "--protocol", "request-response", "--rate", "200", "--seconds", "3600", "-c"];
    let mut load = start(&client.namespace, &[&load[..], &[&connections]].concat()).map_err(refused)?;
    wait_for_connections(&server.namespace).map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let done = commands.into_iter().try_for_each(|command| {
        let pid = responder.id().to_string();
        let words: Vec<String> = command.iter().map(|word| word.replace("{pid}", &pid)).collect();
        let done = match words.split_first() {
            Some((first, words)) if first == IN_SERVER => in_namespace(&server.namespace, || execute(command, words)),
            Some((first, deferral)) if first == SAMPLE => {
                let output = sample(&server, responder.id(), deferral)
                    .and_then(|sample| serde_json::to_string(&sample).map_err(io::Error::other));
                output.map(|output| Done { command, code: Some(0), output, diagnostics: String::new() })
            }
            Some((first, [])) if first == XDP_SOCKETS => {
                let output = xdp_sockets(&server).and_then(|listed| Ok(serde_json::to_string(&listed)?));
                output.map(|output| Done { command, code: Some(0), output, diagnostics: String::new() })
            }
            _ => execute(command, &words),
        };
        output::json_line(&done.map_err(refused)?)
    });
    for process in [&mut load, &mut responder] {
        process.kill().and_then(|()| process.wait()).map_err(refused)?;
    }
    done
}

fn execute(command: Vec<String>, words: &[String]) -> io::Result<Done> {
    let done = |output, diagnostics| Done { command, code: Some(0), output, diagnostics };
    match words {
        [read, file] if read == READ => Ok(done(fs::read_to_string(file)?, String::new())),
        [write, file, text] if write == WRITE => fs::write(file, text).map(|()| done(String::new(), String::new())),
        words => {
            let ran = this_program()?.args(words).output()?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Ok(Done { code: ran.status.code(), ..done(text(&ran.stdout), text(&ran.stderr)) })
        }
    }
}

fn sample(server: &GuestNic, pid: u32, deferral: &[String]) -> io::Result<BTreeMap<u32, QueueSample>> {
    let [hard_irqs, timeout_ns] = deferral else { return Err(io::ErrorKind::InvalidInput.into()) };
    let sysfs = Sysfs::of(&server.namespace).map_err(io::Error::other)?;
    let device = InterfaceName::new(End::Server.name()).map_err(io::Error::other)?;
    let device = sysfs.net_class(&device);
    device.set_napi_defer_hard_irqs(hard_irqs.parse().map_err(io::Error::other)?).map_err(io::Error::other)?;
    device.set_gro_flush_timeout_ns(timeout_ns.parse().map_err(io::Error::other)?).map_err(io::Error::other)?;
    let mut sampler = Sampler::attach(kernel::sysfs()).map_err(io::Error::other)?;
    sampler.select(napis_of(pid)?).map_err(io::Error::other)?;
    let first = sampler.read().map_err(io::Error::other)?;
    std::thread::sleep(SAMPLED);
    let last = sampler.read().map_err(io::Error::other)?;
    Ok(last.iter().map(|(napi, counters)| (napi.get(), counters.since(first.get(napi)))).collect())
}

/// Device and queue by inode, from two sources. The first is absent if the kernel has no XDP_DIAG.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct ListedXdpSockets {
    ifindex: Ifindex,
    by_diag: Option<BTreeMap<u64, Option<(Ifindex, u32)>>>,
    by_iterator: BTreeMap<u64, Option<(Ifindex, u32)>>,
}

fn xdp_sockets(server: &GuestNic) -> io::Result<ListedXdpSockets> {
    let ifindex = server.ifindex;
    let (queue, ring_entries, batch) = (0, 64, 1);
    let spec =
        XdpSocketSpec { interface: ifindex, queue, ring_entries, batch, copy_mode: CopyMode::Auto, need_wakeup: true };
    let _bound = in_namespace(&server.namespace, || af_xdp::open(&spec).map_err(io::Error::other))?;
    let listed =
        SockDiag::open_in(&server.namespace).and_then(|mut diag| diag.xdp_sockets()).map_err(io::Error::other)?;
    let by_diag = listed.map(|sockets| sockets.into_iter().map(|socket| (socket.inode.into(), socket.bound)).collect());
    let bindings = xdp_bindings(kernel::sysfs()).map_err(io::Error::other)?.into_iter();
    let by_iterator = bindings.map(|(inode, bound)| (inode, bound.map(|bound| (bound.ifindex, bound.queue)))).collect();
    Ok(ListedXdpSockets { ifindex, by_diag, by_iterator })
}

fn napis_of(pid: u32) -> io::Result<BTreeSet<NapiId>> {
    let pid = Pid::from_kernel(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let process = PidFd::open(pid).map_err(io::Error::other)?;
    let fds = ProcRoot::default().process(pid).fds().map_err(io::Error::other)?;
    let sockets = fds.iter().filter(|fd| matches!(fd.kind, FdKind::Socket { .. }));
    let sockets = sockets.filter_map(|fd| process.duplicate(fd.number).ok());
    Ok(sockets.filter_map(|socket| incoming_napi_id(&socket).ok().flatten()).collect())
}

fn this_program() -> io::Result<Command> {
    let mut program = Command::new(std::env::current_exe()?);
    program.stdin(Stdio::null());
    Ok(program)
}

fn start(namespace: &Namespace, words: &[&str]) -> io::Result<Child> {
    in_namespace(namespace, || this_program()?.args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn())
}

fn in_namespace<T: Send>(namespace: &Namespace, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    namespace.run(work).map_err(io::Error::other)?
}

fn wait_for_connections(server: &Namespace) -> Result<(), NetlinkError> {
    let mut sockets = SockDiag::open_in(server)?;
    while accepted(&mut sockets)? < CONNECTIONS {
        std::thread::yield_now();
    }
    Ok(())
}

/// Number of connections that the server has accepted: a socket has no inode before it is accepted.
fn accepted(sockets: &mut SockDiag) -> Result<usize, NetlinkError> {
    let mut accepted = 0;
    sockets.for_each(InetProtocol::Tcp, InetFamily::V4, |socket| {
        accepted += usize::from(socket.remote.is_some() && socket.local.port() == PORT && socket.inode != 0);
    })?;
    Ok(accepted)
}

fn wait_for_listener(client: &Namespace, address: &str) -> Result<(), Failure> {
    let address = address.parse().map_err(Failure::usage)?;
    let refused = |error| Failure::new(Exit::KernelRefused, error);
    // No time limit is needed here, because the guest has one.
    while client.run(|| TcpConnection::connect(address, Duration::from_secs(1)).is_err()).map_err(refused)? {
        std::thread::yield_now();
    }
    Ok(())
}
