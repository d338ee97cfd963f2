/* What the library prints on standard error when a completion fails: the queue pair, the cause and
 * the remedy, once per queue pair. */
#include "rig.h"

/* Standard error of this process, and where it is read. */
static int real_stderr, text_end;
static char text[65536];

static void begin(void)
{
	int ends[2];
	CHECK_INT(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
	real_stderr = dup(2);
	CHECK(real_stderr >= 0);
	CHECK(dup2(ends[1], 2) >= 0);
	close(ends[1]);
	text_end = ends[0];
}

/* Appends what was printed to `text`. */
static void listen_up(void)
{
	size_t len = strlen(text);
	for (;;) {
		ssize_t got = read(text_end, text + len, sizeof(text) - 1 - len);
		if (got <= 0)
			break;
		len += got;
		text[len] = 0;
	}
}

static void fail(const char *what)
{
	dprintf(real_stderr, "%s in:\n%s", what, text);
	_exit(1);
}

static int lines(void)
{
	int count = 0;
	for (const char *at = text; (at = strstr(at, "rocade[")); at++)
		count++;
	return count;
}

/* Waits until so many lines are there, with these parts, and forgets them. */
static void expect_lines(int count, const char *const *parts)
{
	for (int patience = 0; lines() < count; patience++) {
		if (patience == 20000)
			fail("too few lines");
		usleep(1000);
		listen_up();
	}
	for (; *parts; parts++)
		if (!strstr(text, *parts))
			fail(*parts);
	if (lines() != count)
		fail("too many lines");
	text[0] = 0;
}

#define EXPECT(count, ...) expect_lines(count, (const char *const[]){ __VA_ARGS__, NULL })

struct terms {
	enum ibv_mtu mtu_a, mtu_b;
	int rights, timeout, retries, rnr_retries;
};

static const struct terms USUAL = { IBV_MTU_1024, IBV_MTU_1024,
				    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, 16, 7, 7 };

static void join(struct ibv_qp *qp, uint32_t peer, enum ibv_mtu mtu, const struct terms *terms)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1,
				     .qp_access_flags = terms->rights };
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS), 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = peer,
				     .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
				     .ah_attr = path_to_self(qp->context) };
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = terms->timeout,
				     .retry_cnt = terms->retries, .rnr_retry = terms->rnr_retries,
				     .max_rd_atomic = 1 };
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC), 0);
}

static void join_both(struct rig *r, struct terms terms)
{
	join(r->a, r->b->qp_num, terms.mtu_a, &terms);
	join(r->b, r->a->qp_num, terms.mtu_b, &terms);
}

/* Posts a request and two more, and checks the status of the first. The others are flushed. */
static void request(struct rig *r, int opcode, struct ibv_sge sge, uint64_t at, uint32_t rkey,
		    int status)
{
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { at, rkey } }, *bad;
	struct ibv_wc wc;
	for (int i = 0; i < 3; i++) {
		CHECK_INT(ibv_post_send(r->a, &wr, &bad), 0);
		if (i > 0)
			continue;
		while ((wc = next_completion(r->cq)).qp_num != r->a->qp_num)
			;
		CHECK_INT(wc.status, status);
	}
	for (int i = 0; i < 2; i++) {
		while ((wc = next_completion(r->cq)).qp_num != r->a->qp_num)
			;
		CHECK_INT(wc.status, IBV_WC_WR_FLUSH_ERR);
	}
}

