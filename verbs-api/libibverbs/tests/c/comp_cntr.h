/* Completion counters, which the headers of the distribution do not have. */
#ifndef ROCADE_TESTS_COMP_CNTR_H
#define ROCADE_TESTS_COMP_CNTR_H

#include "rig.h"

#include <dlfcn.h>

struct counter {
	struct ibv_context *context;
	uint32_t handle;
};

struct counter_caps {
	uint64_t max_value;
	uint32_t max_counters, operations;
};

struct counter_attr {
	uint32_t comp_mask, type, flags;
};

struct attach_attr {
	uint32_t comp_mask, operations;
};

enum { OF_WORK_REQUESTS, OF_BYTES };
enum { SEND, RECV, READ, REMOTE_READ, WRITE, REMOTE_WRITE, OPERATIONS };

static inline void *comp_cntr_call(const char *name)
{
	void *found = dlvsym(RTLD_DEFAULT, name, "IBVERBS_1.18");
	CHECK(found);
	return found;
}

static inline struct counter *create_counter(struct ibv_context *context, struct counter_attr *attr)
{
	struct counter *(*create)(struct ibv_context *, struct counter_attr *) =
		comp_cntr_call("ibv_create_comp_cntr");
	return create(context, attr);
}

static inline struct counter *counter_of(struct ibv_context *context, uint32_t type)
{
	struct counter_attr attr = { .type = type };
	struct counter *counter = create_counter(context, &attr);
	CHECK(counter && counter->context == context);
	return counter;
}

static inline int destroy_counter(struct counter *counter)
{
	int (*destroy)(struct counter *) = comp_cntr_call("ibv_destroy_comp_cntr");
	return destroy(counter);
}

static inline int attach(struct ibv_qp *qp, struct counter *counter, uint32_t operations)
{
	int (*call)(struct ibv_qp *, struct counter *, struct attach_attr *) =
		comp_cntr_call("ibv_qp_attach_comp_cntr");
	struct attach_attr attr = { .operations = operations };
	return call(qp, counter, &attr);
}

/* Calls a function that sets or adds. */
static inline int change(const char *name, struct counter *counter, uint64_t value)
{
	int (*call)(struct counter *, uint64_t) = comp_cntr_call(name);
	return call(counter, value);
}

static inline uint64_t value_of(struct counter *counter)
{
	int (*call)(struct counter *, uint64_t *) = comp_cntr_call("ibv_read_comp_cntr");
	uint64_t value = ~0ULL;
	CHECK_INT(call(counter, &value), 0);
	return value;
}

static inline uint64_t errors_of(struct counter *counter)
{
	int (*call)(struct counter *, uint64_t *) = comp_cntr_call("ibv_read_err_comp_cntr");
	uint64_t value = ~0ULL;
	CHECK_INT(call(counter, &value), 0);
	return value;
}

/* Waits, by reading alone, until both values are at least these. Then they must be these. */
static inline void wait_for(struct counter *counter, uint64_t completed, uint64_t failed)
{
	while (value_of(counter) < completed || errors_of(counter) < failed)
		;
	CHECK_INT(value_of(counter), completed);
	CHECK_INT(errors_of(counter), failed);
}

/* Attaches a counter for each operation. */
static inline void count_each(struct ibv_qp *qp, uint32_t type, struct counter **counters)
{
	for (int i = 0; i < OPERATIONS; i++) {
		counters[i] = counter_of(qp->context, type);
		CHECK_INT(attach(qp, counters[i], 1 << i), 0);
	}
}

static inline void destroy_each(struct counter **counters)
{
	for (int i = 0; i < OPERATIONS; i++)
		CHECK_INT(destroy_counter(counters[i]), 0);
}

#endif
