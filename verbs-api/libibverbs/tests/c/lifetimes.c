/* Memory and addresses of objects after their end. */
#define _GNU_SOURCE
#include "rig.h"

#include <dlfcn.h>
#include <sys/mman.h>

/* The number of destroyed channels whose addresses no new channel gets. */
#define KEPT 64

/* A call may come so late that its channel was destroyed. It must not find another channel at the
 * address: of 64 channels that are made and destroyed, no two have the same. */
static void an_address_of_a_channel_is_not_used_again_soon(void)
{
	struct ibv_context *context = open_device();
	struct ibv_comp_channel *seen[KEPT];
	for (int i = 0; i < KEPT; i++) {
		seen[i] = ibv_create_comp_channel(context);
		CHECK(seen[i]);
		for (int before = 0; before < i; before++)
			CHECK(seen[before] != seen[i]);
		CHECK_INT(ibv_destroy_comp_channel(seen[i]), 0);
	}
	CHECK_INT(ibv_close_device(context), 0);
}

/* Returns the number of mappings of this process that are of a file with this name, or of all. */
static int mappings_of(const char *name)
{
	char line[512];
	int count = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (fgets(line, sizeof(line), maps))
		count += strstr(line, name) != NULL;
	fclose(maps);
	return count;
}

static int is_mapped(void *page)
{
	int result = msync(page, 1, MS_ASYNC);
	CHECK(!result || errno == ENOMEM);
	return !result;
}

/* A region of a descriptor maps it while the region exists, also if the registration fails late. */
static void a_registration_leaves_no_mapping(void)
{
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int) =
		dlvsym(RTLD_DEFAULT, "ibv_reg_dmabuf_mr", "IBVERBS_1.12");
	void *(*alloc_buf)(struct ibv_pd *, size_t, void **) =
		dlvsym(RTLD_DEFAULT, "ibv_alloc_buf", "IBVERBS_1.17");
	void (*free_buf)(void *) = dlvsym(RTLD_DEFAULT, "ibv_free_buf", "IBVERBS_1.17");
	struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, void *, void *, size_t, int) =
		dlvsym(RTLD_DEFAULT, "ibv_reg_buf_mr", "IBVERBS_1.17");
	CHECK(reg_dmabuf_mr && alloc_buf && free_buf && reg_buf_mr);
	const long page = sysconf(_SC_PAGESIZE);
	struct rig r = rig_open();
	int fd = memfd_create("lifetimes-file", 0);
	CHECK(fd >= 0);
	CHECK_INT(ftruncate(fd, 4 * page), 0);
	for (int round = 0; round < 3; round++) {
		struct ibv_mr *whole = reg_dmabuf_mr(r.pd, 0, 4 * page, 0, fd, IBV_ACCESS_LOCAL_WRITE);
		struct ibv_mr *part = reg_dmabuf_mr(r.pd, page + 8, 16, 8, fd, IBV_ACCESS_LOCAL_WRITE);
		CHECK(whole && part);
		CHECK_INT(mappings_of("lifetimes-file"), 2);
		CHECK_INT(ibv_dereg_mr(whole), 0);
		CHECK_INT(mappings_of("lifetimes-file"), 1);
		CHECK_INT(ibv_dereg_mr(part), 0);
		CHECK_INT(mappings_of("lifetimes-file"), 0);
		/* Remote rights need local ones. This is found after the descriptor was mapped. */
		CHECK(!reg_dmabuf_mr(r.pd, 0, 8, 0, fd, IBV_ACCESS_REMOTE_WRITE));
		CHECK_INT(mappings_of("lifetimes-file"), 0);

		/* So long that no later mapping is in its middle by chance. A region keeps it. */
		const size_t length = 64 << 20;
		void *handle;
		char *buffer = alloc_buf(r.pd, length, &handle);
		CHECK(buffer && is_mapped(buffer + length / 2));
		struct ibv_mr *mr = reg_buf_mr(r.pd, handle, buffer, 8, IBV_ACCESS_LOCAL_WRITE);
		CHECK(mr);
		free_buf(handle);
		CHECK(is_mapped(buffer + length / 2));
		CHECK_INT(ibv_dereg_mr(mr), 0);
		CHECK(!is_mapped(buffer + length / 2));
	}
	close(fd);

	/* A plain region maps nothing. */
	const int rounds = 200, before = mappings_of("");
	for (int round = 0; round < rounds; round++) {
		struct ibv_mr *mr = ibv_reg_mr(r.pd, r.buffer, 64, IBV_ACCESS_LOCAL_WRITE);
		CHECK(mr);
		CHECK_INT(ibv_dereg_mr(mr), 0);
	}
	CHECK(mappings_of("") - before < rounds / 2);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "an_address_of_a_channel_is_not_used_again_soon",
		  an_address_of_a_channel_is_not_used_again_soon },
		{ "a_registration_leaves_no_mapping", a_registration_leaves_no_mapping },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
