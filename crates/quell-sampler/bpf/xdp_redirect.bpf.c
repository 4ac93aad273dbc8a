/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Gives UDP datagrams for one address and port to the AF_XDP socket of their queue, and every other frame to the stack.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

enum { XDP_PASS = 2 };
enum { BPF_MAP_TYPE_XSKMAP = 17 };
enum { IPV4 = 0x0800, IPV6 = 0x86dd, UDP = 17 };

struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
};

struct ethernet {
	__u8 addresses[12];
	__be16 type;
} __attribute__((packed));

struct ipv4 {
	__u8 version_and_length;
	__u8 tos;
	__be16 bytes;
	__u16 id;
	/* Three flags, then the offset in units of 8 bytes. */
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__u16 checksum;
	__u8 from[4];
	__u8 to[4];
} __attribute__((packed));

struct ipv6 {
	__u8 version_to_flow[4];
	__be16 bytes;
	__u8 protocol;
	__u8 hops;
	__u8 from[16];
	__u8 to[16];
} __attribute__((packed));

struct ports {
	__be16 from;
	__be16 to;
} __attribute__((packed));

/* Network byte order; an IPv4 address has 4 bytes, the others are 0. */
volatile const __u8 local_address[16] = {};
volatile const __u16 local_port = 0;
volatile const __u8 is_ipv6 = 0;

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

static __always_inline int is_local(const __u8 *address, int bytes)
{
	for (int at = 0; at < bytes; at++)
		if (address[at] != local_address[at])
			return 0;
	return 1;
}

SEC("xdp")
int xdp_redirect(struct xdp_md *frame)
{
	void *end = (void *)(long)frame->data_end;
	struct ethernet *ethernet = (void *)(long)frame->data;
	struct ports *ports;

	if ((void *)(ethernet + 1) > end)
		return XDP_PASS;
	if (is_ipv6) {
		struct ipv6 *ip = (void *)(ethernet + 1);

		if (ethernet->type != bpf_htons(IPV6) || (void *)(ip + 1) > end || ip->protocol != UDP ||
		    !is_local(ip->to, 16))
			return XDP_PASS;
		ports = (void *)(ip + 1);
	} else {
		struct ipv4 *ip = (void *)(ethernet + 1);

		/* Fragments and options are the stack's. */
		if (ethernet->type != bpf_htons(IPV4) || (void *)(ip + 1) > end || ip->version_and_length != 0x45 ||
		    ip->protocol != UDP || ip->fragment & bpf_htons(0x3fff) || !is_local(ip->to, 4))
			return XDP_PASS;
		ports = (void *)(ip + 1);
	}
	if ((void *)(ports + 1) > end || ports->to != local_port)
		return XDP_PASS;
	/* A queue without a socket passes the frame to the stack. */
	return bpf_redirect_map(&sockets, frame->rx_queue_index, XDP_PASS);
}
