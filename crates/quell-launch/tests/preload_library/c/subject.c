/* An ordinary program for the tests of the preload library. The first argument selects what it does, and it prints the
 * results. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_BUSY_POLL
#define SO_BUSY_POLL 46
#endif
#ifndef SO_PREFER_BUSY_POLL
#define SO_PREFER_BUSY_POLL 69
#endif

struct params {
	uint32_t usecs;
	uint16_t budget;
	uint8_t prefer, pad;
};
#define GET_PARAMS _IOR(0x8A, 2, struct params)

static struct epoll_event events[64];
static volatile sig_atomic_t handled;

static void on_signal(int signal)
{
	(void)signal;
	handled++;
}

static int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void show_params(const char *which, int epfd)
{
	struct params params;
	if (ioctl(epfd, GET_PARAMS, &params) < 0)
		printf("%s %s\n", which, strerrorname_np(errno));
	else
		printf("%s %u/%u/%u\n", which, params.usecs, params.budget, params.prefer);
	fflush(stdout);
}

static void show_result(const char *which, int result)
{
	printf("%s %d %s\n", which, result, result < 0 ? strerrorname_np(errno) : "-");
	fflush(stdout);
}

static void *birth_in_thread(void *unused)
{
	(void)unused;
	show_params("thread", epoll_create1(0));
	return NULL;
}

static void births(char **arguments, const char *plugin)
{
	errno = ENOTTY;
	show_params("create1", epoll_create1(EPOLL_CLOEXEC));
	show_params("create", epoll_create(1));
	printf("errno %s\n", strerrorname_np(errno));
	pthread_t thread;
	pthread_create(&thread, NULL, birth_in_thread, NULL);
	pthread_join(thread, NULL);
	fflush(stdout);
	if (fork() == 0) {
		show_params("forked", epoll_create1(0));
		_exit(0);
	}
	wait(NULL);
	close_range(3, ~0U, 0);
	show_params("closed", epoll_create1(0));
	void *runtime = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
	int (*make)(void) = runtime ? (int (*)(void))dlsym(runtime, "make_epoll") : NULL;
	show_params("dlopened", make ? make() : -1);
	show_result("refused", epoll_create(0));
	arguments[1] = "executed";
	execv(arguments[0], arguments);
}

static int epoll_with_ready(int ready)
{
	int epfd = epoll_create1(0);
	for (int i = 0; i < ready; i++) {
		struct epoll_event event = { .events = EPOLLIN, .data.fd = i };
		epoll_ctl(epfd, EPOLL_CTL_ADD, eventfd(1, 0), &event);
	}
	return epfd;
}

static void waits(void)
{
	int ready = epoll_with_ready(10), idle = epoll_with_ready(0);
	struct timespec nothing = { 0, 0 }, wrong = { 0, -1 };
	volatile int negative = -1;
	show_result("ready", epoll_wait(ready, events, 64, -1));
	show_result("ready-p", epoll_pwait(ready, events, 64, 0, NULL));
	show_result("ready-p2", epoll_pwait2(ready, events, 64, NULL, NULL));
	show_result("zero", epoll_wait(idle, events, 64, 0));
	show_result("zero-p", epoll_pwait(idle, events, 64, 0, NULL));
	show_result("zero-p2", epoll_pwait2(idle, events, 64, &nothing, NULL));
	show_result("bad-max", epoll_wait(idle, events, 0, 0));
	show_result("bad-max-p", epoll_pwait(idle, events, negative, -1, NULL));
	show_result("bad-time", epoll_pwait2(idle, events, 1, &wrong, NULL));
	show_result("bad-file", epoll_wait(-1, events, 1, -1));
}

static void long_waits(void)
{
	int idle = epoll_with_ready(0);
	struct timespec wait = { 0, 30500000 };
	int64_t begin = now_ms();
	show_result("40ms", epoll_wait(idle, events, 64, 40));
	printf("early %d\n", now_ms() - begin < 40);
	begin = now_ms();
	show_result("30.5ms", epoll_pwait2(idle, events, 64, &wait, NULL));
	printf("early %d\n", now_ms() - begin < 30);
	show_result("1ms", epoll_wait(idle, events, 64, 1));
}

/* Sends the signal once, then again every `again_ms`. A signal that arrives while the program does not wait ends no
 * wait. */
static void signal_in(int64_t us, int64_t again_ms)
{
	struct itimerspec when = { .it_value = { 0, us * 1000 }, .it_interval = { 0, again_ms * 1000000 } };
	static timer_t timer;
	if (!timer)
		timer_create(CLOCK_MONOTONIC, NULL, &timer);
	timer_settime(timer, 0, &when, NULL);
}

