//! Servers that wait for their sockets in different ways, in Python, and a client that keeps them busy.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use quell_linux::process::{Child, Output, Spawn};

use crate::lab::{SERVER, TestLab};
use crate::{Lacks, skip, wait_until};

const PROGRAM: &str = include_str!("shapes/shapes.py");
pub const PORT: u16 = 7_100;

/// A running server, whose client sends a datagram or a request each millisecond.
pub struct Shape {
    pub child: Child,
    client: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
    _connections: Vec<TcpStream>,
}

impl Shape {
    /// Starts a server in the lab. `connect` makes its connections, on the client's side. Returns `None`, counted as a
    /// skip, if python3 is not installed.
    pub fn start(
        lab: &mut TestLab,
        shape: &'static str,
        connect: impl FnOnce() -> Vec<TcpStream> + Send,
    ) -> Option<Self> {
        Self::start_by(lab, |program| program, shape, connect)
    }

    /// Starts a server as [`Self::start`] does. `launch` makes the process from the words of its command.
    pub fn start_by(
        lab: &mut TestLab,
        launch: impl FnOnce(Vec<String>) -> Vec<String>,
        shape: &'static str,
        connect: impl FnOnce() -> Vec<TcpStream> + Send,
    ) -> Option<Self> {
        if Command::new("python3").arg("-V").output().is_err() {
            skip(Lacks::Tool("python3"), "python3 is not installed");
            return None;
        }
        let address = SERVER.to_string();
        let program = ["python3", "-c", PROGRAM, shape, &address, &PORT.to_string()].map(str::to_owned);
        let words = launch(program.into());
        let child = lab.start(Spawn::new(&words[0]).args(&words[1..]).stderr(Output::Tail(4_000)));
        let connections = lab.client.run(connect).unwrap();
        let socket = lab.client.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap()).unwrap();
        socket.connect((SERVER, PORT)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let ask = move || {
            // Refused until the program listens.
            let _ = socket.send(b"?");
            socket.recv(&mut [0; 8]).is_ok()
        };
        wait_until(|| if ask() { Ok(()) } else { Err(format!("no answer: {:?}", child.stderr_tail())) });
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let send = move || {
            while !ends.load(Ordering::Relaxed) {
                ask();
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        Some(Self { child, client: Some((over, std::thread::spawn(send))), _connections: connections })
    }
}

impl Drop for Shape {
    fn drop(&mut self) {
        if let Some((over, client)) = self.client.take() {
            over.store(true, Ordering::Relaxed);
            let _ = client.join();
        }
    }
}

pub fn connect() -> TcpStream {
    let mut connection = None;
    wait_until(|| match TcpStream::connect((SERVER, PORT)) {
        Ok(connected) => {
            connection = Some(connected);
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    });
    connection.unwrap()
}

/// A connection whose client has sent its FIN.
pub fn half_closed() -> TcpStream {
    let connection = connect();
    connection.shutdown(Shutdown::Write).unwrap();
    connection
}

/// Connects to a server that sends data first, and closes without reading it, so that the kernel sends RST.
pub fn reset() -> Vec<TcpStream> {
    connect().peek(&mut [0; 1]).unwrap();
    Vec::new()
}

/// A connection that has received an answer.
pub fn used() -> TcpStream {
    let mut connection = connect();
    connection.write_all(b"?").unwrap();
    connection.read_exact(&mut [0; 1]).unwrap();
    connection
}

/// A connection whose client has sent data.
pub fn sent() -> TcpStream {
    let mut connection = connect();
    connection.write_all(b"?").unwrap();
    connection
}

/// A connection whose client sends data all the time.
pub fn sending() -> TcpStream {
    repeating(b"?", Duration::from_millis(1))
}

/// A connection whose client sends requests of several bytes.
pub fn requesting() -> TcpStream {
    repeating(b"????", Duration::from_millis(5))
}

fn repeating(data: &'static [u8], pause: Duration) -> TcpStream {
    let connection = sent();
    let mut sender = connection.try_clone().unwrap();
    std::thread::spawn(move || {
        while sender.write_all(data).is_ok() {
            std::thread::sleep(pause);
        }
    });
    connection
}

/// A connection whose client has sent urgent data.
pub fn urgent() -> TcpStream {
    const SEND: &str = "import socket; socket.socket(fileno=0).send(b'!', socket.MSG_OOB)";
    let connection = connect();
    let standard_input = OwnedFd::from(connection.try_clone().unwrap());
    assert!(Command::new("python3").args(["-c", SEND]).stdin(standard_input).status().unwrap().success());
    connection
}

/// Answers datagrams on the client's side, until an answer cannot be sent.
pub fn answering() -> Vec<TcpStream> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
    std::thread::spawn(move || {
        let mut word = [0; 8];
        while let Ok((length, from)) = socket.recv_from(&mut word) {
            if socket.send_to(&word[..length], from).is_err() {
                break;
            }
        }
    });
    Vec::new()
}

/// Connections with a request at any time, from a thread each: a server that they saturate.
pub fn busy(connections: usize) -> Vec<TcpStream> {
    let connected: Vec<TcpStream> = (0..connections).map(|_| used()).collect();
    for connection in &connected {
        let mut connection = connection.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut word = [0; 1];
            while connection.write_all(b"?").and_then(|()| connection.read_exact(&mut word)).is_ok() {}
        });
    }
    connected
}
