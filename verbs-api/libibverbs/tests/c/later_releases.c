/* Calls of rdma-core releases after the one whose headers are installed. A program that was built
 * with them names the version node of each. */
#define _GNU_SOURCE
#include "rig.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMA_HANDLE = 16, BUFFER = 32 };

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
	void *buf;
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
		{ BUFFER, EINVAL }, { BUFFER | FD, EINVAL }, { BUFFER | ADDR | IOVA, EINVAL },
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

/* A region of a descriptor is the memory that others map from it. */
static void regions_of_a_descriptor(void)
{
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int) =
		call("ibv_reg_dmabuf_mr", "IBVERBS_1.12");
	struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct mr_init_attr *) =
		call("ibv_reg_mr_ex", "IBVERBS_1.15");
	const size_t page = sysconf(_SC_PAGESIZE), length = 3 * page;
	struct rig r = rig_open();
	int fd = memfd_create("dmabuf", 0);
	CHECK(fd >= 0);
	CHECK_INT(ftruncate(fd, length), 0);
	char *seen = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(seen != MAP_FAILED);
	memcpy(r.buffer, "of a fd!", 8);

	/* 100 bytes from the second page on, under an address of its own. */
	struct ibv_mr *mr = reg_dmabuf_mr(r.pd, page + 40, 100, 16 * page + 40, fd, ALL_ACCESS);
	CHECK(mr);
	CHECK_INT((uintptr_t)mr->addr, page + 40);
	CHECK_INT(mr->length, 100);
	struct mr_init_attr attr = { .length = 8, .access = ALL_ACCESS, .comp_mask = FD | FD_OFFSET,
				     .fd = fd, .fd_offset = 2 * page };
	struct ibv_mr *last = reg_mr_ex(r.pd, &attr);
	CHECK(last);
	/* Neither needs the descriptor any more. */
	int copy = dup(fd);
	close(fd);
	CHECK_INT(write_to(&r, 16 * page + 40, mr->rkey), IBV_WC_SUCCESS);
	CHECK(!memcmp(seen + page + 40, "of a fd!", 8));
	CHECK_INT(write_to(&r, 2 * page, last->rkey), IBV_WC_SUCCESS);
	CHECK(!memcmp(seen + 2 * page, "of a fd!", 8));

	static const struct { long offset, length, iova; int access, error; } refused[] = {
		{ 0, 0, 0, ALL_ACCESS, EINVAL },
		{ 0, 1 << 20, 0, ALL_ACCESS, EINVAL },
		{ -1, 2, -1, ALL_ACCESS, EINVAL },
		{ 0, 8, 1, ALL_ACCESS, EINVAL },
		{ 0, 8, 0, IBV_ACCESS_REMOTE_WRITE, EINVAL },
		{ 0, 8, 0, ALL_ACCESS | IBV_ACCESS_ON_DEMAND, EINVAL },
		{ 0, 8, 0, ALL_ACCESS | IBV_ACCESS_MW_BIND, EINVAL },
		{ 0, 8, 0, ALL_ACCESS | IBV_ACCESS_ZERO_BASED, EINVAL },
		{ 0, 8, 0, ALL_ACCESS | IBV_ACCESS_HUGETLB, EINVAL },
	};
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		errno = 0;
		CHECK(!reg_dmabuf_mr(r.pd, refused[i].offset, refused[i].length, refused[i].iova, copy,
				     refused[i].access));
		CHECK_INT(errno, refused[i].error);
	}
	errno = 0;
	CHECK(!reg_dmabuf_mr(r.pd, 0, 8, 0, -1, ALL_ACCESS));
	CHECK_INT(errno, EBADF);
	int read_only = open("/proc/self/exe", O_RDONLY);
	errno = 0;
	CHECK(!reg_dmabuf_mr(r.pd, 0, 8, 0, read_only, ALL_ACCESS));
	CHECK_INT(errno, EACCES);
	struct ibv_mr *readable = reg_dmabuf_mr(r.pd, 0, 8, 0, read_only, IBV_ACCESS_REMOTE_READ);
	CHECK(readable);
	CHECK_INT(ibv_dereg_mr(readable), 0);

	/* Memory that is gone refuses an access, and does not end the program. */
	CHECK_INT(ftruncate(copy, page), 0);
	CHECK(write_to(&r, 2 * page, last->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK_INT(ibv_dereg_mr(last), 0);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	close(read_only);
	close(copy);
	rig_close(&r);
}

static void buffers_of_the_library(void)
{
	void *(*alloc_buf)(struct ibv_pd *, size_t, void **) = call("ibv_alloc_buf", "IBVERBS_1.17");
	void (*free_buf)(void *) = call("ibv_free_buf", "IBVERBS_1.17");
	struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, void *, void *, size_t, int) =
		call("ibv_reg_buf_mr", "IBVERBS_1.17");
	int (*export_fd)(void *) = call("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
	struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct mr_init_attr *) =
		call("ibv_reg_mr_ex", "IBVERBS_1.15");
	struct rig r = rig_open();
	void *handle = NULL;
	char *buffer = alloc_buf(r.pd, 5000, &handle);
	CHECK(buffer && handle);
	CHECK_INT((uintptr_t)buffer % sysconf(_SC_PAGESIZE), 0);
	CHECK(!buffer[0] && !buffer[4999]);
	struct ibv_mr *mr = reg_buf_mr(r.pd, handle, buffer + 4000, 1000, ALL_ACCESS);
	struct mr_init_attr attr = { .length = 8, .access = ALL_ACCESS, .comp_mask = ADDR | BUFFER,
				     .addr = buffer, .buf = handle };
	struct ibv_mr *first = reg_mr_ex(r.pd, &attr);
	CHECK(mr && first);
	memcpy(r.buffer, "a buffer", 8);
	CHECK_INT(write_to(&r, (uintptr_t)buffer + 4992, mr->rkey), IBV_WC_SUCCESS);
	CHECK_INT(write_to(&r, (uintptr_t)buffer, first->rkey), IBV_WC_SUCCESS);
	CHECK(!memcmp(buffer + 4992, "a buffer", 8) && !memcmp(buffer, "a buffer", 8));
	/* Under an address of its own. */
	attr.comp_mask |= IOVA;
	attr.iova = 0xabcdef;
	attr.addr = buffer + 16;
	struct ibv_mr *named = reg_mr_ex(r.pd, &attr);
	CHECK(named && named->addr == buffer + 16);
	CHECK_INT(write_to(&r, 0xabcdef, named->rkey), IBV_WC_SUCCESS);
	CHECK(!memcmp(buffer + 16, "a buffer", 8));
	CHECK_INT(ibv_dereg_mr(named), 0);
	attr.comp_mask = BUFFER | ADDR | FD;
	errno = 0;
	CHECK(!reg_mr_ex(r.pd, &attr));
	CHECK_INT(errno, EINVAL);
	/* It is ordinary memory, of which there is no descriptor. */
	errno = 0;
	CHECK_INT(export_fd(handle), -1);
	CHECK_INT(errno, ENODATA);

	struct ibv_pd *other = ibv_alloc_pd(r.context);
	static const struct { int offset, length; } outside[] = { { 4000, 1001 }, { -8, 16 },
								  { 5000, 1 } };
	for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
		errno = 0;
		CHECK(!reg_buf_mr(r.pd, handle, buffer + outside[i].offset, outside[i].length,
				  ALL_ACCESS));
		CHECK_INT(errno, EINVAL);
	}
	errno = 0;
	CHECK(!reg_buf_mr(other, handle, buffer, 8, ALL_ACCESS));
	CHECK_INT(errno, EINVAL);
	CHECK_INT(ibv_dealloc_pd(other), 0);
	errno = 0;
	CHECK(!alloc_buf(r.pd, 0, &handle));
	CHECK_INT(errno, EINVAL);
	errno = 0;
	CHECK_INT(export_fd(NULL), -1);
	CHECK_INT(errno, EINVAL);

	/* A region keeps the memory of its buffer. */
	free_buf(handle);
	CHECK_INT(write_to(&r, (uintptr_t)buffer, first->rkey), IBV_WC_SUCCESS);
	CHECK_INT(ibv_dereg_mr(first), 0);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	rig_close(&r);
}

