//! Assembler for the BPF instructions that the programs of this crate use
//! (`Documentation/bpf/standardization/instruction-set.rst`). It supports forward jumps only, and fills in their
//! offsets at the target.

/// A BPF instruction (`struct bpf_insn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A BPF register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Register {
    /// Return value of calls and of the program.
    R0 = 0,
    /// First argument.
    R1 = 1,
    /// Second argument.
    R2 = 2,
    /// Third argument.
    R3 = 3,
    /// Fourth argument.
    R4 = 4,
    /// First callee-saved register; keeps its value across helper calls.
    R6 = 6,
    /// Second callee-saved register.
    R7 = 7,
    /// Third callee-saved register.
    R8 = 8,
    /// Fourth callee-saved register.
    R9 = 9,
}

/// Width of a load or store.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Width {
    /// 32 bits.
    Word = 0x00,
    /// 16 bits.
    Half = 0x08,
    /// 8 bits.
    Byte = 0x10,
}

/// Condition of a jump. Comparisons are unsigned unless the variant says otherwise.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Condition {
    Always = 0x00,
    Greater = 0x20,
    /// Any bit of the mask is set.
    AnyBitOf = 0x40,
    NotEqual = 0x50,
    /// Less than or equal to zero, signed.
    NotPositive = 0xD0,
}

const LDX_MEM: u8 = 0x61;
const STX_MEM: u8 = 0x63;
const ALU64: u8 = 0x07;
const ALU32: u8 = 0x04;
const JMP: u8 = 0x05;
const FROM_REGISTER: u8 = 0x08;
const ADD: u8 = 0x00;
const AND: u8 = 0x50;
const RIGHT_SHIFT: u8 = 0x70;
const XOR: u8 = 0xA0;
const MOV: u8 = 0xB0;
const BYTE_ORDER: u8 = 0xD0;
const EXIT: u8 = 0x95;
/// A jump whose target is still unknown; [`Assembler::land`] sets it.
#[must_use]
pub(super) struct Jump(usize);

/// A BPF program under construction.
#[derive(Default)]
pub(super) struct Assembler(Vec<Instruction>);

impl Assembler {
    pub(super) fn finish(self) -> Vec<Instruction> {
        self.0
    }

    /// `to = *(from + offset)`
    pub(super) fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.push(LDX_MEM | width as u8, to as u8, from as u8, offset, 0);
    }

    /// `*(to + offset) = from`
    pub(super) fn store(&mut self, width: Width, to: Register, offset: i16, from: Register) {
        self.push(STX_MEM | width as u8, to as u8, from as u8, offset, 0);
    }

    /// `to = from`
    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.push(ALU64 | MOV | FROM_REGISTER, to as u8, from as u8, 0, 0);
    }

    /// `register = (u32) register`
    pub(super) fn truncate(&mut self, register: Register) {
        self.push(ALU32 | MOV | FROM_REGISTER, register as u8, register as u8, 0, 0);
    }

    /// `to = value`
    pub(super) fn set(&mut self, to: Register, value: i32) {
        self.push(ALU64 | MOV, to as u8, 0, 0, value);
    }

    /// `to += value`
    pub(super) fn add(&mut self, to: Register, value: i32) {
        self.push(ALU64 | ADD, to as u8, 0, 0, value);
    }

    /// `to += from`
    pub(super) fn add_register(&mut self, to: Register, from: Register) {
        self.push(ALU64 | ADD | FROM_REGISTER, to as u8, from as u8, 0, 0);
    }

    /// `to &= mask`, with the mask sign-extended.
    pub(super) fn and(&mut self, to: Register, mask: i32) {
        self.push(ALU64 | AND, to as u8, 0, 0, mask);
    }

    /// `to >>= bits`, logical.
    pub(super) fn shift_right(&mut self, to: Register, bits: i32) {
        self.push(ALU64 | RIGHT_SHIFT, to as u8, 0, 0, bits);
    }

    /// `to ^= mask`, with the mask sign-extended.
    pub(super) fn xor(&mut self, to: Register, mask: i32) {
        self.push(ALU64 | XOR, to as u8, 0, 0, mask);
    }

    /// Converts the lowest `bits` (16, 32 or 64) between host and network byte order. The other bits become zero.
    pub(super) fn swap_to_network(&mut self, register: Register, bits: i32) {
        self.push(ALU32 | BYTE_ORDER | FROM_REGISTER, register as u8, 0, 0, bits);
    }

    pub(super) fn exit(&mut self) {
        self.push(EXIT, 0, 0, 0, 0);
    }

    /// Jumps forward if the condition holds between `left` and `right`.
    pub(super) fn jump_if(&mut self, condition: Condition, left: Register, right: i32) -> Jump {
        self.push(JMP | condition as u8, left as u8, 0, 0, right);
        Jump(self.0.len() - 1)
    }

    /// Jumps forward if the condition holds between two registers.
    pub(super) fn jump_if_registers(&mut self, condition: Condition, left: Register, right: Register) -> Jump {
        self.push(JMP | FROM_REGISTER | condition as u8, left as u8, right as u8, 0, 0);
        Jump(self.0.len() - 1)
    }

    /// Jumps forward.
    pub(super) fn jump(&mut self) -> Jump {
        self.push(JMP | Condition::Always as u8, 0, 0, 0, 0);
        Jump(self.0.len() - 1)
    }

    /// Sets the target of a jump to the next instruction. The programs here are far shorter than the maximum jump
    /// offset.
    pub(super) fn land(&mut self, jump: Jump) {
        self.0[jump.0].offset = (self.0.len() - jump.0 - 1) as i16;
    }

    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        let registers = if cfg!(target_endian = "little") { to | from << 4 } else { to << 4 | from };
        self.0.push(Instruction { code, registers, offset, immediate });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_skips_the_instructions_before_its_target() {
        let mut asm = Assembler::default();
        let jump = asm.jump_if(Condition::NotEqual, Register::R0, 0);
        asm.set(Register::R0, 1);
        asm.set(Register::R0, 2);
        asm.land(jump);
        asm.exit();
        assert_eq!(asm.finish()[0].offset, 2);
    }
}
