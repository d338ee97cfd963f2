/* The legacy XRC verbs, in a program written for them: four processes register with a receive
 * QP. */
#define ROCADE_XRC_LEGACY
#include <infiniband/verbs_xrc.h>

/* The rig uses the current structures. */
#undef ibv_qp_init_attr
#undef ibv_create_qp
#undef ibv_query_qp
#include "workers.h"
#define ibv_qp_init_attr ibv_xrc_qp_init_attr
#define ibv_create_qp ibv_xrc_create_qp
#define ibv_query_qp ibv_xrc_query_qp

enum { WORKERS = 4, LONG = 5000 };

static int domain_fd;

struct member {
	struct share s;
	struct ibv_xrc_domain *domain;
	struct ibv_srq *srq;
	uint32_t number;
};

static void *begin(int unused)
{
	(void)unused;
	struct member *m = calloc(1, sizeof(*m));
	m->s = open_share();
	m->domain = ibv_open_xrc_domain(m->s.context, domain_fd, O_CREAT);
	CHECK(m->domain && m->domain->context == m->s.context);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = RECEIVES, .max_sge = 1 } };
	m->srq = ibv_create_xrc_srq(m->s.pd, m->domain, m->s.cq, &init);
	CHECK(m->srq);
	CHECK_INT(init.attr.max_wr, RECEIVES);
	return m;
}

static struct ibv_qp_attr receive_attr(struct member *m, enum ibv_qp_state state, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = state,
		.port_num = 1,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.rq_psn = 0x123,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = path_to_self(m->s.context),
	};
	return attr;
}

