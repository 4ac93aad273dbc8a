//! A TCP port that an XDP program serves. The client is the kernel's TCP.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use quell_linux::ethtool::Ethtool;
use quell_linux::link::Links;
use quell_sampler::{SamplerError, VethSide, XdpEcho};
use quell_test_support::lab::{SERVER as SERVER_ADDRESS, TestLab};
use quell_test_support::{Lacks, skip};

const PORT: u16 = 7000;
const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(SERVER_ADDRESS), PORT);
const PATIENCE: Duration = Duration::from_secs(10);

/// Creates a lab with a responder. Returns `None` if it cannot be created.
fn lab(test: &str) -> Option<(TestLab, XdpEcho)> {
    let lab = TestLab::raise(test, 1)?;
    let links = Links::open_in(&lab.client).unwrap().list().unwrap();
    let client = links.into_iter().find(|link| link.kind.as_deref() == Some("veth")).unwrap().index;
    let whole_checksums = [("tx-checksum-ip-generic", false)];
    Ethtool::open_in(&lab.client).unwrap().set_features(client, &whole_checksums).unwrap();
    let server = VethSide { namespace: &lab.server, interface: lab.server_index };
    let client = VethSide { namespace: &lab.client, interface: client };
    match XdpEcho::attach(server, client, PORT) {
        Err(error @ SamplerError::Denied { .. }) => {
            skip(Lacks::Root, &error);
            None
        }
        echo => Some((lab, echo.unwrap())),
    }
}

fn connect() -> TcpStream {
    let stream = TcpStream::connect_timeout(&SERVER, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

#[test]
fn an_ordinary_stream_receives_every_byte_it_sent() {
    let Some((lab, _echo)) = lab("echo-bytes") else { return };
    let asked_again = lab.client.run(|| {
        // On a busy machine, a response can take longer than the 200 ms after which TCP sends again.
        std::fs::write("/proc/sys/net/ipv4/tcp_rto_min_us", "60000000").unwrap();
        let mut stream = connect();
        // Odd lengths, lengths whose checksums have carries, and a full segment.
        for length in (1..=70).chain([255, 256, 999, 1448]) {
            let request: Vec<u8> = (0..length).map(|at| (at * 37 + length) as u8).collect();
            let mut response = vec![0; length];
            stream.write_all(&request).unwrap();
            stream.read_exact(&mut response).unwrap();
            assert_eq!(response, request);
        }
        retransmitted()
    });
    assert_eq!(asked_again.unwrap(), 0, "every segment got its response, so none was retransmitted");
}

/// Value of `RetransSegs` in the calling thread's namespace.
fn retransmitted() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|name| name == "RetransSegs").unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

#[test]
fn concurrent_connections_are_distinguished_and_end_when_closed() {
    let Some((lab, _echo)) = lab("echo-many") else { return };
    lab.client
        .run(|| {
            let mut streams: Vec<TcpStream> = (0..20).map(|_| connect()).collect();
            for (number, stream) in (0..).zip(&mut streams) {
                stream.write_all(&[number; 64]).unwrap();
            }
            for (number, stream) in (0..).zip(&mut streams) {
                let mut response = [0; 64];
                stream.read_exact(&mut response).unwrap();
                assert_eq!(response, [number; 64]);
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                let end = stream.read(&mut response);
                assert!(matches!(&end, Err(error) if error.kind() == ErrorKind::ConnectionReset), "{end:?}");
            }
        })
        .unwrap();
}

#[test]
fn other_ports_belong_to_the_kernel_and_so_does_this_one_after_detaching() {
    let Some((lab, echo)) = lab("echo-ports") else { return };
    let refusal = |port| {
        let address = SocketAddr::new(SERVER.ip(), port);
        lab.client.run(|| TcpStream::connect_timeout(&address, PATIENCE).unwrap_err().kind()).unwrap()
    };
    assert_eq!(refusal(PORT + 1), ErrorKind::ConnectionRefused);
    drop(echo);
    assert_eq!(refusal(PORT), ErrorKind::ConnectionRefused);
}
