/* An XRC target that four processes share, with an SRQ in each of them. A fifth process sends. */
#include "workers.h"

enum { WORKERS = 4, LONG = 5000 };

/* The file of the XRC domain that the processes of a case share. */
static int domain_fd;

struct member {
	struct share s;
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	struct ibv_qp *target;
};

static void *begin(int unused)
{
	(void)unused;
	struct member *m = calloc(1, sizeof(*m));
	m->s = open_share();
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD |
							IBV_XRCD_INIT_ATTR_OFLAGS,
					   .fd = domain_fd, .oflags = O_CREAT };
	m->xrcd = ibv_open_xrcd(m->s.context, &init);
	CHECK(m->xrcd);
	struct ibv_srq_init_attr_ex srq = {
		.attr = { .max_wr = RECEIVES, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = m->s.pd,
		.xrcd = m->xrcd,
		.cq = m->s.cq,
	};
	m->srq = ibv_create_srq_ex(m->s.context, &srq);
	CHECK(m->srq);
	return m;
}

static struct ibv_qp *create_target(struct member *m)
{
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV,
					    .comp_mask = IBV_QP_INIT_ATTR_XRCD,
					    .xrcd = m->xrcd };
	return ibv_create_qp_ex(m->s.context, &init);
}

static struct ibv_qp *open_target(struct member *m, uint32_t number)
{
	struct ibv_qp_open_attr attr = { .comp_mask = IBV_QP_OPEN_ATTR_NUM |
						      IBV_QP_OPEN_ATTR_XRCD |
						      IBV_QP_OPEN_ATTR_TYPE,
					 .qp_num = number,
					 .xrcd = m->xrcd,
					 .qp_type = IBV_QPT_XRC_RECV };
	return ibv_open_qp(m->s.context, &attr);
}

static uint64_t carry_out(void *state, struct order order)
{
	struct member *m = state;
	switch (order.what) {
	case 'T': /* a target */
		m->target = create_target(m);
		CHECK(m->target);
		return m->target->qp_num;
	case 'O': /* opens another process's target: the errno */
		m->target = open_target(m, order.number);
		return m->target ? 0 : errno;
	case 'C':
		connect_qp(m->target, order.number);
		return 0;
	case 'I':
		to_init(m->target);
		return 0;
	case 'Z': {
		struct ibv_qp_attr attr = { .qp_state = order.number };
		CHECK_INT(ibv_modify_qp(m->target, &attr, IBV_QP_STATE), 0);
		return 0;
	}
	case 'R': { /* an alternate path: the errno */
		struct ibv_qp_attr attr = { .path_mig_state = IBV_MIG_REARM,
					    .alt_ah_attr = path_to_self(m->s.context),
					    .alt_port_num = 1, .alt_timeout = 14 };
		int error = ibv_modify_qp(m->target, &attr,
					  IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE);
		/* Rearming without an alternate path fails. */
		attr.path_mig_state = IBV_MIG_REARM;
		CHECK_INT(ibv_modify_qp(m->target, &attr, IBV_QP_PATH_MIG_STATE), EINVAL);
		return error;
	}
	case 'Q': {
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;
		CHECK_INT(ibv_query_qp(m->target, &attr, IBV_QP_STATE, &init), 0);
		return attr.qp_state;
	}
	case 'D':
		CHECK_INT(ibv_destroy_qp(m->target), 0);
		m->target = NULL;
		return 0;
	case 'S': {
		uint32_t number;
		CHECK_INT(ibv_get_srq_num(m->srq, &number), 0);
		return number;
	}
	case 'A':
		return (uintptr_t)m->s.memory;
	case 'K':
		return m->s.mr->rkey;
	case 'M': /* a word of the worker's memory */
		return *(uint64_t *)(m->s.memory + order.number);
	case 'P': /* receives */
		while (order.number-- > 0) {
			struct ibv_sge sge = { (uintptr_t)m->s.memory, ROOM, m->s.mr->lkey };
			struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
			CHECK_INT(ibv_post_srq_recv(m->srq, &wr, &bad), 0);
		}
		return 0;
	case 'W': { /* the immediate data of the next message */
		struct ibv_wc wc = next_completion(m->s.cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		CHECK_INT(wc.qp_num, order.number);
		return ntohl(wc.imm_data);
	}
	case 'V': { /* the next asynchronous event */
		struct ibv_async_event event;
		CHECK_INT(ibv_get_async_event(m->s.context, &event), 0);
		CHECK(event.element.qp == m->target);
		ibv_ack_async_event(&event);
		return event.event_type;
	}
	case 'F': /* destroys its SRQ */
		CHECK_INT(ibv_destroy_srq(m->srq), 0);
		return 0;
	case 'X':
		if (m->target)
			CHECK_INT(ibv_destroy_qp(m->target), 0);
		CHECK_INT(ibv_close_xrcd(m->xrcd), 0);
		m->xrcd = NULL;
		return 0;
	}
	CHECK(0);
	return 0;
}

/* The sending process. */
struct sender {
	struct share s;
	struct ibv_qp *qp;
	uint32_t target;
};

static struct worker worker[WORKERS];
static uint32_t queue[WORKERS];

/* Starts workers. The first one creates a target, which all of them open. Also creates a sender to
 * it. */
static struct sender gather(const char *link)
{
	char path[] = "/tmp/rocade-xrc-XXXXXX";
	CHECK_INT(setenv("ROCADE_LINK", link, 1), 0);
	domain_fd = mkstemp(path);
	CHECK(domain_fd >= 0);
	CHECK_INT(unlink(path), 0);
	for (int i = 0; i < WORKERS; i++)
		worker[i] = start_worker(begin, carry_out, 0);
	struct sender sender = { .s = open_share() };
	struct ibv_qp_init_attr_ex init = {
		.send_cq = sender.s.cq,
		.cap = { .max_send_wr = 128, .max_send_sge = 1 },
		.qp_type = IBV_QPT_XRC_SEND,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = sender.s.pd,
	};
	sender.qp = ibv_create_qp_ex(sender.s.context, &init);
	CHECK(sender.qp);
	sender.target = order(&worker[0], 'T', 0);
	for (int i = 1; i < WORKERS; i++)
		CHECK_INT(order(&worker[i], 'O', sender.target), 0);
	order(&worker[0], 'C', sender.qp->qp_num);
	connect_qp(sender.qp, sender.target);
	for (int i = 0; i < WORKERS; i++)
		queue[i] = order(&worker[i], 'S', 0);
	return sender;
}

static void post(struct sender *sender, int to, struct ibv_send_wr wr, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)sender->s.memory, length, sender->s.mr->lkey };
	struct ibv_send_wr *bad;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.qp_type.xrc.remote_srqn = queue[to];
	CHECK_INT(ibv_post_send(sender->qp, &wr, &bad), 0);
}

