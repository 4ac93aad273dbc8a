/* A library that comes after the preload library. It prints the calls that reach it. Then it makes them, or rejects
 * them as the environment specifies. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int refuses(const char *name)
{
	const char *refused = getenv("REFUSE"), *error = getenv("REFUSE_WITH");
	if (!refused || !error || strcmp(refused, name))
		return 0;
	errno = atoi(error);
	return 1;
}

/* Cancels the thread at its call with this number, as if another thread had cancelled it just before the call. */
static void count_calls(void)
{
	static __thread int calls;
	const char *at = getenv("CANCEL_AT");
	if (at && ++calls == atoi(at)) {
		pthread_cancel(pthread_self());
		pthread_testcancel();
	}
}

int epoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout)
{
	fprintf(stderr, "epoll_wait %d %d\n", maxevents, timeout);
	count_calls();
	if (refuses("epoll_wait"))
		return -1;
	return syscall(SYS_epoll_pwait, epfd, events, maxevents, timeout, NULL, 8);
}

int epoll_pwait(int epfd, struct epoll_event *events, int maxevents, int timeout, const sigset_t *mask)
{
	fprintf(stderr, "epoll_pwait %d %d\n", maxevents, timeout);
	count_calls();
	if (refuses("epoll_pwait"))
		return -1;
	return syscall(SYS_epoll_pwait, epfd, events, maxevents, timeout, mask, 8);
}

int epoll_pwait2(int epfd, struct epoll_event *events, int maxevents, const struct timespec *timeout,
		 const sigset_t *mask)
{
	if (timeout)
		fprintf(stderr, "epoll_pwait2 %d %ld.%09ld\n", maxevents, (long)timeout->tv_sec, timeout->tv_nsec);
	else
		fprintf(stderr, "epoll_pwait2 %d -\n", maxevents);
	count_calls();
	if (refuses("epoll_pwait2"))
		return -1;
	return syscall(SYS_epoll_pwait2, epfd, events, maxevents, timeout, mask, 8);
}

int setsockopt(int fd, int level, int option, const void *value, unsigned size)
{
	if (level == SOL_SOCKET && size == sizeof(int))
		fprintf(stderr, "setsockopt %d %d\n", option, *(const int *)value);
	return syscall(SYS_setsockopt, fd, level, option, value, size);
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	if (refuses("ioctl"))
		return -1;
	va_start(arguments, request);
	void *argument = va_arg(arguments, void *);
	va_end(arguments);
	return syscall(SYS_ioctl, fd, request, argument);
}
