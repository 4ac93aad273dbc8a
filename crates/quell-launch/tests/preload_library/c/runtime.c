/* A runtime that a program loads with dlopen(). If it is preloaded, its constructor creates an epoll before other
 * constructors run. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

int make_epoll(void)
{
	return epoll_create1(0);
}

__attribute__((constructor)) static void early(void)
{
	struct {
		uint32_t usecs;
		uint16_t budget;
		uint8_t prefer, pad;
	} params = { 0 };
	if (!getenv("MAKE_AN_EPOLL_EARLY"))
		return;
	ioctl(make_epoll(), _IOR(0x8A, 2, params), &params);
	fprintf(stderr, "early %u/%u/%u\n", params.usecs, params.budget, params.prefer);
}
