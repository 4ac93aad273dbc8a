/* CLOCK_REALTIME jumps by two hours at each reading, forth and back. Other clocks are unchanged. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long jump(void)
{
	static long readings;

	return __atomic_fetch_add(&readings, 1, __ATOMIC_RELAXED) % 2 ? 3600 : -3600;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int failed = syscall(SYS_clock_gettime, clock, now);

	if (!failed && clock == CLOCK_REALTIME)
		now->tv_sec += jump();
	return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec time;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &time);
	now->tv_sec = time.tv_sec;
	now->tv_usec = time.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *now)
{
	struct timespec time;

	clock_gettime(CLOCK_REALTIME, &time);
	if (now)
		*now = time.tv_sec;
	return time.tv_sec;
}
