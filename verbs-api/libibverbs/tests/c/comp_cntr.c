/* Completion counters of rdma-core 65. */
#include "comp_cntr.h"
#include "processes.h"

/* Two connected queue pairs whose counters were attached before. */
struct ends {
	struct rig r;
	struct ibv_qp *qps[2];
	struct counter *counters[2][OPERATIONS];
};

static struct ends ends_open(enum ibv_qp_type qp_type, uint32_t type)
{
	struct ends e = { .r = rig_open() };
	struct ibv_qp_init_attr init = small_qp(e.r.cq);
	init.qp_type = qp_type;
	for (int i = 0; i < 2; i++) {
		e.qps[i] = ibv_create_qp(e.r.pd, &init);
		CHECK(e.qps[i]);
		count_each(e.qps[i], type, e.counters[i]);
	}
	return e;
}

static void ends_close(struct ends *e)
{
	for (int i = 0; i < 2; i++) {
		CHECK_INT(destroy_counter(e->counters[i][0]), EBUSY);
		CHECK_INT(ibv_destroy_qp(e->qps[i]), 0);
		destroy_each(e->counters[i]);
	}
	rig_close(&e->r);
}

static void post(struct rig *r, struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t length,
		 unsigned flags)
{
	struct ibv_sge sge = sge_at(r, 0, length);
	struct ibv_send_wr wr = { .wr_id = opcode, .sg_list = &sge, .num_sge = 1,
				  .opcode = opcode, .send_flags = flags }, *bad;
	uint64_t there = (uintptr_t)r->buffer + 2048;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = there;
		wr.wr.atomic.rkey = r->mr->rkey;
	} else {
		wr.wr.rdma.remote_addr = there;
		wr.wr.rdma.rkey = r->mr->rkey;
	}
	CHECK_INT(ibv_post_send(qp, &wr, &bad), 0);
}

static void receive(struct rig *r, struct ibv_qp *qp)
{
	struct ibv_sge sge = sge_at(r, 4096, 2048);
	struct ibv_recv_wr wr = { .wr_id = 70, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK_INT(ibv_post_recv(qp, &wr, &bad), 0);
}

/* Without a poll, what completes counts on both sides, with and without a completion. */
static void count_connected(uint32_t type, const uint64_t *mine, const uint64_t *peers)
{
	struct ends e = ends_open(IBV_QPT_RC, type);
	connect_qp(e.qps[0], e.qps[1]->qp_num);
	connect_qp(e.qps[1], e.qps[0]->qp_num);
	for (int signaled = 0; signaled < 2; signaled++) {
		unsigned flags = signaled ? IBV_SEND_SIGNALED : 0;
		receive(&e.r, e.qps[1]);
		receive(&e.r, e.qps[1]);
		post(&e.r, e.qps[0], IBV_WR_SEND, 100, flags);
		post(&e.r, e.qps[0], IBV_WR_RDMA_WRITE, 1500, flags);
		post(&e.r, e.qps[0], IBV_WR_RDMA_WRITE_WITH_IMM, 8, flags);
		post(&e.r, e.qps[0], IBV_WR_ATOMIC_FETCH_AND_ADD, 8, flags);
		post(&e.r, e.qps[0], IBV_WR_RDMA_READ, 2000, flags);
	}
	for (int i = 0; i < OPERATIONS; i++) {
		wait_for(e.counters[0][i], mine[i], 0);
		wait_for(e.counters[1][i], peers[i], 0);
	}
	ends_close(&e);
}

static void each_operation_has_a_counter(void)
{
	static const uint64_t mine[OPERATIONS] = { [SEND] = 2, [READ] = 2, [WRITE] = 4 };
	static const uint64_t peers[OPERATIONS] = { [RECV] = 4, [REMOTE_READ] = 2,
						    [REMOTE_WRITE] = 4 };
	count_connected(OF_WORK_REQUESTS, mine, peers);
}

static void bytes_are_counted(void)
{
	static const uint64_t mine[OPERATIONS] = { [SEND] = 200, [READ] = 4000, [WRITE] = 3016 };
	static const uint64_t peers[OPERATIONS] = { [RECV] = 216, [REMOTE_READ] = 4000,
						    [REMOTE_WRITE] = 3016 };
	count_connected(OF_BYTES, mine, peers);
}

/* A refused WRITE is one failure on each side. What is flushed behind it fails as well. */
static void failures_are_counted_apart(void)
{
	for (uint32_t type = OF_WORK_REQUESTS; type <= OF_BYTES; type++) {
		struct ends e = ends_open(IBV_QPT_RC, type);
		connect_qp(e.qps[0], e.qps[1]->qp_num);
		connect_qp(e.qps[1], e.qps[0]->qp_num);
		receive(&e.r, e.qps[0]);
		receive(&e.r, e.qps[0]);
		struct ibv_sge sge = sge_at(&e.r, 0, 8);
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1,
					  .opcode = IBV_WR_RDMA_WRITE }, *bad;
		wr.wr.rdma.remote_addr = (uintptr_t)e.r.buffer + 2048;
		wr.wr.rdma.rkey = e.r.mr->rkey ^ 0x5500;
		CHECK_INT(ibv_post_send(e.qps[0], &wr, &bad), 0);
		CHECK_INT(next_completion(e.r.cq).status, IBV_WC_REM_ACCESS_ERR);
		post(&e.r, e.qps[0], IBV_WR_SEND, 8, 0);
		wait_for(e.counters[0][WRITE], 0, 1);
		wait_for(e.counters[0][SEND], 0, 1);
		wait_for(e.counters[0][RECV], 0, 2);
		wait_for(e.counters[1][REMOTE_WRITE], 0, 1);
		wait_for(e.counters[1][RECV], 0, 0);
		ends_close(&e);
	}
}

