/* GPUDirect RDMA without a GPU: a peer writes to device memory, and reads from it.
 *
 * A program that uses GPUDirect asks the driver of its GPU for a DMA-buf, a file descriptor of
 * memory on the device. It registers that descriptor as a memory region. Here the kernel makes the
 * DMA-buf, and a mapping of it is the view of the "GPU". The rest is as with a GPU.
 *
 *     cc -o dmabuf dmabuf.c -libverbs
 *     rocade run -- ./dmabuf             # or: ./dmabuf udmabuf|heap|memfd
 *
 * Exit status: 0 if all data arrived, 77 if this kernel has no such memory, 1 for another failure.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <linux/dma-buf.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>

#include <infiniband/verbs.h>

enum { COUNT = 1 << 18, BYTES = COUNT * sizeof(uint32_t), NOT_HERE = 77 };

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static void fail(int status, const char *format, ...)
{
	int error = errno;
	va_list list;
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fprintf(stderr, ": %s\n", strerror(error));
	exit(status);
}

static void check(int holds, const char *what)
{
	if (!holds)
		fail(1, "%s", what);
}

/* Memory of the kernel that stands for that of a GPU. */
struct device_memory {
	const char *kind;
	int fd;
};

/* A file in memory. It is no DMA-buf, and only Rocade registers it as one. */
static struct device_memory from_memfd(void)
{
	struct device_memory memory = { "memfd", memfd_create("device", MFD_ALLOW_SEALING) };
	check(memory.fd >= 0 && !ftruncate(memory.fd, BYTES), "memfd");
	return memory;
}

/* A DMA-buf of the pages of a file in memory. */
static struct device_memory from_udmabuf(void)
{
	int device = open("/dev/udmabuf", O_RDWR);
	if (device < 0)
		fail(NOT_HERE, "no DMA-buf from /dev/udmabuf");
	int pages = from_memfd().fd;
	check(!fcntl(pages, F_ADD_SEALS, F_SEAL_SHRINK), "F_SEAL_SHRINK");
	struct udmabuf_create create = { .memfd = pages, .flags = UDMABUF_FLAGS_CLOEXEC,
					 .size = BYTES };
	struct device_memory memory = { "udmabuf", ioctl(device, UDMABUF_CREATE, &create) };
	check(memory.fd >= 0, "UDMABUF_CREATE");
	close(pages);
	close(device);
	return memory;
}

/* A DMA-buf from the heap of system memory. */
static struct device_memory from_heap(void)
{
	int heap = open("/dev/dma_heap/system", O_RDONLY);
	if (heap < 0)
		fail(NOT_HERE, "no DMA-buf from /dev/dma_heap/system");
	struct dma_heap_allocation_data data = { .len = BYTES, .fd_flags = O_RDWR | O_CLOEXEC };
	check(!ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &data), "DMA_HEAP_IOCTL_ALLOC");
	close(heap);
	struct device_memory memory = { "heap", data.fd };
	return memory;
}

/* With CUDA: cuMemAlloc, then cuMemGetHandleForAddressRange with
 * CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD. */
static struct device_memory allocate(const char *kind)
{
	if (kind && !strcmp(kind, "udmabuf"))
		return from_udmabuf();
	if (kind && !strcmp(kind, "heap"))
		return from_heap();
	if (kind && !strcmp(kind, "memfd"))
		return from_memfd();
	if (!access("/dev/udmabuf", R_OK | W_OK))
		return from_udmabuf();
	if (!access("/dev/dma_heap/system", R_OK))
		return from_heap();
	return from_memfd();
}

/* Lets the processor see what the device has, and back. A memfd needs neither. */
static void synchronize(int fd, uint64_t flags)
{
	struct dma_buf_sync sync = { .flags = flags };
	check(!ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync) || errno == ENOTTY, "DMA_BUF_IOCTL_SYNC");
}

/* The work of the "GPU": doubles all numbers in its memory, which are 1, 2, 3 and so on. */
static void run_kernel(struct device_memory memory)
{
	uint32_t *numbers = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
	check(numbers != MAP_FAILED, "mmap of the device memory");
	synchronize(memory.fd, DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW);
	for (uint32_t i = 0; i < COUNT; i++) {
		if (numbers[i] != i + 1) {
			fprintf(stderr, "number %u in the device memory is %u\n", i, numbers[i]);
			exit(1);
		}
		numbers[i] *= 2;
	}
	synchronize(memory.fd, DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW);
	munmap(numbers, BYTES);
}

static void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .qp_access_flags = ACCESS };
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						IBV_QP_ACCESS_FLAGS), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer;
	attr.max_dest_rd_atomic = 4;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.hop_limit = 64;
	check(!ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid), "GID");
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
	      "RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 16;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

/* Writes the peer's memory to that of the device, or reads it back. */
static void transfer(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_mr *local,
		     struct ibv_mr *device, uint64_t address)
{
	struct ibv_sge sge = { (uintptr_t)local->addr, BYTES, local->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.wr.rdma.remote_addr = address;
	wr.wr.rdma.rkey = device->rkey;
	check(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	struct ibv_wc wc;
	int polled;
	while ((polled = ibv_poll_cq(qp->send_cq, 1, &wc)) == 0)
		;
	check(polled == 1 && wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
}

int main(int argc, char **argv)
{
	struct device_memory memory = allocate(argc > 1 ? argv[1] : NULL);
	struct ibv_device **list = ibv_get_device_list(NULL);
	check(list && list[0], "no RDMA device: use rocade run");
	struct ibv_context *context = ibv_open_device(list[0]);
	check(context != NULL, "ibv_open_device");
	ibv_free_device_list(list);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	check(pd && cq, "ibv_create_cq");

	/* Peers address the memory as the GPU does. Any address at the start of a page will do. */
	uint64_t address = 0x7f0000000000;
	struct ibv_mr *device = ibv_reg_dmabuf_mr(pd, 0, BYTES, address, memory.fd, ACCESS);
	check(device != NULL, "ibv_reg_dmabuf_mr");

	/* The peer, in this process for simplicity, has ordinary memory. */
	uint32_t *numbers = calloc(COUNT, sizeof(*numbers));
	check(numbers != NULL, "calloc");
	struct ibv_mr *local = ibv_reg_mr(pd, numbers, BYTES, IBV_ACCESS_LOCAL_WRITE);
	check(local != NULL, "ibv_reg_mr");
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 4,
						  .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *of_peer = ibv_create_qp(pd, &init), *of_device = ibv_create_qp(pd, &init);
	check(of_peer && of_device, "ibv_create_qp");
	connect_to(of_peer, of_device->qp_num);
	connect_to(of_device, of_peer->qp_num);

	for (uint32_t i = 0; i < COUNT; i++)
		numbers[i] = i + 1;
	transfer(of_peer, IBV_WR_RDMA_WRITE, local, device, address);
	run_kernel(memory);
	transfer(of_peer, IBV_WR_RDMA_READ, local, device, address);
	for (uint32_t i = 0; i < COUNT; i++)
		if (numbers[i] != 2 * (i + 1)) {
			fprintf(stderr, "number %u is %u\n", i, numbers[i]);
			return 1;
		}
	printf("%d bytes of device memory (%s) written, changed and read\n", BYTES, memory.kind);

	check(!ibv_destroy_qp(of_peer) && !ibv_destroy_qp(of_device), "ibv_destroy_qp");
	check(!ibv_dereg_mr(local) && !ibv_dereg_mr(device), "ibv_dereg_mr");
	check(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	check(!ibv_close_device(context), "ibv_close_device");
	close(memory.fd);
	free(numbers);
	return 0;
}
