//! The XDP program of `xdp_echo`. It selects frames and rewrites each of them into its response, in place.

use super::assembler::Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9};
use super::assembler::{Assembler, Condition, Instruction, Jump, Register, Width};

/// `enum xdp_action` of `linux/bpf.h`.
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const XDP_TX: i32 = 3;

/// `data` and `data_end` in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;

// Offsets in a frame with an Ethernet header, an IPv4 header without options, and a TCP header.
const ETHERNET_TO: i16 = 0;
const ETHERNET_FROM: i16 = 6;
const ETHERNET_TYPE: i16 = 12;
const IP_VERSION_AND_LENGTH: i16 = 14;
const IP_TOTAL_BYTES: i16 = 16;
const IP_PROTOCOL: i16 = 23;
const IP_FROM: i16 = 26;
const IP_TO: i16 = 30;
const TCP_FROM: i16 = 34;
const TCP_TO: i16 = 36;
const TCP_SEQUENCE: i16 = 38;
const TCP_ACKNOWLEDGED: i16 = 42;
/// TCP header length in 32-bit words (4 bits), reserved bits and flags.
const TCP_LENGTH_AND_FLAGS: i16 = 46;
const TCP_CHECKSUM: i16 = 50;
/// Offsets of TSval and TSecr. Linux places two NOP bytes before the timestamp option. In a SYN, the MSS and
/// SACK-permitted options precede it.
const STAMPS: (i16, i16) = (58, 62);
const SYN_STAMPS: (i16, i16) = (62, 66);

const HEADER_BYTES: i32 = 66;
const SYN_HEADER_BYTES: i32 = 74;
const TCP_WORDS: i32 = 8;
const SYN_TCP_WORDS: i32 = 10;
const IP_AND_TCP_BYTES: i32 = 52;

const FIN: i32 = 0x01;
const SYN: i32 = 0x02;
const RST: i32 = 0x04;
const ACK: i32 = 0x10;

const FRAME: Register = R6;
const END: Register = R7;
/// Register with the length of the frame in sequence space: payload bytes, plus one for SYN or FIN.
const TAKEN: Register = R4;
const FLAGS: Register = R8;
const ANSWER_FLAGS: Register = R9;

/// Responds to TCP segments for `port`, and passes everything else.
pub(super) fn assemble(port: u16) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    let foreign = pass_unless_for(&mut asm, port);

    asm.load(Width::Half, FLAGS, FRAME, TCP_LENGTH_AND_FLAGS);
    asm.swap_to_network(FLAGS, 16);
    let is_syn = asm.jump_if(Condition::AnyBitOf, FLAGS, SYN);

    let mut dropped = Vec::new();
    dropped.push(drop_unless_words(&mut asm, TCP_WORDS));
    asm.load(Width::Half, TAKEN, FRAME, IP_TOTAL_BYTES);
    asm.swap_to_network(TAKEN, 16);
    asm.add(TAKEN, -IP_AND_TCP_BYTES);
    dropped.push(asm.jump_if(Condition::AnyBitOf, FLAGS, RST));
    let is_fin = asm.jump_if(Condition::AnyBitOf, FLAGS, FIN);
    dropped.push(asm.jump_if(Condition::NotPositive, TAKEN, 0));
    asm.copy(ANSWER_FLAGS, FLAGS);
    let is_data = asm.jump();
    asm.land(is_fin);
    asm.add(TAKEN, 1);
    asm.set(ANSWER_FLAGS, TCP_WORDS << 12 | RST | ACK);
    asm.land(is_data);
    swap(&mut asm, Width::Word, STAMPS.0, STAMPS.1);
    let answered = asm.jump();

    asm.land(is_syn);
    dropped.push(drop_unless_words(&mut asm, SYN_TCP_WORDS));
    dropped.push(jump_if_shorter(&mut asm, SYN_HEADER_BYTES));
    asm.set(TAKEN, 1);
    asm.set(ANSWER_FLAGS, SYN_TCP_WORDS << 12 | SYN | ACK);
    swap(&mut asm, Width::Word, SYN_STAMPS.0, SYN_STAMPS.1);

    asm.land(answered);
    turn_round(&mut asm);
    finish_with(&mut asm, XDP_TX);
    dropped.into_iter().for_each(|jump| asm.land(jump));
    finish_with(&mut asm, XDP_DROP);
    foreign.into_iter().for_each(|jump| asm.land(jump));
    finish_with(&mut asm, XDP_PASS);
    asm.finish()
}