/* One counter adds up several operations of several queue pairs. */
static void a_counter_of_many_queue_pairs(void)
{
	enum { QPS = 4, ROUNDS = 50 };
	struct rig r = rig_open();
	struct counter *sent = counter_of(r.context, OF_WORK_REQUESTS);
	struct counter *came = counter_of(r.context, OF_WORK_REQUESTS);
	struct ibv_qp *qps[2][QPS];
	struct ibv_qp_init_attr init = small_qp(r.cq);
	for (int i = 0; i < QPS; i++) {
		for (int side = 0; side < 2; side++) {
			qps[side][i] = ibv_create_qp(r.pd, &init);
			CHECK(qps[side][i]);
			/* In INIT as well as in RESET. */
			if (i % 2)
				to_init(qps[side][i]);
			CHECK_INT(attach(qps[side][i], side ? came : sent,
					 side ? 1 << RECV | 1 << REMOTE_WRITE
					      : 1 << SEND | 1 << WRITE), 0);
		}
		connect_qp(qps[0][i], qps[1][i]->qp_num);
		connect_qp(qps[1][i], qps[0][i]->qp_num);
	}
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < QPS; i++) {
			receive(&r, qps[1][i]);
			post(&r, qps[0][i], IBV_WR_RDMA_WRITE, 8, 0);
			post(&r, qps[0][i], IBV_WR_SEND, 8, IBV_SEND_SIGNALED);
			CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
			CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
		}
	wait_for(sent, 2 * QPS * ROUNDS, 0);
	wait_for(came, 2 * QPS * ROUNDS, 0);
	for (int i = 0; i < QPS; i++) {
		CHECK_INT(destroy_counter(sent), EBUSY);
		CHECK_INT(ibv_destroy_qp(qps[0][i]), 0);
		CHECK_INT(destroy_counter(came), EBUSY);
		CHECK_INT(ibv_destroy_qp(qps[1][i]), 0);
	}
	CHECK_INT(destroy_counter(sent), 0);
	CHECK_INT(destroy_counter(came), 0);
	rig_close(&r);
}

static void unreliable_connections_count(void)
{
	struct ends e = ends_open(IBV_QPT_UC, OF_BYTES);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp *qp = e.qps[i];
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
					    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
		CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						       IBV_QP_ACCESS_FLAGS), 0);
		attr.qp_state = IBV_QPS_RTR;
		attr.path_mtu = IBV_MTU_1024;
		attr.dest_qp_num = e.qps[!i]->qp_num;
		attr.ah_attr = path_to_self(qp->context);
		CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN), 0);
		attr.qp_state = IBV_QPS_RTS;
		CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	}
	receive(&e.r, e.qps[1]);
	post(&e.r, e.qps[0], IBV_WR_SEND, 100, 0);
	post(&e.r, e.qps[0], IBV_WR_RDMA_WRITE, 1500, 0);
	wait_for(e.counters[1][REMOTE_WRITE], 1500, 0);
	wait_for(e.counters[1][RECV], 100, 0);
	wait_for(e.counters[0][SEND], 100, 0);
	wait_for(e.counters[0][WRITE], 1500, 0);
	ends_close(&e);
}

