/* Completion counters whose values are in memory of the program. The headers of the distribution do
 * not have them. */
#include "../../../libibverbs/tests/c/comp_cntr.h"

#include <sys/mman.h>

struct location {
	void *ptr;
	uint64_t offset;
	int32_t fd;
	uint32_t unused;
	uint8_t type, reserved[7];
};

struct efa_attr {
	uint64_t comp_mask;
	uint32_t flags, reserved;
	struct location completed, failed;
};

enum { BY_ADDRESS, BY_DESCRIPTOR };
enum { COMPLETED = 1, FAILED = 2 };

static struct counter *create_for(struct ibv_context *context, struct efa_attr *attr, uint32_t len)
{
	void *library = dlopen("libefa.so.1", RTLD_NOW);
	CHECK(library);
	struct counter *(*create)(struct ibv_context *, struct counter_attr *, struct efa_attr *,
				  uint32_t) =
		dlvsym(library, "efadv_create_comp_cntr", "EFA_1.7");
	CHECK(create);
	struct counter_attr of = { .type = OF_WORK_REQUESTS };
	errno = 0;
	return create(context, &of, attr, len);
}

static struct counter *create(struct ibv_context *context, struct efa_attr attr)
{
	struct counter *counter = create_for(context, &attr, sizeof attr);
	CHECK(counter && counter->context == context);
	return counter;
}

static void refuse(struct ibv_context *context, struct efa_attr attr, int error)
{
	CHECK(!create_for(context, &attr, sizeof attr));
	CHECK_INT(errno, error);
}

static struct location at(void *ptr)
{
	return (struct location){ .ptr = ptr, .type = BY_ADDRESS };
}

/* A queue pair that is connected to itself, and whose sends are counted. */
static struct ibv_qp *counted_qp(struct rig *r, struct counter *counter)
{
	struct ibv_qp_init_attr init = small_qp(r->cq);
	struct ibv_qp *qp = ibv_create_qp(r->pd, &init);
	CHECK(qp);
	CHECK_INT(attach(qp, counter, 1 << WRITE), 0);
	connect_qp(qp, qp->qp_num);
	return qp;
}

static void post_write(struct rig *r, struct ibv_qp *qp, uint32_t rkey)
{
	struct ibv_sge sge = sge_at(r, 0, 64);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { (uintptr_t)r->buffer + 2048, rkey } }, *bad;
	CHECK_INT(ibv_post_send(qp, &wr, &bad), 0);
}

/* Waits by reading the memory alone. */
static void wait_in_memory(uint64_t *value, uint64_t expected)
{
	while (__atomic_load_n(value, __ATOMIC_ACQUIRE) != expected)
		;
}

static void values_in_memory_of_the_program(void)
{
	static uint64_t values[2] = { 77, 88 };
	struct rig r = rig_open();
	struct counter *counter = create(r.context, (struct efa_attr){
		.flags = COMPLETED | FAILED, .completed = at(&values[0]), .failed = at(&values[1]) });
	CHECK_INT(values[0], 0);
	CHECK_INT(values[1], 0);
	struct ibv_qp *qp = counted_qp(&r, counter);
	post_write(&r, qp, r.mr->rkey);
	post_write(&r, qp, r.mr->rkey);
	wait_in_memory(&values[0], 2);
	CHECK_INT(value_of(counter), 2);
	/* The program and the library change the same number. */
	__atomic_fetch_add(&values[0], 10, __ATOMIC_RELAXED);
	CHECK_INT(change("ibv_inc_comp_cntr", counter, 100), 0);
	CHECK_INT(values[0], 112);
	post_write(&r, qp, r.mr->rkey + 1);
	wait_in_memory(&values[1], 1);
	CHECK_INT(change("ibv_set_err_comp_cntr", counter, 5), 0);
	CHECK_INT(values[1], 5);
	CHECK_INT(values[0], 112);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(destroy_counter(counter), 0);
	rig_close(&r);
}

