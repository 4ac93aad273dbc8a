/* The library that `quell run` preloads into a program. It intercepts six functions of the C library and makes the
 * changes that are impossible from outside the program. README.md in this directory describes the changes and their
 * cost. Without valid settings in the environment, the library does nothing.
 *
 * The library runs in other people's programs. It allocates no memory, prints nothing, opens no file and has no
 * per-thread state. It calls only functions that are safe in a signal handler and in a child of fork(). Control may
 * leave each function at any instruction. A wait is a cancellation point, so glibc may unwind a cancelled thread
 * through these frames, and signal handlers may longjmp() over them. C defines this behavior, so the library is written
 * in C, with unwind tables for each instruction. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define SLOW __attribute__((noinline))

/* Definitions for kernel headers that predate these features. */
#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif
#ifndef SO_BUSY_POLL
#define SO_BUSY_POLL 46
#endif
#ifndef SO_PREFER_BUSY_POLL
#define SO_PREFER_BUSY_POLL 69
#define SO_BUSY_POLL_BUDGET 70
#endif
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* Settings */

/* `struct epoll_params` of linux/eventpoll.h. Sockets have the same three parameters. */
struct busy_poll {
	uint32_t usecs;
	uint16_t budget;
	uint8_t prefer, pad;
};

#define SET_EPOLL_PARAMS _IOW(0x8A, 1, struct busy_poll)

#define NS_PER_US UINT64_C(1000)
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)
#define FOREVER UINT64_MAX

static struct settings {
	/* Parameters for new epolls, and options for new internet sockets. */
	bool has_epoll, has_sockets;
	struct busy_poll epoll, sockets;
	/* Whether waits with timeout zero become waits of 1 ns. With timeout zero, the kernel neither polls the queue
	 * nor resumes interrupts (ep_poll() in fs/eventpoll.c). Under IRQ suspension, a program that spins would then
	 * get packets only after the suspend timeout. */
	bool timed_zero_waits;
	/* Maximum length of one part of a wait. Longer waits are split; FOREVER does not split them. */
	uint64_t piece_ns;
	/* Time for which a longer wait spins before it sleeps. */
	uint64_t spin_ns;
	/* Whether a wait may need several calls, because it is split or spins. */
	bool several_calls;
	/* Maximum number of events that a wait returns. */
	int events_max;
} settings;

static bool take(const char **text, const char *word)
{
	size_t length = strlen(word);
	if (strncmp(*text, word, length))
		return false;
	*text += length;
	return true;
}

/* Accept digits only, because strtoul() also accepts signs and spaces. */
static bool take_number(const char **text, uint32_t least, uint32_t most, uint32_t *number)
{
	const char *digit = *text;
	uint64_t value = 0;
	for (; *digit >= '0' && *digit <= '9' && value <= most; digit++)
		value = 10 * value + (uint64_t)(*digit - '0');
	if (digit == *text || value < least || value > most)
		return false;
	*text = digit;
	*number = (uint32_t)value;
	return true;
}

/* usecs/budget/prefer */
static bool take_busy_poll(const char **text, bool *is_given, struct busy_poll *values)
{
	uint32_t usecs, budget, prefer;
	if (*is_given || !take_number(text, 0, INT32_MAX, &usecs) || !take(text, "/") ||
	    !take_number(text, 0, UINT16_MAX, &budget) || !take(text, "/") || !take_number(text, 0, 1, &prefer))
		return false;
	*is_given = true;
	*values = (struct busy_poll){ .usecs = usecs, .budget = (uint16_t)budget, .prefer = (uint8_t)prefer };
	return true;
}

