/* Processes that share an XRC domain, and one that sends to them. */
#ifndef ROCADE_TESTS_WORKERS_H
#define ROCADE_TESTS_WORKERS_H

#include "rig.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { RECEIVES = 64, ROOM = 16384 };

/* An order for a worker. */
struct order {
	char what;
	uint32_t number;
};

struct worker {
	pid_t pid;
	int socket;
};

/* The objects of a worker. */
struct share {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char *memory;
};

static inline struct share open_share(void)
{
	struct share s = { .context = open_device() };
	s.pd = ibv_alloc_pd(s.context);
	s.cq = ibv_create_cq(s.context, 256, NULL, NULL, 0);
	s.memory = calloc(1, ROOM);
	CHECK(s.pd && s.cq && s.memory);
	s.mr = ibv_reg_mr(s.pd, s.memory, ROOM,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(s.mr);
	return s;
}

/* Executes orders until the other end closes. */
typedef uint64_t work(void *state, struct order order);

static inline struct worker start_worker(void *(*begin)(int), work *carry_out, int argument)
{
	int ends[2];
	CHECK_INT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid) {
		close(ends[1]);
		return (struct worker){ pid, ends[0] };
	}
	close(ends[0]);
	alarm(DEADLINE);
	void *state = begin(argument);
	struct order order;
	while (read(ends[1], &order, sizeof(order)) == sizeof(order)) {
		uint64_t answer = carry_out(state, order);
		CHECK_INT(write(ends[1], &answer, sizeof(answer)), sizeof(answer));
	}
	_exit(0);
}

static inline void ask(struct worker *worker, char what, uint32_t number)
{
	struct order order = { what, number };
	CHECK_INT(write(worker->socket, &order, sizeof(order)), sizeof(order));
}

static inline uint64_t answer(struct worker *worker)
{
	uint64_t answer;
	CHECK_INT(read(worker->socket, &answer, sizeof(answer)), sizeof(answer));
	return answer;
}

static inline uint64_t order(struct worker *worker, char what, uint32_t number)
{
	ask(worker, what, number);
	return answer(worker);
}

static inline void kill_worker(struct worker *worker)
{
	int status;
	CHECK_INT(kill(worker->pid, SIGKILL), 0);
	CHECK_INT(waitpid(worker->pid, &status, 0), worker->pid);
	CHECK(WIFSIGNALED(status));
	close(worker->socket);
}

static inline void end_worker(struct worker *worker)
{
	int status;
	/* Later workers have inherited a copy of the socket. */
	CHECK_INT(shutdown(worker->socket, SHUT_RDWR), 0);
	close(worker->socket);
	CHECK_INT(waitpid(worker->pid, &status, 0), worker->pid);
	CHECK_INT(status, 0);
}

#endif