static void post_message(struct sender *sender, int to, uint32_t number, uint32_t length)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(number) };
	post(sender, to, wr, length);
}

static void completes(struct sender *sender)
{
	CHECK_INT(next_completion(sender->s.cq).status, IBV_WC_SUCCESS);
}

/* Sends every operation to one of the workers. */
static void talk_to(struct sender *sender, int to, uint32_t number)
{
	struct worker *w = &worker[to];
	order(w, 'P', 2);
	post_message(sender, to, number, 16);
	completes(sender);
	CHECK_INT(order(w, 'W', sender->target), number);
	post_message(sender, to, number + 1, LONG);
	completes(sender);
	CHECK_INT(order(w, 'W', sender->target), number + 1);

	uint64_t *memory = (uint64_t *)sender->s.memory;
	uint64_t address = order(w, 'A', 0);
	uint32_t key = order(w, 'K', 0);
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { address + 8192, key } };
	memory[0] = number;
	memory[LONG / 8 - 1] = ~(uint64_t)number;
	post(sender, to, wr, LONG);
	completes(sender);
	CHECK_INT(order(w, 'M', 8192), number);
	CHECK_INT(order(w, 'M', 8192 + LONG - 8), ~(uint64_t)number);
	memory[0] = memory[LONG / 8 - 1] = 0;
	wr.opcode = IBV_WR_RDMA_READ;
	post(sender, to, wr, LONG);
	completes(sender);
	CHECK_INT(memory[0], number);
	CHECK_INT(memory[LONG / 8 - 1], ~(uint64_t)number);
	struct ibv_send_wr add = { .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				   .wr.atomic = { address + 8192, 5, 0, key } };
	post(sender, to, add, 8);
	completes(sender);
	CHECK_INT(memory[0], number);
	CHECK_INT(order(w, 'M', 8192), number + 5);
}

static void talk_to_all(struct sender *sender, int turns)
{
	for (int turn = 0; turn < turns; turn++)
		for (int i = 0; i < WORKERS; i++)
			if (worker[i].pid)
				talk_to(sender, i, turn * 100 + i * 10);
}

static void dies(int i)
{
	kill_worker(&worker[i]);
	worker[i].pid = 0;
}

/* One receive QP, with SRQs in four processes. If one of them dies, the others keep working
 * (XRC-11). */