static bool take_setting(const char **text, struct settings *to)
{
	uint32_t number;
	if (take(text, ",epoll="))
		return take_busy_poll(text, &to->has_epoll, &to->epoll);
	if (take(text, ",sockets="))
		return take_busy_poll(text, &to->has_sockets, &to->sockets);
	if (take(text, ",zero-waits=timed") && !to->timed_zero_waits) {
		to->timed_zero_waits = true;
		return true;
	}
	if (take(text, ",wait-at-most-ms=") && !to->several_calls && take_number(text, 1, 1000, &number)) {
		to->piece_ns = number * NS_PER_MS;
		to->several_calls = true;
		return true;
	}
	if (take(text, ",spin-usecs=") && !to->several_calls && take_number(text, 1, INT32_MAX, &number)) {
		to->spin_ns = number * NS_PER_US;
		to->several_calls = true;
		return true;
	}
	/* The limit is EP_MAX_EVENTS of fs/eventpoll.c, for events of 12 bytes. */
	if (take(text, ",events-max=") && to->events_max == INT_MAX && take_number(text, 1, INT_MAX / 12, &number)) {
		to->events_max = (int)number;
		return true;
	}
	return false;
}

/* Parses the text that src/preload_settings.rs writes. If any setting is unknown, out of range or repeated, the whole
 * text is ignored, because a part of the settings could be worse than none. */
static struct settings parse(const char *text)
{
	const struct settings nothing = { .piece_ns = FOREVER, .events_max = INT_MAX };
	struct settings read = nothing;
	if (!text || !take(&text, "1"))
		return nothing;
	while (*text)
		if (!take_setting(&text, &read) || (*text && *text != ','))
			return nothing;
	return read;
}

/* Report: the functions of this library that the program has called. The launcher finds it by its symbol and reads it
 * from the program's memory (src/library_report.rs). A child of fork() gets a page of zeros, so that it does not report
 * its parent's calls. */

#ifdef __x86_64__
#define PAGE 4096
#else
#define PAGE 65536
#endif

static union {
	struct {
		/* Whether children of fork() inherit the page, because the kernel does not support MADV_WIPEONFORK. */
		bool is_inherited;
		bool waited, made_socket, refused_socket;
	};
	char page[PAGE];
} report __attribute__((aligned(PAGE)));

extern EXPORTED __typeof__(report) quell_report __attribute__((alias("report")));

/* Writes a flag only once, because each write would take the cache line from the other threads. */
static inline void note(bool *fact)
{
	if (!__atomic_load_n(fact, __ATOMIC_RELAXED))
		__atomic_store_n(fact, true, __ATOMIC_RELAXED);
}

/* Interposition */

typedef int create_fn(int);
typedef int wait_fn(int, struct epoll_event *, int, int);
typedef int pwait_fn(int, struct epoll_event *, int, int, const sigset_t *);
typedef int pwait2_fn(int, struct epoll_event *, int, const struct timespec *, const sigset_t *);
typedef int socket_fn(int, int, int);

struct functions {
	create_fn *epoll_create, *epoll_create1;
	wait_fn *epoll_wait;
	pwait_fn *epoll_pwait;
	pwait2_fn *epoll_pwait2;
	socket_fn *socket;
};

/* The functions of the next libraries in symbol search order. */
static struct functions next;

/* Targets of the intercepted functions. If the settings do not change a function, its target is the next library's
 * function, so a call costs only one more jump. Constructors of other libraries may call these functions before this
 * library's constructor has run. */
static create_fn first_epoll_create, first_epoll_create1;
static wait_fn first_epoll_wait;
static pwait_fn first_epoll_pwait;
static pwait2_fn first_epoll_pwait2;
static socket_fn first_socket;
static struct functions target = {
	first_epoll_create, first_epoll_create1, first_epoll_wait, first_epoll_pwait, first_epoll_pwait2, first_socket,
};

#define TARGET(name) __atomic_load_n(&target.name, __ATOMIC_ACQUIRE)
#define SEND(name, function) __atomic_store_n(&target.name, function, __ATOMIC_RELEASE)

EXPORTED int epoll_create(int size)
{
	return TARGET(epoll_create)(size);
}

EXPORTED int epoll_create1(int flags)
{
	return TARGET(epoll_create1)(flags);
}

EXPORTED int epoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout)
{
	return TARGET(epoll_wait)(epfd, events, maxevents, timeout);
}

EXPORTED int epoll_pwait(int epfd, struct epoll_event *events, int maxevents, int timeout, const sigset_t *mask)
{
	return TARGET(epoll_pwait)(epfd, events, maxevents, timeout, mask);
}

