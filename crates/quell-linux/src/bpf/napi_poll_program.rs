//! The BPF program at the tracepoint `napi:napi_poll`. It increments the counters of the polled NAPI instance if that
//! instance is watched. [`NapiPolls`](super::NapiPolls) defines the counters.

use super::assembler::Register::{R0, R1, R2, R6, R7, R8, R9, R10};
use super::assembler::{Assembler, Condition, Helper, Instruction, Jump, Register, Width};
use super::btf::{Btf, BtfError};

/// Counters, in the order of their positions in a map value.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(super) enum Counter {
    Polls,
    Packets,
    Empty,
    Full,
    ByThread,
    ByBusyPoll,
    LastOfBusyPoll,
    FoundSuspended,
}

/// Number of counters in a map value.
pub(super) const COUNTERS: usize = 8;

impl Counter {
    fn offset(self) -> i16 {
        (self as usize * size_of::<u64>()) as i16
    }
}

/// Offsets and constants of the running kernel that the program contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    napi_id: i16,
    state: i16,
    weight: i16,
    thread: i16,
    in_busy_poll: i32,
    /// Layout of IRQ suspension; `None` if the kernel does not support it.
    pub(super) suspension: Option<SuspensionLayout>,
    /// BTF id of the tracepoint's typedef.
    pub(super) tracepoint: u32,
}

/// Offsets of the IRQ deferral count, the IRQ suspension timeout and the timer in `struct napi_struct` (Linux 6.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SuspensionLayout {
    defer_hard_irqs: i16,
    gro_flush_timeout: i16,
    irq_suspend_timeout: i16,
    timer_expires: i16,
}

impl Layout {
    pub(super) fn find(btf: &Btf) -> Result<Self, BtfError> {
        Ok(Self {
            napi_id: napi_member(btf, "napi_id")?,
            state: napi_member(btf, "state")?,
            weight: napi_member(btf, "weight")?,
            thread: napi_member(btf, "thread")?,
            in_busy_poll: state_mask(btf, "NAPI_STATE_IN_BUSY_POLL")?,
            suspension: SuspensionLayout::find(btf)?,
            tracepoint: btf.typedef_id("btf_trace_napi_poll")?,
        })
    }
}

impl SuspensionLayout {
    fn find(btf: &Btf) -> Result<Option<Self>, BtfError> {
        match Self::all(btf) {
            Err(BtfError::NotFound { .. }) => Ok(None),
            found => found.map(Some),
        }
    }

    fn all(btf: &Btf) -> Result<Self, BtfError> {
        let within_timer = offset(btf, "hrtimer", "_softexpires")?;
        Ok(Self {
            defer_hard_irqs: napi_member(btf, "defer_hard_irqs")?,
            gro_flush_timeout: napi_member(btf, "gro_flush_timeout")?,
            irq_suspend_timeout: napi_member(btf, "irq_suspend_timeout")?,
            timer_expires: napi_member(btf, "timer")?.saturating_add(within_timer),
        })
    }
}

fn napi_member(btf: &Btf, name: &str) -> Result<i16, BtfError> {
    offset(btf, "napi_struct", name)
}

fn offset(btf: &Btf, structure: &str, name: &str) -> Result<i16, BtfError> {
    let offset = btf.member_offset(structure, name)?;
    let too_far = |_| BtfError::NotFound { what: format!("`{name}` within the first 32 KiB of `struct {structure}`") };
    i16::try_from(offset).map_err(too_far)
}

/// Mask of a bit of `napi_struct.state`. The kernel's enumerator gives the bit number.
fn state_mask(btf: &Btf, name: &str) -> Result<i32, BtfError> {
    let bit = btf.enumerator(name)?;
    if bit > 30 {
        return Err(BtfError::NotFound { what: format!("`{name}` among the lower bits") });
    }
    Ok(1 << bit)
}

