// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* An empty program at the tracepoint of the sampler: its run time is the cost of the kernel's accounting. */
#define SEC(name) __attribute__((section(name), used))

SEC("tp_btf/napi_poll")
int quell_empty(void *ctx)
{
	return 0;
}

SEC("license")
char LICENSE[] = "Dual MIT/GPL";