EXPORTED int epoll_pwait2(int epfd, struct epoll_event *events, int maxevents, const struct timespec *timeout,
			  const sigset_t *mask)
{
	return TARGET(epoll_pwait2)(epfd, events, maxevents, timeout, mask);
}

EXPORTED int socket(int domain, int type, int protocol)
{
	return TARGET(socket)(domain, type, protocol);
}

/* Creation of epolls and sockets. If the kernel does not support the parameters, or the program may no longer set them,
 * the object is created without them. The launcher detects this from outside and reports it. */

static int with_params(int epfd)
{
	int before = errno;
	if (epfd < 0)
		return epfd;
	ioctl(epfd, SET_EPOLL_PARAMS, &settings.epoll);
	errno = before;
	return epfd;
}

static int polling_epoll_create(int size)
{
	return with_params(next.epoll_create(size));
}

static int polling_epoll_create1(int flags)
{
	return with_params(next.epoll_create1(flags));
}

static int set_option(int fd, int option, int value)
{
	return setsockopt(fd, SOL_SOCKET, option, &value, sizeof value);
}

/* Accepted connections inherit the options of the listening socket (sk_clone_lock() in net/core/sock.c). */
static int polling_socket(int domain, int type, int protocol)
{
	int before = errno, fd = next.socket(domain, type, protocol);
	if (fd < 0 || (domain != AF_INET && domain != AF_INET6))
		return fd;
	note(&report.made_socket);
	if (set_option(fd, SO_BUSY_POLL, (int)settings.sockets.usecs))
		note(&report.refused_socket);
	set_option(fd, SO_PREFER_BUSY_POLL, settings.sockets.prefer);
	set_option(fd, SO_BUSY_POLL_BUDGET, settings.sockets.budget);
	errno = before;
	return fd;
}

/* Waits. The program must not notice a difference. A wait ends if an event is ready, its time is over, a signal was
 * handled, or the thread is cancelled. */

/* Arguments of a wait, except for its time. */
struct call {
	struct epoll_event *events;
	/* Signal mask during the wait, or NULL. */
	const sigset_t *mask;
	int epfd, maxevents;
	/* Whether the program called epoll_pwait2(), whose timeout is in ns. */
	bool is_exact;
};

/* Waits for this time with a function of the C library, which is a cancellation point. The timeout is as exact as that
 * of the program's call. Without epoll_pwait2(), which a seccomp filter may not allow, it is rounded up to ms, so that
 * no wait ends too early. */
static int wait_once(const struct call *call, uint64_t ns)
{
	if (call->is_exact) {
		struct timespec timeout = { .tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S) };
		return next.epoll_pwait2(call->epfd, call->events, call->maxevents, ns == FOREVER ? NULL : &timeout, call->mask);
	}
	uint64_t ms = ns / NS_PER_MS + (ns % NS_PER_MS != 0);
	int timeout = ns == FOREVER ? -1 : ms > INT_MAX ? INT_MAX : (int)ms;
	return next.epoll_pwait(call->epfd, call->events, call->maxevents, timeout, call->mask);
}

/* Returns ready events without waiting. */
static inline int take_ready(const struct call *call)
{
	static const struct timespec at_once;
	if (call->is_exact)
		return next.epoll_pwait2(call->epfd, call->events, call->maxevents, &at_once, call->mask);
	return next.epoll_pwait(call->epfd, call->events, call->maxevents, 0, call->mask);
}

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* The shortest wait in which the kernel polls the queue, and resumes interrupts if it finds nothing. Like a wait with
 * timeout zero, it does not end with EINTR. */
static SLOW int zero_wait(const struct call *call)
{
	struct call exact = *call;
	int before = errno;
	exact.is_exact = true;
	int result = wait_once(&exact, 1);
	/* An old seccomp filter does not allow epoll_pwait2(). This wait is longer, but it is not a wait with timeout
	 * zero. */
	if (result < 0 && (errno == ENOSYS || errno == EPERM) && !call->is_exact)
		result = wait_once(call, NS_PER_MS);
	if (result < 0 && errno == EINTR) {
		errno = before;
		return 0;
	}
	return result;
}

