// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Counts the calls in which the threads of selected programs wait for files: epoll_wait by epoll, its timeouts and what
 * it returned; poll, select and io_uring_enter by thread; calls that slept for a socket by its NAPI instance; calls that
 * read a file which an epoll watches, by NAPI instance, and one of the selected files. It only observes.
 *
 * src/waits.rs reads the maps. Both files must agree on the layout of their structs.
 */
#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* Where a thread waits. */
enum kind {
	EPOLL,    /* epoll_wait; of: its descriptor */
	POLL,     /* poll and select */
	IO_URING, /* io_uring_enter that waits for completions */
	SOCKET,   /* a call that slept for a TCP or UDP socket; of: NAPI ID of the socket, its descriptor until then */
	POLLED,   /* a poll that slept for another file; of: its descriptor */
	READ,     /* a call that read a file which an epoll watches; of: NAPI ID of the socket, 0 if it is none */
};

struct place {
	__u32 tgid;
	__u32 tid;
	__u32 kind;
	__u32 of;
};

/* Only its own thread changes it, so it needs no lock. */
struct calls {
	__u64 calls;
	__u64 zero;       /* with timeout 0 */
	__u64 zero_empty; /* with timeout 0 that returned nothing */
	__u64 events;     /* that returned events */
	__u64 max_events; /* largest maxevents */
	__u64 slept;      /* in which the thread slept */
	__u64 left;       /* that began after a read which left data in its connection */
	__u64 left_ns;    /* in which the events before these calls were handled */
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

struct descriptor {
	__u32 tgid;
	__u32 fd;
};

/* Calls that read or accepted something, by selected descriptor. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct descriptor);
	__type(value, __u64);
} reads SEC(".maps");

struct pending {
	struct place place;
	__u32 zero;
	__u32 files; /* of poll */
	__u32 is_read;
	__u32 is_nonblocking;
	__u64 sleeps;
	__u64 polled; /* struct pollfd */
};

/* The call that a thread is in. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct pending);
} pending SEC(".maps");

/* Since the last call of epoll_wait that returned events to a thread. */
struct handled {
	__u64 since_ns;
	__u64 left; /* the connection in which the last read of it left data */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct handled);
} handling SEC(".maps");

/* Set by the loader: numbers of the calls on this architecture, -1 if it lacks one. */
const volatile __s64 EPOLL_WAIT;
const volatile __s64 EPOLL_PWAIT;
const volatile __s64 EPOLL_PWAIT2;
const volatile __s64 POLL_CALL;
const volatile __s64 PPOLL;
const volatile __s64 SELECT;
const volatile __s64 PSELECT6;
const volatile __s64 IO_URING_ENTER;
/* Set by the loader: bit set of the other calls that can sleep for the socket of their first argument. */
#define CALLS 512
const volatile __u64 SOCKET_CALLS[CALLS / 64];
/* Those of them that read or accept. */
const volatile __u64 READ_CALLS[CALLS / 64];
/* Those of them whose third or fourth argument has MSG_DONTWAIT. */
const volatile __u64 FLAGS_2_CALLS[CALLS / 64];
const volatile __u64 FLAGS_3_CALLS[CALLS / 64];
/* Set by the loader: offsets of the arguments in struct pt_regs. */
const volatile __u64 ARGUMENT_0;
const volatile __u64 ARGUMENT_1;
const volatile __u64 ARGUMENT_2;
const volatile __u64 ARGUMENT_3;
const volatile __u64 ARGUMENT_4;

/* Files of a poll that are looked at. */
#define FILES 4

struct pollfd {
	__s32 fd;
	__s16 events;
	__s16 revents;
};

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

/* How often the current thread has slept. */
static __always_inline __u64 sleeps(void)
{
	return BPF_CORE_READ((struct task_struct *)bpf_get_current_task(), nvcsw);
}

/* The counters of a place; NULL if the map is full. */
static __always_inline struct calls *calls_at(struct place *place)
{
	struct calls *calls = bpf_map_lookup_elem(&waits, place), none = {};

	if (calls)
		return calls;
	bpf_map_update_elem(&waits, place, &none, 0);
	return bpf_map_lookup_elem(&waits, place);
}

