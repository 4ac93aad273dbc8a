//! The system calls in which programs wait for files: their numbers, and where BPF programs at `raw_syscalls`
//! tracepoints find the arguments.

/// Numbers of the calls on this architecture; `None` for a call that it lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitCalls {
    pub epoll_wait: Option<i64>,
    pub epoll_pwait: i64,
    pub epoll_pwait2: i64,
    pub poll: Option<i64>,
    pub ppoll: i64,
    pub select: Option<i64>,
    pub pselect6: i64,
    pub io_uring_enter: i64,
    /// Calls that read or accept, and can sleep for the socket of their first argument.
    pub reading: &'static [i64],
    /// Calls that write or connect, and can sleep for the socket of their first argument.
    pub writing: &'static [i64],
    /// Those of them whose third argument is flags, with `MSG_DONTWAIT`.
    pub flags_third: &'static [i64],
    /// Those of them whose fourth argument is flags.
    pub flags_fourth: &'static [i64],
    /// Offsets of the first five arguments in `struct pt_regs`, in bytes.
    pub arguments: [u64; 5],
}

impl WaitCalls {
    /// The calls of 64-bit programs. `None` on architectures whose registers Quell does not know.
    pub const HERE: Option<Self> = here();
}

const READING: &[i64] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
];
const WRITING: &[i64] = &[
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendfile,
    libc::SYS_connect,
];
const FLAGS_THIRD: &[i64] = &[libc::SYS_recvmsg, libc::SYS_sendmsg];
const FLAGS_FOURTH: &[i64] = &[libc::SYS_recvfrom, libc::SYS_recvmmsg, libc::SYS_sendto, libc::SYS_sendmmsg];

#[cfg(target_arch = "x86_64")]
const fn here() -> Option<WaitCalls> {
    use std::mem::offset_of;

    use libc::user_regs_struct as regs;

    Some(WaitCalls {
        epoll_wait: Some(libc::SYS_epoll_wait),
        epoll_pwait: libc::SYS_epoll_pwait,
        epoll_pwait2: libc::SYS_epoll_pwait2,
        poll: Some(libc::SYS_poll),
        ppoll: libc::SYS_ppoll,
        select: Some(libc::SYS_select),
        pselect6: libc::SYS_pselect6,
        io_uring_enter: libc::SYS_io_uring_enter,
        reading: READING,
        writing: WRITING,
        flags_third: FLAGS_THIRD,
        flags_fourth: FLAGS_FOURTH,
        // `user_regs_struct` begins like `pt_regs` (`arch/x86/include/uapi/asm/ptrace.h`).
        arguments: [
            offset_of!(regs, rdi) as u64,
            offset_of!(regs, rsi) as u64,
            offset_of!(regs, rdx) as u64,
            offset_of!(regs, r10) as u64,
            offset_of!(regs, r8) as u64,
        ],
    })
}

#[cfg(target_arch = "aarch64")]
const fn here() -> Option<WaitCalls> {
    Some(WaitCalls {
        epoll_wait: None,
        epoll_pwait: libc::SYS_epoll_pwait,
        epoll_pwait2: libc::SYS_epoll_pwait2,
        poll: None,
        ppoll: libc::SYS_ppoll,
        select: None,
        pselect6: libc::SYS_pselect6,
        io_uring_enter: libc::SYS_io_uring_enter,
        reading: READING,
        writing: WRITING,
        flags_third: FLAGS_THIRD,
        flags_fourth: FLAGS_FOURTH,
        // `pt_regs` begins with x0 to x30 (`arch/arm64/include/asm/ptrace.h`).
        arguments: [0, 8, 16, 24, 32],
    })
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const fn here() -> Option<WaitCalls> {
    None
}
