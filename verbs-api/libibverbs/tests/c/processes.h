/* Processes that share memory and synchronize. */
#ifndef ROCADE_TESTS_PROCESSES_H
#define ROCADE_TESTS_PROCESSES_H

#include "rig.h"

#include <sys/mman.h>
#include <sys/wait.h>

/* Runs `count` processes, which are connected by `link`. They share `size` bytes, which begin with
 * a barrier for all of them. The other bytes are 0. */
static inline void in_processes(int count, const char *link, size_t size, void (*run)(void *shared, int self))
{
	enum { MOST = 32 };
	pid_t children[MOST];
	CHECK(count <= MOST && size >= sizeof(pthread_barrier_t));
	CHECK_INT(setenv("ROCADE_LINK", link, 1), 0);
	void *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	pthread_barrierattr_t attr;
	CHECK_INT(pthread_barrierattr_init(&attr), 0);
	CHECK_INT(pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED), 0);
	CHECK_INT(pthread_barrier_init(shared, &attr, count), 0);
	for (int self = 0; self < count; self++) {
		children[self] = fork();
		CHECK(children[self] >= 0);
		if (!children[self]) {
			alarm(DEADLINE);
			run(shared, self);
			exit(0);
		}
	}
	int failed = 0;
	for (int left = count; left; left--) {
		int status;
		CHECK(wait(&status) > 0);
		/* The other processes would wait for it forever. */
		if (status && !failed++)
			for (int self = 0; self < count; self++)
				kill(children[self], SIGTERM);
	}
	CHECK_INT(failed, 0);
	CHECK_INT(munmap(shared, size), 0);
}

#endif