/// Assembles a program that passes every frame. A veth interface needs an XDP program to receive frames that the peer's
/// XDP program sends.
pub(super) fn assemble_pass() -> Vec<Instruction> {
    let mut asm = Assembler::default();
    finish_with(&mut asm, XDP_PASS);
    asm.finish()
}

fn pass_unless_for(asm: &mut Assembler, port: u16) -> Vec<Jump> {
    asm.load(Width::Word, FRAME, R1, DATA);
    asm.load(Width::Word, END, R1, DATA_END);
    let mut foreign = vec![jump_if_shorter(asm, HEADER_BYTES)];
    let expected = [
        (Width::Half, ETHERNET_TYPE, 0x0800_u16.to_be()),
        (Width::Byte, IP_VERSION_AND_LENGTH, 0x45),
        (Width::Byte, IP_PROTOCOL, 6),
        (Width::Half, TCP_TO, port.to_be()),
    ];
    for (width, offset, value) in expected {
        asm.load(width, R3, FRAME, offset);
        foreign.push(asm.jump_if(Condition::NotEqual, R3, value.into()));
    }
    foreign
}

fn jump_if_shorter(asm: &mut Assembler, bytes: i32) -> Jump {
    asm.copy(R2, FRAME);
    asm.add(R2, bytes);
    asm.jump_if_registers(Condition::Greater, R2, END)
}

fn drop_unless_words(asm: &mut Assembler, words: i32) -> Jump {
    asm.copy(R1, FLAGS);
    asm.shift_right(R1, 12);
    asm.jump_if(Condition::NotEqual, R1, words)
}

/// Returns the frame to its sender. The received acknowledgement number becomes the sequence number, and the received
/// data are acknowledged.
fn turn_round(asm: &mut Assembler) {
    swap(asm, Width::Word, ETHERNET_TO, ETHERNET_FROM);
    swap(asm, Width::Half, ETHERNET_TO + 4, ETHERNET_FROM + 4);
    swap(asm, Width::Word, IP_FROM, IP_TO);
    swap(asm, Width::Half, TCP_FROM, TCP_TO);

    // RFC 1624: the new checksum is the complement of (~old checksum + ~old words + new words), with carries folded at
    // the end. Only changed words are added, because moving a word does not change the sum. The sum uses 32-bit words,
    // because 2¹⁶ is 1 modulo 2¹⁶ − 1.
    asm.load(Width::Half, R0, FRAME, TCP_CHECKSUM);
    asm.swap_to_network(R0, 16);
    asm.xor(R0, 0xFFFF);
    asm.load(Width::Word, R1, FRAME, TCP_SEQUENCE);
    asm.load(Width::Word, R2, FRAME, TCP_ACKNOWLEDGED);
    asm.store(Width::Word, FRAME, TCP_SEQUENCE, R2);
    asm.swap_to_network(R1, 32);
    asm.add_register(TAKEN, R1);
    asm.truncate(TAKEN);
    asm.xor(R1, -1);
    asm.truncate(R1);
    asm.add_register(R0, R1);
    asm.add_register(R0, TAKEN);
    asm.swap_to_network(TAKEN, 32);
    asm.store(Width::Word, FRAME, TCP_ACKNOWLEDGED, TAKEN);
    asm.xor(FLAGS, 0xFFFF);
    asm.add_register(R0, FLAGS);
    asm.add_register(R0, ANSWER_FLAGS);
    asm.swap_to_network(ANSWER_FLAGS, 16);
    asm.store(Width::Half, FRAME, TCP_LENGTH_AND_FLAGS, ANSWER_FLAGS);
    for _ in 0..3 {
        asm.copy(R1, R0);
        asm.shift_right(R1, 16);
        asm.and(R0, 0xFFFF);
        asm.add_register(R0, R1);
    }
    asm.xor(R0, 0xFFFF);
    asm.swap_to_network(R0, 16);
    asm.store(Width::Half, FRAME, TCP_CHECKSUM, R0);
}

fn swap(asm: &mut Assembler, width: Width, one: i16, other: i16) {
    asm.load(width, R2, FRAME, one);
    asm.load(width, R3, FRAME, other);
    asm.store(width, FRAME, one, R3);
    asm.store(width, FRAME, other, R2);
}

fn finish_with(asm: &mut Assembler, action: i32) {
    asm.set(R0, action);
    asm.exit();
}
