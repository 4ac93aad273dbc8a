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
    /// Frame pointer, read-only.
    R10 = 10,
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
    /// 64 bits.
    Double = 0x18,
}

/// Condition of a jump. Comparisons are unsigned unless the variant says otherwise.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Condition {
    Always = 0x00,
    Equal = 0x10,
    Greater = 0x20,
    /// Any bit of the mask is set.
    AnyBitOf = 0x40,
    NotEqual = 0x50,
    Less = 0xA0,
    /// Less than or equal to zero, signed.
    NotPositive = 0xD0,
}

/// A BPF helper function, by its number in `linux/bpf.h`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum Helper {
    MapLookupElem = 1,
    KtimeGetNs = 5,
    GetCurrentPidTgid = 14,
    GetCurrentTask = 35,
}

const LDX_MEM: u8 = 0x61;
const STX_MEM: u8 = 0x63;
const LD_IMM64: u8 = 0x18;
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
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Source register of a 64-bit load whose immediate value is the file descriptor of a map.
const PSEUDO_MAP_FD: u8 = 1;

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

    /// `to = map`. The instruction occupies two slots (`BPF_LD_IMM64`).
    pub(super) fn load_map(&mut self, to: Register, map_fd: i32) {
        self.push(LD_IMM64, to as u8, PSEUDO_MAP_FD, 0, map_fd);
        self.push(0, 0, 0, 0, 0);
    }

    pub(super) fn call(&mut self, helper: Helper) {
        self.push(CALL, 0, 0, 0, helper as i32);
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

/// Number of instructions on the longest path through a program. All jumps go forward, so one pass from the end visits
/// each instruction once.
#[cfg(test)]
pub(super) fn longest_run(program: &[Instruction]) -> usize {
    const JUMP_ALWAYS: u8 = JMP | Condition::Always as u8;
    let mut from = vec![0; program.len()];
    for (place, instruction) in program.iter().enumerate().rev() {
        let target = || place + 1 + usize::from(instruction.offset.unsigned_abs());
        let rest = match instruction.code {
            EXIT => 0,
            LD_IMM64 => from[place + 2],
            JUMP_ALWAYS => from[target()],
            code if code & 0x07 == JMP && code != CALL => from[place + 1].max(from[target()]),
            _ => from[place + 1],
        };
        from[place] = 1 + rest;
    }
    from[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_run_takes_the_longer_branch_of_each_jump() {
        let mut asm = Assembler::default();
        asm.load_map(Register::R1, 3);
        let away = asm.jump_if(Condition::Equal, Register::R0, 0);
        asm.set(Register::R0, 1);
        let over = asm.jump();
        asm.land(away);
        (0..4).for_each(|value| asm.set(Register::R0, value));
        asm.land(over);
        asm.exit();
        assert_eq!(longest_run(&asm.finish()), 1 + 1 + 4 + 1);
    }

    #[test]
    fn a_jump_skips_the_instructions_before_its_target() {
        let mut asm = Assembler::default();
        let jump = asm.jump_if(Condition::Equal, Register::R0, 0);
        asm.set(Register::R0, 1);
        asm.set(Register::R0, 2);
        asm.land(jump);
        asm.exit();
        assert_eq!(asm.finish()[0].offset, 2);
    }
}
