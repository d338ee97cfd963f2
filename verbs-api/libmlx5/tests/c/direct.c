/* Functions of libmlx5 on a device like mlx5. */
#include "../../../libibverbs/tests/c/rig.h"

#include <dlfcn.h>
#include <infiniband/mlx5dv.h>
#include <sys/mman.h>

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |         \
		IBV_ACCESS_REMOTE_ATOMIC)

enum { DATA_DIRECT = 1 };

static void *mlx5_call(const char *name, const char *node)
{
	void *found = dlvsym(RTLD_DEFAULT, name, node);
	CHECK(found);
	return found;
}

typedef struct ibv_mr *(*reg_dmabuf_fn)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int, int);

static int two_pages(void)
{
	int fd = memfd_create("dmabuf", 0);
	CHECK(fd >= 0);
	CHECK_INT(ftruncate(fd, 2 * sysconf(_SC_PAGESIZE)), 0);
	return fd;
}

static void a_device_of_another_kind_refuses(void)
{
	reg_dmabuf_fn reg_dmabuf = (reg_dmabuf_fn)mlx5_call("mlx5dv_reg_dmabuf_mr", "MLX5_1.25");
	struct rig r = rig_open();
	errno = 0;
	CHECK(!reg_dmabuf(r.pd, 0, 8, 0, two_pages(), ACCESS, 0));
	CHECK_INT(errno, EOPNOTSUPP);
	rig_close(&r);
}

static void a_region_of_a_descriptor(void)
{
	reg_dmabuf_fn reg_dmabuf = (reg_dmabuf_fn)mlx5_call("mlx5dv_reg_dmabuf_mr", "MLX5_1.25");
	const size_t page = sysconf(_SC_PAGESIZE);
	int fd = two_pages();
	setenv("ROCADE_LIKE", "mlx5", 1);
	struct rig r = rig_open();
	static const struct { int flags, error; } refused[] = { { DATA_DIRECT, EOPNOTSUPP },
								{ 2, EINVAL }, { -1, EINVAL } };
	for (int i = 0; i < 3; i++) {
		errno = 0;
		CHECK(!reg_dmabuf(r.pd, 0, page, 0, fd, ACCESS, refused[i].flags));
		CHECK_INT(errno, refused[i].error);
	}
	errno = 0;
	CHECK(!reg_dmabuf(NULL, 0, page, 0, fd, ACCESS, 0));
	CHECK_INT(errno, EINVAL);
	errno = 0;
	CHECK(!reg_dmabuf(r.pd, 0, page, 0, -1, ACCESS, 0));
	CHECK_INT(errno, EBADF);
	struct ibv_mr *mr = reg_dmabuf(r.pd, page, 64, 8 * page, fd, ACCESS, 0);
	CHECK(mr);
	memcpy(r.buffer, "by the device!", 15);
	struct ibv_sge sge = sge_at(&r, 0, 15);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = 8 * page;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK_INT(ibv_post_send(r.a, &wr, &bad), 0);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	char seen[15];
	CHECK_INT(pread(fd, seen, 15, page), 15);
	CHECK(!memcmp(seen, "by the device!", 15));
	CHECK_INT(ibv_dereg_mr(mr), 0);
	rig_close(&r);
}

static void sizes_and_failures_of_later_releases(void)
{
	void (*sizes)(void *, size_t) =
		(void (*)(void *, size_t))mlx5_call("_mlx5dv_get_export_sizes", "MLX5_1.27");
	uint64_t words[4] = { 7, 7, 7, 7 };
	sizes(words, 24);
	CHECK(!words[0] && !words[1] && !words[2] && words[3] == 7);
	int (*export_uar)(void *) =
		(int (*)(void *))mlx5_call("mlx5dv_devx_uar_export_dmabuf_fd", "MLX5_1.26");
	errno = 0;
	CHECK_INT(export_uar(NULL), -1);
	CHECK_INT(errno, EOPNOTSUPP);
	int (*cancel)(void *, uint64_t) =
		(int (*)(void *, uint64_t))mlx5_call("mlx5dv_qp_cancel_posted_send_wrs", "MLX5_1.20");
	CHECK_INT(cancel(NULL, 0), -EOPNOTSUPP);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "a_device_of_another_kind_refuses", a_device_of_another_kind_refuses },
		{ "a_region_of_a_descriptor", a_region_of_a_descriptor },
		{ "sizes_and_failures_of_later_releases", sizes_and_failures_of_later_releases },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