/* The current thread's file with this descriptor; NULL if there is none. */
static __always_inline struct file *file_at(__u32 fd)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files = BPF_CORE_READ(table, fd), *file = NULL;

	if (fd >= BPF_CORE_READ(table, max_fds) || bpf_probe_read_kernel(&file, sizeof(file), files + fd))
		return NULL;
	return file;
}

static __always_inline __u32 is_socket(struct file *file)
{
	return (BPF_CORE_READ(file, f_inode, i_mode) & S_IFMT) == S_IFSOCK;
}

/* The TCP or UDP socket of this file of a socket; NULL if it is of another family. */
static __always_inline struct sock *inet_sock(struct file *file)
{
	struct socket *socket = BPF_CORE_READ(file, private_data);
	struct sock *sock = BPF_CORE_READ(socket, sk);
	__u16 family = BPF_CORE_READ(sock, __sk_common.skc_family);

	return family == AF_INET || family == AF_INET6 ? sock : NULL;
}

/* Counts a call that slept for a file. */
static __always_inline void count_file(struct place place, __u32 fd)
{
	struct file *file = file_at(fd);
	struct calls *calls;
	struct sock *sock;

	/* What else a call can sleep for, such as memory, is rare. */
	if (!file || (place.kind == SOCKET && BPF_CORE_READ(file, f_flags) & O_NONBLOCK))
		return;
	if (is_socket(file)) {
		sock = inet_sock(file);
		if (!sock)
			return;
		place.kind = SOCKET;
		place.of = BPF_CORE_READ(sock, sk_napi_id);
	} else if (place.kind == POLL) {
		place.kind = POLLED;
		place.of = fd;
	} else {
		return;
	}
	calls = calls_at(&place);
	if (!calls)
		return;
	calls->calls++;
	calls->slept++;
}

/* Whether a TCP connection has data that were not read. */
static __always_inline __u32 has_data(struct sock *sock)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sock;

	/* In other states, the FIN counts as a byte. */
	return BPF_CORE_READ(sock, sk_protocol) == IPPROTO_TCP &&
	       BPF_CORE_READ(sock, __sk_common.skc_state) == TCP_ESTABLISHED &&
	       BPF_CORE_READ(tcp, rcv_nxt) != BPF_CORE_READ(tcp, copied_seq);
}

/* Counts a call that read something. */
static __always_inline void count_read(struct place place)
{
	struct descriptor from = { place.tgid, place.of };
	__u64 *reads_of = bpf_map_lookup_elem(&reads, &from);
	struct file *file = file_at(place.of);
	struct handled *handled;
	struct sock *sock = NULL;
	struct calls *calls;

	if (reads_of)
		__sync_fetch_and_add(reads_of, 1);
	if (!file || !BPF_CORE_READ(file, f_ep))
		return;
	if (is_socket(file))
		sock = inet_sock(file);
	if (sock && BPF_CORE_READ(sock, __sk_common.skc_state) == TCP_LISTEN)
		return;
	handled = bpf_map_lookup_elem(&handling, &place.tid);
	if (handled && sock && has_data(sock))
		handled->left = (__u64)sock;
	else if (handled && handled->left == (__u64)sock)
		handled->left = 0;
	place.kind = READ;
	place.of = sock ? BPF_CORE_READ(sock, sk_napi_id) : 0;
	calls = calls_at(&place);
	if (calls)
		calls->calls++;
}

