//! The queue of an AF_XDP socket, as the kernel knows it.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use quell_linux::af_xdp::{self, CopyMode, XdpSocketSpec};
use quell_sampler::{SamplerError, XdpBinding, xdp_bindings};
use quell_test_support::lab::TestLab;
use quell_test_support::{Lacks, skip};

fn inode(socket: impl AsFd) -> u64 {
    File::from(socket.as_fd().try_clone_to_owned().unwrap()).metadata().unwrap().ino()
}

#[test]
fn the_queue_of_an_af_xdp_socket_is_known_while_it_is_open() {
    let Some(lab) = TestLab::raise("xdp-queue", 2) else { return };
    let mut seen = Vec::new();
    for (queue, need_wakeup) in [(1, true), (0, false)] {
        let spec = XdpSocketSpec {
            interface: lab.server_index,
            queue,
            ring_entries: 64,
            batch: 16,
            copy_mode: CopyMode::Copy,
            need_wakeup,
        };
        let (receiver, sender, frames) = lab.server.run(|| af_xdp::open(&spec)).unwrap().unwrap();
        let its_inode = inode(receiver.handle());
        let bindings = match xdp_bindings(Path::new("/sys")) {
            Err(error @ SamplerError::Denied { .. }) => return skip(Lacks::Root, &error),
            bindings => bindings.unwrap(),
        };
        let namespace = lab.server.inode();
        let expected = XdpBinding { namespace, ifindex: lab.server_index, queue, need_wakeup };
        assert_eq!(bindings.get(&its_inode), Some(&Some(expected)));
        seen.push(its_inode);
        drop((receiver, sender, frames));
    }
    let bindings = xdp_bindings(Path::new("/sys")).unwrap();
    assert!(seen.iter().all(|inode| !bindings.contains_key(inode)), "closed sockets are not listed");
}
