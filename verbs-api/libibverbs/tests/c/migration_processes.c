/* Two processes, each with a device of two ports. Their connection migrates from one pair of ports
 * to the other. */
#include "workers.h"

#include <sys/mman.h>

enum { LEN = 20000, SPACE = 3 * LEN };

/* The two processes. */
enum { A, B };

/* Shared memory of the processes. */
struct place {
	/* The addresses of the ports. */
	char ip[2][48];
	uint32_t qpn, rkey;
	uint64_t address;
};

static struct place *places;
/* ACK timeout and retries before a path is abandoned. Long enough for busy machines, unless a case
 * changes them. */
static int timeout = 18, retries = 7;
/* The capture file of each process, or an empty string. */
static char capture[2][32];
/* The P_Key index of the alternate path, per process. */
static int alternate_pkey[2];

/* The objects of a process. */
struct end {
	int who;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char *memory;
	struct ibv_qp *qp;
};

static struct ibv_ah_attr path_to(struct place *place, int port)
{
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = port, .grh.hop_limit = 64 };
	ah.grh.dgid.raw[10] = ah.grh.dgid.raw[11] = 0xff;
	CHECK_INT(inet_pton(AF_INET, place->ip[port - 1], ah.grh.dgid.raw + 12), 1);
	return ah;
}

static void *begin(int who)
{
	struct end *end = calloc(1, sizeof(*end));
	struct place *own = &places[who];
	char devices[128];
	snprintf(devices, sizeof(devices), "dev%d=%s+%s", who, own->ip[0], own->ip[1]);
	CHECK_INT(setenv("ROCADE_DEVICES", devices, 1), 0);
	if (*capture[who])
		CHECK_INT(setenv("ROCADE_CAPTURE", capture[who], 1), 0);
	end->who = who;
	end->context = open_device();
	end->pd = ibv_alloc_pd(end->context);
	end->cq = ibv_create_cq(end->context, 64, NULL, NULL, 0);
	end->memory = calloc(1, SPACE);
	CHECK(end->pd && end->cq && end->memory);
	end->mr = ibv_reg_mr(end->pd, end->memory, SPACE,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				     IBV_ACCESS_REMOTE_READ);
	CHECK(end->mr);
	struct ibv_qp_init_attr init = small_qp(end->cq);
	end->qp = ibv_create_qp(end->pd, &init);
	CHECK(end->qp);
	own->qpn = end->qp->qp_num;
	own->rkey = end->mr->rkey;
	own->address = (uintptr_t)end->memory;
	return end;
}

static void connect_to(struct end *end, struct place *peer)
{
	to_init(end->qp);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qpn,
		.rq_psn = 0xfffff0,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = path_to(peer, 1),
	};
	CHECK_INT(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						    IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						    IBV_QP_MAX_DEST_RD_ATOMIC |
						    IBV_QP_MIN_RNR_TIMER), 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.sq_psn = 0xfffff0,
		.timeout = timeout,
		.retry_cnt = retries,
		.rnr_retry = 7,
		.max_rd_atomic = 4,
	};
	CHECK_INT(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						    IBV_QP_MAX_QP_RD_ATOMIC), 0);
}

/* Loads and arms the path over `port` of both devices. */
static void load(struct end *end, int port)
{
	struct ibv_qp_attr attr = {
		.path_mig_state = IBV_MIG_REARM,
		.alt_ah_attr = path_to(&places[!end->who], port),
		.alt_port_num = port,
		.alt_timeout = timeout,
		.alt_pkey_index = alternate_pkey[end->who],
	};
	CHECK_INT(ibv_modify_qp(end->qp, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE), 0);
}

static struct ibv_sge part(struct end *end, int number, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)end->memory + number * LEN, length, end->mr->lkey };
	return sge;
}

static void fill(char *memory, uint32_t seed)
{
	for (int i = 0; i < LEN; i++)
		memory[i] = (char)(i * 7 + i / 251 + seed * 31);
}

static void check(const char *memory, uint32_t seed)
{
	char wanted[LEN];
	fill(wanted, seed);
	CHECK(!memcmp(memory, wanted, LEN));
}

/* Writes into the second part of the peer's memory, notifies it, and reads the data back into its
 * own third part. Returns the first unsuccessful status. */