static void datagrams_count(void)
{
	enum { QKEY = 0x1234, GRH = 40 };
	struct ends e = ends_open(IBV_QPT_UD, OF_BYTES);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
		CHECK_INT(ibv_modify_qp(e.qps[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX |
							       IBV_QP_PORT | IBV_QP_QKEY), 0);
		attr.qp_state = IBV_QPS_RTR;
		CHECK_INT(ibv_modify_qp(e.qps[i], &attr, IBV_QP_STATE), 0);
		attr.qp_state = IBV_QPS_RTS;
		CHECK_INT(ibv_modify_qp(e.qps[i], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	}
	struct ibv_ah_attr path = path_to_self(e.r.context);
	struct ibv_ah *ah = ibv_create_ah(e.r.pd, &path);
	CHECK(ah);
	for (int i = 0; i < 3; i++) {
		receive(&e.r, e.qps[1]);
		struct ibv_sge sge = sge_at(&e.r, 0, 60);
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = i ? IBV_SEND_SIGNALED : 0 }, *bad;
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = e.qps[1]->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
		CHECK_INT(ibv_post_send(e.qps[0], &wr, &bad), 0);
	}
	wait_for(e.counters[0][SEND], 180, 0);
	/* A receive has the network header as well. */
	wait_for(e.counters[1][RECV], 3 * (60 + GRH), 0);
	to_error(e.qps[1]);
	receive(&e.r, e.qps[1]);
	wait_for(e.counters[1][RECV], 3 * (60 + GRH), 1);
	CHECK_INT(ibv_destroy_ah(ah), 0);
	ends_close(&e);
}

/* The receives of an XRC target are those of the queue that the initiator names. */
static void targets_of_xrc_count(void)
{
	struct rig r = rig_open();
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD |
							  IBV_XRCD_INIT_ATTR_OFLAGS,
					     .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(r.context, &domain);
	struct ibv_cq *cq = ibv_create_cq(r.context, 16, NULL, NULL, 0);
	CHECK(xrcd && cq);
	struct ibv_srq_init_attr_ex queue = {
		.attr = { .max_wr = 4, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC, .pd = r.pd, .xrcd = xrcd, .cq = cq,
	};
	struct ibv_srq *srq = ibv_create_srq_ex(r.context, &queue);
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV,
					    .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp *target = ibv_create_qp_ex(r.context, &init);
	struct ibv_qp_init_attr small = small_qp(r.cq);
	small.qp_type = IBV_QPT_XRC_SEND;
	small.recv_cq = NULL;
	struct ibv_qp *initiator = ibv_create_qp(r.pd, &small);
	CHECK(srq && target && initiator);
	struct counter *sent[OPERATIONS], *came[OPERATIONS];
	count_each(initiator, OF_WORK_REQUESTS, sent);
	count_each(target, OF_WORK_REQUESTS, came);
	to_init(target);
	to_init(initiator);
	to_rtr(target, initiator->qp_num);
	to_rtr(initiator, target->qp_num);
	to_rts(initiator);
	uint32_t number;
	CHECK_INT(ibv_get_srq_num(srq, &number), 0);
	struct ibv_sge place = sge_at(&r, 4096, 64);
	struct ibv_recv_wr recv = { .sg_list = &place, .num_sge = 1 }, *bad_recv;
	CHECK_INT(ibv_post_srq_recv(srq, &recv, &bad_recv), 0);
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE,
						      IBV_WR_RDMA_READ };
	for (int i = 0; i < 3; i++) {
		struct ibv_sge sge = sge_at(&r, 0, 16);
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcodes[i],
					  .qp_type.xrc.remote_srqn = number }, *bad;
		wr.wr.rdma.remote_addr = (uintptr_t)r.buffer + 2048;
		wr.wr.rdma.rkey = r.mr->rkey;
		CHECK_INT(ibv_post_send(initiator, &wr, &bad), 0);
	}
	static const int counted[][2] = { { SEND, RECV }, { WRITE, REMOTE_WRITE },
					  { READ, REMOTE_READ } };
	for (int i = 0; i < 3; i++) {
		wait_for(sent[counted[i][0]], 1, 0);
		wait_for(came[counted[i][1]], 1, 0);
	}
	CHECK_INT(ibv_destroy_qp(initiator), 0);
	CHECK_INT(ibv_destroy_qp(target), 0);
	destroy_each(sent);
	destroy_each(came);
	CHECK_INT(ibv_destroy_srq(srq), 0);
	CHECK_INT(ibv_destroy_cq(cq), 0);
	CHECK_INT(ibv_close_xrcd(xrcd), 0);
	rig_close(&r);
}

