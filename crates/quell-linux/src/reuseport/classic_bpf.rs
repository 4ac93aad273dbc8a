//! Compiles a [`QueueSteering`] to classic BPF (`Documentation/networking/filter.rst`). The module contains only the
//! required instructions and forward jumps. Tests compare the program with the rule in an interpreter, and with the
//! kernel's delivery.

use super::steering::QueueSteering;

/// Metadata of a packet that a filter can load, by its offset (`SKF_AD_*` in `linux/filter.h`).
#[derive(Clone, Copy)]
#[repr(i32)]
enum Ancillary {
    Ifindex = libc::SKF_AD_IFINDEX,
    /// `skb->queue_mapping`.
    Queue = libc::SKF_AD_QUEUE,
    FlowHash = libc::SKF_AD_RXHASH,
}

/// First instruction: loads a constant that nothing uses. Quell recognizes its own filters by it.
pub(super) const MARK: (u16, u32) = ((libc::BPF_LD | libc::BPF_IMM) as u16, u32::from_be_bytes(*b"QUEL"));
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_SLOT: u16 = (libc::BPF_LD | libc::BPF_MEM) as u16;
const LOAD_SLOT_TO_X: u16 = (libc::BPF_LDX | libc::BPF_MEM) as u16;
const STORE: u16 = libc::BPF_ST as u16;
const ADD: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K) as u16;
const MULTIPLY: u16 = (libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K) as u16;
const DIVIDE: u16 = (libc::BPF_ALU | libc::BPF_DIV | libc::BPF_K) as u16;
const MODULO: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const ADD_X: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X) as u16;
const SUBTRACT_X: u16 = (libc::BPF_ALU | libc::BPF_SUB | libc::BPF_X) as u16;
const MODULO_X: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_X) as u16;
const COPY_TO_X: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
/// Returns register A (`BPF_A` in `linux/filter.h`).
const RETURN_A: u16 = libc::BPF_RET as u16 | 0x10;

const PLACE: u32 = 0;
const START: u32 = 1;

pub(super) fn assemble(steering: &QueueSteering) -> Vec<libc::sock_filter> {
    let mut asm = Assembler::default();
    asm.push(MARK.0, MARK.1);
    asm.load(Ancillary::Ifindex);
    let mut to_spread = Vec::new();
    for seen in steering.interfaces() {
        let next = asm.skip_unless_equal(seen.ifindex.get());
        asm.load(Ancillary::Queue);
        asm.push(MODULO, seen.queues);
        asm.push(ADD, seen.first);
        // Each interface needs a jump of its own to the end: a conditional jump reaches 255 instructions, which many
        // interfaces exceed.
        to_spread.push(asm.jump());
        asm.land_else(next);
    }
    asm.load(Ancillary::FlowHash);
    // Packets of other interfaces, such as loopback: by hash, as without a filter.
    asm.push(MODULO, steering.sockets());
    asm.push(RETURN_A, 0);

    to_spread.into_iter().for_each(|jump| asm.land(jump));
    // place * sockets / places spreads the places evenly over the sockets, in order. `QueueSteering::new` has limited
    // both, so that the product fits 32 bits.
    asm.push(STORE, PLACE);
    asm.push(MULTIPLY, steering.sockets());
    asm.push(DIVIDE, steering.places());
    if steering.shares_queues() {
        asm.push(STORE, START);
        asm.push(LOAD_SLOT, PLACE);
        asm.push(ADD, 1);
        asm.push(MULTIPLY, steering.sockets());
        asm.push(DIVIDE, steering.places());
        asm.push(LOAD_SLOT_TO_X, START);
        asm.push(SUBTRACT_X, 0);
        asm.push(COPY_TO_X, 0);
        asm.load(Ancillary::FlowHash);
        // RSS has selected the queue by the low bits of the hash. All packets of a queue have these in common, so they
        // must not select the socket too.
        asm.push(SHIFT_RIGHT, QueueSteering::HASH_BITS_OF_RSS);
        asm.push(MODULO_X, 0);
        asm.push(LOAD_SLOT_TO_X, START);
        asm.push(ADD_X, 0);
    }
    asm.push(RETURN_A, 0);
    asm.0
}

/// A jump whose target is still unknown.
#[must_use]
struct Jump(usize);

#[derive(Default)]
struct Assembler(Vec<libc::sock_filter>);

impl Assembler {
    fn push(&mut self, code: u16, k: u32) {
        self.0.push(libc::sock_filter { code, jt: 0, jf: 0, k });
    }

    fn load(&mut self, what: Ancillary) {
        self.push(LOAD_WORD, (libc::SKF_AD_OFF + what as i32).cast_unsigned());
    }

    /// Continues if `A == value`. Otherwise jumps forward by at most 255 instructions.
    fn skip_unless_equal(&mut self, value: u32) -> Jump {
        self.push(JUMP_IF_EQUAL, value);
        Jump(self.0.len() - 1)
    }

    fn land_else(&mut self, jump: Jump) {
        self.0[jump.0].jf = (self.0.len() - jump.0 - 1) as u8;
    }

