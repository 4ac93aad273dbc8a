// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Samples the polls of selected NAPI instances: who polled, how many packets, and how long the packets can have waited
 * in the ring. It only observes.
 *
 * The kernel serializes the polls of an instance with NAPI_STATE_SCHED, so its counters need no lock. A driver releases
 * that bit shortly before the tracepoint, so two programs can overlap for some instructions. Then a count can be lost;
 * atomic counters would prevent this, for a third more time. And the end of the other poll can be later than this one's,
 * so differences of times stop at 0.
 *
 * src/counters.rs reads the map. Both files must agree on the layout of struct queue.
 */
#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* Who polled. */
enum poller {
	INTERRUPT,    /* softirq that the interrupt scheduled */
	TIMER,        /* softirq that the deferral timer scheduled */
	RESCHEDULED,  /* softirq that neither scheduled: end of a suspension, or a poll that was requested while another ran */
	KSOFTIRQD,    /* softirq in its kernel thread */
	THREAD,       /* the instance's own kernel thread */
	PROGRAM,      /* busy poll of a program */
	PROGRAM_LAST, /* the poll after the loop of a busy poll (busy_poll_stop) */
	POLLERS,
};

/* Histogram of waits: units of 128 ns, eight buckets for each power of two, up to 137 s. */
#define WAIT_UNIT_BITS 7
#define WAIT_SUB_BITS 3
#define WAIT_SUBS (1 << WAIT_SUB_BITS)
#define WAITS 224

struct queue {
	/* State, and the counters that most polls change: as few cache lines as possible. */
	__u64 timed_at;   /* enabled_ns, masked_ns and suspended_ns count up to this end of a poll; 0: none yet */
	__u64 emptied_at; /* end of the last poll that left the ring empty; 0: none yet */
	__u32 flags;
	__u32 poller;      /* of the last poll */
	__u32 napi;        /* NAPI ID, set by user space */
	__u32 tid;         /* thread that ran the last poll */
	__u32 budget;      /* of the last poll */
	__u32 deferrals;   /* empty polls that the interrupt stays masked for, after the last poll */
	/* The instance's timer schedules the next poll: DEFERRAL_OVER or SUSPENSION_OVER. A word that quell_timer alone sets. */
	__u64 timer_fired;
	__u64 packets;
	/* Sum of the waits of packets, except interrupt_packets. */
	__u64 wait_ns;

	__u64 polls[POLLERS];
	/* Time of polls in softirqs, estimated from timed ones; counted only if quell_softirq is attached. */
	__u64 softirq_ns;

	/* Packets that came while the interrupt was enabled: their wait is the interrupt's latency. */
	__u64 interrupt_packets;
	/* Time up to a poll, by the state of the interrupt before that poll. */
	__u64 enabled_ns;
	__u64 masked_ns;
	__u64 suspended_ns;
	__u64 program_found_suspended;
	__u64 empty;
	__u64 budget_exhausted;
	__u64 stalled_polls; /* polls that found packets after STALLED_NS without a poll and with the interrupt masked */

	/* Begins a cache line. */
	__u64 waits[WAITS];
};

#define ENABLED 1    /* the last poll enabled the interrupt */
#define EXPOSED 2    /* the interrupt was enabled at some time since emptied_at */
#define FULL 4       /* the last poll used its whole budget */

#define DEFERRAL_OVER 1
#define SUSPENSION_OVER 2

/* src/wait.rs has the same value. */
#define STALLED_NS 50000000ULL

/* Arrays, because the verifier inlines their lookups. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct queue);
} queues SEC(".maps");

#define SLOTS 65536

/* Index in queues plus 1, by the low bits of a NAPI ID; 0: not selected. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} slots SEC(".maps");

/* One of so many NET_RX softirqs is timed, because a read of the clock is the largest part of a program's cost. */
#define SOFTIRQS_PER_TIMED 8