static void values_are_set_and_wrap_around(void)
{
	struct rig r = rig_open();
	struct counter *counter = counter_of(r.context, OF_WORK_REQUESTS);
	CHECK_INT(value_of(counter), 0);
	CHECK_INT(errors_of(counter), 0);
	CHECK_INT(change("ibv_set_comp_cntr", counter, 40), 0);
	CHECK_INT(change("ibv_inc_comp_cntr", counter, 2), 0);
	CHECK_INT(change("ibv_set_err_comp_cntr", counter, 5), 0);
	CHECK_INT(change("ibv_inc_err_comp_cntr", counter, 6), 0);
	CHECK_INT(value_of(counter), 42);
	CHECK_INT(errors_of(counter), 11);
	CHECK_INT(change("ibv_set_comp_cntr", counter, UINT64_MAX), 0);
	CHECK(value_of(counter) == UINT64_MAX);
	CHECK_INT(change("ibv_inc_comp_cntr", counter, 1), 0);
	CHECK_INT(value_of(counter), 0);
	CHECK_INT(change("ibv_inc_comp_cntr", counter, 7), 0);
	CHECK_INT(value_of(counter), 7);
	CHECK_INT(errors_of(counter), 11);
	CHECK_INT(destroy_counter(counter), 0);
	rig_close(&r);
}

static void mistakes_are_refused(void)
{
	struct rig r = rig_open();
	static const struct counter_attr bad[] = { { .type = 2 }, { .flags = 1 }, { .comp_mask = 1 } };
	for (int i = 0; i < 3; i++) {
		struct counter_attr attr = bad[i];
		errno = 0;
		CHECK(!create_counter(r.context, &attr));
		CHECK_INT(errno, EOPNOTSUPP);
	}
	errno = 0;
	CHECK(!create_counter(r.context, NULL));
	CHECK_INT(errno, EINVAL);
	struct counter *one = counter_of(r.context, OF_WORK_REQUESTS);
	struct counter *two = counter_of(r.context, OF_WORK_REQUESTS);
	/* The queue pairs of the rig are in RTS. */
	CHECK_INT(attach(r.a, one, 1 << SEND), EINVAL);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	struct ibv_qp *qp = ibv_create_qp(r.pd, &init);
	CHECK(qp);
	CHECK_INT(attach(qp, one, 0), EINVAL);
	CHECK_INT(attach(qp, one, 1 << 6), EOPNOTSUPP);
	CHECK_INT(attach(qp, NULL, 1), EINVAL);
	CHECK_INT(attach(NULL, one, 1), EINVAL);
	int (*call)(struct ibv_qp *, struct counter *, struct attach_attr *) =
		comp_cntr_call("ibv_qp_attach_comp_cntr");
	struct attach_attr unknown = { .comp_mask = 1, .operations = 1 };
	CHECK_INT(call(qp, one, &unknown), EOPNOTSUPP);
	CHECK_INT(call(qp, one, NULL), EINVAL);
	CHECK_INT(destroy_counter(one), 0);
	one = counter_of(r.context, OF_WORK_REQUESTS);
	CHECK_INT(attach(qp, one, 1 << SEND | 1 << RECV), 0);
	CHECK_INT(attach(qp, two, 1 << RECV | 1 << READ), EBUSY);
	CHECK_INT(attach(qp, one, 1 << RECV), EBUSY);
	CHECK_INT(attach(qp, two, 1 << READ), 0);
	CHECK_INT(destroy_counter(one), EBUSY);
	/* A counter of another context of the device. */
	struct ibv_context *other = open_device();
	struct counter *foreign = counter_of(other, OF_WORK_REQUESTS);
	CHECK_INT(attach(qp, foreign, 1 << WRITE), EINVAL);
	CHECK_INT(destroy_counter(foreign), 0);
	CHECK_INT(ibv_close_device(other), 0);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(destroy_counter(one), 0);
	CHECK_INT(destroy_counter(two), 0);
	CHECK_INT(destroy_counter(NULL), EINVAL);
	int (*read)(struct counter *, uint64_t *) = comp_cntr_call("ibv_read_comp_cntr");
	one = counter_of(r.context, OF_WORK_REQUESTS);
	CHECK_INT(read(one, NULL), EINVAL);
	CHECK_INT(destroy_counter(one), 0);
	rig_close(&r);
}

