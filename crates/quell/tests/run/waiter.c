/* A server in C that says what it sees: it listens on a UDP port of all addresses, says so, and then says each datagram
 * that it gets. "sleeps" waits without end, "spins" waits with timeout zero. Compiled with -DRAW it makes its system calls
 * without the functions of the C library that a preload library interposes; with -DFORKS a child does so, of a parent that
 * has waited by the C library. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef FORKS
static void wait_and_fork(void)
{
	struct epoll_event event;
	epoll_wait(epoll_create1(0), &event, 1, 1);
	if (fork())
		for (;;)
			pause();
}
#endif

#ifdef RAW
#define socket(...) (int)syscall(SYS_socket, __VA_ARGS__)
#define epoll_create1(...) (int)syscall(SYS_epoll_create1, __VA_ARGS__)
#define epoll_wait(...) (int)syscall(SYS_epoll_pwait, __VA_ARGS__, NULL, 8)
#endif

int main(int argc, char **argv)
{
	int timeout = argc > 1 && !strcmp(argv[1], "spins") ? 0 : -1;
#ifdef FORKS
	wait_and_fork();
#endif
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(7001) };
	int server = socket(AF_INET, SOCK_DGRAM, 0), epfd = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	char datagram[64];
	if (bind(server, (struct sockaddr *)&address, sizeof address) || epoll_ctl(epfd, EPOLL_CTL_ADD, server, &event))
		return 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("listens");
	for (;;) {
		if (epoll_wait(epfd, &event, 1, timeout) < 1)
			continue;
		ssize_t size = recv(server, datagram, sizeof datagram - 1, 0);
		datagram[size < 0 ? 0 : size] = 0;
		puts(datagram);
	}
}