static int talk(struct end *end, uint32_t seed)
{
	struct place *peer = &places[!end->who];
	struct ibv_send_wr wr[3], *bad;
	struct ibv_sge sge[3] = { part(end, 0, LEN), part(end, 0, 64), part(end, 2, LEN) };
	static const enum ibv_wr_opcode opcode[] = { IBV_WR_RDMA_WRITE, IBV_WR_SEND,
						     IBV_WR_RDMA_READ };
	fill(end->memory, seed);
	for (int i = 0; i < 3; i++)
		wr[i] = (struct ibv_send_wr){
			.wr_id = i,
			.next = i < 2 ? &wr[i + 1] : NULL,
			.sg_list = &sge[i],
			.num_sge = 1,
			.opcode = opcode[i],
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { peer->address + LEN, peer->rkey },
		};
	CHECK_INT(ibv_post_send(end->qp, wr, &bad), 0);
	for (uint64_t i = 0; i < 3; i++) {
		struct ibv_wc wc = next_completion(end->cq);
		CHECK_INT(wc.wr_id, i);
		if (wc.status != IBV_WC_SUCCESS)
			return wc.status;
	}
	check(end->memory + 2 * LEN, seed);
	return 0;
}

static uint64_t carry_out(void *state, struct order order)
{
	struct end *end = state;
	struct ibv_qp_attr attr = { .path_mig_state = IBV_MIG_MIGRATED };
	struct ibv_qp_init_attr init;
	switch (order.what) {
	case 'C':
		connect_to(end, &places[!end->who]);
		return 0;
	case 'L':
		load(end, order.number);
		return 0;
	case 'M': /* migrates */
		return ibv_modify_qp(end->qp, &attr, IBV_QP_PATH_MIG_STATE);
	case 'R': { /* a receive, into the third part */
		struct ibv_sge sge = part(end, 2, 64);
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK_INT(ibv_post_recv(end->qp, &wr, &bad), 0);
		return 0;
	}
	case 'T':
		return talk(end, order.number);
	case 'V': { /* the peer's message */
		char wanted[LEN];
		fill(wanted, order.number);
		CHECK_INT(next_completion(end->cq).status, IBV_WC_SUCCESS);
		check(end->memory + LEN, order.number);
		CHECK(!memcmp(end->memory + 2 * LEN, wanted, 64));
		return 0;
	}
	case 'E': { /* the next event */
		struct ibv_async_event event;
		CHECK_INT(ibv_get_async_event(end->context, &event), 0);
		CHECK(event.element.qp == end->qp);
		ibv_ack_async_event(&event);
		return event.event_type;
	}
	case 'n':
		CHECK(!is_readable(end->context->async_fd));
		return 0;
	case 'Q': /* state, port, alternate port */
		CHECK_INT(ibv_query_qp(end->qp, &attr, IBV_QP_STATE, &init), 0);
		CHECK_INT(attr.ah_attr.port_num, attr.port_num);
		return attr.path_mig_state | attr.port_num << 8 | attr.alt_port_num << 16;
	case 'X':
		CHECK_INT(ibv_destroy_qp(end->qp), 0);
		CHECK_INT(ibv_dereg_mr(end->mr), 0);
		CHECK_INT(ibv_destroy_cq(end->cq), 0);
		CHECK_INT(ibv_dealloc_pd(end->pd), 0);
		CHECK_INT(ibv_close_device(end->context), 0);
		return 0;
	}
	CHECK(0);
	return 0;
}

static struct worker worker[2];

/* Two processes, connected over their first ports. */
static void connect_two(const char *link)
{
	unsigned byte[4];
	const char *ip = getenv("ROCADE_IP");
	places = mmap(NULL, 2 * sizeof(*places), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		      -1, 0);
	CHECK(places != MAP_FAILED);
	CHECK(ip && sscanf(ip, "%u.%u.%u.%u", &byte[0], &byte[1], &byte[2], &byte[3]) == 4);
	/* Each program has its own addresses: the last byte is odd, and the second byte is above
	 * 127. */
	for (int who = A; who <= B; who++)
		for (int port = 0; port < 2; port++)
			snprintf(places[who].ip[port], sizeof(places[who].ip[port]), "%u.%u.%u.%u",
				 byte[0], byte[1] & (port ? 0x7f : 0xff), byte[2],
				 who == A ? byte[3] : byte[3] & ~1u);
	CHECK_INT(unsetenv("ROCADE_IP"), 0);
	CHECK_INT(setenv("ROCADE_LINK", link, 1), 0);
	for (int who = A; who <= B; who++)
		worker[who] = start_worker(begin, carry_out, who);
	/* The answer shows that the worker has started. */
	for (int who = A; who <= B; who++)
		order(&worker[who], 'n', 0);
	for (int who = A; who <= B; who++)
		order(&worker[who], 'C', 0);
}