static void refused_keys_are_named(void)
{
	begin();
	struct rig r = rig_open();
	struct ibv_sge sge = sge_at(&r, 0, 16);
	uint64_t at = (uintptr_t)r.buffer;
	char part[64];

	join_both(&r, USUAL);
	request(&r, IBV_WR_RDMA_WRITE, sge, at, r.mr->rkey ^ 0x100, IBV_WC_REM_ACCESS_ERR);
	snprintf(part, sizeof(part), "rkey %#x, 16 bytes at %#lx: ", r.mr->rkey ^ 0x100, (long)at);
	EXPECT(2, "refuses RDMA WRITE of the peer 127.", part, "no memory region has this key",
	       "RDMA WRITE of 16 bytes completes with IBV_WC_REM_ACCESS_ERR: the peer 127.",
	       "if the peer is Rocade, its standard error has the cause");

	join_both(&r, USUAL);
	request(&r, IBV_WR_RDMA_READ, sge, at + BUFFER_LEN - 8, r.mr->rkey, IBV_WC_REM_ACCESS_ERR);
	snprintf(part, sizeof(part), "the memory region of the key has %d bytes at %#lx", BUFFER_LEN,
		 (long)at);
	EXPECT(2, "refuses RDMA READ of the peer 127.", part, "the whole range must be inside");

	struct ibv_mr *local = ibv_reg_mr(r.pd, r.buffer, BUFFER_LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(local);
	join_both(&r, USUAL);
	request(&r, IBV_WR_RDMA_WRITE, sge, at, local->rkey, IBV_WC_REM_ACCESS_ERR);
	EXPECT(2, "the key lacks IBV_ACCESS_REMOTE_WRITE, it has IBV_ACCESS_LOCAL_WRITE\n",
	       "\n  register the memory with IBV_ACCESS_REMOTE_WRITE\n");

	struct ibv_pd *other = ibv_alloc_pd(r.context);
	struct ibv_mr *foreign = ibv_reg_mr(other, r.buffer, BUFFER_LEN, 0);
	CHECK(foreign);
	sge.lkey = foreign->lkey;
	join_both(&r, USUAL);
	request(&r, IBV_WR_SEND, sge, 0, 0, IBV_WC_LOC_PROT_ERR);
	snprintf(part, sizeof(part), "QP %#08x: SEND of 16 bytes completes with", r.a->qp_num);
	EXPECT(1, part, "IBV_WC_LOC_PROT_ERR: lkey 0x", "another protection domain");
	CHECK_INT(ibv_dereg_mr(local) | ibv_dereg_mr(foreign) | ibv_dealloc_pd(other), 0);
	rig_close(&r);
}

static void refused_requests_are_explained(void)
{
	begin();
	struct rig r = rig_open();
	struct ibv_sge sge = sge_at(&r, 0, 16), more = sge_at(&r, 0, 1500);
	uint64_t at = (uintptr_t)r.buffer;

	struct terms terms = USUAL;
	terms.mtu_a = IBV_MTU_2048;
	join_both(&r, terms);
	request(&r, IBV_WR_RDMA_WRITE, more, at, r.mr->rkey, IBV_WC_REM_INV_REQ_ERR);
	EXPECT(2, "its packet of 1500 bytes does not fit path_mtu, 1024 bytes here",
	       "set the same path_mtu on both sides", "IBV_WC_REM_INV_REQ_ERR");

	terms = USUAL;
	terms.rights = IBV_ACCESS_REMOTE_WRITE;
	join_both(&r, terms);
	request(&r, IBV_WR_RDMA_READ, sge, at, r.mr->rkey, IBV_WC_REM_INV_REQ_ERR);
	EXPECT(2, "qp_access_flags of the queue pair lack IBV_ACCESS_REMOTE_READ");

	join_both(&r, USUAL);
	post_receive(&r, 1);
	request(&r, IBV_WR_SEND, sge_at(&r, 0, 100), 0, 0, IBV_WC_REM_INV_REQ_ERR);
	EXPECT(2, "the message is longer than the receive, which has 64 bytes");

	/* A receive whose key is wrong. */
	join_both(&r, USUAL);
	struct ibv_sge wrong = { at, 64, r.mr->lkey ^ 0x100 };
	struct ibv_recv_wr wr = { .sg_list = &wrong, .num_sge = 1 }, *bad;
	CHECK_INT(ibv_post_recv(r.b, &wr, &bad), 0);
	request(&r, IBV_WR_SEND, sge, 0, 0, IBV_WC_REM_OP_ERR);
	EXPECT(2, "refuses SEND of the peer", "lkey 0x", "no memory region has this key",
	       "cannot write to its receive buffer");
	rig_close(&r);
}

static void silent_peers_are_explained(void)
{
	begin();
	struct rig r = rig_open();
	struct ibv_sge sge = sge_at(&r, 0, 16);
	struct terms terms = USUAL;
	terms.rnr_retries = 0;
	join_both(&r, terms);
	request(&r, IBV_WR_SEND, sge, 0, 0, IBV_WC_RNR_RETRY_EXC_ERR);
	EXPECT(1, "has posted no receive (rnr_retry 0)", "set rnr_retry to 7 here");

	terms.timeout = 1;
	terms.retries = 1;
	join(r.a, r.b->qp_num ^ 0x40, IBV_MTU_1024, &terms);
	request(&r, IBV_WR_SEND, sge, 0, 0, IBV_WC_RETRY_EXC_ERR);
	EXPECT(1, "SEND of 16 bytes completes with IBV_WC_RETRY_EXC_ERR: the peer 127.",
	       "does not answer (retry_cnt 1, timeout 1)", "UDP port 4791");
	rig_close(&r);
}

/* A process explains at most 20, and then says so. */
static void many_failures_have_an_end(void)
{
	begin();
	struct rig r = rig_open();
	struct ibv_sge wrong = sge_at(&r, 0, 16);
	wrong.lkey ^= 0x100;
	for (int i = 0; i < 100; i++) {
		join(r.a, r.b->qp_num, IBV_MTU_1024, &USUAL);
		request(&r, IBV_WR_SEND, wrong, 0, 0, IBV_WC_LOC_PROT_ERR);
	}
	EXPECT(20, "further failed queue pairs of this process are not shown");
	rig_close(&r);
}

static void nobody_reads_the_explanations(void)
{
	int ends[2];
	CHECK_INT(pipe2(ends, O_CLOEXEC), 0);
	real_stderr = dup(2);
	/* The pipe is full, and a further write would block. */
	CHECK(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
	while (write(ends[1], text, 4096) > 0)
		;
	CHECK(fcntl(ends[1], F_SETFL, 0) == 0);
	CHECK(dup2(ends[1], 2) >= 0);
	struct rig r = rig_open();
	struct ibv_sge wrong = sge_at(&r, 0, 16);
	wrong.lkey ^= 0x100;
	request(&r, IBV_WR_SEND, wrong, 0, 0, IBV_WC_LOC_PROT_ERR);
	rig_close(&r);
	CHECK(dup2(real_stderr, 2) >= 0);
}

static const struct test_case cases[] = {
	{ "refused_keys_are_named", refused_keys_are_named },
	{ "refused_requests_are_explained", refused_requests_are_explained },
	{ "silent_peers_are_explained", silent_peers_are_explained },
	{ "many_failures_have_an_end", many_failures_have_an_end },
	{ "nobody_reads_the_explanations", nobody_reads_the_explanations },
	{ NULL, NULL },
};

int main(int argc, char **argv)
{
	return run_case(cases, argc, argv);
}
