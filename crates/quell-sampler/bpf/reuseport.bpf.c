// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Lists the sockets of reuseport groups in one network namespace, with the program that selects among the sockets of the
 * group. The kernel reports this program in no other way. It only observes.
 *
 * src/reuseport.rs reads the records. Both files must agree on their layout.
 */
#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

enum { CLASSIC_MAX = 512 };

/* Instruction of classic BPF (linux/filter.h). */
struct instruction {
	__u16 code;
	__u8 jt;
	__u8 jf;
	__u32 k;
};

struct record {
	__u64 inode;   /* 0: the socket belongs to no file */
	__u32 present; /* the group has a program */
	__u32 type;    /* enum bpf_prog_type; 0: classic BPF */
	__u32 id;      /* of an eBPF program; 0: classic BPF */
	__u32 length;  /* instructions of a classic program */
	__u32 copied;  /* of these, the ones that follow: all or none */
	__u32 zero;
};

struct output {
	struct record record;
	struct instruction classic[CLASSIC_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct output);
} outputs SEC(".maps");

static __always_inline void read_program(struct output *output, struct bpf_prog *prog)
{
	struct sock_fprog_kern *classic = BPF_CORE_READ(prog, orig_prog);
	struct record *record = &output->record;
	__u32 length;
	__u64 bytes;
	void *code;

	record->present = 1;
	record->type = BPF_CORE_READ(prog, type);
	record->id = BPF_CORE_READ(prog, aux, id);
	if (!classic)
		return;
	length = BPF_CORE_READ(classic, len);
	record->length = length;
	code = BPF_CORE_READ(classic, filter);
	/* The verifier needs both bounds on the register that is passed. */
	bytes = length * sizeof(struct instruction);
	barrier_var(bytes);
	if (bytes > 0 && bytes <= sizeof(output->classic) && !bpf_probe_read_kernel(output->classic, bytes, code))
		record->copied = length;
}

static __always_inline int list(struct bpf_iter_meta *meta, struct sock *sk)
{
	struct sock_reuseport *group = BPF_CORE_READ(sk, sk_reuseport_cb);
	struct output *output;
	struct bpf_prog *prog;
	__u32 zero = 0;
	__u64 bytes;

	output = bpf_map_lookup_elem(&outputs, &zero);
	if (!group || !output)
		return 0;
	output->record = (struct record){ .inode = BPF_CORE_READ(sk, sk_socket, file, f_inode, i_ino) };
	prog = BPF_CORE_READ(group, prog);
	if (prog)
		read_program(output, prog);
	bytes = sizeof(struct record) + output->record.copied * sizeof(struct instruction);
	barrier_var(bytes);
	/* When the buffer is full, the kernel calls the program again for this socket. */
	if (bytes <= sizeof(struct output))
		bpf_seq_write(meta->seq, output, bytes);
	return 0;
}

/* Sockets in TIME_WAIT and in the handshake are smaller than a struct sock: only the state of those may be read. */
SEC("iter/tcp")
int quell_tcp(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;

	if (!common || common->skc_state != TCP_LISTEN)
		return 0;
	return list(ctx->meta, (struct sock *)common);
}

SEC("iter/udp")
int quell_udp(struct bpf_iter__udp *ctx)
{
	struct udp_sock *udp = ctx->udp_sk;

	if (!udp)
		return 0;
	return list(ctx->meta, (struct sock *)udp);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