/* Neither the limit for files nor that for descriptors matters. */
static void a_buffer_is_no_file(void)
{
	void *(*alloc_buf)(struct ibv_pd *, size_t, void **) = call("ibv_alloc_buf", "IBVERBS_1.17");
	void (*free_buf)(void *) = call("ibv_free_buf", "IBVERBS_1.17");
	struct rig r = rig_open();
	struct rlimit limit = { 65536, 65536 }, none = { 0, 0 };
	CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
	CHECK_INT(setrlimit(RLIMIT_NOFILE, &none), 0);
	void *handle;
	char *buffer = alloc_buf(r.pd, 1 << 20, &handle);
	CHECK(buffer);
	memset(buffer, 1, 1 << 20);
	free_buf(handle);
	errno = 0;
	CHECK(!alloc_buf(r.pd, SIZE_MAX / 2, &handle));
	CHECK_INT(errno, ENOMEM);
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

static int number_of_devices(void)
{
	int count = -1;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list);
	ibv_free_device_list(list);
	return count;
}

/* Libraries of other devices, such as libhns, register themselves when they are loaded. */
static void drivers_of_other_devices_are_ignored(void)
{
	static const char *const names[][2] = {
		{ "verbs_register_driver_34", "IBVERBS_PRIVATE_34" },
		{ "verbs_register_driver_57", "IBVERBS_PRIVATE_57" },
		{ "verbs_register_driver_59", "IBVERBS_PRIVATE_59" },
		{ "verbs_register_driver_64", "IBVERBS_PRIVATE_64" },
		{ "verbs_register_driver_65", "IBVERBS_PRIVATE_65" },
	};
	static const char operations[1024] = "struct verbs_device_ops";
	int before = number_of_devices();
	CHECK(before > 0);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		void (*enroll)(const void *) = call(names[i][0], names[i][1]);
		enroll(operations);
		CHECK_INT(number_of_devices(), before);
	}
}