/* If a signal were handled between two calls of one wait, it would not end the wait. Signals are therefore blocked
 * between the calls. epoll_pwait() unblocks them, and they end that call. */

/* Until the previous mask has been read, `before` is full. The kernel's mask never contains SIGKILL. */
static void unblock(void *before)
{
	int result = errno;
	if (!sigismember(before, SIGKILL))
		sigprocmask(SIG_SETMASK, before, NULL);
	errno = result;
}

/* The bit of signal n in the first word of the kernel's signal set. */
#define BIT(n) (UINT64_C(1) << ((n) - 1))

static uint64_t first_word(const sigset_t *set)
{
	uint64_t word;
	memcpy(&word, set, sizeof word);
	return word;
}

static bool is_ignored(int number)
{
	struct sigaction action;
	if (sigaction(number, NULL, &action))
		return false;
	if (action.sa_handler == SIG_DFL)
		return number == SIGCHLD || number == SIGURG || number == SIGWINCH;
	return action.sa_handler == SIG_IGN;
}

/* Whether a pending signal would have ended the wait. An ignored signal would not. While it is blocked, the kernel
 * queues it anyway (sig_ignored() in kernel/signal.c), so this function discards it. Otherwise it would end the next
 * call. */
static bool is_interrupted(const struct call *call, const sigset_t *before)
{
	const struct timespec at_once = { 0 };
	sigset_t pending;
	sigpending(&pending);
	uint64_t waiting = first_word(&pending) & ~first_word(call->mask), ignored = 0;
	for (uint64_t left = waiting & ~first_word(before); left; left &= left - 1) {
		int number = __builtin_ctzll(left) + 1;
		if (!is_ignored(number))
			continue;
		ignored |= BIT(number);
		sigemptyset(&pending);
		sigaddset(&pending, number);
		sigtimedwait(&pending, NULL, &at_once);
	}
	return waiting & ~ignored;
}

/* Polls until an event is ready, a signal is pending, or the spin time is over. Then waits for the rest of the time. */
static int spin(const struct call *call, const sigset_t *before, uint64_t asked_ns)
{
	uint64_t begin = now_ns(), spin_ns = settings.spin_ns < asked_ns ? settings.spin_ns : asked_ns;
	for (;;) {
		int result = take_ready(call);
		if (result)
			return result;
		bool interrupted = is_interrupted(call, before);
		uint64_t spun_ns = now_ns() - begin;
		if (spun_ns < spin_ns && !interrupted)
			continue;
		if (asked_ns == FOREVER)
			return wait_once(call, FOREVER);
		/* A signal that arrived in time ends the wait, as it would end a sleeping wait. */
		if (spun_ns >= asked_ns)
			return interrupted ? wait_once(call, 1) : 0;
		return wait_once(call, asked_ns - spun_ns);
	}
}

static int wait_in_pieces(const struct call *call, const sigset_t *before, uint64_t asked_ns)
{
	uint64_t begin = now_ns();
	for (;;) {
		uint64_t waited_ns = now_ns() - begin, left_ns = FOREVER;
		if (asked_ns != FOREVER && waited_ns >= asked_ns)
			return 0;
		if (asked_ns != FOREVER)
			left_ns = asked_ns - waited_ns;
		int result = wait_once(call, left_ns < settings.piece_ns ? left_ns : settings.piece_ns);
		if (result)
			return result;
		is_interrupted(call, before);
	}
}

/* Waits with signals blocked. The caller passes a full set in `before`. */
static int wait_with_signals_blocked(const struct call *call, uint64_t asked_ns, sigset_t *before)
{
	struct call within = *call;
	sigset_t all = *before;
	sigprocmask(SIG_SETMASK, &all, before);
	if (!within.mask)
		within.mask = before;
	int result = settings.spin_ns ? spin(&within, before, asked_ns) : wait_in_pieces(&within, before, asked_ns);
	unblock(before);
	return result;
}