static void signals(void)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	sigset_t alarm, before, during;
	int idle = epoll_with_ready(0), interrupted = 0, lost = 0, unhandled = 0;
	sigaction(SIGALRM, &action, NULL);
	for (int i = 0; i < 50; i++) {
		signal_in(5000 + 37 * i, 500);
		interrupted += epoll_wait(idle, events, 64, -1) == -1 && errno == EINTR;
		signal_in(0, 0);
	}
	printf("wait interrupted %d\n", interrupted);
	fprintf(stderr, "handled %d\n", (int)handled);
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	sigprocmask(SIG_BLOCK, &alarm, &before);
	sigemptyset(&during);
	interrupted = handled = 0;
	for (int i = 0; i < 50; i++) {
		signal_in(5000 + 37 * i, 0);
		int result, before_it = handled;
		/* On rare occasions, a wait ends without a signal because the hypervisor paused and resumed this
		 * guest. */
		while ((result = epoll_pwait(idle, events, 64, -1, &during)) == -1 && errno == EINTR && handled == before_it)
			unhandled++;
		interrupted += result == -1 && errno == EINTR;
		sigprocmask(SIG_SETMASK, NULL, &during);
		lost += !sigismember(&during, SIGALRM);
		sigemptyset(&during);
	}
	printf("pwait interrupted %d handled %d unblocked %d\n", interrupted, (int)handled, lost);
	if (unhandled > 3)
		printf("without a signal %d\n", unhandled);
	/* The signal stays blocked, so the wait continues to its end. */
	handled = 0;
	signal_in(2000, 0);
	show_result("blocked", epoll_wait(idle, events, 64, 20));
	printf("handled %d\n", (int)handled);
	sigprocmask(SIG_SETMASK, &before, NULL);
	printf("handled %d\n", (int)handled);
	sigprocmask(SIG_SETMASK, NULL, &during);
	printf("mask kept %d\n", !sigismember(&during, SIGALRM) && !sigismember(&during, SIGTERM));
}

/* A thread that waits with one function until it is cancelled. */
struct waiter {
	int epfd, function, timeout, type, cleaned_up, mask_was_kept;
	pthread_barrier_t started;
};

static int wait_by(int function, int epfd, int timeout)
{
	struct timespec time = { timeout / 1000, timeout % 1000 * 1000000L };
	if (function == 0)
		return epoll_wait(epfd, events, 64, timeout);
	if (function == 1)
		return epoll_pwait(epfd, events, 64, timeout, NULL);
	return epoll_pwait2(epfd, events, 64, timeout < 0 ? NULL : &time, NULL);
}

static void clean_up(void *argument)
{
	struct waiter *waiter = argument;
	sigset_t mask;
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	waiter->cleaned_up = 1;
	waiter->mask_was_kept = sigismember(&mask, SIGUSR1) && !sigismember(&mask, SIGUSR2) && !sigismember(&mask, SIGTERM);
}

static void *wait_for_ever(void *argument)
{
	struct waiter *waiter = argument;
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	pthread_cleanup_push(clean_up, waiter);
	pthread_barrier_wait(&waiter->started);
	pthread_setcanceltype(waiter->type, NULL);
	for (;;)
		wait_by(waiter->function, waiter->epfd, waiter->timeout);
	pthread_cleanup_pop(0);
	return NULL;
}

/* The thread is cancelled at various times. Some are within a wait, others between the calls that make up a wait. */
static void cancel(void)
{
	static const int types[] = { PTHREAD_CANCEL_DEFERRED, PTHREAD_CANCEL_ASYNCHRONOUS }, timeouts[] = { -1, 0, 3 };
	int idle = epoll_with_ready(0);
	for (int combination = 0; combination < 18; combination++) {
		int cancelled = 0, cleaned_up = 0, masks = 0;
		for (int i = 0; i < 20; i++) {
			struct waiter waiter = { .epfd = idle, .function = combination % 3, .timeout = timeouts[combination / 6],
						 .type = types[combination / 3 % 2] };
			pthread_t thread;
			void *result;
			pthread_barrier_init(&waiter.started, NULL, 2);
			pthread_create(&thread, NULL, wait_for_ever, &waiter);
			pthread_barrier_wait(&waiter.started);
			usleep(i * 131);
			pthread_cancel(thread);
			pthread_join(thread, &result);
			cancelled += result == PTHREAD_CANCELED;
			cleaned_up += waiter.cleaned_up;
			masks += waiter.mask_was_kept;
		}
		printf("%d %d %d\n", cancelled, cleaned_up, masks);
	}
}

/* The recorder library (CANCEL_AT) cancels the thread at the start of one of the calls. */
static void cancelled(void)
{
	for (int function = 0; function < 3; function++) {
		struct waiter waiter = { .epfd = epoll_with_ready(0), .function = function, .timeout = -1 };
		pthread_t thread;
		void *result;
		pthread_barrier_init(&waiter.started, NULL, 1);
		pthread_create(&thread, NULL, wait_for_ever, &waiter);
		pthread_join(thread, &result);
		printf("%d %d %d\n", result == PTHREAD_CANCELED, waiter.cleaned_up, waiter.mask_was_kept);
	}
}

static sigjmp_buf before_the_wait;
static volatile sig_atomic_t is_waiting;

