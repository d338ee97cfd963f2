/* The dynamically connected transport through the experimental verbs. */
#include "dc.h"
#include "processes.h"

#include <arpa/inet.h>

static void every_operation(void)
{
	struct ends e = ends_open();
	uint32_t dct = e.dct->dct_num;
	memcpy(e.buffer, "something to say", 16);
	struct ibv_sge sge = { (uintptr_t)e.buffer, 16, e.mr->lkey };
	struct ibv_sge result = { (uintptr_t)e.buffer + 64, 8, e.mr->lkey };
	uint64_t there = (uintptr_t)e.buffer + 1024;
	struct ibv_exp_send_wr send = to_target(&e, 1, dct, KEY);
	send.sg_list = &sge;
	send.num_sge = 1;
	send.exp_opcode = IBV_EXP_WR_SEND_WITH_IMM;
	send.ex.imm_data = htonl(7);
	struct ibv_exp_send_wr write = to_target(&e, 2, dct, KEY);
	write.sg_list = &sge;
	write.num_sge = 1;
	write.exp_opcode = IBV_EXP_WR_RDMA_WRITE;
	write.exp_send_flags |= IBV_EXP_SEND_INLINE;
	write.wr.rdma.remote_addr = there;
	write.wr.rdma.rkey = e.mr->rkey;
	struct ibv_exp_send_wr add = to_target(&e, 3, dct, KEY);
	add.sg_list = &result;
	add.num_sge = 1;
	add.exp_opcode = IBV_EXP_WR_ATOMIC_FETCH_AND_ADD;
	add.wr.atomic.remote_addr = there + 64;
	add.wr.atomic.compare_add = 5;
	add.wr.atomic.rkey = e.mr->rkey;
	struct ibv_exp_send_wr read = to_target(&e, 4, dct, KEY);
	read.sg_list = &result;
	read.num_sge = 1;
	read.exp_opcode = IBV_EXP_WR_RDMA_READ;
	read.wr.rdma.remote_addr = there + 64;
	read.wr.rdma.rkey = e.mr->rkey;
	receive(&e, 70);
	send.next = &write;
	write.next = &add;
	add.next = &read;
	CHECK_INT(post(&e, &send), 0);
	static const int opcodes[] = { IBV_EXP_WC_SEND, IBV_EXP_WC_RDMA_WRITE, IBV_EXP_WC_FETCH_ADD,
				       IBV_EXP_WC_RDMA_READ };
	for (int i = 0; i < 4; i++) {
		struct ibv_exp_wc wc = next_exp(e.cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		CHECK_INT(wc.wr_id, i + 1);
		CHECK_INT(wc.exp_opcode, opcodes[i]);
		CHECK_INT(wc.qp_num, e.dci->qp_num);
		CHECK(!(wc.exp_wc_flags & IBV_EXP_WC_DCT));
	}
	struct ibv_exp_wc wc = next_exp(e.dct_cq);
	CHECK_INT(wc.wr_id, 70);
	CHECK_INT(wc.exp_opcode, IBV_EXP_WC_RECV);
	CHECK_INT(wc.byte_len, 16);
	CHECK_INT(ntohl(wc.imm_data), 7);
	CHECK_INT(wc.qp_num, dct);
	CHECK_INT(wc.src_qp, e.dci->qp_num);
	CHECK(wc.exp_wc_flags & IBV_EXP_WC_DCT && wc.exp_wc_flags & IBV_EXP_WC_SRQ);
	CHECK(wc.dct == e.dct && wc.srq == e.srq);
	CHECK(!memcmp(e.buffer + 4096, "something to say", 16));
	CHECK(!memcmp(e.buffer + 1024, "something to say", 16));
	CHECK_INT(*(uint64_t *)(e.buffer + 1024 + 64), 5);
	CHECK_INT(*(uint64_t *)(e.buffer + 64), 5);
	ends_close(&e);
}

static void attributes_and_mistakes(void)
{
	struct ends e = ends_open();
	struct ibv_exp_device_attr device = {
		.comp_mask = IBV_EXP_DEVICE_ATTR_EXP_CAP_FLAGS | IBV_EXP_DEVICE_DC_RD_REQ |
			     IBV_EXP_DEVICE_DC_RD_RES | IBV_EXP_DEVICE_ATTR_MAX_DCT,
	};
	uint32_t asked = device.comp_mask;
	CHECK_INT(ibv_exp_query_device(e.context, &device), 0);
	CHECK_INT(device.comp_mask, asked);
	CHECK(device.exp_device_cap_flags & IBV_EXP_DEVICE_DC_TRANSPORT);
	CHECK(device.max_dc_req_rd_atom > 0 && device.max_dc_res_rd_atom > 0 && device.max_dct > 0);
	struct ibv_exp_dct_attr attr = { .comp_mask = 0 };
	CHECK_INT(ibv_exp_query_dct(e.dct, &attr), 0);
	CHECK_INT(attr.dc_key, KEY);
	CHECK_INT(attr.port, 1);
	CHECK_INT(attr.access_flags, RIGHTS);
	CHECK_INT(attr.min_rnr_timer, 2);
	CHECK_INT(attr.tclass, 4);
	CHECK_INT(attr.flow_label, 5);
	CHECK_INT(attr.mtu, IBV_MTU_1024);
	CHECK_INT(attr.hop_limit, 9);
	CHECK_INT(attr.key_violations, 0);
	CHECK_INT(attr.state, IBV_EXP_DCT_STATE_ACTIVE);
	CHECK(attr.pd == e.pd && attr.cq == e.dct_cq && attr.srq == e.srq);
	attr.comp_mask = 1;
	CHECK_INT(ibv_exp_query_dct(e.dct, &attr), EINVAL);
	CHECK_INT(ibv_exp_query_dct(e.dct, NULL), EINVAL);
	struct ibv_exp_arm_attr arm = { .comp_mask = 1 };
	CHECK_INT(ibv_exp_arm_dct(e.dct, &arm), EINVAL);
	/* Invalid attributes of a target. */
	for (int wrong = 0; wrong < 12; wrong++) {
		struct ibv_exp_dct_init_attr bad = target_attr(&e);
		switch (wrong) {
		case 0: bad.pd = NULL; break;
		case 1: bad.cq = NULL; break;
		case 2: bad.srq = NULL; break;
		case 3: bad.port = 0; break;
		case 4: bad.port = 2; break;
		case 5: bad.mtu = (enum ibv_mtu)0; break;
		case 6: bad.mtu = (enum ibv_mtu)6; break;
		case 7: bad.gid_index = 200; break;
		case 8: bad.pkey_index = 200; break;
		case 9: bad.access_flags |= 1 << 30; break;
		case 10: bad.create_flags = 2; break;
		case 11: bad.comp_mask = 1; break;
		}
		errno = 0;
		CHECK(!ibv_exp_create_dct(e.context, &bad));
		CHECK_INT(errno, EINVAL);
	}
	CHECK_INT(ibv_destroy_srq(e.srq), EBUSY);
	CHECK_INT(ibv_destroy_cq(e.dct_cq), EBUSY);
	/* Requests without a target, or without an address handle. */
	struct ibv_send_wr plain = { .opcode = IBV_WR_SEND }, *bad_wr;
	CHECK_INT(ibv_post_send(e.dci, &plain, &bad_wr), EINVAL);
	struct ibv_exp_send_wr nowhere = to_target(&e, 1, e.dct->dct_num, KEY);
	nowhere.dc.ah = NULL;
	CHECK_INT(post(&e, &nowhere), EINVAL);
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv;
	CHECK_INT(ibv_post_recv(e.dci, &recv, &bad_recv), EINVAL);
	ends_close(&e);
}

/* The own key is sent if the request says so. A packet with any other key is dropped, and reported
 * once. */
static void keys_and_events(void)
{
	struct ends e = ends_open();
	struct ibv_exp_dct_init_attr other = target_attr(&e);
	other.dc_key = KEY + 1;
	struct ibv_exp_dct *own = ibv_exp_create_dct(e.context, &other);
	CHECK(own);
	receive(&e, 1);
	struct ibv_exp_send_wr by_own = to_target(&e, 5, own->dct_num, 1ULL << 63 | 12345);
	CHECK_INT(post(&e, &by_own), 0);
	CHECK_INT(next_exp(e.cq).status, IBV_WC_SUCCESS);
	struct ibv_exp_wc wc = next_exp(e.dct_cq);
	CHECK(wc.dct == own);
	struct ibv_exp_arm_attr arm = { .comp_mask = 0 };
	CHECK_INT(ibv_exp_arm_dct(e.dct, &arm), 0);
	struct ibv_exp_send_wr forged = to_target(&e, 6, e.dct->dct_num, KEY + 7);
	CHECK_INT(post(&e, &forged), 0);
	wc = next_exp(e.cq);
	CHECK_INT(wc.status, IBV_WC_RETRY_EXC_ERR);
	struct ibv_exp_async_event event;
	CHECK_INT(ibv_exp_get_async_event(e.context, &event), 0);
	CHECK_INT(event.event_type, IBV_EXP_EVENT_DCT_KEY_VIOLATION);
	CHECK(event.element.dct == e.dct);
	ibv_exp_ack_async_event(&event);
	CHECK(!is_readable(e.context->async_fd));
	struct ibv_exp_dct_attr attr = { .comp_mask = 0 };
	CHECK_INT(ibv_exp_query_dct(e.dct, &attr), 0);
	CHECK(attr.key_violations >= 1);
	CHECK_INT(ibv_exp_destroy_dct(own), 0);
	ends_close(&e);
}

enum { PROCESSES = 16, ROUNDS = 8 };

/* Shared memory of the processes. */
struct board {
	pthread_barrier_t barrier;
	struct {
		uint32_t dct, rkey;
		uint64_t buffer;
	} places[PROCESSES];
};

/* Each process has one initiator. In each round it writes to all others, and adds one to a counter
 * there. */
static void talk_to_all(void *shared, int me)
{
	struct board *board = shared;
	struct ends e = ends_open();
	board->places[me].dct = e.dct->dct_num;
	board->places[me].rkey = e.mr->rkey;
	board->places[me].buffer = (uintptr_t)e.buffer;
	for (int i = 0; i < RECEIVES; i++)
		receive(&e, i);
	pthread_barrier_wait(&board->barrier);
	int received = 0, expected = 0;
	for (int round = 1; round <= ROUNDS; round++) {
		uint64_t value = round * 1000 + me, before[PROCESSES];
		memcpy(e.buffer + 2048, &value, 8);
		for (int i = 1; i < PROCESSES; i++) {
			int peer = (me + i) % PROCESSES;
			uint64_t there = board->places[peer].buffer;
			struct ibv_sge sge = { (uintptr_t)e.buffer + 2048, 8, e.mr->lkey };
			struct ibv_sge result = { (uintptr_t)e.buffer + 2112, 8, e.mr->lkey };
			struct ibv_exp_send_wr write = to_target(&e, 1, board->places[peer].dct, KEY);
			struct ibv_exp_send_wr add = to_target(&e, 2, board->places[peer].dct, KEY);
			struct ibv_exp_send_wr send = to_target(&e, 3, board->places[peer].dct, KEY);
			write.sg_list = send.sg_list = &sge;
			add.sg_list = &result;
			write.num_sge = send.num_sge = add.num_sge = 1;
			write.exp_opcode = IBV_EXP_WR_RDMA_WRITE;
			write.wr.rdma.remote_addr = there + me * 8;
			write.wr.rdma.rkey = board->places[peer].rkey;
			add.exp_opcode = IBV_EXP_WR_ATOMIC_FETCH_AND_ADD;
			add.wr.atomic.remote_addr = there + PROCESSES * 8;
			add.wr.atomic.rkey = board->places[peer].rkey;
			add.wr.atomic.compare_add = 1;
			write.next = &add;
			add.next = &send;
			CHECK_INT(post(&e, &write), 0);
			expected++;
		}
		for (int done = 0; done < 3 * (PROCESSES - 1) || received < expected;) {
			struct ibv_exp_wc wc;
			int polled = ibv_exp_poll_cq(e.cq, 1, &wc, sizeof(wc));
			CHECK(polled >= 0);
			if (polled) {
				CHECK_INT(wc.status, IBV_WC_SUCCESS);
				done++;
			}
			polled = ibv_exp_poll_cq(e.dct_cq, 1, &wc, sizeof(wc));
			CHECK(polled >= 0);
			if (polled) {
				CHECK_INT(wc.status, IBV_WC_SUCCESS);
				received++;
				receive(&e, wc.wr_id);
			}
		}
		pthread_barrier_wait(&board->barrier);
		memcpy(before, e.buffer, sizeof(before));
		for (int peer = 0; peer < PROCESSES; peer++)
			if (peer != me)
				CHECK_INT(before[peer], round * 1000 + peer);
		CHECK_INT(*(uint64_t *)(e.buffer + PROCESSES * 8), round * (PROCESSES - 1));
		pthread_barrier_wait(&board->barrier);
	}
	ends_close(&e);
}

static void all_to_all_of_sixteen(const char *link)
{
	/* With so many processes on a busy machine, each may be delayed: 1 s timeout, 8 tries. */
	dci_timeout = 18;
	in_processes(PROCESSES, link, sizeof(struct board), talk_to_all);
}

static void all_to_all_of_sixteen_by_udp(void)
{
	all_to_all_of_sixteen("udp");
}

static void all_to_all_of_sixteen_by_shm(void)
{
	all_to_all_of_sixteen("shm");
}

static const struct test_case cases[] = {
	{ "every_operation", every_operation },
	{ "attributes_and_mistakes", attributes_and_mistakes },
	{ "keys_and_events", keys_and_events },
	{ "all_to_all_of_sixteen_by_udp", all_to_all_of_sixteen_by_udp },
	{ "all_to_all_of_sixteen_by_shm", all_to_all_of_sixteen_by_shm },
	{ 0 },
};

int main(int argc, char **argv)
{
	return run_case(cases, argc, argv);
}