static void converse(int from, uint32_t seed)
{
	order(&worker[!from], 'R', 0);
	CHECK_INT(order(&worker[from], 'T', seed), IBV_WC_SUCCESS);
	order(&worker[!from], 'V', seed);
}

static void is_in(int who, int state, int port, int alternate)
{
	CHECK_INT(order(&worker[who], 'Q', 0), state | port << 8 | alternate << 16);
}

/* Both load the path over this port. Each learns from the other's packets that it is armed. */
static void arm(int port, uint32_t seed)
{
	for (int who = A; who <= B; who++) {
		order(&worker[who], 'L', port);
		is_in(who, IBV_MIG_REARM, 3 - port, port);
	}
	converse(A, seed);
	for (int who = A; who <= B; who++)
		is_in(who, IBV_MIG_ARMED, 3 - port, port);
}

static void has_moved(int who, int port)
{
	CHECK_INT(order(&worker[who], 'E', 0), IBV_EVENT_PATH_MIG);
	order(&worker[who], 'n', 0);
	is_in(who, IBV_MIG_MIGRATED, port, 0);
}

static void part_ways(void)
{
	for (int who = A; who <= B; who++)
		order(&worker[who], 'X', 0);
	for (int who = A; who <= B; who++)
		end_worker(&worker[who]);
}

/* Migrates to the second ports and back. The two sides request it alternately. */
static void on_request(const char *link)
{
	connect_two(link);
	converse(A, 0);
	for (uint32_t round = 0; round < 4; round++) {
		int from = round & 1, port = 2 - (round & 1);
		arm(port, 10 * round + 1);
		CHECK_INT(order(&worker[from], 'M', 0), 0);
		has_moved(from, port);
		is_in(!from, IBV_MIG_ARMED, 3 - port, port);
		converse(from, 10 * round + 2);
		has_moved(!from, port);
		converse(!from, 10 * round + 3);
	}
	part_ways();
}

static void asked_for_by_udp(void)
{
	on_request("udp");
}

static void asked_for_by_shm(void)
{
	on_request("auto");
}

/* The first port of A fails at some packet. */
static void on_failure(const char *link)
{
	char fault[64];
	const char *ip = getenv("ROCADE_IP");
	CHECK(ip);
	snprintf(fault, sizeof(fault), "drop ip=%s nth=70..", ip);
	CHECK_INT(setenv("ROCADE_FAULT", fault, 1), 0);
	timeout = 15;
	retries = 3;
	connect_two(link);
	arm(2, 1);
	/* Alternately, so that packets of both sides are lost. */
	for (uint32_t seed = 2; seed < 12; seed++)
		converse(seed & 1 ? B : A, seed);
	has_moved(A, 2);
	has_moved(B, 2);
	part_ways();
}

static void a_dead_path_is_left_by_udp(void)
{
	on_failure("udp");
}

static void a_dead_path_is_left_by_shm(void)
{
	on_failure("auto");
}

/* The alternate path has a P_Key of another partition. The side that migrated gets no response. The
 * other side reports a failed migration once, and stays. */
static void of_no_use(const char *link)
{
	CHECK_INT(setenv("ROCADE_PKEYS", "0xffff,0x8001", 1), 0);
	alternate_pkey[A] = 1;
	timeout = 15;
	retries = 3;
	connect_two(link);
	arm(2, 1);
	CHECK_INT(order(&worker[A], 'M', 0), 0);
	has_moved(A, 2);
	CHECK_INT(order(&worker[A], 'T', 2), IBV_WC_RETRY_EXC_ERR);
	CHECK_INT(order(&worker[B], 'E', 0), IBV_EVENT_PATH_MIG_ERR);
	order(&worker[B], 'n', 0);
	is_in(B, IBV_MIG_ARMED, 1, 2);
	part_ways();
}

