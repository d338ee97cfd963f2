/* Domains: the allocators of a parent domain, and imported objects. */
#include "rig.h"

#include <sys/stat.h>

static int allocated, freed, use_default, refuse;
static struct ibv_pd *domain;

static void *allocate(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t type)
{
	(void)type;
	CHECK(pd == domain && context == &allocated);
	CHECK(size > 0 && alignment > 0 && (alignment & (alignment - 1)) == 0);
	if (refuse)
		return NULL;
	if (use_default)
		return IBV_ALLOCATOR_USE_DEFAULT;
	allocated++;
	return aligned_alloc(alignment, size);
}

static void release(struct ibv_pd *pd, void *context, void *ptr, uint64_t type)
{
	(void)type;
	CHECK(pd == domain && context == &allocated);
	freed++;
	free(ptr);
}

static struct ibv_parent_domain_init_attr with_allocators(struct ibv_pd *pd)
{
	struct ibv_parent_domain_init_attr attr = {
		.pd = pd,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
			     IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
		.alloc = allocate,
		.free = release,
		.pd_context = &allocated,
	};
	return attr;
}

static void allocators_are_called(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_parent_domain_init_attr attr = with_allocators(pd);
	attr.free = NULL;
	CHECK(!ibv_alloc_parent_domain(context, &attr));
	CHECK_INT(errno, EINVAL);
	attr = with_allocators(pd);
	domain = ibv_alloc_parent_domain(context, &attr);
	CHECK(domain && domain->handle == pd->handle);

	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 16,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
		.parent_domain = domain,
	};
	struct ibv_cq *cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &cq_attr));
	CHECK(cq);
	CHECK_INT(allocated, 1);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(domain, &srq_attr);
	CHECK(srq);
	CHECK_INT(allocated, 2);
	struct ibv_qp_init_attr init = small_qp(cq);
	struct ibv_qp *qp = ibv_create_qp(domain, &init);
	CHECK(qp);
	CHECK_INT(allocated, 3);
	CHECK_INT(freed, 0);

	/* Memory that the program left to the library is not passed to its `free`. */
	use_default = 1;
	struct ibv_qp *other = ibv_create_qp(domain, &init);
	CHECK(other);
	CHECK_INT(ibv_destroy_qp(other), 0);
	CHECK_INT(freed, 0);
	/* The allocator fails. */
	refuse = 1;
	CHECK(!ibv_create_qp(domain, &init));
	CHECK_INT(errno, ENOMEM);
	CHECK(!ibv_create_srq(domain, &srq_attr));
	CHECK_INT(errno, ENOMEM);
	CHECK(!ibv_create_cq_ex(context, &cq_attr));
	CHECK_INT(errno, ENOMEM);

	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(freed, 1);
	CHECK_INT(ibv_destroy_srq(srq), 0);
	CHECK_INT(freed, 2);
	CHECK_INT(ibv_destroy_cq(cq), 0);
	CHECK_INT(freed, 3);
	CHECK_INT(allocated, 3);
	CHECK_INT(ibv_dealloc_pd(domain), 0);
	CHECK_INT(ibv_dealloc_pd(pd), 0);
	CHECK_INT(ibv_close_device(context), 0);
}

static void what_was_made_can_be_imported(void)
{
	struct ibv_context *context = open_device();
	struct ibv_context *other = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	static char buffer[4096];
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_alloc_dm_attr dm_attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &dm_attr);
	CHECK(pd && mr && dm);

	int fd = dup(context->cmd_fd);
	struct ibv_context *again = ibv_import_device(fd);
	CHECK(again && again != context);
	CHECK_INT(again->cmd_fd, fd);
	CHECK(again->device == context->device);
	/* Not from another context of the same device. */
	CHECK(!ibv_import_pd(other, pd->handle));
	CHECK_INT(errno, EINVAL);
	struct ibv_pd *same_pd = ibv_import_pd(again, pd->handle);
	CHECK(same_pd && same_pd != pd && same_pd->context == again);
	struct ibv_mr *same_mr = ibv_import_mr(same_pd, mr->handle);
	CHECK(same_mr && same_mr != mr && !same_mr->addr);
	CHECK_INT(same_mr->length, sizeof buffer);
	CHECK(same_mr->lkey == mr->lkey && same_mr->rkey == mr->rkey);
	struct ibv_dm *same_dm = ibv_import_dm(again, dm->handle);
	CHECK(same_dm && same_dm != dm);
	CHECK_INT(ibv_memcpy_to_dm(dm, 8, "eight by", 8), 0);
	char copy[8];
	CHECK_INT(ibv_memcpy_from_dm(copy, same_dm, 8, 8), 0);
	CHECK(!memcmp(copy, "eight by", 8));

	/* Queues of the imported domain, with the MR of the original. */
	struct ibv_cq *cq = ibv_create_cq(again, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = small_qp(cq);
	struct ibv_qp *qp = ibv_create_qp(same_pd, &init);
	CHECK(cq && qp);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_cq(cq), 0);

	/* Only the handles are destroyed. */
	ibv_unimport_mr(same_mr);
	ibv_unimport_dm(same_dm);
	ibv_unimport_pd(same_pd);
	CHECK_INT(ibv_memcpy_from_dm(copy, dm, 8, 8), 0);
	struct stat known;
	CHECK_INT(fstat(fd, &known), 0);
	CHECK_INT(ibv_close_device(again), 0);
	CHECK_INT(fstat(fd, &known), -1);
	CHECK_INT(errno, EBADF);
	uint32_t handle = mr->handle, of_dm = dm->handle, of_pd = pd->handle;
	CHECK_INT(ibv_dereg_mr(mr), 0);
	CHECK(!ibv_import_mr(pd, handle));
	CHECK_INT(errno, EINVAL);
	CHECK_INT(ibv_free_dm(dm), 0);
	CHECK(!ibv_import_dm(context, of_dm));
	CHECK_INT(ibv_dealloc_pd(pd), 0);
	CHECK(!ibv_import_pd(context, of_pd));
	CHECK_INT(ibv_close_device(other), 0);
	CHECK_INT(ibv_close_device(context), 0);
}

static void what_is_no_device_cannot(void)
{
	int pair[2];
	CHECK_INT(pipe(pair), 0);
	CHECK(!ibv_import_device(pair[0]));
	CHECK_INT(errno, EINVAL);
	CHECK_INT(fcntl(pair[0], F_GETFD), 0);
	CHECK(!ibv_import_device(-1));
	CHECK_INT(errno, EBADF);
	CHECK(!ibv_import_device(9999));
	CHECK_INT(errno, EBADF);
}

static const struct test_case cases[] = {
	{ "allocators_are_called", allocators_are_called },
	{ "what_was_made_can_be_imported", what_was_made_can_be_imported },
	{ "what_is_no_device_cannot", what_is_no_device_cannot },
	{ 0 },
};

int main(int argc, char **argv)
{
	return run_case(cases, argc, argv);
}
