//! The blind flooder, the reference for every generator: level-triggered epoll, receive, send. It does not read the
//! clock between requests and does not check any data.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quell_linux::event::{Epoll, Trigger};
use quell_linux::tcp::TcpConnection;

/// Floods the server over `connections` connections for `duration`. Returns requests per second.
pub(crate) fn flood(
    address: SocketAddr,
    connections: usize,
    request: &[u8],
    warm_up: Duration,
    duration: Duration,
) -> io::Result<f64> {
    let mut epoll = Epoll::new(connections)?;
    let sockets: Vec<TcpConnection> =
        (0..connections).map(|_| TcpConnection::connect(address, Duration::from_secs(5))).collect::<io::Result<_>>()?;
    for (token, socket) in (0..).zip(&sockets) {
        epoll.add(socket, token, Trigger::Level)?;
        socket.send(request)?;
    }
    flood_until(&mut epoll, &sockets, request, warm_up)?;
    let start = Instant::now();
    let answered = flood_until(&mut epoll, &sockets, request, duration)?;
    Ok(answered as f64 / start.elapsed().as_secs_f64())
}

fn flood_until(epoll: &mut Epoll, sockets: &[TcpConnection], request: &[u8], duration: Duration) -> io::Result<u64> {
    let end = Instant::now() + duration;
    let mut buffer = vec![0; 65536];
    let mut answered = 0;
    while Instant::now() < end {
        epoll.wait(None)?;
        for index in 0..epoll.len() {
            let Some(ready) = epoll.get(index) else { break };
            let socket = &sockets[ready.token as usize];
            socket.receive(&mut buffer)?;
            socket.send(request)?;
            answered += 1;
        }
    }
    Ok(answered)
}