static void who_dies_leaves_the_others_working(const char *link)
{
	struct sender sender = gather(link);
	talk_to_all(&sender, 3);
	dies(2);
	talk_to_all(&sender, 2);
	/* The process that created the target and owned it last. */
	talk_to(&sender, 0, 77);
	dies(0);
	talk_to_all(&sender, 3);
	CHECK_INT(order(&worker[1], 'Q', 0), IBV_QPS_RTS);
	order(&worker[3], 'D', 0);
	talk_to_all(&sender, 1);
	CHECK_INT(order(&worker[3], 'O', sender.target), 0);
	dies(1);
	talk_to_all(&sender, 2);
	order(&worker[3], 'D', 0);
	/* The last process to close the target destroys it. */
	CHECK_INT(order(&worker[3], 'O', sender.target), EINVAL);
	order(&worker[3], 'F', 0);
	order(&worker[3], 'X', 0);
	end_worker(&worker[3]);
}

static void who_dies_leaves_the_others_working_by_udp(void)
{
	who_dies_leaves_the_others_working("udp");
}

static void who_dies_leaves_the_others_working_by_shm(void)
{
	who_dies_leaves_the_others_working("auto");
}

/* A process may be killed right after its reply. The next one takes over. */
static void who_has_answered_may_die(void)
{
	enum { ROUNDS = 5 };
	for (int round = 0; round < ROUNDS; round++) {
		struct sender sender = gather("udp");
		for (int i = 0; i < WORKERS - 1; i++) {
			order(&worker[i], 'P', 1);
			uint64_t address = order(&worker[i], 'A', 0);
			uint32_t key = order(&worker[i], 'K', 0);
			struct ibv_send_wr one[] = {
				{ .opcode = IBV_WR_SEND_WITH_IMM },
				{ .opcode = IBV_WR_RDMA_READ, .wr.rdma = { address, key } },
				{ .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				  .wr.atomic = { address, 5, 0, key } },
			};
			post(&sender, i, one[(round + i) % 3], 8);
			completes(&sender);
			dies(i);
		}
		talk_to(&sender, WORKERS - 1, round);
		order(&worker[WORKERS - 1], 'D', 0);
		order(&worker[WORKERS - 1], 'F', 0);
		order(&worker[WORKERS - 1], 'X', 0);
		end_worker(&worker[WORKERS - 1]);
		CHECK_INT(ibv_destroy_qp(sender.qp), 0);
	}
}

/* Messages to all SRQs, as many at a time as fit. Each arrives once and in order. */
static void a_stream_to_all_queues(const char *link)
{
	enum { ROUNDS = 10, AT_ONCE = 64 };
	struct sender sender = gather(link);
	for (int i = 0; i < WORKERS; i++)
		order(&worker[i], 'P', AT_ONCE / WORKERS);
	for (uint32_t round = 0, number = 0; round < ROUNDS; round++) {
		for (int i = 0; i < AT_ONCE; i++)
			post_message(&sender, i % WORKERS, number + i, i % 7 ? 64 : LONG);
		for (int i = 0; i < AT_ONCE; i++)
			completes(&sender);
		for (int i = 0; i < AT_ONCE; i++) {
			struct worker *w = &worker[i % WORKERS];
			CHECK_INT(order(w, 'W', sender.target), number + i);
			order(w, 'P', 1);
		}
		number += AT_ONCE;
	}
	for (int i = 0; i < WORKERS; i++) {
		order(&worker[i], 'F', 0);
		order(&worker[i], 'X', 0);
		end_worker(&worker[i]);
	}
}

static void a_stream_to_all_queues_by_udp(void)
{
	a_stream_to_all_queues("udp");
}

static void a_stream_to_all_queues_by_shm(void)
{
	a_stream_to_all_queues("auto");
}