static void a_device_has_a_limit(void)
{
	struct rig r = rig_open();
	int (*query)(struct ibv_context *, void *, size_t) =
		comp_cntr_call("_ibv_query_comp_cntr_caps");
	/* A structure of a later release: what is unknown becomes 0. */
	struct { struct counter_caps caps; uint64_t later, behind; } wide = { .later = 9, .behind = 9 };
	CHECK_INT(query(r.context, &wide, sizeof(wide) - 8), 0);
	CHECK(wide.caps.max_value == UINT64_MAX);
	CHECK_INT(wide.caps.operations, 63);
	CHECK_INT(wide.later, 0);
	CHECK_INT(wide.behind, 9);
	CHECK_INT(query(r.context, NULL, sizeof(wide.caps)), EINVAL);
	CHECK_INT(query(NULL, &wide, sizeof(wide.caps)), EINVAL);
	uint32_t most = wide.caps.max_counters;
	struct counter **all = calloc(most, sizeof(*all));
	CHECK(most > 0 && all);
	for (uint32_t i = 0; i < most; i++)
		all[i] = counter_of(r.context, OF_BYTES);
	struct counter_attr attr = { .type = OF_BYTES };
	errno = 0;
	CHECK(!create_counter(r.context, &attr));
	CHECK_INT(errno, ENOMEM);
	CHECK_INT(destroy_counter(all[0]), 0);
	all[0] = counter_of(r.context, OF_BYTES);
	for (uint32_t i = 0; i < most; i++)
		CHECK_INT(destroy_counter(all[i]), 0);
	free(all);
	rig_close(&r);
}

struct board {
	pthread_barrier_t barrier;
	uint32_t qpns[2], rkeys[2];
	uint64_t buffers[2];
	union ibv_gid gid;
};

enum { WRITES = 200, READS = 100 };

/* The first process writes and reads. The second one does nothing but read its counters. */
static void serve_memory(void *shared, int self)
{
	struct board *board = shared;
	struct rig r = rig_open();
	struct ibv_qp_init_attr init = small_qp(r.cq);
	struct ibv_qp *qp = ibv_create_qp(r.pd, &init);
	CHECK(qp);
	struct counter *counters[OPERATIONS];
	count_each(qp, OF_WORK_REQUESTS, counters);
	board->qpns[self] = qp->qp_num;
	board->rkeys[self] = r.mr->rkey;
	board->buffers[self] = (uintptr_t)r.buffer;
	pthread_barrier_wait(&board->barrier);
	connect_qp(qp, board->qpns[!self]);
	pthread_barrier_wait(&board->barrier);
	if (self) {
		wait_for(counters[REMOTE_WRITE], WRITES, 0);
		CHECK_INT(*(uint64_t *)(r.buffer + 2048), WRITES);
		wait_for(counters[REMOTE_READ], READS, 0);
	} else {
		for (uint64_t i = 1; i <= WRITES + READS; i++) {
			struct ibv_sge sge = sge_at(&r, 0, i > WRITES ? 2000 : 8);
			struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1,
						  .opcode = i > WRITES ? IBV_WR_RDMA_READ
								       : IBV_WR_RDMA_WRITE,
						  .send_flags = i % 8 ? 0 : IBV_SEND_SIGNALED }, *bad;
			wr.wr.rdma.remote_addr = board->buffers[1] + 2048;
			wr.wr.rdma.rkey = board->rkeys[1];
			if (i <= WRITES)
				memcpy(r.buffer, &i, 8);
			CHECK_INT(ibv_post_send(qp, &wr, &bad), 0);
			if (i <= WRITES)
				wait_for(counters[WRITE], i, 0);
			struct ibv_wc wc;
			if (wr.send_flags) {
				wc = next_completion(r.cq);
				CHECK_INT(wc.status, IBV_WC_SUCCESS);
			}
		}
		wait_for(counters[READ], READS, 0);
	}
	pthread_barrier_wait(&board->barrier);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	destroy_each(counters);
	rig_close(&r);
}

static void memory_that_others_use_by_udp(void)
{
	in_processes(2, "udp", sizeof(struct board), serve_memory);
}

static void memory_that_others_use_by_shm(void)
{
	in_processes(2, "shm", sizeof(struct board), serve_memory);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "each_operation_has_a_counter", each_operation_has_a_counter },
		{ "bytes_are_counted", bytes_are_counted },
		{ "failures_are_counted_apart", failures_are_counted_apart },
		{ "a_counter_of_many_queue_pairs", a_counter_of_many_queue_pairs },
		{ "unreliable_connections_count", unreliable_connections_count },
		{ "datagrams_count", datagrams_count },
		{ "targets_of_xrc_count", targets_of_xrc_count },
		{ "values_are_set_and_wrap_around", values_are_set_and_wrap_around },
		{ "mistakes_are_refused", mistakes_are_refused },
		{ "a_device_has_a_limit", a_device_has_a_limit },
		{ "memory_that_others_use_by_udp", memory_that_others_use_by_udp },
		{ "memory_that_others_use_by_shm", memory_that_others_use_by_shm },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
