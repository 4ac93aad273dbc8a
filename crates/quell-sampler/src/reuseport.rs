//! The programs of reuseport groups, listed by BPF iterators over the sockets of a network namespace.

use std::collections::BTreeMap;
use std::path::Path;

use quell_linux::netns::Namespace;
use quell_linux::reuseport::{ClassicInstruction, is_quells};

use crate::iterator::{IteratorLink, Iterators};
use crate::sampler::SamplerError;

/// Compiled from `bpf/reuseport.bpf.c` by `make bpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/reuseport.bpf.o");
const ITERATORS: [(&str, &str); 2] = [("quell_tcp", "tcp"), ("quell_udp", "udp")];
const RECORD_BYTES: usize = 32;
const INSTRUCTION_BYTES: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupProgram {
    Absent,
    Quells,
    /// Classic BPF. The instructions are absent if there are more than 512, or the kernel does not keep them.
    Classic(Option<Vec<ClassicInstruction>>),
    Ebpf(u32),
}

/// Programs by socket inode: of the listening TCP sockets and the UDP sockets that are in a reuseport group.
pub type GroupPrograms = BTreeMap<u64, GroupProgram>;

/// Lists the programs of the reuseport groups of a network namespace. The kernel's BTF is read below `sys`, normally
/// `/sys`.
pub fn group_programs(sys: &Path, namespace: &Namespace) -> Result<GroupPrograms, SamplerError> {
    let mut iterators = Iterators::load(sys, OBJECT)?;
    let mut programs = GroupPrograms::new();
    for (name, sockets) in ITERATORS {
        // An iterator lists the sockets of the network namespace in which its file is created.
        let open = |link: IteratorLink| {
            let opened = namespace.run(|| link.open());
            opened.map_err(|error| SamplerError::new("entering the namespace", &error))?
        };
        parse(&iterators.read(name, sockets, open)?, &mut programs);
    }
    Ok(programs)
}

/// Adds the records of an iterator. Bytes that are no complete record end the list: their sockets are then unknown.
fn parse(mut bytes: &[u8], programs: &mut GroupPrograms) {
    while let Some((record, rest)) = bytes.split_at_checked(RECORD_BYTES) {
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| record[at + byte]));
        let inode = u64::from_ne_bytes(std::array::from_fn(|byte| record[byte]));
        let (present, kind, id, length, copied) = (word(8), word(12), word(16), word(20), word(24));
        let Some((code, rest)) = rest.split_at_checked(copied as usize * INSTRUCTION_BYTES) else { return };
        bytes = rest;
        let program = match (present, kind) {
            (0, _) => GroupProgram::Absent,
            (_, 0) => classic(code, length == copied && length > 0),
            _ => GroupProgram::Ebpf(id),
        };
        if inode != 0 {
            programs.insert(inode, program);
        }
    }
}

fn classic(code: &[u8], is_complete: bool) -> GroupProgram {
    let instruction = |bytes: &[u8]| ClassicInstruction {
        code: u16::from_ne_bytes([bytes[0], bytes[1]]),
        jt: bytes[2],
        jf: bytes[3],
        k: u32::from_ne_bytes(std::array::from_fn(|byte| bytes[4 + byte])),
    };
    let instructions: Vec<_> = code.chunks_exact(INSTRUCTION_BYTES).map(instruction).collect();
    match is_quells(&instructions) {
        true => GroupProgram::Quells,
        false => GroupProgram::Classic(is_complete.then_some(instructions)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::os::fd::{AsFd, AsRawFd};

    use quell_linux::Ifindex;
    use quell_linux::reuseport::{QueueSteering, SeenQueues, attach, attach_classic, detach};
    use quell_linux::tcp::{Blocking, TcpListener};
    use quell_test_support::{Lacks, skip};

    use super::*;

    fn record(inode: u64, words: [u32; 6], code: &[u8]) -> Vec<u8> {
        let mut bytes = inode.to_ne_bytes().to_vec();
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(code);
        bytes
    }

    #[test]
    fn records_become_programs_and_a_torn_one_ends_the_list() {
        let mut bytes = record(7, [0; 6], &[]);
        bytes.extend(record(8, [1, 21, 42, 0, 0, 0], &[]));
        bytes.extend(record(9, [1, 0, 0, 600, 0, 0], &[]));
        bytes.extend(record(10, [1, 0, 0, 1, 1, 0], &[6, 0, 0, 0, 1, 0, 0, 0]));
        bytes.extend(record(11, [1, 0, 0, 3, 3, 0], &[6, 0]));
        let mut programs = GroupPrograms::new();
        parse(&bytes, &mut programs);
        let returns_1 = ClassicInstruction { code: 6, jt: 0, jf: 0, k: u32::from_ne_bytes([1, 0, 0, 0]) };
        let expected = [
            (7, GroupProgram::Absent),
            (8, GroupProgram::Ebpf(42)),
            (9, GroupProgram::Classic(None)),
            (10, GroupProgram::Classic(Some(vec![returns_1]))),
        ];
        assert_eq!(programs, GroupPrograms::from(expected));
    }

    fn inode(socket: &impl AsFd) -> u64 {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_fd().as_raw_fd())).unwrap();
        let link = link.to_str().unwrap();
        link.trim_start_matches("socket:[").trim_end_matches(']').parse().unwrap()
    }

    #[test]
    fn the_program_of_a_group_is_read_without_changing_it() {
        let here = Namespace::current().unwrap();
        let read = || group_programs(Path::new("/sys"), &here);
        if let Err(error @ (SamplerError::Denied { .. } | SamplerError::Unsupported(_))) = read() {
            return skip(Lacks::Root, &error);
        }
        let listen = |address: SocketAddr, grouped| TcpListener::bind(address, grouped, Blocking::No).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let first = listen(any, true);
        let second = listen(first.local_address().unwrap(), true);
        let alone = listen(any, false);
        let of = |socket: &TcpListener| read().unwrap().remove(&inode(socket));

        assert_eq!((of(&first), of(&second)), (Some(GroupProgram::Absent), Some(GroupProgram::Absent)));
        assert_eq!(of(&alone), None, "it is in no group");

        let own = vec![ClassicInstruction { code: 6, jt: 0, jf: 0, k: 1 }];
        attach_classic(&first, &own).unwrap();
        assert_eq!(of(&second), Some(GroupProgram::Classic(Some(own.clone()))));
        assert_eq!(of(&second), Some(GroupProgram::Classic(Some(own))), "reading does not remove it");

        let queues = SeenQueues { ifindex: Ifindex::new(1).unwrap(), first: 0, queues: 2 };
        attach(&second, &QueueSteering::new(vec![queues], 2).unwrap()).unwrap();
        assert_eq!(of(&first), Some(GroupProgram::Quells));
        detach(&first).unwrap();
        assert_eq!(of(&first), Some(GroupProgram::Absent));
    }
}