static void values_in_memory_of_a_descriptor(void)
{
	int fd = memfd_create("counters", 0);
	CHECK(fd >= 0);
	CHECK_INT(ftruncate(fd, 4096), 0);
	uint64_t *values = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(values != MAP_FAILED);
	struct rig r = rig_open();
	struct efa_attr attr = { .flags = COMPLETED,
				 .completed = { .type = BY_DESCRIPTOR, .fd = fd, .offset = 24 } };
	struct counter *counter = create(r.context, attr);
	CHECK_INT(close(fd), 0);
	struct ibv_qp *qp = counted_qp(&r, counter);
	post_write(&r, qp, r.mr->rkey);
	wait_in_memory(&values[3], 1);
	/* The other value is the counter's own. */
	post_write(&r, qp, r.mr->rkey + 1);
	while (errors_of(counter) != 1)
		;
	CHECK_INT(values[0] + values[1] + values[2] + values[4], 0);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(destroy_counter(counter), 0);
	rig_close(&r);
}

/* The process goes on, and the value is lost. */
static void memory_that_goes_away(void)
{
	struct rig r = rig_open();
	uint64_t *value = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(value != MAP_FAILED);
	struct counter *counter =
		create(r.context, (struct efa_attr){ .flags = COMPLETED, .completed = at(value) });
	struct ibv_qp *qp = counted_qp(&r, counter);
	post_write(&r, qp, r.mr->rkey);
	wait_in_memory(value, 1);
	CHECK_INT(munmap(value, 4096), 0);
	struct ibv_sge sge = sge_at(&r, 0, 64);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { (uintptr_t)r.buffer + 2048, r.mr->rkey } }, *bad;
	CHECK_INT(ibv_post_send(qp, &wr, &bad), 0);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(value_of(counter), 0);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(destroy_counter(counter), 0);
	rig_close(&r);
}

static void mistakes(void)
{
	static uint64_t value;
	struct { struct efa_attr attr; uint64_t later; } longer = { { 0 }, 0 };
	struct rig r = rig_open();
	CHECK(!create_for(r.context, &longer.attr, sizeof longer.attr - 1));
	CHECK_INT(errno, EINVAL);
	struct counter *plain = create_for(r.context, &longer.attr, sizeof longer);
	CHECK(plain);
	CHECK_INT(destroy_counter(plain), 0);
	longer.later = 1;
	CHECK(!create_for(r.context, &longer.attr, sizeof longer));
	CHECK_INT(errno, EINVAL);
	CHECK(!create_for(r.context, NULL, sizeof longer.attr));
	CHECK_INT(errno, EINVAL);
	refuse(r.context, (struct efa_attr){ .comp_mask = 1 }, EINVAL);
	refuse(r.context, (struct efa_attr){ .flags = 4 }, EINVAL);
	refuse(r.context, (struct efa_attr){ .flags = COMPLETED }, EINVAL);
	struct location other = at(&value);
	other.type = 2;
	refuse(r.context, (struct efa_attr){ .flags = FAILED, .failed = other }, EINVAL);
	struct location odd = at((char *)&value + 4);
	refuse(r.context, (struct efa_attr){ .flags = FAILED, .failed = odd }, EINVAL);
	void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	refuse(r.context, (struct efa_attr){ .flags = FAILED, .failed = at(page) }, EFAULT);
	struct location none = { .type = BY_DESCRIPTOR, .fd = -1 };
	refuse(r.context, (struct efa_attr){ .flags = FAILED, .failed = none }, EBADF);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	const struct test_case cases[] = {
		{ "values_in_memory_of_the_program", values_in_memory_of_the_program },
		{ "values_in_memory_of_a_descriptor", values_in_memory_of_a_descriptor },
		{ "memory_that_goes_away", memory_that_goes_away },
		{ "mistakes", mistakes },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