/* The C library's list of handlers for the unwinding of a thread, or for a longjmp() out of a frame. It needs neither
 * exceptions nor libgcc_s. Programs from before 2003 depend on it, so glibc will not remove it. In glibc before 2.34,
 * it is absent from a program without libpthread, in which nothing can be cancelled. */
#pragma weak pthread_testcancel
struct cleanup {
	void (*routine)(void *);
	void *argument;
	int cancel_type;
	struct cleanup *previous;
};
extern void _pthread_cleanup_push(struct cleanup *, void (*)(void *), void *) __attribute__((weak));
extern void _pthread_cleanup_pop(struct cleanup *, int) __attribute__((weak));

static SLOW int wait_longer(const struct call *call, uint64_t asked_ns)
{
	struct cleanup cleanup;
	sigset_t before;
	sigfillset(&before);
	if (!_pthread_cleanup_push)
		return wait_with_signals_blocked(call, asked_ns, &before);
	_pthread_cleanup_push(&cleanup, unblock, &before);
	int result = wait_with_signals_blocked(call, asked_ns, &before);
	_pthread_cleanup_pop(&cleanup, 0);
	return result;
}

/* If events are ready, the wait costs one system call, as without this library. Signals are not blocked during that
 * call. A signal that arrives then is like a signal before the wait. */
static inline int changed_wait(const struct call *call, uint64_t asked_ns)
{
	if (!asked_ns)
		return zero_wait(call);
	int result = take_ready(call);
	return result ? result : wait_longer(call, asked_ns);
}

/* Whether one call with the program's timeout is sufficient. */
static inline bool is_as_written(bool is_zero)
{
	return is_zero ? !settings.timed_zero_waits : !settings.several_calls;
}

static inline int capped(int maxevents)
{
	return maxevents < settings.events_max ? maxevents : settings.events_max;
}

static inline uint64_t ns_of_ms(int timeout)
{
	return timeout < 0 ? FOREVER : (uint64_t)timeout * NS_PER_MS;
}

/* Separate functions, so that calls without a change need no stack frame. */
static SLOW int changed_epoll_pwait(int epfd, struct epoll_event *events, int maxevents, int timeout, const sigset_t *mask)
{
	struct call call = { .epfd = epfd, .events = events, .maxevents = maxevents, .mask = mask };
	return changed_wait(&call, ns_of_ms(timeout));
}

static SLOW int changed_epoll_pwait2(int epfd, struct epoll_event *events, int maxevents, uint64_t ns, const sigset_t *mask)
{
	struct call call = { .epfd = epfd, .events = events, .maxevents = maxevents, .mask = mask, .is_exact = true };
	return changed_wait(&call, ns);
}

static int touched_epoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout)
{
	note(&report.waited);
	maxevents = capped(maxevents);
	if (is_as_written(timeout == 0))
		return next.epoll_wait(epfd, events, maxevents, timeout);
	return changed_epoll_pwait(epfd, events, maxevents, timeout, NULL);
}

static int touched_epoll_pwait(int epfd, struct epoll_event *events, int maxevents, int timeout, const sigset_t *mask)
{
	note(&report.waited);
	maxevents = capped(maxevents);
	if (is_as_written(timeout == 0))
		return next.epoll_pwait(epfd, events, maxevents, timeout, mask);
	return changed_epoll_pwait(epfd, events, maxevents, timeout, mask);
}

/* Whether a timeout is valid. The kernel rejects an invalid one. */
static bool is_valid(const struct timespec *time)
{
	return time->tv_sec >= 0 && time->tv_nsec >= 0 && (uint64_t)time->tv_nsec < NS_PER_S;
}

/* Converts a timeout to ns. A timeout that exceeds 64 bits (584 years) never expires. */
static uint64_t ns_of_time(const struct timespec *time)
{
	uint64_t ns;
	if (__builtin_mul_overflow((uint64_t)time->tv_sec, NS_PER_S, &ns) ||
	    __builtin_add_overflow(ns, (uint64_t)time->tv_nsec, &ns))
		return FOREVER;
	return ns;
}

