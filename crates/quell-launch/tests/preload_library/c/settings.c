/* Parses each line of its input with the preload library, and prints the settings in the same format. */
#include "../../../preload/preload.c"

#include <stdio.h>

static void show_busy_poll(const char *name, bool is_given, struct busy_poll values)
{
	if (is_given)
		printf(",%s=%u/%u/%u", name, values.usecs, values.budget, values.prefer);
}

int main(void)
{
	char *line = NULL;
	size_t size = 0;
	ssize_t length;
	while ((length = getline(&line, &size, stdin)) >= 0) {
		line[length - 1] = 0;
		struct settings read = parse(line);
		printf("1");
		show_busy_poll("epoll", read.has_epoll, read.epoll);
		show_busy_poll("sockets", read.has_sockets, read.sockets);
		if (read.timed_zero_waits)
			printf(",zero-waits=timed");
		if (read.piece_ns != FOREVER)
			printf(",wait-at-most-ms=%llu", (unsigned long long)(read.piece_ns / NS_PER_MS));
		if (read.spin_ns)
			printf(",spin-usecs=%llu", (unsigned long long)(read.spin_ns / NS_PER_US));
		if (read.events_max != INT_MAX)
			printf(",events-max=%d", read.events_max);
		printf("\n");
	}
	free(line);
	return 0;
}
