/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Answers TCP segments for one port without a connection: selects frames and rewrites each into its response, in place.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

enum { XDP_DROP = 1, XDP_PASS = 2, XDP_TX = 3 };
enum { FIN = 0x01, SYN = 0x02, RST = 0x04, ACK = 0x10 };

struct xdp_md {
	__u32 data;
	__u32 data_end;
};

/* Ethernet, IPv4 without options, TCP up to its options. */
struct headers {
	__u8 eth_to[6];
	__u8 eth_from[6];
	__be16 eth_type;
	__u8 ip_version_and_length;
	__u8 ip_tos;
	__be16 ip_total_bytes;
	__u8 ip_id_to_ttl[5];
	__u8 ip_protocol;
	__u16 ip_checksum;
	__be32 ip_from;
	__be32 ip_to;
	__be16 tcp_from;
	__be16 tcp_to;
	__be32 tcp_sequence;
	__be32 tcp_acknowledged;
	/* Header length in 32-bit words (4 bits), reserved bits, flags. */
	__be16 tcp_length_and_flags;
	__be16 tcp_window;
	__be16 tcp_checksum;
	__be16 tcp_urgent;
} __attribute__((packed));

/* Linux places two NOP bytes before the timestamp option. In a SYN, the MSS and SACK-permitted options precede it. */
struct stamps {
	__u8 nops_and_kind[4];
	__be32 value;
	__be32 echo;
} __attribute__((packed));

struct syn_stamps {
	__u8 mss_and_sack[8];
	__be32 value;
	__be32 echo;
} __attribute__((packed));

enum { DATA_WORDS = 8, SYN_WORDS = 10, IP_AND_TCP_BYTES = 52 };

volatile const __u16 port = 0;

#define swap(one, other)                        \
	do {                                    \
		__typeof__(one) kept = (one);   \
		(one) = (other);                \
		(other) = kept;                 \
	} while (0)

SEC("xdp")
int xdp_echo(struct xdp_md *frame)
{
	void *end = (void *)(long)frame->data_end;
	struct headers *head = (void *)(long)frame->data;
	struct stamps *stamps = (void *)(head + 1);

	if ((void *)(stamps + 1) > end || head->eth_type != bpf_htons(0x0800) ||
	    head->ip_version_and_length != 0x45 || head->ip_protocol != 6 || head->tcp_to != bpf_htons(port))
		return XDP_PASS;

	__u16 flags = bpf_ntohs(head->tcp_length_and_flags), answer;
	/* What the segment takes of the sequence space: its bytes, plus one for SYN or FIN. */
	__u32 taken;

	if (flags & SYN) {
		struct syn_stamps *of_syn = (void *)(head + 1);

		if (flags >> 12 != SYN_WORDS || (void *)(of_syn + 1) > end)
			return XDP_DROP;
		taken = 1;
		answer = SYN_WORDS << 12 | SYN | ACK;
		swap(of_syn->value, of_syn->echo);
	} else {
		if (flags >> 12 != DATA_WORDS || flags & RST)
			return XDP_DROP;
		taken = bpf_ntohs(head->ip_total_bytes) - IP_AND_TCP_BYTES;
		answer = flags;
		if (flags & FIN) {
			taken += 1;
			answer = DATA_WORDS << 12 | RST | ACK;
		} else if ((__s32)taken <= 0) {
			return XDP_DROP;
		}
		swap(stamps->value, stamps->echo);
	}

	for (int byte = 0; byte < 6; byte++)
		swap(head->eth_to[byte], head->eth_from[byte]);
	swap(head->ip_from, head->ip_to);
	swap(head->tcp_from, head->tcp_to);

	/*
	 * The received acknowledgement number becomes the sequence number, and the received data are acknowledged.
	 *
	 * RFC 1624: the new checksum is the complement of (~old checksum + ~old words + new words), with carries folded
	 * at the end. Only changed words are added, because moving a word does not change the sum. The sum uses 32-bit
	 * words, because 2^16 is 1 modulo 2^16 - 1.
	 */
	__u32 sequence = bpf_ntohl(head->tcp_sequence), acknowledges = sequence + taken;
	__u64 sum = (__u16)~bpf_ntohs(head->tcp_checksum);

	sum += (__u32)~sequence;
	sum += acknowledges;
	sum += (__u16)~flags;
	sum += answer;
	head->tcp_sequence = head->tcp_acknowledged;
	head->tcp_acknowledged = bpf_htonl(acknowledges);
	head->tcp_length_and_flags = bpf_htons(answer);
	for (int fold = 0; fold < 3; fold++)
		sum = (sum & 0xffff) + (sum >> 16);
	head->tcp_checksum = bpf_htons((__u16)~sum);
	return XDP_TX;
}

/* A veth interface needs an XDP program to receive frames that the peer's XDP program sends. */
SEC("xdp")
int xdp_pass(struct xdp_md *frame)
{
	return XDP_PASS;
}
