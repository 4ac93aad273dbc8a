// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Counts the calls in which the threads of selected programs wait for files: epoll_wait by epoll, its timeouts and what
 * it returned; poll, select and io_uring_enter by thread. It only observes.
 *
 * src/waits.rs reads the map. Both files must agree on the layout of struct place and struct calls.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

/* Where a thread waits: the descriptor of an epoll, or one of these. */
#define POLL (-1)     /* poll and select */
#define IO_URING (-2) /* io_uring_enter that waits for completions */

struct place {
	__u32 tgid;
	__u32 tid;
	__s32 epoll;
};

/* Only its own thread changes it, so it needs no lock. */
struct calls {
	__u64 calls;
	__u64 zero;       /* with timeout 0 */
	__u64 zero_empty; /* with timeout 0 that returned nothing */
	__u64 events;     /* that returned events */
	__u64 max_events; /* largest maxevents */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} programs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct place);
	__type(value, struct calls);
} waits SEC(".maps");

struct pending {
	struct place place;
	__u32 zero;
};

/* The call that a thread is in. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct pending);
} pending SEC(".maps");

/* Set by the loader: numbers of the calls on this architecture, -1 if it lacks one. */
const volatile __s64 EPOLL_WAIT;
const volatile __s64 EPOLL_PWAIT;
const volatile __s64 EPOLL_PWAIT2;
const volatile __s64 POLL_CALL;
const volatile __s64 PPOLL;
const volatile __s64 SELECT;
const volatile __s64 PSELECT6;
const volatile __s64 IO_URING_ENTER;
/* Set by the loader: offsets of the arguments in struct pt_regs. */
const volatile __u64 ARGUMENT_0;
const volatile __u64 ARGUMENT_1;
const volatile __u64 ARGUMENT_2;
const volatile __u64 ARGUMENT_3;
const volatile __u64 ARGUMENT_4;

#define IORING_ENTER_GETEVENTS 1
#define IORING_ENTER_EXT_ARG 8
#define IORING_ENTER_EXT_ARG_REG 64 /* in a registered region, which cannot be read here */

static __always_inline __u64 argument(__u64 regs, __u64 offset)
{
	__u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)(regs + offset));
	return value;
}

/* Whether a timespec or timeval of the program is 0. A null pointer waits forever. */
static __always_inline __u32 is_zero_time(__u64 pointer)
{
	__u64 time[2];

	if (!pointer || bpf_probe_read_user(time, sizeof(time), (void *)pointer))
		return 0;
	return !time[0] && !time[1];
}

/* Whether the time limit of io_uring_enter, in struct io_uring_getevents_arg, is 0. */
static __always_inline __u32 is_zero_limit(__u64 flags, __u64 pointer)
{
	__u64 limits[3];

	if (!(flags & IORING_ENTER_EXT_ARG) || (flags & IORING_ENTER_EXT_ARG_REG) ||
	    bpf_probe_read_user(limits, sizeof(limits), (void *)pointer))
		return 0;
	return is_zero_time(limits[2]);
}

SEC("raw_tp/sys_enter")
int quell_enter(__u64 *ctx)
{
	__u64 regs = ctx[0], pid_tgid, flags, max_events = 0;
	__s64 id = (__s64)ctx[1];
	struct calls *calls, none = {};
	struct pending call = {};
	__u32 tid;

	if (id < 0 || (id != EPOLL_WAIT && id != EPOLL_PWAIT && id != EPOLL_PWAIT2 && id != POLL_CALL && id != PPOLL &&
		       id != SELECT && id != PSELECT6 && id != IO_URING_ENTER))
		return 0;
	pid_tgid = bpf_get_current_pid_tgid();
	call.place.tgid = pid_tgid >> 32;
	call.place.tid = tid = (__u32)pid_tgid;
	if (!bpf_map_lookup_elem(&programs, &call.place.tgid))
		return 0;
	call.place.epoll = POLL;
	if (id == EPOLL_WAIT || id == EPOLL_PWAIT || id == EPOLL_PWAIT2) {
		call.place.epoll = (__s32)argument(regs, ARGUMENT_0);
		max_events = (__u32)argument(regs, ARGUMENT_2);
		if (call.place.epoll < 0)
			return 0;
		if (id == EPOLL_PWAIT2)
			call.zero = is_zero_time(argument(regs, ARGUMENT_3));
		else
			call.zero = !(__u32)argument(regs, ARGUMENT_3);
	} else if (id == POLL_CALL) {
		call.zero = !(__u32)argument(regs, ARGUMENT_2);
	} else if (id == PPOLL) {
		call.zero = is_zero_time(argument(regs, ARGUMENT_2));
	} else if (id == IO_URING_ENTER) {
		call.place.epoll = IO_URING;
		flags = argument(regs, ARGUMENT_3);
		call.zero = !(flags & IORING_ENTER_GETEVENTS) || !(__u32)argument(regs, ARGUMENT_2) ||
			    is_zero_limit(flags, argument(regs, ARGUMENT_4));
	} else {
		call.zero = is_zero_time(argument(regs, ARGUMENT_4));
	}
	calls = bpf_map_lookup_elem(&waits, &call.place);
	if (!calls) {
		bpf_map_update_elem(&waits, &call.place, &none, 0);
		calls = bpf_map_lookup_elem(&waits, &call.place);
		if (!calls)
			return 0;
	}
	calls->calls++;
	calls->zero += call.zero;
	if (max_events > calls->max_events)
		calls->max_events = max_events;
	bpf_map_update_elem(&pending, &tid, &call, 0);
	return 0;
}

SEC("raw_tp/sys_exit")
int quell_exit(__u64 *ctx)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid();
	struct pending *call = bpf_map_lookup_elem(&pending, &tid);
	__s64 returned = (__s64)ctx[1];
	struct calls *calls;

	if (!call)
		return 0;
	calls = bpf_map_lookup_elem(&waits, &call->place);
	if (calls && returned > 0)
		calls->events++;
	else if (calls && returned == 0)
		calls->zero_empty += call->zero;
	bpf_map_delete_elem(&pending, &tid);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