    /// Jumps forward by any distance.
    fn jump(&mut self) -> Jump {
        self.push(JUMP, 0);
        Jump(self.0.len() - 1)
    }

    fn land(&mut self, jump: Jump) {
        self.0[jump.0].k = (self.0.len() - jump.0 - 1) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::super::SeenQueues;
    use super::*;
    use crate::Ifindex;
    use proptest::prelude::*;

    struct Packet {
        ifindex: u32,
        queue_mapping: u32,
        flow_hash: u32,
    }

    /// Interprets a program as `Documentation/networking/filter.rst` specifies. Panics on an instruction that the
    /// compiler does not emit, and on a jump out of the program.
    fn interpret(program: &[libc::sock_filter], packet: &Packet) -> u32 {
        let ancillary = |k: u32| match k.cast_signed() - libc::SKF_AD_OFF {
            libc::SKF_AD_IFINDEX => packet.ifindex,
            libc::SKF_AD_QUEUE => packet.queue_mapping,
            libc::SKF_AD_RXHASH => packet.flow_hash,
            other => panic!("ancillary {other}"),
        };
        let (mut a, mut x, mut slots, mut at) = (0_u32, 0_u32, [None; 16], 0);
        loop {
            let libc::sock_filter { code, jf, k, .. } = program[at];
            at += 1;
            match code {
                code if (code, k) == MARK => a = k,
                LOAD_WORD => a = ancillary(k),
                LOAD_SLOT => a = slots[k as usize].unwrap(),
                LOAD_SLOT_TO_X => x = slots[k as usize].unwrap(),
                STORE => slots[k as usize] = Some(a),
                ADD => a = a.wrapping_add(k),
                MULTIPLY => a = a.checked_mul(k).unwrap(),
                DIVIDE => a /= k,
                MODULO => a %= k,
                SHIFT_RIGHT => a >>= k,
                ADD_X => a = a.wrapping_add(x),
                SUBTRACT_X => a = a.checked_sub(x).unwrap(),
                MODULO_X => a %= x,
                COPY_TO_X => x = a,
                JUMP => at += k as usize,
                JUMP_IF_EQUAL if a == k => {}
                JUMP_IF_EQUAL => at += usize::from(jf),
                RETURN_A => return a,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    /// Generates interfaces, of which a few share their queues.
    fn interfaces() -> impl Strategy<Value = Vec<SeenQueues>> {
        let interface = (1_u32..64, 1_u32..70, any::<bool>());
        prop::collection::vec(interface, 1..90).prop_map(|interfaces| {
            let mut seen: Vec<SeenQueues> = Vec::new();
            for (ifindex, queues, is_fed_by_the_last) in interfaces {
                let ifindex = Ifindex::new(ifindex).unwrap();
                if seen.iter().any(|seen| seen.ifindex == ifindex) {
                    continue;
                }
                let next = seen.last().map_or(0, |last| last.first + last.queues);
                seen.push(match seen.last() {
                    Some(last) if is_fed_by_the_last => SeenQueues { ifindex, ..*last },
                    _ => SeenQueues { ifindex, first: next, queues },
                });
            }
            seen
        })
    }

    proptest! {
        #[test]
        fn every_packet_goes_to_the_index_of_the_rule(
            interfaces in interfaces(),
            sockets in 1_u32..5_000,
            ifindex in 0_u32..70,
            queue_mapping in 0_u32..=u32::from(u16::MAX),
            flow_hash: u32,
        ) {
            let steering = QueueSteering::new(interfaces, sockets).unwrap();
            let packet = Packet { ifindex, queue_mapping, flow_hash };
            let index = interpret(&assemble(&steering), &packet);
            prop_assert_eq!(index, steering.index(ifindex, queue_mapping, flow_hash));
            prop_assert!(index < steering.sockets(), "the index is never out of range, so the kernel never falls back to hashing");
        }

        #[test]
        fn no_two_queues_share_a_socket_if_there_are_enough(
            interfaces in interfaces(),
            spare in 0_u32..100,
            hashes in prop::collection::vec(any::<u32>(), 20),
            counts_from_one: bool,
        ) {
            let places = interfaces.iter().map(|seen| seen.first + seen.queues).max().unwrap();
            let steering = QueueSteering::new(interfaces, places + spare).unwrap();
            let mut place_of_socket = std::collections::BTreeMap::new();
            for seen in steering.interfaces() {
                for queue in 0..seen.queues {
                    let queue_mapping = queue + u32::from(counts_from_one);
                    for &flow_hash in &hashes {
                        let socket = steering.index(seen.ifindex.get(), queue_mapping, flow_hash);
                        let place = (seen.first, queue);
                        prop_assert_eq!(*place_of_socket.entry(socket).or_insert(place), place);
                    }
                }
            }
        }
    }

    #[test]
    fn the_kernel_accepts_the_longest_program() {
        const BPF_MAXINSNS: usize = 4_096;
        let seen =
            (1..=800).map(|number| SeenQueues { ifindex: Ifindex::new(number).unwrap(), first: number, queues: 1 });
        let steering = QueueSteering::new(seen.collect(), 1_000).unwrap();
        assert!(assemble(&steering).len() <= BPF_MAXINSNS);
    }
}
