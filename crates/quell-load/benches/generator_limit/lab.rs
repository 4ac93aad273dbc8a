//! Two namespaces and one veth with one queue per side. With [`Interrupts::Thread`] it is configured like the veth lab:
//! GRO is on, TSO and GSO are off, and each end's NAPI has its own thread, pinned to that side's CPU under
//! `SCHED_FIFO`. Unlike in the veth lab, checksums are complete, because the XDP responder needs them.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use quell_linux::address::{Addresses, InterfaceAddress};
use quell_linux::ethtool::Ethtool;
use quell_linux::link::{Links, VethEnd};
use quell_linux::netdev::{Napi, NapiThreading, Netdev, PartialNapiSettings, set_device_threading};
use quell_linux::netns::{Namespace, NamespaceName};
use quell_linux::sched::{Policy, Scheduling, set_affinity, set_scheduling};
use quell_linux::{CpuList, Ifindex, InterfaceName, NapiId, Pid};
use quell_sampler::{VethSide, XdpEcho};

pub(crate) const SERVER_CPU: u32 = 0;
pub(crate) const CLIENT_CPU: u32 = 1;

/// What processes received packets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupts {
    /// A thread for each NAPI instance, in place of an interrupt.
    Thread,
    /// The sender's softirq, as on any veth. A veth has a NAPI instance only with GRO on or TSO off (`veth_xmit`).
    Softirq,
}

/// Dropping this removes its namespaces, and the veth with them.
pub(crate) struct Lab {
    names: [NamespaceName; 2],
    pub(crate) server: Arc<Namespace>,
    pub(crate) client: Arc<Namespace>,
    ends: [Ifindex; 2],
    client_napi: NapiId,
}

impl Lab {
    pub(crate) fn new(interrupts: Interrupts) -> Result<Self, Box<dyn Error>> {
        let id = Pid::of_this_process();
        let names = [NamespaceName::new(format!("qt-gen-{id}-s"))?, NamespaceName::new(format!("qt-gen-{id}-c"))?];
        let server = Arc::new(Namespace::create_named(&names[0])?);
        let client = match Namespace::create_named(&names[1]) {
            Ok(client) => Arc::new(client),
            Err(error) => {
                Namespace::delete_named(&names[0])?;
                return Err(error.into());
            }
        };
        match connect(&server, &client, interrupts) {
            Ok((ends, client_napi)) => Ok(Self { names, server, client, ends, client_napi }),
            Err(error) => {
                names.iter().try_for_each(|name| Namespace::delete_named(name).map(drop))?;
                Err(error)
            }
        }
    }

    /// Address on which servers in this lab listen.
    pub(crate) fn server_address(port: u16) -> SocketAddr {
        ([10, 99, 7, 1], port).into()
    }

    /// Attaches an XDP program to the server's end. It answers on `port` until the returned guard is dropped.
    pub(crate) fn echo(&self, port: u16) -> Result<XdpEcho, Box<dyn Error>> {
        let [server, client] = self.ends;
        let server = VethSide { namespace: &self.server, interface: server };
        let client = VethSide { namespace: &self.client, interface: client };
        Ok(XdpEcho::attach(server, client, port)?)
    }

    /// Settings of the server's NAPI.
    pub(crate) fn server_napi(&self) -> Result<Napi, Box<dyn Error>> {
        let napis = Netdev::open_in(&self.server)?.napis(self.ends[0])?;
        Ok(napis.into_iter().next().ok_or("the server's veth has no NAPI")?)
    }

    /// Sets or clears deferral on the client's NAPI. The generator chooses its polling method by this setting.
    pub(crate) fn defer_client(&self, deferred: bool) -> Result<(), Box<dyn Error>> {
        let change = PartialNapiSettings {
            defer_hard_irqs: Some(if deferred { 100 } else { 0 }),
            gro_flush_timeout_ns: Some(if deferred { 1_000_000 } else { 0 }),
            irq_suspend_timeout_ns: None,
            threaded: None,
        };
        Netdev::open_in(&self.client)?.set_napi(self.client_napi, &change)?;
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in &self.names {
            if let Err(error) = Namespace::delete_named(name) {
                eprintln!("{error}");
            }
        }
    }
}

fn connect(
    server: &Namespace,
    client: &Namespace,
    interrupts: Interrupts,
) -> Result<([Ifindex; 2], NapiId), Box<dyn Error>> {
    let (left, right) = (InterfaceName::new("qtgs")?, InterfaceName::new("qtgc")?);
    let server_end = VethEnd { namespace: server, name: left.clone(), mac: None, queues: 1 };
    let client_end = VethEnd { namespace: client, name: right.clone(), mac: None, queues: 1 };
    let pair = Links::open()?.create_veth(&server_end, &client_end)?;
    let thread_on = |cpu| (interrupts == Interrupts::Thread).then_some(cpu);
    configure(server, &left, pair.left, 1, thread_on(SERVER_CPU))?;
    let client_napi = configure(client, &right, pair.right, 2, thread_on(CLIENT_CPU))?.id;
    Ok(([pair.left, pair.right], client_napi))
}

/// `thread_cpu` is the CPU for the NAPI's thread; `None`: no thread.
fn configure(
    namespace: &Namespace,
    name: &InterfaceName,
    index: Ifindex,
    host: u8,
    thread_cpu: Option<u32>,
) -> Result<Napi, Box<dyn Error>> {
    let features = [
        ("rx-gro", true),
        ("tx-tcp-segmentation", false),
        ("tx-tcp6-segmentation", false),
        ("tx-generic-segmentation", false),
        ("tx-checksum-ip-generic", false),
    ];
    let features = if thread_cpu.is_some() { &features[..] } else { &features[..4] };
    Ethtool::open_in(namespace)?.set_features(index, features)?;
    let address = InterfaceAddress::new([10, 99, 7, host].into(), 24).ok_or("the prefix fits")?;
    Addresses::open_in(namespace)?.add(index, address)?;
    Links::open_in(namespace)?.set_up(index)?;
    let mut netdev = Netdev::open_in(namespace)?;
    let napi = netdev.napis(index)?.into_iter().next().ok_or("the veth has no NAPI")?;
    let Some(cpu) = thread_cpu else { return Ok(napi) };
    let threaded = PartialNapiSettings { threaded: Some(NapiThreading::Enabled), ..PartialNapiSettings::default() };
    if netdev.set_napi(napi.id, &threaded).is_err() {
        set_device_threading(namespace, name, true)?;
    }
    let napi = netdev.napi(napi.id)?;
    pin_fifo(napi.pid.ok_or("the NAPI has no thread")?, cpu, 50)?;
    Ok(napi)
}

/// Pins a thread and schedules it under `SCHED_FIFO`.
pub(crate) fn pin_fifo(tid: Pid, cpu: u32, priority: u32) -> Result<(), Box<dyn Error>> {
    set_affinity(tid, &CpuList::from_iter([cpu]))?;
    set_scheduling(tid, Scheduling { policy: Policy::Fifo { priority }, reset_on_fork: false })?;
    Ok(())
}
