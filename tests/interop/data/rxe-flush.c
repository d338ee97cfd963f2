/*
 * Posts FLUSH on the kernel's rxe, whose provider in this libibverbs has no FLUSH.
 *
 * 	rxe-flush DEVICE GID_INDEX PORT [HOST]
 *
 * With HOST it connects by TCP to a program without HOST, which only answers. Then it sends four
 * FLUSHes, one per queue pair: of both types and both levels. A WRITE precedes each. It prints how
 * each FLUSH ended.
 *
 * A FLUSH is a changed copy of the WRITE in the send queue, which the kernel shares with the
 * program. The sending side must therefore be rxe.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_rxe.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER = 4096, LEN = 64, COUNT = 4 };
/* Values that newer headers name. */
enum { ACCESS_FLUSH_GLOBAL = 1 << 8, OPCODE_FLUSH = 14 };

static const struct { uint8_t type, level; } kinds[COUNT] = { { 1, 0 }, { 1, 1 }, { 2, 0 }, { 2, 1 } };

/* The members of a FLUSH in the union of rxe_send_wr. */
struct flush {
	uint64_t remote_addr;
	uint32_t length, rkey;
	uint8_t type, level;
};

/* The connection data of one side. */
struct peer {
	uint64_t addr;
	uint32_t rkey, qpn[COUNT];
	uint8_t gid[16];
};

static struct ibv_context *context;
static struct ibv_cq *cq;
static struct ibv_qp *qps[COUNT];
static struct ibv_mr *mr;
static struct peer theirs;
static int stream;

static void fail(const char *what)
{
	fprintf(stderr, "rxe-flush: %s (errno %d: %s)\n", what, errno, strerror(errno));
	exit(1);
}

static void *need(void *p, const char *what)
{
	if (!p)
		fail(what);
	return p;
}

static void connect_tcp(const char *port, const char *host)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_family = AF_INET, .ai_flags = AI_PASSIVE };
	struct addrinfo *info;
	int one = 1;
	if (getaddrinfo(host, port, &hints, &info))
		fail("no such address");
	int s = socket(info->ai_family, SOCK_STREAM, 0);
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (host && connect(s, info->ai_addr, info->ai_addrlen))
		fail("connect");
	if (!host && (bind(s, info->ai_addr, info->ai_addrlen) || listen(s, 1)))
		fail("listen");
	stream = host ? s : accept(s, NULL, NULL);
	if (stream < 0)
		fail("accept");
}

static void exchange(const void *ours, void *others, size_t len)
{
	if (write(stream, ours, len) != (ssize_t)len || recv(stream, others, len, MSG_WAITALL) != (ssize_t)len)
		fail("the peer is gone");
}

static void open_device(const char *name)
{
	static uint8_t buffer[BUFFER] __attribute__((aligned(4096)));
	struct ibv_device **list = need(ibv_get_device_list(NULL), "no devices");
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = need(ibv_open_device(list[i]), "open");
	need(context, "no such device");
	struct ibv_pd *pd = need(ibv_alloc_pd(context), "PD");
	cq = need(ibv_create_cq(context, 16, NULL, NULL, 0), "CQ");
	for (int i = 0; i < LEN; i++)
		buffer[i] = 7 * i + 3;
	mr = need(ibv_reg_mr(pd, buffer, BUFFER,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | ACCESS_FLUSH_GLOBAL), "MR");
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	for (int i = 0; i < COUNT; i++)
		qps[i] = need(ibv_create_qp(pd, &init), "QP");
}

static void modify(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	errno = ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE);
	if (errno)
		fail("modify QP");
}

static void connect_qp(int i, int gid_index, int is_requester)
{
	const uint32_t psn[] = { 0x100000, 0x200000 };
	modify(qps[i], (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1,
					     .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | ACCESS_FLUSH_GLOBAL },
	       IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = theirs.qpn[i],
		.rq_psn = psn[!is_requester], .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = gid_index, .hop_limit = 64 } },
	};
	memcpy(&rtr.ah_attr.grh.dgid, theirs.gid, 16);
	modify(qps[i], rtr, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	/* rxe takes a count of 7 for infinite. The timeout of 1 s suits an emulated processor. */
	modify(qps[i], (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 2, .rnr_retry = 7,
					     .sq_psn = psn[is_requester], .max_rd_atomic = 4 },
	       IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static void connect_all(int gid_index, int is_requester)
{
	struct peer ours = { .addr = (uintptr_t)mr->addr, .rkey = mr->rkey };
	union ibv_gid gid;
	if (ibv_query_gid(context, 1, gid_index, &gid))
		fail("GID");
	memcpy(ours.gid, &gid, 16);
	for (int i = 0; i < COUNT; i++)
		ours.qpn[i] = qps[i]->qp_num;
	exchange(&ours, &theirs, sizeof ours);
	for (int i = 0; i < COUNT; i++)
		connect_qp(i, gid_index, is_requester);
	/* Wait until both sides are ready. */
	char ready = 1, other;
	exchange(&ready, &other, 1);
}

static struct ibv_wc next_completion(void)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	if (n < 0)
		fail("poll");
	return wc;
}

static void write_and_wait(int i, uint64_t wr_id)
{
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = LEN, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .wr_id = wr_id, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1,
				  .wr.rdma = { .remote_addr = theirs.addr, .rkey = theirs.rkey } }, *bad;
	errno = ibv_post_send(qps[i], &wr, &bad);
	if (errno)
		fail("post of a WRITE");
	if (next_completion().status != IBV_WC_SUCCESS)
		fail("a WRITE failed");
}