static void a_path_of_no_use_by_udp(void)
{
	of_no_use("udp");
}

static void a_path_of_no_use_by_shm(void)
{
	of_no_use("auto");
}

/* Packet bytes are big-endian. */
static uint32_t word_at(const unsigned char *bytes)
{
	uint32_t word;
	memcpy(&word, bytes, sizeof(word));
	return ntohl(word);
}

/* Returns the phases of the packets that a process sent, from its capture: the source port and the
 * MigReq bit. A capture that is still being written may have fewer phases. */
static int phases_of(int fd, struct place *own, int *phases, int most)
{
	enum { ENHANCED_PACKET = 6, ETHERNET = 14 };
	struct in_addr ip[2];
	off_t length = lseek(fd, 0, SEEK_END);
	unsigned char *bytes = malloc(length + 1);
	int count = 0;
	CHECK(bytes && pread(fd, bytes, length, 0) == length);
	for (int port = 0; port < 2; port++)
		CHECK_INT(inet_pton(AF_INET, own->ip[port], &ip[port]), 1);
	for (off_t at = 0; at + 12 <= length;) {
		uint32_t block = word_at(bytes + at + 4);
		if (block < 12 || at + block > length)
			break;
		const unsigned char *packet = bytes + at + 28 + ETHERNET;
		if (word_at(bytes + at) == ENHANCED_PACKET) {
			const unsigned char *bth = packet + (packet[0] & 15) * 4 + 8;
			int port = !memcmp(packet + 12, &ip[0], 4)   ? 1 :
				   !memcmp(packet + 12, &ip[1], 4) ? 2 : 0;
			/* Only RC packets, without those of the connection manager. */
			int phase = port << 4 | (bth[1] >> 6 & 1);
			if (port && bth[0] < 0x20 && (!count || phases[count - 1] != phase)) {
				CHECK(count < most);
				phases[count++] = phase;
			}
		}
		at += block;
	}
	free(bytes);
	return count;
}

/*= RC-APM-02 BTH-03 type=test */
static void every_packet_says_how_it_is(const char *link)
{
	static const int wanted[] = { 0x11, 0x10, 0x21, 0x20, 0x11 };
	enum { MOST = 16, WANTED = sizeof(wanted) / sizeof(*wanted) };
	int fd[2], phases[MOST], count;
	for (int who = A; who <= B; who++) {
		strcpy(capture[who], "/tmp/rocade-apm-XXXXXX");
		fd[who] = mkstemp(capture[who]);
		CHECK(fd[who] >= 0);
	}
	connect_two(link);
	converse(A, 1);
	arm(2, 2);
	CHECK_INT(order(&worker[A], 'M', 0), 0);
	converse(A, 3);
	arm(1, 4);
	CHECK_INT(order(&worker[B], 'M', 0), 0);
	converse(B, 5);
	for (int who = A; who <= B; who++) {
		while ((count = phases_of(fd[who], &places[who], phases, MOST)) < WANTED)
			usleep(1000);
		CHECK_INT(count, WANTED);
		CHECK(!memcmp(phases, wanted, sizeof(wanted)));
		CHECK_INT(unlink(capture[who]), 0);
	}
	part_ways();
}

static void packets_say_how_it_is_by_udp(void)
{
	every_packet_says_how_it_is("udp");
}

static void packets_say_how_it_is_by_shm(void)
{
	every_packet_says_how_it_is("auto");
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "asked_for_by_udp", asked_for_by_udp },
		{ "asked_for_by_shm", asked_for_by_shm },
		{ "a_dead_path_is_left_by_udp", a_dead_path_is_left_by_udp },
		{ "a_dead_path_is_left_by_shm", a_dead_path_is_left_by_shm },
		{ "a_path_of_no_use_by_udp", a_path_of_no_use_by_udp },
		{ "a_path_of_no_use_by_shm", a_path_of_no_use_by_shm },
		{ "packets_say_how_it_is_by_udp", packets_say_how_it_is_by_udp },
		{ "packets_say_how_it_is_by_shm", packets_say_how_it_is_by_shm },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