static void names_of_enumerators(void)
{
	const char *(*opcode)(int) = call("ibv_wr_opcode_str", "IBVERBS_PRIVATE_65");
	static const char *const opcodes[] = {
		"rdma-write", "rdma-write-with-imm", "send", "send-with-imm", "rdma-read",
		"atomic-cmp-and-swp", "atomic-fetch-and-add", "local-inv", "bind-mw",
		"send-with-inv", "tso", "driver1", "unknown", "unknown", "flush", "atomic-write",
		"unknown",
	};
	for (int i = 0; i < 17; i++)
		CHECK(!strcmp(opcode(i), opcodes[i]));
	CHECK(!strcmp(opcode(-1), "unknown"));
	CHECK(!strcmp(ibv_event_type_str(20), "Device link speed change"));
	CHECK(!strcmp(ibv_event_type_str(21), "unknown"));
}

/* A call without a meaning for this device says so. A descriptor is never positive then. */
static void what_is_not_supported_says_so(void)
{
	void *(*alloc_dmah)(struct ibv_context *, void *) = call("ibv_alloc_dmah", "IBVERBS_1.15");
	struct rig r = rig_open();
	errno = 0;
	CHECK(!alloc_dmah(r.context, NULL));
	CHECK_INT(errno, EOPNOTSUPP);
	int (*export_dm)(void *) = call("ibv_dm_export_dmabuf_fd", "IBVERBS_1.16");
	errno = 0;
	CHECK_INT(export_dm(NULL), -1);
	CHECK_INT(errno, EOPNOTSUPP);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "regions_by_attributes", regions_by_attributes },
		{ "regions_of_a_descriptor", regions_of_a_descriptor },
		{ "buffers_of_the_library", buffers_of_the_library },
		{ "a_buffer_is_no_file", a_buffer_is_no_file },
		{ "a_port_has_a_speed", a_port_has_a_speed },
		{ "private_nodes_have_the_same_calls", private_nodes_have_the_same_calls },
		{ "drivers_of_other_devices_are_ignored", drivers_of_other_devices_are_ignored },
		{ "names_of_enumerators", names_of_enumerators },
		{ "what_is_not_supported_says_so", what_is_not_supported_says_so },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
