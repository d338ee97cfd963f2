/* Calls of rdma-core releases after the one whose headers are installed. A program that was built
 * with them names the version node of each. */
#define _GNU_SOURCE
#include "rig.h"

#include <dlfcn.h>

#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMA_HANDLE = 16 };

/* struct ibv_mr_init_attr */
struct mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
};

static void *call(const char *name, const char *node)
{
	void *found = dlvsym(RTLD_DEFAULT, name, node);
	if (!found)
		fprintf(stderr, "%s@%s\n", name, node);
	CHECK(found);
	return found;
}

static enum ibv_wc_status write_to(struct rig *r, uint64_t remote, uint32_t rkey)
{
	struct ibv_sge sge = sge_at(r, 0, 8);
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = remote;
	wr.wr.rdma.rkey = rkey;
	CHECK_INT(ibv_post_send(r->a, &wr, &bad), 0);
	return next_completion(r->cq).status;
}

static void regions_by_attributes(void)
{
	struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct mr_init_attr *) =
		call("ibv_reg_mr_ex", "IBVERBS_1.15");
	struct rig r = rig_open();
	memcpy(r.buffer, "by parts", 8);
	struct mr_init_attr attr = { .length = 8, .access = ALL_ACCESS, .comp_mask = ADDR,
				     .addr = r.buffer + 64 };
	struct ibv_mr *own = reg_mr_ex(r.pd, &attr);
	attr.comp_mask |= IOVA;
	attr.iova = 0xabcdef;
	attr.addr = r.buffer + 72;
	struct ibv_mr *named = reg_mr_ex(r.pd, &attr);
	CHECK(own && named);
	CHECK_INT(write_to(&r, (uintptr_t)r.buffer + 64, own->rkey), IBV_WC_SUCCESS);
	CHECK_INT(write_to(&r, 0xabcdef, named->rkey), IBV_WC_SUCCESS);
	CHECK(!memcmp(r.buffer + 64, "by partsby parts", 16));

	static const struct { uint64_t mask; int error; } refused[] = {
		{ 0, EINVAL }, { IOVA, EINVAL }, { ADDR | FD, EINVAL }, { ADDR | FD_OFFSET, EINVAL },
		{ ADDR | DMA_HANDLE, EOPNOTSUPP }, { ADDR | 1ULL << 40, EOPNOTSUPP },
		{ FD | FD_OFFSET | IOVA, EOPNOTSUPP },
	};
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		attr.comp_mask = refused[i].mask;
		errno = 0;
		CHECK(!reg_mr_ex(r.pd, &attr));
		CHECK_INT(errno, refused[i].error);
	}
	errno = 0;
	CHECK(!reg_mr_ex(r.pd, NULL));
	CHECK_INT(errno, EINVAL);
	CHECK_INT(ibv_dereg_mr(own), 0);
	CHECK_INT(ibv_dereg_mr(named), 0);
	rig_close(&r);
}

static void a_port_has_a_speed(void)
{
	int (*query_port_speed)(struct ibv_context *, uint32_t, uint64_t *) =
		call("ibv_query_port_speed", "IBVERBS_1.16");
	struct rig r = rig_open();
	uint64_t speed = 0;
	CHECK_INT(query_port_speed(r.context, 1, &speed), 0);
	/* 4 lanes of 25 Gbit/s, in units of 100 Mbit/s. */
	struct ibv_port_attr port;
	CHECK_INT(ibv_query_port(r.context, 1, &port), 0);
	CHECK_INT(port.active_speed, 32);
	CHECK_INT(speed, 1000);
	CHECK_INT(query_port_speed(r.context, 0, &speed), EINVAL);
	CHECK_INT(query_port_speed(r.context, 9, &speed), EINVAL);
	CHECK_INT(query_port_speed(r.context, 257, &speed), EINVAL);
	CHECK_INT(query_port_speed(r.context, 1, NULL), EINVAL);
	rig_close(&r);
}

/* ibv_devinfo, ibstat and pyverbs of each release use the private node of that release. */
static void private_nodes_have_the_same_calls(void)
{
	static const char *const nodes[] = { "IBVERBS_PRIVATE_34", "IBVERBS_PRIVATE_57",
					     "IBVERBS_PRIVATE_59", "IBVERBS_PRIVATE_64",
					     "IBVERBS_PRIVATE_65" };
	struct rig r = rig_open();
	for (int i = 0; i < 5; i++) {
		int (*gid_type)(struct ibv_context *, uint8_t, unsigned, unsigned *) =
			call("ibv_query_gid_type", nodes[i]);
		unsigned type = 9;
		CHECK_INT(gid_type(r.context, 1, 0, &type), 0);
		CHECK_INT(type, 1);
	}
	rig_close(&r);
}

/* A call without a meaning for this device says so. */
static void what_is_not_supported_says_so(void)
{
	void *(*alloc_dmah)(struct ibv_context *, void *) = call("ibv_alloc_dmah", "IBVERBS_1.15");
	int (*caps)(struct ibv_context *, void *, size_t) =
		call("_ibv_query_comp_cntr_caps", "IBVERBS_1.18");
	struct rig r = rig_open();
	errno = 0;
	CHECK(!alloc_dmah(r.context, NULL));
	CHECK_INT(errno, EOPNOTSUPP);
	CHECK_INT(caps(r.context, NULL, 0), EOPNOTSUPP);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "regions_by_attributes", regions_by_attributes },
		{ "a_port_has_a_speed", a_port_has_a_speed },
		{ "private_nodes_have_the_same_calls", private_nodes_have_the_same_calls },
		{ "what_is_not_supported_says_so", what_is_not_supported_says_so },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