struct cpu {
	__u64 poll_began; /* begin of the current NET_RX softirq, or end of its last poll; 0: it is not timed */
	__u64 random;     /* linear congruential generator (Knuth, MMIX): softirqs can alternate between queues */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

/* Set by the loader: bits of napi_struct.state, and the number of the softirq, which are values of anonymous enums. */
const volatile __u64 SCHED;
const volatile __u64 IN_BUSY_POLL;
const volatile __u64 NET_RX_SOFTIRQ;
/* Set by the loader: whether quell_softirq is attached. */
const volatile __u64 TIMES_SOFTIRQS;

/* Address of the function of deferral timers; 0 until the first poll of a selected instance. */
__u64 napi_watchdog;

#define add(counter, value) ((counter) += (value))

static __always_inline struct queue *queue_of(__u32 id)
{
	__u32 slot = id & (SLOTS - 1), at, *index;
	struct queue *queue;

	index = bpf_map_lookup_elem(&slots, &slot);
	if (!index || !*index)
		return 0;
	at = *index - 1;
	queue = bpf_map_lookup_elem(&queues, &at);
	return queue && queue->napi == id ? queue : 0;
}

struct deferral {
	__u32 defer_hard_irqs;
	__u64 gro_flush_timeout;
};

static __always_inline struct deferral deferral_of(struct napi_struct *napi)
{
	struct deferral deferral;

	if (bpf_core_field_exists(napi->defer_hard_irqs)) {
		deferral.defer_hard_irqs = napi->defer_hard_irqs;
		deferral.gro_flush_timeout = napi->gro_flush_timeout;
	} else {
		deferral.defer_hard_irqs = napi->dev->napi_defer_hard_irqs;
		deferral.gro_flush_timeout = napi->dev->gro_flush_timeout;
	}
	return deferral;
}

static __always_inline int is_ksoftirqd(struct task_struct *task)
{
	static const char name[] = "ksoftirqd/";
	int i;

	if (!(task->flags & PF_KTHREAD))
		return 0;
	for (i = 0; i < (int)sizeof(name) - 1; i++)
		if (task->comm[i] != name[i])
			return 0;
	return 1;
}

static __always_inline __u64 log2_of(__u64 value)
{
	__u64 log = 0;

	if (value >> 16) { value >>= 16; log += 16; }
	if (value >> 8) { value >>= 8; log += 8; }
	if (value >> 4) { value >>= 4; log += 4; }
	if (value >> 2) { value >>= 2; log += 2; }
	return log + (value >> 1);
}

static __always_inline __u64 bucket_of(__u64 ns)
{
	__u64 units = ns >> WAIT_UNIT_BITS, log, bucket;

	if (units >> 30)
		return WAITS - 1;
	if (units < WAIT_SUBS)
		return units;
	log = log2_of(units);
	bucket = (log - WAIT_SUB_BITS + 1) * WAIT_SUBS + ((units >> (log - WAIT_SUB_BITS)) & (WAIT_SUBS - 1));
	return bucket;
}

/* Whether the timer expires later than deferral allows: only a suspension arms it so (napi_suspend_irqs). */
static __always_inline int is_suspended(struct napi_struct *napi, struct deferral deferral, __u64 now)
{
	if (!bpf_core_field_exists(napi->irq_suspend_timeout) || !deferral.defer_hard_irqs || !deferral.gro_flush_timeout)
		return 0;
	return napi->irq_suspend_timeout >= deferral.gro_flush_timeout &&
	       (__u64)napi->timer._softexpires >= now + deferral.gro_flush_timeout;
}

static __always_inline struct cpu *this_cpu(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&cpus, &zero);
}

/*
 * Whether the interrupt is masked after this poll. Only a poll that completes (napi_complete_done) can enable it. Its
 * count of deferrals is already decremented, so 0 is ambiguous: masked by the last deferral, or enabled.
 */
static __always_inline int is_masked_after(struct napi_struct *napi, struct deferral deferral, struct queue *queue,
					   __u64 state, __u32 work, __u32 budget, int ends_busy_poll)
{
	if (work >= budget || state & (IN_BUSY_POLL | SCHED))
		return 1;
	if (!deferral.defer_hard_irqs || !deferral.gro_flush_timeout)
		return 0;
	return work || napi->defer_hard_irqs_count || queue->deferrals == 1 ||
	       (ends_busy_poll && deferral.defer_hard_irqs == 1);
}

