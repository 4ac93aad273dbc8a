//! A veth lab with a responder on the server's side and loads on the client's.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::ControlFlow;

use quell_linux::Ifindex;
use quell_linux::address::{Addresses, InterfaceAddress};
use quell_linux::link::Links;
use quell_linux::netns::Namespace;
use quell_sampler::XdpRedirectError;
use quell_test_support::lab::{SERVER, TestLab};
use quell_test_support::{Lacks, skip};
use quell_xdp::{PollWay, XdpError, XdpLoadReport, XdpLoadSpec, XdpResponder, XdpResponderSpec, XdpSchedule, XdpSpec};

pub(crate) const PORT: u16 = 7000;
pub(crate) const V4: IpAddr = IpAddr::V4(SERVER);
pub(crate) const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
const CLIENT_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2));

pub(crate) struct XdpLab {
    pub(crate) lab: TestLab,
    pub(crate) client_index: Ifindex,
}

pub(crate) fn veth_in(namespace: &Namespace) -> Ifindex {
    let links = Links::open_in(namespace).unwrap().list().unwrap();
    links.into_iter().find(|link| link.kind.as_deref() == Some("veth")).unwrap().index
}

/// Whether an XDP program is attached to the device.
pub(crate) fn has_program(namespace: &Namespace, device: Ifindex) -> bool {
    Links::open_in(namespace).unwrap().by_index(device).unwrap().has_xdp.unwrap()
}

impl XdpLab {
    /// Creates a lab with one queue. Returns `None`, and records the test as skipped, if it cannot be created or AF_XDP is
    /// not available.
    pub(crate) fn raise(test: &str) -> Option<Self> {
        let lab = TestLab::raise(test, 1)?;
        let client_index = veth_in(&lab.client);
        for (namespace, index, address) in [(&lab.server, lab.server_index, V6), (&lab.client, client_index, CLIENT_V6)]
        {
            let address = InterfaceAddress::new(address, 64).unwrap();
            Addresses::open_in(namespace).unwrap().add(index, address).unwrap();
        }
        let lab = Self { lab, client_index };
        match lab.try_respond(&responder(V4, PollWay::Interrupts)) {
            Err(error @ XdpError::Program { source: XdpRedirectError::Denied(_), .. }) => skip(Lacks::Root, &error),
            Err(error @ XdpError::Socket { .. }) => skip(Lacks::KernelFeature, &error),
            started => {
                drop(started.unwrap());
                return Some(lab);
            }
        }
        None
    }

    pub(crate) fn try_respond(&self, spec: &XdpResponderSpec) -> Result<XdpResponder, XdpError> {
        self.lab.server.run(|| XdpResponder::start(spec)).unwrap()
    }

    pub(crate) fn respond(&self, spec: &XdpResponderSpec) -> XdpResponder {
        self.try_respond(spec).unwrap()
    }

    pub(crate) fn try_load(&self, spec: &XdpLoadSpec) -> Result<XdpLoadReport, XdpError> {
        self.lab.client.run(|| quell_xdp::run(spec, &mut |_| ControlFlow::Continue(()))).unwrap()
    }

    pub(crate) fn load(&self, spec: &XdpLoadSpec) -> XdpLoadReport {
        self.try_load(spec).unwrap()
    }
}

pub(crate) fn responder(ip: IpAddr, way: PollWay) -> XdpResponderSpec {
    let address = SocketAddr::new(ip, PORT);
    XdpResponderSpec { address, socket: XdpSpec { way, ..XdpSpec::default() }, work_us: 0.0 }
}

pub(crate) fn load(ip: IpAddr, way: PollWay, schedule: XdpSchedule) -> XdpLoadSpec {
    XdpLoadSpec {
        server: SocketAddr::new(ip, PORT),
        socket: XdpSpec { way, ..XdpSpec::default() },
        schedule,
        bytes: 64,
        delay_us: 0.0,
        warm_up_ms: 20,
        measure_ms: 200,
    }
}

pub(crate) const CLOSED: XdpSchedule = XdpSchedule::Closed { depth: 8 };
/// 1,000 requests per second.
pub(crate) const OPEN: XdpSchedule = XdpSchedule::Open { period_ns: 1e6 };

/// Every request of the window has an outcome, and every response was valid.
pub(crate) fn assert_complete(report: &XdpLoadReport) {
    assert!(report.answered > 0, "{report:?}");
    assert_eq!(report.answered + report.lost, report.sent, "{report:?}");
    assert_eq!((report.invalid, report.latency.count()), (0, report.answered), "{report:?}");
}
