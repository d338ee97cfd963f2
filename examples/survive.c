/* A transfer that reconnects after an error, with a bug in its recovery for the guide
 * docs/guides/survive.md.
 *
 *     cc -Wall -o survive survive.c -libverbs              # or with -DMENDED
 *     rocade run --dev rocade0=lo --fault recipe:qp-error-mid-transfer -- ./survive
 *
 * One queue pair of the process writes BLOCKS blocks to the other one. Exit status: 0 if all blocks
 * have arrived, 1 otherwise.
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 256, BYTES = 4096, WINDOW = 16, MOST_ERRORS = 100 };

#define CHECK(ok) ((ok) ? (void)0 : (perror(#ok), exit(1)))

static char from[BLOCKS][BYTES], to[BLOCKS][BYTES];

static void change(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

/* Connects qp, in whatever state it is, with the queue pair of this number. Each connection begins
 * with another PSN, because late packets of the one before would fit otherwise. */
static void connect_to(struct ibv_qp *qp, uint32_t peer, union ibv_gid gid, uint32_t psn)
{
	change(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, IBV_QP_STATE);
	change(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1,
			.qp_access_flags = IBV_ACCESS_REMOTE_WRITE },
		IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	change(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
			.dest_qp_num = peer, .rq_psn = psn, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
			.ah_attr = { .is_global = 1, .port_num = 1,
				.grh = { .dgid = gid, .hop_limit = 64 } } },
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	change(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = 14,
			.retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 },
		IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
		IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
}

static struct ibv_qp *qp_of(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { WINDOW, 1, 1, 1 }, .sq_sig_all = 1 };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

static void post(struct ibv_qp *qp, int block, struct ibv_mr *src, struct ibv_mr *dst)
{
	struct ibv_sge sge = { (uintptr_t)from[block], BYTES, src->lkey };
	struct ibv_send_wr wr = { .wr_id = block, .sg_list = &sge, .num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { (uintptr_t)to[block], dst->rkey } }, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	CHECK(devices && devices[0]);
	struct ibv_context *context = ibv_open_device(devices[0]);
	CHECK(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 2 * WINDOW, NULL, NULL, 0);
	CHECK(pd && cq);
	struct ibv_mr *src = ibv_reg_mr(pd, from, sizeof(from), 0);
	struct ibv_mr *dst = ibv_reg_mr(pd, to, sizeof(to),
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(src && dst);
	union ibv_gid gid;
	CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
	struct ibv_qp *a = qp_of(pd, cq), *b = qp_of(pd, cq);
	connect_to(b, a->qp_num, gid, 1);
	connect_to(a, b->qp_num, gid, 1);

	for (int block = 0; block < BLOCKS; block++)
		memset(from[block], 1 + block % 255, BYTES);
	int next = 0, done = 0, flying = 0, failed = 0, errors = 0;
	while (done < BLOCKS && (next < BLOCKS || flying > 0)) {
		for (; !failed && next < BLOCKS && flying < WINDOW; next++, flying++)
			post(a, next, src, dst);
		struct ibv_wc wc;
		int count = ibv_poll_cq(cq, 1, &wc);
		CHECK(count >= 0);
		if (count == 0)
			continue;
		flying--;
		if (wc.status == IBV_WC_SUCCESS) {
			done++; /* Blocks of one queue pair arrive in order. */
		} else {
			failed = 1;
		}
		if (failed && flying == 0) {
			CHECK(++errors <= MOST_ERRORS);
			connect_to(b, a->qp_num, gid, 1 + (errors << 16));
			connect_to(a, b->qp_num, gid, 1 + (errors << 16));
			failed = 0;
#ifdef MENDED
			next = done; /* None of the flushed blocks has a completion. */
#endif
		}
	}
	int missing = 0;
	for (int block = 0; block < BLOCKS; block++)
		missing += memcmp(from[block], to[block], BYTES) != 0;
	printf("%d of %d blocks are missing after %d errors\n", missing, BLOCKS, errors);
	return missing != 0;
}
