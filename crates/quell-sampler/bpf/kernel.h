/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The members of kernel structures that the programs read. The loader relocates every access to the running kernel's
 * layout (CO-RE), so neither the order nor the missing members matter.
 */
#ifndef QUELL_KERNEL_H
#define QUELL_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed short __s16;
typedef signed int __s32;
typedef signed long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PERCPU_ARRAY = 6 };
/* linux/sched.h; unchanged since 2.6. */
enum { PF_KTHREAD = 0x00200000 };

/* linux/stat.h, linux/socket.h */
enum { S_IFMT = 0170000, S_IFSOCK = 0140000 };
/* asm-generic/fcntl.h */
enum { O_NONBLOCK = 04000 };
enum { MSG_DONTWAIT = 0x40 }; /* linux/socket.h */
enum { AF_INET = 2, AF_INET6 = 10, AF_XDP = 44 };
enum { TCP_ESTABLISHED = 1, TCP_LISTEN = 10 }; /* net/tcp_states.h */
enum { IPPROTO_TCP = 6 }; /* linux/in.h */

enum bpf_prog_type { BPF_PROG_TYPE_UNSPEC };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct file;

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct task_struct {
	unsigned int flags;
	int pid;
	char comm[16];
	unsigned long nvcsw;
	struct files_struct *files;
};

struct hrtimer {
	__s64 _softexpires;
	void *function;
};

struct net_device {
	int ifindex;
	/* Until Linux 6.12. */
	unsigned long gro_flush_timeout;
	__u32 napi_defer_hard_irqs;
};

struct napi_struct {
	unsigned long state;
	__u32 defer_hard_irqs_count;
	struct net_device *dev;
	struct hrtimer timer;
	struct task_struct *thread;
	unsigned int napi_id;
	/* Since Linux 6.13. */
	unsigned long gro_flush_timeout;
	unsigned long irq_suspend_timeout;
	__u32 defer_hard_irqs;
};

struct inode {
	unsigned short i_mode;
	unsigned long i_ino;
};

struct file {
	unsigned int f_flags;
	struct inode *f_inode;
	void *private_data;
	struct hlist_head *f_ep;
};

struct sock;

struct socket {
	struct file *file;
	struct sock *sk;
};

struct bpf_prog_aux {
	__u32 id;
};

struct sock_fprog_kern {
	__u16 len;
	void *filter;
};

struct bpf_prog {
	enum bpf_prog_type type;
	struct bpf_prog_aux *aux;
	struct sock_fprog_kern *orig_prog;
};

struct sock_reuseport {
	struct bpf_prog *prog;
};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
};

struct sock {
	struct sock_common __sk_common;
	unsigned int sk_napi_id;
	__u16 sk_protocol;
	struct socket *sk_socket;
	struct sock_reuseport *sk_reuseport_cb;
};

struct tcp_sock {
	__u32 rcv_nxt;
	__u32 copied_seq;
};

struct xsk_buff_pool {
	_Bool uses_need_wakeup;
};

struct xdp_sock {
	struct sock sk;
	struct net_device *dev;
	struct xsk_buff_pool *pool;
	__u16 queue_id;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

#pragma clang attribute pop

/* Contexts of iterators: each member takes 8 bytes, in this order (include/linux/bpf.h, DEFINE_BPF_ITER_FUNC). */
struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

struct bpf_iter__udp {
	struct bpf_iter_meta *meta;
	struct udp_sock *udp_sk;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd __attribute__((aligned(8)));
	struct file *file;
};

#endif
