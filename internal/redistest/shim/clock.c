/*
 * Steps the wall clock of one process: built as a shared library and given in
 * LD_PRELOAD, it adds the seconds that stand in the file named by REDISTEST_CLOCK, a
 * 64-bit number that may change at any time. The monotonic clock stays as it is.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shared;

static int64_t offset(void) {
	if (!shared) {
		const char *path = getenv("REDISTEST_CLOCK");
		int fd = path ? open(path, O_RDONLY) : -1;
		if (fd < 0)
			return 0;
		void *map = mmap(NULL, sizeof *shared, PROT_READ, MAP_SHARED, fd, 0);
		close(fd);
		if (map == MAP_FAILED)
			return 0;
		shared = map;
	}
	return *shared;
}

int clock_gettime(clockid_t clock, struct timespec *ts) {
	int r = syscall(SYS_clock_gettime, clock, ts);
	if (r == 0 && clock == CLOCK_REALTIME)
		ts->tv_sec += offset();
	return r;
}

int gettimeofday(struct timeval *tv, void *tz) {
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	(void)tz;
	return 0;
}

time_t time(time_t *t) {
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	if (t)
		*t = ts.tv_sec;
	return ts.tv_sec;
}