/// Assembles the program. It increments counters without locking. Each CPU has its own value, and softirqs stay
/// disabled from the start of a poll until after the tracepoint.
pub(super) fn assemble(layout: Layout, map_fd: i32) -> Vec<Instruction> {
    const KEY: i16 = -4;
    const NAPI: Register = R6;
    const WORK: Register = R7;
    const BUDGET: Register = R8;
    const COUNTERS: Register = R9;
    let mut asm = Assembler::default();

    // The tracepoint has three arguments of eight bytes each: `struct napi_struct *napi, int work, int budget`.
    asm.load(Width::Double, NAPI, R1, 0);
    asm.load(Width::Double, WORK, R1, 8);
    asm.load(Width::Double, BUDGET, R1, 16);
    asm.truncate(WORK);
    asm.truncate(BUDGET);

    asm.load(Width::Word, R1, NAPI, layout.napi_id);
    asm.store(Width::Word, R10, KEY, R1);
    asm.load_map(R1, map_fd);
    asm.copy(R2, R10);
    asm.add(R2, KEY.into());
    asm.call(Helper::MapLookupElem);
    let not_watched = asm.jump_if(Condition::Equal, R0, 0);
    asm.copy(COUNTERS, R0);

    count(&mut asm, COUNTERS, Counter::Polls);
    asm.load(Width::Double, R1, COUNTERS, Counter::Packets.offset());
    asm.add_register(R1, WORK);
    asm.store(Width::Double, COUNTERS, Counter::Packets.offset(), R1);

    let found = asm.jump_if(Condition::NotEqual, WORK, 0);
    count(&mut asm, COUNTERS, Counter::Empty);
    let empty = asm.jump();
    asm.land(found);
    let below_budget = asm.jump_if_registers(Condition::Less, WORK, BUDGET);
    count(&mut asm, COUNTERS, Counter::Full);
    asm.land(empty);
    asm.land(below_budget);

    // Check for the NAPI thread first, because a thread that busy polls also sets the busy-poll state
    // (`napi_threaded_poll`).
    asm.call(Helper::GetCurrentTask);
    asm.load(Width::Double, R1, NAPI, layout.thread);
    let not_its_thread = asm.jump_if_registers(Condition::NotEqual, R0, R1);
    count(&mut asm, COUNTERS, Counter::ByThread);
    let its_thread = asm.jump();
    asm.land(not_its_thread);
    let not_busy = in_state(&mut asm, NAPI, layout.state, layout.in_busy_poll);
    count(&mut asm, COUNTERS, Counter::ByBusyPoll);
    if let Some(layout) = layout.suspension {
        count_if_suspended(&mut asm, NAPI, COUNTERS, layout);
    }

    for jump in [not_watched, its_thread] {
        asm.land(jump);
    }
    end(&mut asm);

    // A softirq polls with the instance's weight. The final poll of a busy-poll loop uses the busy-poll budget.
    asm.land(not_busy);
    asm.load(Width::Word, R1, NAPI, layout.weight);
    let by_softirq = asm.jump_if_registers(Condition::Equal, BUDGET, R1);
    count(&mut asm, COUNTERS, Counter::LastOfBusyPoll);
    asm.land(by_softirq);
    end(&mut asm);
    asm.finish()
}

fn end(asm: &mut Assembler) {
    asm.set(R0, 0);
    asm.exit();
}

fn count(asm: &mut Assembler, counters: Register, counter: Counter) {
    asm.load(Width::Double, R1, counters, counter.offset());
    asm.add(R1, 1);
    asm.store(Width::Double, counters, counter.offset(), R1);
}

/// Counts a poll that found IRQs suspended. While a program processes events, the instance's timer limits the
/// suspension (`napi_suspend_irqs`). Otherwise the timer expires after the deferral timeout (`napi_complete_done`,
/// `busy_poll_stop`). A poll that finds a later expiry therefore ends a suspension. Without deferral the kernel also
/// arms the timer, but does not mask the IRQ.
fn count_if_suspended(asm: &mut Assembler, napi: Register, counters: Register, layout: SuspensionLayout) {
    asm.load(Width::Word, R1, napi, layout.defer_hard_irqs);
    let never_defers = asm.jump_if(Condition::Equal, R1, 0);
    asm.call(Helper::KtimeGetNs);
    asm.load(Width::Double, R1, napi, layout.gro_flush_timeout);
    let defers_for_no_time = asm.jump_if(Condition::Equal, R1, 0);
    asm.load(Width::Double, R2, napi, layout.irq_suspend_timeout);
    let suspends_for_less = asm.jump_if_registers(Condition::Less, R2, R1);
    asm.add_register(R1, R0);
    asm.load(Width::Double, R2, napi, layout.timer_expires);
    let not_suspended = asm.jump_if_registers(Condition::Less, R2, R1);
    count(asm, counters, Counter::FoundSuspended);
    for jump in [never_defers, defers_for_no_time, suspends_for_less, not_suspended] {
        asm.land(jump);
    }
}

/// Emits a test of the state: continues if a bit of the mask is set, otherwise jumps.
fn in_state(asm: &mut Assembler, napi: Register, state: i16, mask: i32) -> Jump {
    asm.load(Width::Double, R1, napi, state);
    asm.and(R1, mask);
    asm.jump_if(Condition::Equal, R1, 0)
}

#[cfg(test)]
mod tests {
    use super::super::assembler::longest_run;
    use super::*;

    #[test]
    fn the_cost_is_as_documented() {
        let suspension = SuspensionLayout {
            defer_hard_irqs: 416,
            gro_flush_timeout: 400,
            irq_suspend_timeout: 408,
            timer_expires: 296,
        };
        let layout = Layout {
            napi_id: 380,
            state: 16,
            weight: 24,
            thread: 352,
            in_busy_poll: 64,
            suspension: Some(suspension),
            tracepoint: 1,
        };
        assert_eq!(longest_run(&assemble(layout, 3)), super::super::napi_poll_counter::LONGEST_RUN);
    }
}
