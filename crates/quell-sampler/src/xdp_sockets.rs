//! The AF_XDP sockets of all processes, listed by a BPF iterator over their open files.

use std::collections::BTreeMap;
use std::path::Path;

use quell_linux::Ifindex;

use crate::iterator::{IteratorLink, Iterators};
use crate::sampler::SamplerError;

/// Compiled from `bpf/xdp_sockets.bpf.c` by `make bpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/xdp_sockets.bpf.o");
const RECORD_BYTES: usize = 24;

/// Device and queue to which an AF_XDP socket is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XdpBinding {
    /// Inode of the network namespace.
    pub namespace: u64,
    pub ifindex: Ifindex,
    pub queue: u32,
    /// Whether the kernel sets flags in the rings when it needs a call (`XDP_USE_NEED_WAKEUP`).
    pub need_wakeup: bool,
}

/// Bindings by socket inode; `None` for a socket that is not bound.
pub type XdpBindings = BTreeMap<u64, Option<XdpBinding>>;

/// Lists the AF_XDP sockets that processes of the caller's PID namespace hold, in all network namespaces. The kernel's
/// BTF is read below `sys`, normally `/sys`.
pub fn xdp_bindings(sys: &Path) -> Result<XdpBindings, SamplerError> {
    let bytes = Iterators::load(sys, OBJECT)?.read("quell_xdp_sockets", "task_file", IteratorLink::open)?;
    Ok(parse(&bytes))
}

fn parse(bytes: &[u8]) -> XdpBindings {
    let record = |record: &[u8]| {
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| record[at + byte]));
        let inode = u64::from_ne_bytes(std::array::from_fn(|byte| record[byte]));
        let bound = Ifindex::new(word(12)).map(|ifindex| XdpBinding {
            namespace: word(8).into(),
            ifindex,
            queue: word(16),
            need_wakeup: word(20) != 0,
        });
        (inode, bound)
    };
    bytes.chunks_exact(RECORD_BYTES).map(record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unbound_socket_has_no_queue_and_a_torn_record_ends_the_list() {
        let record = |inode: u64, words: [u32; 4]| {
            let mut bytes = inode.to_ne_bytes().to_vec();
            bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
            bytes
        };
        let mut bytes = record(7, [4_026_531_840, 3, 2, 1]);
        bytes.extend(record(8, [4_026_531_840, 0, 0, 0]));
        bytes.extend(&record(9, [1, 1, 1, 1])[..20]);
        let bound =
            XdpBinding { namespace: 4_026_531_840, ifindex: Ifindex::new(3).unwrap(), queue: 2, need_wakeup: true };
        assert_eq!(parse(&bytes), XdpBindings::from([(7, Some(bound)), (8, None)]));
    }
}