SEC("raw_tp/sys_enter")
int quell_enter(__u64 *ctx)
{
	__u64 regs = ctx[0], pid_tgid, flags = 0, max_events = 0;
	__s64 id = (__s64)ctx[1];
	struct pending call = {};
	struct handled *handled;
	struct calls *calls;
	__u32 tid, of_socket;

	if (id < 0)
		return 0;
	of_socket = id < CALLS && SOCKET_CALLS[id / 64] >> (id % 64) & 1;
	if (!of_socket && id != EPOLL_WAIT && id != EPOLL_PWAIT && id != EPOLL_PWAIT2 && id != POLL_CALL && id != PPOLL &&
	    id != SELECT && id != PSELECT6 && id != IO_URING_ENTER)
		return 0;
	pid_tgid = bpf_get_current_pid_tgid();
	call.place.tgid = pid_tgid >> 32;
	call.place.tid = tid = (__u32)pid_tgid;
	if (!bpf_map_lookup_elem(&programs, &call.place.tgid))
		return 0;
	call.sleeps = sleeps();
	call.place.kind = POLL;
	if (of_socket) {
		call.place.kind = SOCKET;
		call.place.of = (__u32)argument(regs, ARGUMENT_0);
		call.is_read = READ_CALLS[id / 64] >> (id % 64) & 1;
		if (FLAGS_2_CALLS[id / 64] >> (id % 64) & 1)
			flags = argument(regs, ARGUMENT_2);
		else if (FLAGS_3_CALLS[id / 64] >> (id % 64) & 1)
			flags = argument(regs, ARGUMENT_3);
		call.is_nonblocking = !!(flags & MSG_DONTWAIT);
		bpf_map_update_elem(&pending, &tid, &call, 0);
		return 0;
	}
	if (id == EPOLL_WAIT || id == EPOLL_PWAIT || id == EPOLL_PWAIT2) {
		call.place.kind = EPOLL;
		call.place.of = (__u32)argument(regs, ARGUMENT_0);
		max_events = (__u32)argument(regs, ARGUMENT_2);
		if ((__s32)call.place.of < 0)
			return 0;
		if (id == EPOLL_PWAIT2)
			call.zero = is_zero_time(argument(regs, ARGUMENT_3));
		else
			call.zero = !(__u32)argument(regs, ARGUMENT_3);
	} else if (id == POLL_CALL || id == PPOLL) {
		call.polled = argument(regs, ARGUMENT_0);
		call.files = (__u32)argument(regs, ARGUMENT_1);
		call.zero = id == PPOLL ? is_zero_time(argument(regs, ARGUMENT_2)) : !(__u32)argument(regs, ARGUMENT_2);
	} else if (id == IO_URING_ENTER) {
		call.place.kind = IO_URING;
		flags = argument(regs, ARGUMENT_3);
		call.zero = !(flags & IORING_ENTER_GETEVENTS) || !(__u32)argument(regs, ARGUMENT_2) ||
			    is_zero_limit(flags, argument(regs, ARGUMENT_4));
	} else {
		call.zero = is_zero_time(argument(regs, ARGUMENT_4));
	}
	calls = calls_at(&call.place);
	if (!calls)
		return 0;
	calls->calls++;
	calls->zero += call.zero;
	handled = call.place.kind == EPOLL ? bpf_map_lookup_elem(&handling, &tid) : NULL;
	if (handled && handled->left) {
		calls->left++;
		calls->left_ns += bpf_ktime_get_ns() - handled->since_ns;
		handled->left = 0;
	}
	if (max_events > calls->max_events)
		calls->max_events = max_events;
	bpf_map_update_elem(&pending, &tid, &call, 0);
	return 0;
}

SEC("raw_tp/sys_exit")
int quell_exit(__u64 *ctx)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid(), slept, i;
	struct pending *call = bpf_map_lookup_elem(&pending, &tid);
	__s64 returned = (__s64)ctx[1];
	struct handled handled = {};
	struct pollfd polled;
	struct calls *calls;

	if (!call)
		return 0;
	slept = sleeps() != call->sleeps;
	if (call->place.kind == SOCKET) {
		/* One that must not wait can sleep for the lock of its socket. */
		if (slept && !call->is_nonblocking)
			count_file(call->place, call->place.of);
		if (call->is_read && returned > 0)
			count_read(call->place);
		bpf_map_delete_elem(&pending, &tid);
		return 0;
	}
	calls = bpf_map_lookup_elem(&waits, &call->place);
	if (calls) {
		calls->slept += slept;
		if (returned > 0)
			calls->events++;
		else if (returned == 0)
			calls->zero_empty += call->zero;
	}
	if (call->place.kind == EPOLL && returned > 0) {
		handled.since_ns = bpf_ktime_get_ns();
		bpf_map_update_elem(&handling, &tid, &handled, 0);
	}
	if (slept && call->polled) {
		for (i = 0; i < FILES && i < call->files; i++) {
			if (bpf_probe_read_user(&polled, sizeof(polled), (void *)(call->polled + i * sizeof(polled))))
				break;
			count_file(call->place, (__u32)polled.fd);
		}
	}
	bpf_map_delete_elem(&pending, &tid);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
