/* What a program inherits from whoever starts it. "inherited show" prints all of it. "inherited usual|unusual COMMAND..."
 * starts itself directly, then by way of COMMAND, each time from the same state, and prints "===" in between. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

extern char **environ;

/* Of a process by its nature, and so not inherited: its number and its parent's, what it has used. */
static const char *const own[] = { "State:", "Tgid:", "Ngid:", "Pid:", "PPid:", "NStgid:", "NSpid:", "Vm", "Rss",
				   "HugetlbPages:", "FDSize:", "Threads:", "SigQ:", "voluntary_", "nonvoluntary_" };

static int is_own(const char *line)
{
	for (size_t i = 0; i < sizeof own / sizeof *own; i++)
		if (!strncmp(line, own[i], strlen(own[i])))
			return 1;
	return 0;
}

static void show_file(const char *path)
{
	char line[4096];
	FILE *file = fopen(path, "re");
	while (file && fgets(line, sizeof line, file))
		if (!is_own(line))
			printf("%s %s%s", path, line, strchr(line, '\n') ? "" : "\n");
	if (file)
		fclose(file);
}

static void show_links(const char *directory)
{
	char path[300], target[4096];
	struct dirent *entry;
	DIR *entries = opendir(directory);
	while ((entry = readdir(entries))) {
		snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
		ssize_t length = readlink(path, target, sizeof target - 1);
		int fd = atoi(entry->d_name);
		if (length < 0 || (!strcmp(directory, "/proc/self/fd") && fd == dirfd(entries)))
			continue;
		target[length] = 0;
		printf("%s -> %s", path, target);
		if (!strcmp(directory, "/proc/self/fd"))
			printf(" flags %x %x", fcntl(fd, F_GETFD), fcntl(fd, F_GETFL));
		putchar('\n');
	}
	closedir(entries);
}

static void show(void)
{
	static const char *const files[] = { "/proc/self/status", "/proc/self/limits", "/proc/self/oom_score_adj",
					     "/proc/self/cgroup", "/proc/self/timerslack_ns", "/proc/self/coredump_filter" };
	struct sched_param param;
	int death_signal = 0;
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		show_file(files[i]);
	show_links("/proc/self");
	show_links("/proc/self/ns");
	show_links("/proc/self/fd");
	int tty = open("/dev/tty", O_RDWR | O_CLOEXEC);
	sched_getparam(0, &param);
	prctl(PR_GET_PDEATHSIG, &death_signal);
	printf("session %d group %d terminal %d foreground %d\n", getsid(0), getpgrp(), tty >= 0, (int)tcgetpgrp(tty));
	printf("scheduling %d %d nice %d io %lx\n", sched_getscheduler(0), param.sched_priority,
	       getpriority(PRIO_PROCESS, 0), syscall(SYS_ioprio_get, 1, 0));
	printf("personality %x securebits %x death signal %d\n", personality(0xffffffff), prctl(PR_GET_SECUREBITS), death_signal);
	for (char **variable = environ; *variable; variable++)
		printf("variable %s\n", *variable);
}

static void write_to(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (write(fd, text, strlen(text)) < 0)
		perror(path);
	close(fd);
}

static void lower(int resource, rlim_t most)
{
	struct rlimit limit;
	getrlimit(resource, &limit);
	if (limit.rlim_cur > most)
		limit.rlim_cur = most;
	setrlimit(resource, &limit);
}

/* As unlike the usual state as can be had, with and without root. */
static void arrange_the_unusual(void)
{
	struct sched_param param = { 0 };
	cpu_set_t allowed, one;
	sigset_t blocked;
	CPU_ZERO(&one);
	sched_getaffinity(0, sizeof allowed, &allowed);
	for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
		if (CPU_ISSET(cpu, &allowed))
			CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof one, &one);
	sched_setscheduler(0, SCHED_BATCH, &param);
	setpriority(PRIO_PROCESS, 0, 3);
	syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 7);
	lower(RLIMIT_NOFILE, 321);
	lower(RLIMIT_CORE, 4096);
	lower(RLIMIT_STACK, 4 << 20);
	lower(RLIMIT_MEMLOCK, 1 << 20);
	write_to("/proc/self/oom_score_adj", "321");
	write_to("/proc/self/coredump_filter", "0x11");
	prctl(PR_SET_TIMERSLACK, 77777);
	prctl(PR_CAPBSET_DROP, 22);
	personality(ADDR_NO_RANDOMIZE);
	dup2(1, 77);
	close(0);
	close(2);
	umask(027);
	if (chdir("/usr"))
		exit(3);
	sigemptyset(&blocked);
	for (int number = 1; number <= SIGRTMAX; number++) {
		if (number % 2 == 0 || number == SIGPIPE || number == SIGCHLD)
			signal(number, SIG_IGN);
		if (number % 3 == 0)
			sigaddset(&blocked, number);
	}
	sigprocmask(SIG_SETMASK, &blocked, NULL);
	prctl(PR_SET_PDEATHSIG, SIGUSR1);
	/* Said twice, and no variable at all: the C library and shells know what to make of them. */
	static char *unusual[64] = { "TWICE=1", "TWICE=2", "NEITHER", "Z=1", "A=1", "EMPTY=" };
	for (int i = 6, from = 0; environ[from] && i < 63; from++)
		unusual[i++] = environ[from];
	environ = unusual;
}

static int start(char **command, int is_unusual)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		for (int number = 1; number <= SIGRTMAX; number++)
			signal(number, SIG_DFL);
		if (is_unusual)
			arrange_the_unusual();
		execv(command[0], command);
		_exit(127);
	}
	waitpid(child, &status, 0);
	return status;
}

int main(int argc, char **argv)
{
	char *direct[] = { argv[0], "show", NULL }, **by_way = calloc(argc + 3, sizeof *by_way);
	int count = argc - 2;
	if (argc > 1 && !strcmp(argv[1], "show")) {
		show();
		return 7;
	}
	/* A terminal of its own; the master is one more open file. */
	setsid();
	int master = posix_openpt(O_RDWR | O_NOCTTY);
	grantpt(master);
	unlockpt(master);
	close(open(ptsname(master), O_RDWR));
	memcpy(by_way, argv + 2, count * sizeof *by_way);
	memcpy(by_way + count, direct, sizeof direct);
	int is_unusual = !strcmp(argv[1], "unusual"), first = start(direct, is_unusual);
	if (write(1, "===\n", 4) < 0)
		return 3;
	return first == start(by_way, is_unusual) ? 0 : 4;
}