static uint64_t carry_out(void *state, struct order order)
{
	struct member *m = state;
	switch (order.what) {
	case 'T': {
		struct ibv_qp_init_attr init = { .xrc_domain = m->domain };
		CHECK_INT(ibv_create_xrc_rcv_qp(NULL, &m->number), EINVAL);
		CHECK_INT(ibv_create_xrc_rcv_qp(&init, &m->number), 0);
		/* The creator is registered. */
		CHECK_INT(ibv_reg_xrc_rcv_qp(m->domain, m->number), 0);
		return m->number;
	}
	case 'O':
		m->number = order.number;
		return ibv_reg_xrc_rcv_qp(m->domain, order.number);
	case 'C': {
		struct ibv_qp_attr attr = receive_attr(m, IBV_QPS_INIT, 0);
		int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
		CHECK_INT(ibv_modify_xrc_rcv_qp(m->domain, m->number ^ 1, &attr, init), EINVAL);
		CHECK_INT(ibv_modify_xrc_rcv_qp(m->domain, m->number, &attr, IBV_QP_STATE), EINVAL);
		CHECK_INT(ibv_modify_xrc_rcv_qp(m->domain, m->number, &attr, init), 0);
		attr = receive_attr(m, IBV_QPS_RTR, order.number);
		int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		CHECK_INT(ibv_modify_xrc_rcv_qp(m->domain, m->number, &attr, rtr), 0);
		return 0;
	}
	case 'Q': {
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;
		int error = ibv_query_xrc_rcv_qp(m->domain, m->number, &attr, IBV_QP_STATE, &init);
		if (error)
			return 100 + error;
		CHECK(init.xrc_domain == m->domain);
		return attr.qp_state;
	}
	case 'D':
		return ibv_unreg_xrc_rcv_qp(m->domain, m->number);
	case 'S':
		return m->srq->xrc_srq_num;
	case 'P':
		while (order.number-- > 0) {
			struct ibv_sge sge = { (uintptr_t)m->s.memory, ROOM, m->s.mr->lkey };
			struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
			CHECK_INT(ibv_post_srq_recv(m->srq, &wr, &bad), 0);
		}
		return 0;
	case 'W': {
		struct ibv_wc wc = next_completion(m->s.cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		CHECK_INT(wc.qp_num, m->number);
		return ntohl(wc.imm_data);
	}
	case 'V': {
		struct ibv_async_event event;
		CHECK_INT(ibv_get_async_event(m->s.context, &event), 0);
		CHECK(event.event_type & IBV_XRC_QP_EVENT_FLAG);
		CHECK_INT(event.element.xrc_qp_num, m->number);
		ibv_ack_async_event(&event);
		return event.event_type & ~IBV_XRC_QP_EVENT_FLAG;
	}
	case 'F':
		return ibv_destroy_srq(m->srq);
	case 'X':
		return ibv_close_xrc_domain(m->domain);
	}
	CHECK(0);
	return 0;
}

static struct worker worker[WORKERS];
static uint32_t queue[WORKERS];

struct sender {
	struct share s;
	struct ibv_qp *qp;
	uint32_t target;
};

static struct sender gather(void)
{
	char path[] = "/tmp/rocade-xrc-XXXXXX";
	domain_fd = mkstemp(path);
	CHECK(domain_fd >= 0);
	CHECK_INT(unlink(path), 0);
	for (int i = 0; i < WORKERS; i++)
		worker[i] = start_worker(begin, carry_out, 0);
	struct sender sender = { .s = open_share() };
	struct ibv_xrc_domain *own = ibv_open_xrc_domain(sender.s.context, -1, 0);
	CHECK(own);
	struct ibv_qp_init_attr init = {
		.send_cq = sender.s.cq,
		.recv_cq = sender.s.cq,
		.cap = { .max_send_wr = 16, .max_send_sge = 1 },
		.qp_type = IBV_QPT_XRC,
		.xrc_domain = own,
	};
	sender.qp = ibv_create_qp(sender.s.pd, &init);
	CHECK(sender.qp);
	sender.target = order(&worker[0], 'T', 0);
	for (int i = 1; i < WORKERS; i++)
		CHECK_INT(order(&worker[i], 'O', sender.target), 0);
	/* By a process that did not create it. */
	order(&worker[1], 'C', sender.qp->qp_num);
	connect_qp(sender.qp, sender.target);
	for (int i = 0; i < WORKERS; i++)
		queue[i] = order(&worker[i], 'S', 0);
	return sender;
}

static enum ibv_wc_status send_to(struct sender *sender, int to, uint32_t number, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)sender->s.memory, length, sender->s.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
				  .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(number),
				  .xrc_remote_srq_num = queue[to] }, *bad;
	CHECK_INT(ibv_post_send(sender->qp, &wr, &bad), 0);
	return next_completion(sender->s.cq).status;
}

static void talk_to_all(struct sender *sender, int turns)
{
	for (uint32_t number = 0; turns-- > 0; number++)
		for (int i = 0; i < WORKERS; i++) {
			if (!worker[i].pid)
				continue;
			order(&worker[i], 'P', 1);
			CHECK_INT(send_to(sender, i, number, i % 2 ? 64 : LONG), IBV_WC_SUCCESS);
			CHECK_INT(order(&worker[i], 'W', 0), number);
		}
}

static void dies(int i)
{
	kill_worker(&worker[i]);
	worker[i].pid = 0;
}

/* XRCL-07 to XRCL-11. */
static void who_dies_leaves_the_others_working(void)
{
	struct sender sender = gather();
	talk_to_all(&sender, 3);
	dies(2);
	talk_to_all(&sender, 2);
	dies(0);
	talk_to_all(&sender, 3);
	CHECK_INT(order(&worker[1], 'Q', 0), IBV_QPS_RTR);
	CHECK_INT(order(&worker[1], 'X', 0), EBUSY);
	CHECK_INT(order(&worker[3], 'D', 0), 0);
	CHECK_INT(order(&worker[3], 'D', 0), EINVAL);
	CHECK_INT(order(&worker[3], 'Q', 0), 100 + EINVAL);
	talk_to_all(&sender, 1);
	/* The QP lives while a process is registered. */
	CHECK_INT(order(&worker[1], 'D', 0), 0);
	CHECK_INT(order(&worker[3], 'O', sender.target), EINVAL);
	for (int i = 1; i < WORKERS; i += 2) {
		CHECK_INT(order(&worker[i], 'F', 0), 0);
		CHECK_INT(order(&worker[i], 'X', 0), 0);
		end_worker(&worker[i]);
	}
}