static void jump(int signal)
{
	(void)signal;
	if (!is_waiting)
		return;
	is_waiting = 0;
	siglongjmp(before_the_wait, 1);
}

static void *jump_out_of_waits(void *epfd)
{
	volatile int jumps = 0;
	sigset_t mask;
	sigemptyset(&mask);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	while (jumps < 20) {
		if (sigsetjmp(before_the_wait, 1)) {
			jumps++;
			continue;
		}
		is_waiting = 1;
		signal_in(3000 + 37 * jumps, 100);
		epoll_wait(*(int *)epfd, events, 64, -1);
	}
	signal_in(0, 0);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	printf("jumps %d mask kept %d\n", jumps, !sigismember(&mask, SIGALRM) && !sigismember(&mask, SIGTERM));
	pthread_exit(PTHREAD_CANCELED);
}

/* A handler leaves a wait with siglongjmp(). Then the thread is unwound from its end, as by a cancellation. */
static void jumps(void)
{
	struct sigaction action = { .sa_handler = jump };
	int idle = epoll_with_ready(0);
	pthread_t thread;
	sigset_t alarm;
	void *result;
	sigaction(SIGALRM, &action, NULL);
	/* The signal is sent to the process, but the other thread must handle it. */
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarm, NULL);
	pthread_create(&thread, NULL, jump_out_of_waits, &idle);
	pthread_join(thread, &result);
	printf("ended %d\n", result == PTHREAD_CANCELED);
}

/* With a spin time of seconds: a signal ends waits that would finish within the spin time, and longer waits. */
static void interruptions(void)
{
	struct sigaction action = { .sa_handler = on_signal };
	static const int timeouts[] = { -1, 3000, 100000 };
	int idle = epoll_with_ready(0);
	sigaction(SIGALRM, &action, NULL);
	for (int i = 0; i < 9; i++) {
		int64_t begin = now_ms();
		signal_in(5000, 500);
		int result = wait_by(i % 3, idle, timeouts[i / 3]), error = errno;
		signal_in(0, 0);
		errno = error;
		show_result("wait", result);
		printf("in time %d\n", now_ms() - begin < 2000);
	}
}

/* Signals that are ignored by default or by the program do not end a wait. Returns the number of waits that they
 * ended. */
static void ignored(void)
{
	int idle = epoll_with_ready(0), ended = 0;
	signal(SIGUSR1, SIG_IGN);
	for (int i = 0; i < 20; i++) {
		struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = i % 2 ? SIGUSR1 : SIGURG };
		struct itimerspec when = { .it_value = { 0, 5000000 + 37000 * i } };
		timer_t timer;
		timer_create(CLOCK_MONOTONIC, &event, &timer);
		timer_settime(timer, 0, &when, NULL);
		ended += wait_by(i % 3, idle, 12) != 0;
		timer_delete(timer);
	}
	printf("%d\n", ended);
}

static void show_socket(const char *which, int fd)
{
	int usecs = -1, prefer = -1;
	socklen_t size = sizeof(int);
	getsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &usecs, &size);
	getsockopt(fd, SOL_SOCKET, SO_PREFER_BUSY_POLL, &prefer, &size);
	printf("%s %d prefer %d\n", which, usecs, prefer);
}

static void sockets(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	show_socket("tcp", listener);
	show_socket("udp6", socket(AF_INET6, SOCK_DGRAM, 0));
	show_socket("unix", socket(AF_UNIX, SOCK_STREAM, 0));
	show_result("refused", socket(AF_INET, SOCK_STREAM, 4711));
	bind(listener, (struct sockaddr *)&address, size);
	getsockname(listener, (struct sockaddr *)&address, &size);
	listen(listener, 1);
	connect(client, (struct sockaddr *)&address, size);
	show_socket("accepted", accept4(listener, NULL, NULL, SOCK_CLOEXEC));
}

/* Makes the number of waits that the argument specifies; each finds an event. The cost of one wait is the difference
 * between two such runs. */
static void count(long waits)
{
	int ready = epoll_with_ready(1);
	for (long i = 0; i < waits; i++)
		epoll_wait(ready, events, 64, 1000);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	const char *argument = argc > 2 ? argv[2] : "";
	if (!strcmp(what, "births"))
		births(argv, argument);
	else if (!strcmp(what, "executed"))
		show_params("executed", epoll_create1(0));
	else if (!strcmp(what, "waits"))
		waits();
	else if (!strcmp(what, "long-waits"))
		long_waits();
	else if (!strcmp(what, "signals"))
		signals();
	else if (!strcmp(what, "cancel"))
		cancel();
	else if (!strcmp(what, "cancelled"))
		cancelled();
	else if (!strcmp(what, "jumps"))
		jumps();
	else if (!strcmp(what, "interruptions"))
		interruptions();
	else if (!strcmp(what, "ignored"))
		ignored();
	else if (!strcmp(what, "sockets"))
		sockets();
	else if (!strcmp(what, "count"))
		count(atol(argument));
	else
		return 2;
	return 0;
}
