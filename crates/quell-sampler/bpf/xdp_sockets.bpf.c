// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Lists the AF_XDP sockets that processes hold, with the device and queue of each. Kernels without XDP_DIAG report them
 * in no other way. It only observes.
 *
 * src/xdp_sockets.rs reads the records. Both files must agree on their layout.
 */
#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

struct record {
	__u64 inode;
	__u32 namespace; /* inode of its network namespace */
	__u32 ifindex;   /* 0: it is not bound */
	__u32 queue;
	__u32 need_wakeup;
};

SEC("iter/task_file")
int quell_xdp_sockets(struct bpf_iter__task_file *ctx)
{
	struct file *file = ctx->file;
	struct record record = {};
	struct socket *socket;
	struct xdp_sock *xs;
	struct sock *sk;

	if (!file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	sk = BPF_CORE_READ(socket, sk);
	if (!sk || BPF_CORE_READ(sk, __sk_common.skc_family) != AF_XDP)
		return 0;
	xs = (struct xdp_sock *)sk;
	record.inode = BPF_CORE_READ(file, f_inode, i_ino);
	record.namespace = BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
	record.ifindex = BPF_CORE_READ(xs, dev, ifindex);
	record.queue = BPF_CORE_READ(xs, queue_id);
	record.need_wakeup = BPF_CORE_READ(xs, pool, uses_need_wakeup);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
