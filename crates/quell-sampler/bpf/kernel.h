/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The members of kernel structures that the sampler reads. The loader relocates every access to the running kernel's
 * layout (CO-RE), so neither the order nor the missing members matter.
 */
#ifndef QUELL_KERNEL_H
#define QUELL_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed int __s32;
typedef signed long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_PERCPU_ARRAY = 6 };
/* linux/sched.h; unchanged since 2.6. */
enum { PF_KTHREAD = 0x00200000 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_struct {
	unsigned int flags;
	int pid;
	char comm[16];
};

struct hrtimer {
	__s64 _softexpires;
	void *function;
};

struct net_device {
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

#pragma clang attribute pop

#endif