/* Every process that has the target open can modify it, not only its creator or owner. */
static void any_process_changes_the_target(void)
{
	struct sender sender = gather("auto");
	talk_to(&sender, 2, 1);
	CHECK_INT(order(&worker[1], 'Q', 0), IBV_QPS_RTS);
	order(&worker[1], 'Z', IBV_QPS_ERR);
	for (int i = 0; i < WORKERS; i++) {
		CHECK_INT(order(&worker[i], 'Q', 0), IBV_QPS_ERR);
		/* No COMM_EST: only the first packet in RTR raises it, and there was none. */
		CHECK_INT(order(&worker[i], 'V', 0), IBV_EVENT_QP_LAST_WQE_REACHED);
	}
	order(&worker[3], 'Z', IBV_QPS_RESET);
	order(&worker[0], 'I', 0);
	CHECK_INT(order(&worker[2], 'Q', 0), IBV_QPS_INIT);
	order(&worker[3], 'Z', IBV_QPS_RESET);
	order(&worker[3], 'C', sender.qp->qp_num);
	to_error(sender.qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	CHECK_INT(ibv_modify_qp(sender.qp, &attr, IBV_QP_STATE), 0);
	connect_qp(sender.qp, sender.target);
	talk_to_all(&sender, 1);
	/* The creator closes its handle and lives on: the target still receives packets there. */
	order(&worker[0], 'D', 0);
	talk_to_all(&sender, 1);
	/* An SRQ that does not exist. */
	queue[0] ^= 0x8000;
	post_message(&sender, 0, 1, 1);
	CHECK_INT(next_completion(sender.s.cq).status, IBV_WC_REM_ACCESS_ERR);
	for (int i = 1; i < WORKERS; i++) {
		CHECK_INT(order(&worker[i], 'V', 0), IBV_EVENT_QP_ACCESS_ERR);
		CHECK_INT(order(&worker[i], 'V', 0), IBV_EVENT_QP_LAST_WQE_REACHED);
	}
	for (int i = 0; i < WORKERS; i++) {
		order(&worker[i], 'F', 0);
		order(&worker[i], 'X', 0);
	}
	CHECK_INT(order(&worker[0], 'M', 0) == 0 ? 0 : 0, 0);
	for (int i = 0; i < WORKERS; i++)
		end_worker(&worker[i]);
}

/* A process dies during traffic. Either the target keeps working, or it is in ERR and all processes
 * get the event. */
static void a_death_under_traffic(void)
{
	for (int victim = 0; victim < 3; victim++) {
		struct sender sender = gather(victim == 1 ? "udp" : "auto");
		for (int i = 0; i < WORKERS; i++)
			order(&worker[i], 'P', RECEIVES);
		for (int i = 0; i < 100; i++)
			post_message(&sender, i % 2 ? victim : 3, i, i % 3 ? 64 : LONG);
		for (int i = 0; i < 7; i++)
			completes(&sender);
		dies(victim);
		int state = order(&worker[3], 'Q', 0);
		struct ibv_wc wc;
		do {
			wc = next_completion(sender.s.cq);
		} while (wc.status == IBV_WC_SUCCESS);
		/* The message was refused, or no process could take over. */
		CHECK(wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_RETRY_EXC_ERR);
		CHECK(state == IBV_QPS_RTS || state == IBV_QPS_ERR);
		CHECK_INT(order(&worker[3], 'Q', 0), IBV_QPS_ERR);
		for (int i = 0; i < WORKERS; i++)
			if (worker[i].pid) {
				order(&worker[i], 'D', 0);
				end_worker(&worker[i]);
			}
		CHECK_INT(ibv_destroy_qp(sender.qp), 0);
	}
}

/* The processes that serve a target have different routes, so no alternate path serves all of
 * them. */
static void a_shared_target_has_one_path(void)
{
	struct sender sender = gather("auto");
	talk_to(&sender, 1, 1);
	/* In each process. */
	for (int i = 0; i < WORKERS; i++)
		CHECK_INT(order(&worker[i], 'R', 0), EINVAL);
	talk_to_all(&sender, 1);
	CHECK_INT(order(&worker[2], 'Q', 0), IBV_QPS_RTS);
	for (int i = 0; i < WORKERS; i++) {
		order(&worker[i], 'F', 0);
		order(&worker[i], 'X', 0);
		end_worker(&worker[i]);
	}
}

/* A target belongs to one XRC domain, and cannot be opened from another one. */
static void a_number_of_another_domain_opens_nothing(void)
{
	struct sender sender = gather("auto");
	char path[] = "/tmp/rocade-xrc-XXXXXX";
	domain_fd = mkstemp(path);
	CHECK(domain_fd >= 0);
	CHECK_INT(unlink(path), 0);
	struct worker other = start_worker(begin, carry_out, 0);
	CHECK_INT(order(&other, 'O', sender.target), EINVAL);
	/* Requests cannot reach the SRQs of another domain either. */
	uint32_t own = queue[1];
	queue[1] = order(&other, 'S', 0);
	order(&other, 'P', 1);
	post_message(&sender, 1, 1, 16);
	CHECK_INT(next_completion(sender.s.cq).status, IBV_WC_REM_ACCESS_ERR);
	queue[1] = own;
	end_worker(&other);
	for (int i = 0; i < WORKERS; i++)
		end_worker(&worker[i]);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "who_has_answered_may_die", who_has_answered_may_die },
		{ "who_dies_leaves_the_others_working_by_udp",
		  who_dies_leaves_the_others_working_by_udp },
		{ "who_dies_leaves_the_others_working_by_shm",
		  who_dies_leaves_the_others_working_by_shm },
		{ "a_stream_to_all_queues_by_udp", a_stream_to_all_queues_by_udp },
		{ "a_stream_to_all_queues_by_shm", a_stream_to_all_queues_by_shm },
		{ "any_process_changes_the_target", any_process_changes_the_target },
		{ "a_death_under_traffic", a_death_under_traffic },
		{ "a_shared_target_has_one_path", a_shared_target_has_one_path },
		{ "a_number_of_another_domain_opens_nothing",
		  a_number_of_another_domain_opens_nothing },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