/* Whether this poll of a thread follows the loop of its busy poll. It has the budget of the loop; a softirq has the weight. */
static __always_inline int ends_busy_poll(struct queue *queue, struct task_struct *task, __u32 budget)
{
	return queue->poller == PROGRAM && queue->tid == (__u32)task->pid && queue->budget == budget;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(quell_softirq, unsigned int vec_nr)
{
	struct cpu *cpu;

	if (vec_nr != NET_RX_SOFTIRQ)
		return 0;
	cpu = this_cpu();
	if (!cpu)
		return 0;
	cpu->random = cpu->random * 6364136223846793005ULL + 1442695040888963407ULL;
	cpu->poll_began = (cpu->random >> 32) % SOFTIRQS_PER_TIMED ? 0 : bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/napi_poll")
int BPF_PROG(quell_poll, struct napi_struct *napi, int work_done, int budget_given)
{
	__u32 work = work_done, budget = budget_given;
	struct queue *queue = queue_of(napi->napi_id);
	struct deferral deferral;
	struct task_struct *task;
	struct cpu *cpu;
	__u64 now = 0, took = 0, state, flags, timer_fired, poller, since, bucket;
	int busy, masked;

	if (TIMES_SOFTIRQS) {
		cpu = this_cpu();
		/* A poll of any instance ends the previous one. */
		if (cpu && cpu->poll_began) {
			now = bpf_ktime_get_ns();
			took = (now - cpu->poll_began) * SOFTIRQS_PER_TIMED;
			cpu->poll_began = now;
		}
	}
	/* A budget of 0 is netpoll's, which receives nothing. */
	if (!queue || !budget)
		return 0;
	task = bpf_get_current_task_btf();
	state = napi->state;
	flags = queue->flags;
	timer_fired = queue->timer_fired;
	busy = !!(state & IN_BUSY_POLL);
	deferral = deferral_of(napi);

	/* The thread first: it sets the state of a busy poll, too (threaded=2). */
	if (task == napi->thread)
		poller = THREAD;
	else if (busy)
		poller = PROGRAM;
	else if (ends_busy_poll(queue, task, budget) && !timer_fired)
		poller = PROGRAM_LAST;
	else if (is_ksoftirqd(task))
		poller = KSOFTIRQD;
	else if (timer_fired)
		poller = TIMER;
	else if (flags & FULL && queue->poller <= RESCHEDULED)
		poller = queue->poller;
	else
		poller = queue->timed_at && !(flags & ENABLED) ? RESCHEDULED : INTERRUPT;

	masked = is_masked_after(napi, deferral, queue, state, work, budget, poller == PROGRAM_LAST);

	if (poller <= KSOFTIRQD)
		add(queue->softirq_ns, took);
	barrier_var(poller);
	if (poller < POLLERS)
		add(queue->polls[poller], 1);
	if (!work)
		add(queue->empty, 1);
	else
		add(queue->packets, work);
	if (timer_fired)
		queue->timer_fired = work < budget ? 0 : DEFERRAL_OVER;
	queue->poller = poller;
	queue->tid = task->pid;
	queue->budget = budget;
	queue->deferrals = napi->defer_hard_irqs_count;

	/* The interrupt was enabled and is enabled again: no wait has a bound, and a later poll adds to enabled_ns. */
	if (!now && flags & ENABLED && !masked) {
		add(queue->interrupt_packets, work);
		return 0;
	}
	if (!now)
		now = bpf_ktime_get_ns();

	/* Where the wait of these packets began. */
	if (work) {
		if (!queue->emptied_at || flags & EXPOSED) {
			add(queue->interrupt_packets, work);
		} else {
			since = now > queue->emptied_at ? now - queue->emptied_at : 0;
			add(queue->wait_ns, since * work);
			bucket = bucket_of(since);
			/* The verifier needs the check that the compiler would drop. */
			barrier_var(bucket);
			if (bucket < WAITS)
				add(queue->waits[bucket], work);
		}
	}
	if (!queue->timed_at) {
		/* The first poll of the instance. */
		napi_watchdog = (__u64)napi->timer.function;
	} else {
		since = now > queue->timed_at ? now - queue->timed_at : 0;
		/* A poll that left the interrupt masked has read the clock, so timed_at is its end. */
		if (!(flags & ENABLED) && since >= STALLED_NS && work)
			add(queue->stalled_polls, 1);
		if (flags & ENABLED) {
			add(queue->enabled_ns, since);
		} else if (poller == PROGRAM && is_suspended(napi, deferral, now)) {
			add(queue->suspended_ns, since);
			add(queue->program_found_suspended, 1);
		} else if (timer_fired == SUSPENSION_OVER) {
			add(queue->suspended_ns, since);
		} else {
			add(queue->masked_ns, since);
		}
	}
	queue->timed_at = now;

	if (work < budget) {
		queue->emptied_at = now;
		flags = 0;
	} else {
		add(queue->budget_exhausted, 1);
		flags = (flags & EXPOSED) | FULL;
	}
	if (!masked)
		flags |= ENABLED | EXPOSED;
	queue->flags = flags;
	return 0;
}

/*
 * Less than quell_poll, without the clock: whether anybody polls the instance, whether packets come, and whether the last
 * poll enabled the interrupt. Watches for stalls run as long as their attachments.
 */
SEC("tp_btf/napi_poll")
int BPF_PROG(quell_watch, struct napi_struct *napi, int work_done, int budget_given)
{
	__u32 work = work_done, budget = budget_given, poller;
	struct queue *queue = queue_of(napi->napi_id);
	struct task_struct *task;
	__u64 state;

	if (!queue || !budget)
		return 0;
	task = bpf_get_current_task_btf();
	state = napi->state;
	poller = state & IN_BUSY_POLL ? PROGRAM : ends_busy_poll(queue, task, budget) ? PROGRAM_LAST : RESCHEDULED;
	queue->flags = is_masked_after(napi, deferral_of(napi), queue, state, work, budget, poller == PROGRAM_LAST) ? 0 : ENABLED;
	queue->poller = poller;
	queue->tid = task->pid;
	queue->budget = budget;
	queue->deferrals = napi->defer_hard_irqs_count;
	barrier_var(poller);
	if (poller < POLLERS)
		add(queue->polls[poller], 1);
	add(queue->packets, work);
	return 0;
}

/*
 * Whether a suspension armed the timer that expires. Deferral arms it before the end of a poll, with a shorter timeout;
 * a suspension after it (napi_suspend_irqs).
 */
static __always_inline int ends_suspension(struct napi_struct *napi, struct hrtimer *timer, struct queue *queue)
{
	__u64 timeout;

	if (!bpf_core_field_exists(napi->irq_suspend_timeout))
		return 0;
	timeout = BPF_CORE_READ(napi, irq_suspend_timeout);
	return timeout > BPF_CORE_READ(napi, gro_flush_timeout) && queue->timed_at &&
	       (__u64)timer->_softexpires >= queue->timed_at + timeout;
}

/*
 * A timer of the host expires. If it is the deferral timer of an instance, it schedules a poll, unless somebody owns the
 * instance (napi_watchdog). A tracepoint, because kernels without function tracing refuse programs at functions.
 */
SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(quell_timer, struct hrtimer *timer)
{
	struct napi_struct *napi;
	struct queue *queue;

	if (!napi_watchdog || (__u64)timer->function != napi_watchdog)
		return 0;
	napi = (void *)timer - bpf_core_field_offset(struct napi_struct, timer);
	queue = queue_of(BPF_CORE_READ(napi, napi_id));
	if (queue && !(BPF_CORE_READ(napi, state) & SCHED))
		queue->timer_fired = ends_suspension(napi, timer, queue) ? SUSPENSION_OVER : DEFERRAL_OVER;
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