/* XRCL-14, XRC-11. */
static void events_go_to_all_who_are_registered(void)
{
	struct sender sender = gather();
	order(&worker[2], 'P', 1);
	CHECK_INT(send_to(&sender, 2, 1, 16), IBV_WC_SUCCESS);
	for (int i = 0; i < WORKERS; i++)
		CHECK_INT(order(&worker[i], 'V', 0), IBV_EVENT_COMM_EST);
	queue[1] ^= 0x8000;
	CHECK_INT(send_to(&sender, 1, 1, 16), IBV_WC_REM_ACCESS_ERR);
	for (int i = 0; i < WORKERS; i++) {
		CHECK_INT(order(&worker[i], 'V', 0), IBV_EVENT_QP_ACCESS_ERR);
		CHECK_INT(order(&worker[i], 'V', 0), IBV_EVENT_QP_LAST_WQE_REACHED);
		CHECK_INT(order(&worker[i], 'Q', 0), IBV_QPS_ERR);
	}
	for (int i = 0; i < WORKERS; i++) {
		CHECK_INT(order(&worker[i], 'D', 0), 0);
		end_worker(&worker[i]);
	}
}

/* XRCL-01 to XRCL-05, XDEC-06. */
static void domains_of_files(void)
{
	struct share s = open_share();
	char path[] = "/tmp/rocade-xrc-XXXXXX";
	int fd = mkstemp(path);
	CHECK(fd >= 0);
	CHECK_INT(unlink(path), 0);
	CHECK(!ibv_open_xrc_domain(s.context, 9999, O_CREAT) && errno == EBADF);
	CHECK(!ibv_open_xrc_domain(s.context, fd, 0) && errno == EAGAIN);
	CHECK(!ibv_open_xrc_domain(s.context, fd, O_TRUNC) && errno == EINVAL);
	struct ibv_xrc_domain *one = ibv_open_xrc_domain(s.context, fd, O_CREAT | O_EXCL);
	CHECK(one);
	CHECK(!ibv_open_xrc_domain(s.context, fd, O_CREAT | O_EXCL) && errno == EINVAL);
	struct ibv_xrc_domain *same = ibv_open_xrc_domain(s.context, fd, 0);
	struct ibv_xrc_domain *other = ibv_open_xrc_domain(s.context, -1, O_EXCL);
	CHECK(same && other);
	struct ibv_qp_init_attr init = { .xrc_domain = one };
	uint32_t number;
	CHECK_INT(ibv_create_xrc_rcv_qp(&init, &number), 0);
	CHECK_INT(ibv_reg_xrc_rcv_qp(same, number), 0);
	CHECK_INT(ibv_reg_xrc_rcv_qp(other, number), EINVAL);
	CHECK_INT(ibv_unreg_xrc_rcv_qp(other, number), EINVAL);
	CHECK_INT(ibv_close_xrc_domain(one), EBUSY);
	CHECK_INT(ibv_unreg_xrc_rcv_qp(same, number), 0);
	CHECK_INT(ibv_unreg_xrc_rcv_qp(same, number), EINVAL);
	CHECK_INT(ibv_close_xrc_domain(one), 0);
	CHECK_INT(ibv_close_xrc_domain(same), 0);
	CHECK_INT(ibv_close_xrc_domain(other), 0);
	CHECK(!ibv_open_xrc_domain(s.context, fd, 0) && errno == EAGAIN);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "who_dies_leaves_the_others_working", who_dies_leaves_the_others_working },
		{ "events_go_to_all_who_are_registered", events_go_to_all_who_are_registered },
		{ "domains_of_files", domains_of_files },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
