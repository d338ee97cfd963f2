/*
 * Two processes with a connected queue pair each, and one of four mistakes.
 *
 * no-receive: the peer posts no receive.
 *
 * wrong-rkey: a WRITE has a key that the peer does not have.
 *
 * peer-died: the peer is killed before a WRITE.
 *
 * lost-wakeup: the receiver asks for an event after the completion is there, and waits.
 *
 * The parent ends after the number of seconds in the second argument, if it waits for ever.
 */
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			perror(#condition); \
			exit(1); \
		} \
	} while (0)

/* What a process tells the other one. */
struct end {
	union ibv_gid gid;
	uint32_t qpn, rkey;
	uint64_t addr;
};

static char buffer[4096];
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;

static void open_qp(struct end *own)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && *list);
	struct ibv_context *context = ibv_open_device(*list);
	CHECK(context);
	ibv_free_device_list(list);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd);
	mr = ibv_reg_mr(pd, buffer, sizeof buffer,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	channel = ibv_create_comp_channel(context);
	CHECK(channel);
	cq = ibv_create_cq(context, 16, NULL, channel, 0);
	CHECK(cq);
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	};
	qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	CHECK(!ibv_query_gid(context, 1, 0, &own->gid));
	own->qpn = qp->qp_num;
	own->rkey = mr->rkey;
	own->addr = (uintptr_t)buffer;
}

static void connect_qp(const struct end *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qpn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 20,
		.ah_attr = {.is_global = 1, .port_num = 1,
			    .grh = {.dgid = peer->gid, .hop_limit = 64}},
	};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					IBV_QP_MAX_QP_RD_ATOMIC));
}

static void post_send(enum ibv_wr_opcode opcode, const struct end *peer, uint32_t rkey)
{
	struct ibv_sge sge = {(uintptr_t)buffer, 64, mr->lkey};
	struct ibv_send_wr wr = {
		.wr_id = 7,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {peer->addr, rkey},
	};
	struct ibv_send_wr *bad;
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

static void post_receive(void)
{
	struct ibv_sge sge = {(uintptr_t)buffer, sizeof buffer, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = 9, .sg_list = &sge, .num_sge = 1}, *bad;
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void poll_one(void)
{
	struct ibv_wc wc;
	int found;
	while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
		usleep(1000);
	CHECK(found == 1);
	printf("%s\n", ibv_wc_status_str(wc.status));
}

static void wait_for_event(void)
{
	struct ibv_cq *source;
	void *context;
	CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(!ibv_get_cq_event(channel, &source, &context));
	ibv_ack_cq_events(source, 1);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	const char *mistake = argv[1];
	int down[2], up[2];
	struct end own, peer;
	char byte = 0;
	CHECK(!pipe(down) && !pipe(up));
	pid_t child = fork();
	CHECK(child >= 0);
	int is_child = child == 0, in = is_child ? down[0] : up[0], out = is_child ? up[1] : down[1];
	alarm(atoi(argv[2]));
	open_qp(&own);
	CHECK(write(out, &own, sizeof own) == sizeof own);
	CHECK(read(in, &peer, sizeof peer) == sizeof peer);
	connect_qp(&peer);
	if (is_child && !strcmp(mistake, "lost-wakeup"))
		post_receive();
	CHECK(write(out, &byte, 1) == 1 && read(in, &byte, 1) == 1);
	if (is_child) {
		if (!strcmp(mistake, "lost-wakeup")) {
			CHECK(read(in, &byte, 1) == 1);
			wait_for_event();
		}
		/* Until the parent ends. */
		while (read(in, &byte, 1) > 0)
			;
		pause();
	}
	if (!strcmp(mistake, "no-receive")) {
		post_send(IBV_WR_SEND, &peer, 0);
	} else if (!strcmp(mistake, "wrong-rkey")) {
		post_send(IBV_WR_RDMA_WRITE, &peer, peer.rkey + 0x100);
	} else if (!strcmp(mistake, "peer-died")) {
		CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
		post_send(IBV_WR_RDMA_WRITE, &peer, peer.rkey);
	} else {
		post_send(IBV_WR_SEND, &peer, 0);
	}
	poll_one();
	CHECK(write(out, &byte, 1) >= 0 || !strcmp(mistake, "peer-died"));
	if (!strcmp(mistake, "lost-wakeup"))
		pause();
	kill(child, SIGKILL);
	return 0;
}