static int touched_epoll_pwait2(int epfd, struct epoll_event *events, int maxevents, const struct timespec *timeout,
				const sigset_t *mask)
{
	note(&report.waited);
	maxevents = capped(maxevents);
	if (timeout && !is_valid(timeout))
		return next.epoll_pwait2(epfd, events, maxevents, timeout, mask);
	uint64_t ns = timeout ? ns_of_time(timeout) : FOREVER;
	if (is_as_written(ns == 0))
		return next.epoll_pwait2(epfd, events, maxevents, timeout, mask);
	return changed_epoll_pwait2(epfd, events, maxevents, ns, mask);
}

/* At load, or at the first call */

/* For C libraries without epoll_pwait2() (glibc before 2.35). It makes a wait of 1 ns a cancellation point too. */
static int epoll_pwait2_by_system_call(int epfd, struct epoll_event *events, int maxevents,
				       const struct timespec *timeout, const sigset_t *mask)
{
	if (pthread_testcancel)
		pthread_testcancel();
	return (int)syscall(SYS_epoll_pwait2, epfd, events, maxevents, timeout, mask, 8);
}

/* Returns false if there is no next library. Two threads may run this concurrently, because both store the same
 * values. */
static bool load(void)
{
	struct functions found = {
		(create_fn *)dlsym(RTLD_NEXT, "epoll_create"), (create_fn *)dlsym(RTLD_NEXT, "epoll_create1"),
		(wait_fn *)dlsym(RTLD_NEXT, "epoll_wait"),     (pwait_fn *)dlsym(RTLD_NEXT, "epoll_pwait"),
		(pwait2_fn *)dlsym(RTLD_NEXT, "epoll_pwait2"), (socket_fn *)dlsym(RTLD_NEXT, "socket"),
	};
	if (!found.epoll_create || !found.epoll_create1 || !found.epoll_wait || !found.epoll_pwait || !found.socket)
		return false;
	if (!found.epoll_pwait2)
		found.epoll_pwait2 = epoll_pwait2_by_system_call;
	next = found;
	report.is_inherited = madvise(&report, sizeof report, MADV_WIPEONFORK) != 0;
	settings = parse(getenv("QUELL_PRELOAD_SETTINGS"));
	bool touches_waits = settings.events_max != INT_MAX || !is_as_written(true) || !is_as_written(false);
	SEND(epoll_create, settings.has_epoll ? polling_epoll_create : found.epoll_create);
	SEND(epoll_create1, settings.has_epoll ? polling_epoll_create1 : found.epoll_create1);
	SEND(epoll_wait, touches_waits ? touched_epoll_wait : found.epoll_wait);
	SEND(epoll_pwait, touches_waits ? touched_epoll_pwait : found.epoll_pwait);
	SEND(epoll_pwait2, touches_waits ? touched_epoll_pwait2 : found.epoll_pwait2);
	SEND(socket, settings.has_sockets ? polling_socket : found.socket);
	return true;
}

static __attribute__((constructor)) void at_load(void)
{
	load();
}

static bool load_first(void)
{
	bool is_loaded = load();
	if (!is_loaded)
		errno = ENOSYS;
	return is_loaded;
}

static int first_epoll_create(int size)
{
	return load_first() ? TARGET(epoll_create)(size) : -1;
}

static int first_epoll_create1(int flags)
{
	return load_first() ? TARGET(epoll_create1)(flags) : -1;
}

static int first_epoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout)
{
	return load_first() ? TARGET(epoll_wait)(epfd, events, maxevents, timeout) : -1;
}

static int first_epoll_pwait(int epfd, struct epoll_event *events, int maxevents, int timeout, const sigset_t *mask)
{
	return load_first() ? TARGET(epoll_pwait)(epfd, events, maxevents, timeout, mask) : -1;
}

static int first_epoll_pwait2(int epfd, struct epoll_event *events, int maxevents, const struct timespec *timeout,
			      const sigset_t *mask)
{
	return load_first() ? TARGET(epoll_pwait2)(epfd, events, maxevents, timeout, mask) : -1;
}

static int first_socket(int domain, int type, int protocol)
{
	return load_first() ? TARGET(socket)(domain, type, protocol) : -1;
}