/* Finds the send queue whose first request has this id among the mappings of the device. */
static struct rxe_queue_buf *find_queue(uint64_t wr_id)
{
	FILE *maps = need(fopen("/proc/self/maps", "r"), "maps");
	char line[512];
	struct rxe_queue_buf *found = NULL;
	while (!found && fgets(line, sizeof line, maps)) {
		struct rxe_queue_buf *queue = (void *)strtoul(line, NULL, 16);
		/* Entries of completion queues are shorter. */
		if (strstr(line, "/uverbs") && 1u << queue->log2_elem_size >= sizeof(struct rxe_send_wqe) &&
		    ((struct rxe_send_wqe *)queue->data)->wr.wr_id == wr_id)
			found = queue;
	}
	fclose(maps);
	return need(found, "no send queue among the mappings");
}

static void post_flush(int i, uint64_t wr_id)
{
	struct rxe_queue_buf *queue = find_queue(wr_id);
	struct rxe_send_wqe *written = (void *)queue->data;
	struct rxe_send_wqe *wqe = (void *)(queue->data + (1 << queue->log2_elem_size));
	struct flush *flush = (void *)&wqe->wr.wr;
	*wqe = *written;
	memset(&wqe->wr.wr, 0, sizeof wqe->wr.wr);
	wqe->wr.opcode = OPCODE_FLUSH;
	*flush = (struct flush){ .remote_addr = theirs.addr, .length = LEN, .rkey = theirs.rkey,
				 .type = kinds[i].type, .level = kinds[i].level };
	wqe->status = wqe->state = wqe->mask = wqe->has_rd_atomic = 0;
	wqe->iova = theirs.addr;
	wqe->ssn++;
	memset(&wqe->dma, 0, sizeof wqe->dma);
	/* The kernel sends this length, not the one in the union. */
	wqe->dma.length = wqe->dma.resid = LEN;
	if (queue->producer_index != 1)
		fail("the send queue is not as expected");
	__atomic_store_n(&queue->producer_index, 2, __ATOMIC_RELEASE);
	/* Tell the kernel of the new entry. */
	struct ib_uverbs_post_send_resp response;
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_post_send command;
	} doorbell = {
		.header = { .command = IB_USER_VERBS_CMD_POST_SEND, .in_words = sizeof doorbell / 4,
			    .out_words = sizeof response / 4 },
		.command = { .response = (uintptr_t)&response, .qp_handle = qps[i]->handle,
			     .wqe_size = sizeof(struct ibv_send_wr) },
	};
	if (write(context->cmd_fd, &doorbell, sizeof doorbell) != sizeof doorbell)
		fail("post of a FLUSH");
}

static void flush_all(void)
{
	enum ibv_wc_status status[COUNT];
	const uint64_t wr_ids = 0xf105400000000000;
	for (int i = 0; i < COUNT; i++)
		write_and_wait(i, wr_ids + i);
	/* All at once, because each may take until its retries are exhausted. */
	for (int i = 0; i < COUNT; i++)
		post_flush(i, wr_ids + i);
	for (int n = 0; n < COUNT; n++) {
		struct ibv_wc wc = next_completion();
		for (int i = 0; i < COUNT; i++)
			if (wc.qp_num == qps[i]->qp_num)
				status[i] = wc.status;
	}
	for (int i = 0; i < COUNT; i++)
		printf("FLUSH of type %d, level %d: %s\n", kinds[i].type, kinds[i].level,
		       ibv_wc_status_str(status[i]));
}

/* Prints the number of packets that this device dropped for their ICRC, if it counts them. */
static void print_drops(void)
{
	char path[512], line[32];
	snprintf(path, sizeof path, "%s/ports/1/hw_counters/rx_icrc_encapsulated", context->device->ibdev_path);
	FILE *counter = fopen(path, "r");
	if (counter && fgets(line, sizeof line, counter))
		printf("dropped for their ICRC: %s", line);
	if (counter)
		fclose(counter);
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: %s DEVICE GID_INDEX PORT [HOST]\n", argv[0]);
		return 2;
	}
	int is_requester = argc > 4;
	open_device(argv[1]);
	connect_tcp(argv[3], argv[4]);
	connect_all(atoi(argv[2]), is_requester);
	if (is_requester)
		flush_all();
	/* Both sides keep their queue pairs until the requests are done. */
	char done = 1, other;
	exchange(&done, &other, 1);
	if (!is_requester)
		print_drops();
	return 0;
}
