/* Attacks on DC: targets that come and go, forged keys, requests that a target refuses, packets of
 * unknown initiators. */
#include "dc.h"

#include <arpa/inet.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>

/* From any state to RTS again, with the given timeout (4.096 microseconds * 2^timeout) and number
 * of retries. */
static void begin_again(struct ends *e, uint8_t timeout, uint8_t retries)
{
	struct ibv_exp_qp_attr attr = { .qp_state = IBV_QPS_RESET, .port_num = 1, .dct_key = KEY };
	CHECK_INT(ibv_exp_modify_qp(e->dci, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_INIT;
	CHECK_INT(ibv_exp_modify_qp(e->dci, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
							   IBV_EXP_QP_DC_KEY), 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.ah_attr = path_to_self(e->context);
	CHECK_INT(ibv_exp_modify_qp(e->dci, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU), 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = timeout;
	attr.retry_cnt = retries;
	attr.rnr_retry = 1;
	attr.max_rd_atomic = 4;
	CHECK_INT(ibv_exp_modify_qp(e->dci, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
							   IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC), 0);
}

/* Adds one to the word at offset `place` of the host's buffer. */
static struct ibv_exp_send_wr add_one(struct ends *from, struct ends *host, uint32_t dct, uint64_t key, size_t place,
				      struct ibv_sge *result)
{
	*result = (struct ibv_sge){ (uintptr_t)from->buffer + 64, 8, from->mr->lkey };
	struct ibv_exp_send_wr wr = to_target(from, 1, dct, key);
	wr.exp_opcode = IBV_EXP_WR_ATOMIC_FETCH_AND_ADD;
	wr.sg_list = result;
	wr.num_sge = 1;
	wr.wr.atomic.remote_addr = (uintptr_t)host->buffer + place;
	wr.wr.atomic.compare_add = 1;
	wr.wr.atomic.rkey = host->mr->rkey;
	return wr;
}

static uint64_t word(struct ends *e, size_t place)
{
	return __atomic_load_n((uint64_t *)(e->buffer + place), __ATOMIC_SEQ_CST);
}

enum { INITIATORS = 3, LIVES = 4, BATCH = 8 };

/* A thread that sends requests to the current target. */
struct asker {
	struct ends e, *host;
	pthread_t thread;
	atomic_uint *target;
	atomic_int *stop;
	atomic_uint posted, succeeded, failed;
};

static void *ask(void *argument)
{
	struct asker *asker = argument;
	begin_again(&asker->e, 12, 3);
	while (!atomic_load(asker->stop)) {
		struct ibv_sge result;
		struct ibv_exp_send_wr wr = add_one(&asker->e, asker->host, atomic_load(asker->target), KEY, 1024,
						    &result);
		for (int i = 0; i < BATCH; i++)
			CHECK_INT(post(&asker->e, &wr), 0);
		atomic_fetch_add(&asker->posted, BATCH);
		int has_failed = 0;
		for (int i = 0; i < BATCH; i++) {
			struct ibv_exp_wc wc = next_exp(asker->e.cq);
			if (wc.status == IBV_WC_SUCCESS) {
				CHECK(!has_failed);
				atomic_fetch_add(&asker->succeeded, 1);
			} else {
				/* The first one has the cause, and the others are flushed. */
				CHECK_INT(wc.status, has_failed ? IBV_WC_WR_FLUSH_ERR : IBV_WC_RETRY_EXC_ERR);
				has_failed = 1;
			}
		}
		if (has_failed) {
			atomic_fetch_add(&asker->failed, 1);
			begin_again(&asker->e, 12, 3);
		}
	}
	return NULL;
}

/* A target is destroyed and created again under traffic. Acknowledged requests were executed, and
 * none was executed twice. */
static void targets_come_and_go(void)
{
	struct ends host = ends_open();
	struct asker askers[INITIATORS];
	atomic_uint target = host.dct->dct_num;
	atomic_int stop = 0;
	memset(askers, 0, sizeof(askers));
	for (int i = 0; i < INITIATORS; i++) {
		askers[i].e = ends_open();
		askers[i].host = &host;
		askers[i].target = &target;
		askers[i].stop = &stop;
		CHECK_INT(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
	}
	for (int life = 0; life < LIVES; life++) {
		/* Waits until a request of each initiator succeeds. */
		for (int i = 0; i < INITIATORS; i++) {
			unsigned before = atomic_load(&askers[i].succeeded);
			while (atomic_load(&askers[i].succeeded) == before)
				sched_yield();
		}
		CHECK_INT(ibv_exp_destroy_dct(host.dct), 0);
		struct ibv_exp_dct_init_attr attr = target_attr(&host);
		host.dct = ibv_exp_create_dct(host.context, &attr);
		CHECK(host.dct);
		atomic_store(&target, host.dct->dct_num);
	}
	for (int i = 0; i < INITIATORS; i++) {
		unsigned before = atomic_load(&askers[i].succeeded);
		while (atomic_load(&askers[i].succeeded) == before)
			sched_yield();
	}
	atomic_store(&stop, 1);
	unsigned posted = 0, succeeded = 0, failed = 0;
	for (int i = 0; i < INITIATORS; i++) {
		CHECK_INT(pthread_join(askers[i].thread, NULL), 0);
		posted += atomic_load(&askers[i].posted);
		succeeded += atomic_load(&askers[i].succeeded);
		failed += atomic_load(&askers[i].failed);
		ends_close(&askers[i].e);
	}
	CHECK(failed > 0);
	CHECK(word(&host, 1024) >= succeeded && word(&host, 1024) <= posted);
	ends_close(&host);
}

enum { FORGERS = 3, FORGED = 6, HONEST = 100 };

static uint32_t violations(struct ends *e)
{
	struct ibv_exp_dct_attr attr = { .comp_mask = 0 };
	CHECK_INT(ibv_exp_query_dct(e->dct, &attr), 0);
	CHECK_INT(attr.state, IBV_EXP_DCT_STATE_ACTIVE);
	return attr.key_violations;
}

struct forger {
	struct ends e, *host;
	pthread_t thread;
	int number;
};

static void *forge(void *argument)
{
	struct forger *forger = argument;
	for (int i = 0; i < FORGED; i++) {
		uint32_t before = violations(forger->host);
		begin_again(&forger->e, 8, 1);
		struct ibv_sge result;
		uint64_t key = i % 2 ? KEY ^ 1ULL << (i * 7 + forger->number) : 0;
		struct ibv_exp_send_wr add = add_one(&forger->e, forger->host, forger->host->dct->dct_num, key, 2048,
						     &result);
		struct ibv_exp_send_wr send = to_target(&forger->e, 2, forger->host->dct->dct_num, key);
		if (i % 3)
			add.next = &send;
		CHECK_INT(post(&forger->e, &add), 0);
		CHECK_INT(next_exp(forger->e.cq).status, IBV_WC_RETRY_EXC_ERR);
		if (i % 3)
			CHECK_INT(next_exp(forger->e.cq).status, IBV_WC_WR_FLUSH_ERR);
		/* On a busy machine the initiator may give up before it has connected. */
		if (violations(forger->host) == before)
			i--;
	}
	return NULL;
}

/* Many initiators forge keys while another one has the right key. The target executes none of their
 * requests and consumes no receive. It counts the violations, and reports them once. */
static void a_storm_of_forged_keys(void)
{
	struct ends host = ends_open(), honest = ends_open();
	struct forger forgers[FORGERS];
	struct ibv_exp_arm_attr arm = { .comp_mask = 0 };
	CHECK_INT(ibv_exp_arm_dct(host.dct, &arm), 0);
	CHECK_INT(ibv_exp_arm_dct(host.dct, &arm), 0);
	for (int i = 0; i < FORGERS; i++) {
		forgers[i] = (struct forger){ .e = ends_open(), .host = &host, .number = i };
		CHECK_INT(pthread_create(&forgers[i].thread, NULL, forge, &forgers[i]), 0);
	}
	for (int i = 0; i < HONEST; i++) {
		struct ibv_sge result, text = { (uintptr_t)honest.buffer, 16, honest.mr->lkey };
		struct ibv_exp_send_wr send = to_target(&honest, 2, host.dct->dct_num, KEY);
		struct ibv_exp_send_wr add = add_one(&honest, &host, host.dct->dct_num, KEY, 1024, &result);
		send.sg_list = &text;
		send.num_sge = 1;
		add.next = &send;
		receive(&host, i);
		CHECK_INT(post(&honest, &add), 0);
		CHECK_INT(next_exp(honest.cq).status, IBV_WC_SUCCESS);
		CHECK_INT(next_exp(honest.cq).status, IBV_WC_SUCCESS);
		struct ibv_exp_wc wc = next_exp(host.dct_cq);
		CHECK_INT(wc.wr_id, i);
		CHECK_INT(wc.src_qp, honest.dci->qp_num);
	}
	for (int i = 0; i < FORGERS; i++) {
		CHECK_INT(pthread_join(forgers[i].thread, NULL), 0);
		ends_close(&forgers[i].e);
	}
	CHECK_INT(word(&host, 1024), HONEST);
	CHECK_INT(word(&host, 2048), 0);
	CHECK(violations(&host) >= FORGED);
	struct ibv_exp_async_event event;
	CHECK_INT(ibv_exp_get_async_event(host.context, &event), 0);
	CHECK_INT(event.event_type, IBV_EXP_EVENT_DCT_KEY_VIOLATION);
	CHECK(event.element.dct == host.dct);
	ibv_exp_ack_async_event(&event);
	CHECK(!is_readable(host.context->async_fd));
	ends_close(&honest);
	ends_close(&host);
}

static void *destroy(void *argument)
{
	struct ends *e = argument;
	CHECK_INT(ibv_exp_destroy_dct(e->dct), 0);
	e->dct = NULL;
	return NULL;
}

/* A target accepts no new initiators, but exists until its events are acknowledged. */
static void destroying_waits_for_events(void)
{
	struct ends host = ends_open(), forger = ends_open();
	struct ibv_exp_arm_attr arm = { .comp_mask = 0 };
	CHECK_INT(ibv_exp_arm_dct(host.dct, &arm), 0);
	struct ibv_exp_send_wr send = to_target(&forger, 1, host.dct->dct_num, KEY + 1);
	/* The initiator may give up before its packet is handled. */
	while (violations(&host) == 0) {
		begin_again(&forger, 8, 1);
		CHECK_INT(post(&forger, &send), 0);
		CHECK_INT(next_exp(forger.cq).status, IBV_WC_RETRY_EXC_ERR);
	}
	struct ibv_exp_async_event event;
	CHECK_INT(ibv_exp_get_async_event(host.context, &event), 0);
	pthread_t thread;
	CHECK_INT(pthread_create(&thread, NULL, destroy, &host), 0);
	/* The target accepts no initiators and waits. The pointer is valid until then. */
	struct ibv_exp_dct_attr attr = { .comp_mask = 0 };
	while (ibv_exp_query_dct(host.dct, &attr) == 0 && attr.state == IBV_EXP_DCT_STATE_ACTIVE)
		sched_yield();
	begin_again(&forger, 8, 1);
	send.dc.dct_access_key = KEY;
	CHECK_INT(post(&forger, &send), 0);
	CHECK_INT(next_exp(forger.cq).status, IBV_WC_RETRY_EXC_ERR);
	CHECK_INT(pthread_tryjoin_np(thread, NULL), EBUSY);
	ibv_exp_ack_async_event(&event);
	CHECK_INT(pthread_join(thread, NULL), 0);
	ends_close(&forger);
	ends_close(&host);
}

/* An operation that a target refuses completes as on a connected QP. The next request, for another
 * target, is flushed. That target keeps working. */
static void what_a_target_refuses(void)
{
	struct ends host = ends_open(), e = ends_open();
	struct ibv_exp_dct_init_attr attr = target_attr(&host);
	attr.access_flags = IBV_ACCESS_REMOTE_READ;
	struct ibv_exp_dct *narrow = ibv_exp_create_dct(host.context, &attr);
	attr.access_flags = RIGHTS, attr.mtu = IBV_MTU_512;
	struct ibv_exp_dct *slow = ibv_exp_create_dct(host.context, &attr);
	CHECK(narrow && slow);
	uint32_t open = host.dct->dct_num;
	struct ibv_sge result, text = { (uintptr_t)e.buffer, 16, e.mr->lkey };
	for (int turn = 0; turn < 9; turn++) {
		begin_again(&e, 18, 7);
		struct ibv_exp_send_wr wr = add_one(&e, &host, open, KEY, 1024, &result);
		struct ibv_exp_send_wr healthy = add_one(&e, &host, open, KEY, 3072, &result);
		enum ibv_wc_status wanted = IBV_WC_REM_ACCESS_ERR;
		healthy.wr_id = 2;
		wr.next = &healthy;
		switch (turn) {
		case 0: wr.wr.atomic.rkey ^= 0x100; break;
		case 1: wr.wr.atomic.remote_addr += 4; wanted = IBV_WC_REM_INV_REQ_ERR; break;
		case 2: /* no atomics */
			wr.dc.dct_number = narrow->dct_num;
			wanted = IBV_WC_REM_INV_REQ_ERR;
			break;
		case 3: wr.wr.atomic.remote_addr += BUFFER_LEN; break;
		case 4: /* no receive */
			wr.exp_opcode = IBV_EXP_WR_SEND, wr.num_sge = 0;
			wanted = IBV_WC_RNR_RETRY_EXC_ERR;
			break;
		case 5: /* a receive that is too short */
			receive(&host, 5);
			text.length = ROOM + 1;
			wr.exp_opcode = IBV_EXP_WR_SEND, wr.sg_list = &text;
			wanted = IBV_WC_REM_INV_REQ_ERR;
			break;
		case 6: /* a path MTU larger than the target's */
			wr.dc.dct_number = slow->dct_num;
			wanted = IBV_WC_REM_INV_REQ_ERR;
			break;
		case 7: /* the number of a QP that is no target */
			wr.dc.dct_number = host.dci->qp_num;
			begin_again(&e, 8, 1);
			wanted = IBV_WC_RETRY_EXC_ERR;
			break;
		case 8: /* local memory without access */
			result.lkey ^= 0x100;
			wanted = IBV_WC_LOC_PROT_ERR;
			break;
		}
		CHECK_INT(post(&e, &wr), 0);
		struct ibv_exp_wc wc = next_exp(e.cq);
		CHECK_INT(wc.wr_id, 1);
		CHECK_INT(wc.status, wanted);
		wc = next_exp(e.cq);
		CHECK_INT(wc.wr_id, 2);
		CHECK_INT(wc.status, IBV_WC_WR_FLUSH_ERR);
		/* Posting is flushed until the initiator is reset. */
		healthy.wr_id = 3;
		CHECK_INT(post(&e, &healthy), 0);
		CHECK_INT(next_exp(e.cq).status, IBV_WC_WR_FLUSH_ERR);
		begin_again(&e, 18, 7);
		healthy = add_one(&e, &host, open, KEY, 2048, &result);
		CHECK_INT(post(&e, &healthy), 0);
		CHECK_INT(next_exp(e.cq).status, IBV_WC_SUCCESS);
		CHECK_INT(word(&host, 2048), turn + 1);
		/* The target gets an event if it has connected and no receive reports the error. */
		int is_access = wanted == IBV_WC_REM_ACCESS_ERR;
		if (is_access || turn == 1 || turn == 2) {
			struct ibv_exp_async_event event;
			CHECK_INT(ibv_exp_get_async_event(host.context, &event), 0);
			CHECK_INT(event.event_type,
				  is_access ? IBV_EXP_EVENT_DCT_ACCESS_ERR : IBV_EXP_EVENT_DCT_REQ_ERR);
			CHECK(event.element.dct == (turn == 2 ? narrow : host.dct));
			ibv_exp_ack_async_event(&event);
		}
		CHECK(!is_readable(host.context->async_fd));
		if (turn == 5) {
			/* The receive that was too short is consumed. */
			wc = next_exp(host.dct_cq);
			CHECK_INT(wc.wr_id, 5);
			CHECK_INT(wc.status, IBV_WC_LOC_LEN_ERR);
		}
	}
	CHECK_INT(word(&host, 1024), 0);
	CHECK_INT(word(&host, 3072), 0);
	CHECK_INT(ibv_exp_destroy_dct(narrow), 0);
	CHECK_INT(ibv_exp_destroy_dct(slow), 0);
	ends_close(&e);
	ends_close(&host);
}

enum { ERRORS = 1100, MOST_EVENTS = 1024 };

/* An initiator with the key can cause any number of errors. The queue of unread events is
 * bounded. */
static void unread_events(void)
{
	struct ends host = ends_open(), e = ends_open();
	struct ibv_sge result;
	struct ibv_exp_send_wr wr = add_one(&e, &host, host.dct->dct_num, KEY, 1024, &result);
	wr.wr.atomic.rkey ^= 0x100;
	for (int i = 0; i < ERRORS; i++) {
		begin_again(&e, 18, 7);
		CHECK_INT(post(&e, &wr), 0);
		CHECK_INT(next_exp(e.cq).status, IBV_WC_REM_ACCESS_ERR);
	}
	int events = 0;
	while (is_readable(host.context->async_fd)) {
		struct ibv_exp_async_event event;
		CHECK_INT(ibv_exp_get_async_event(host.context, &event), 0);
		CHECK_INT(event.event_type, IBV_EXP_EVENT_DCT_ACCESS_ERR);
		ibv_exp_ack_async_event(&event);
		events++;
	}
	CHECK_INT(events, MOST_EVENTS);
	ends_close(&e);
	ends_close(&host);
}

/* Returns the ICRC of a packet. The kernel's IP header has DF set, and any Identification is
 * treated as 0. */
static uint32_t icrc(const uint8_t *bytes, size_t len)
{
	uint32_t crc = ~0u;
	for (size_t i = 0; i < len; i++) {
		crc ^= bytes[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
	}
	return ~crc;
}

/* An attacker with an address of its own, and its victim. */
struct attacker {
	int fd;
	struct sockaddr_in own, victim;
};

static struct attacker attack(const char *victim)
{
	struct attacker a = { .fd = socket(AF_INET, SOCK_DGRAM, 0) };
	CHECK(a.fd >= 0);
	a.own = (struct sockaddr_in){ .sin_family = AF_INET };
	a.victim = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(4791) };
	CHECK_INT(inet_pton(AF_INET, "127.66.6.1", &a.own.sin_addr), 1);
	CHECK_INT(inet_pton(AF_INET, victim, &a.victim.sin_addr), 1);
	CHECK_INT(bind(a.fd, (struct sockaddr *)&a.own, sizeof(a.own)), 0);
	socklen_t len = sizeof(a.own);
	CHECK_INT(getsockname(a.fd, (struct sockaddr *)&a.own, &len), 0);
	int dont_fragment = IP_PMTUDISC_DO;
	CHECK_INT(setsockopt(a.fd, IPPROTO_IP, IP_MTU_DISCOVER, &dont_fragment, sizeof(dont_fragment)), 0);
	return a;
}

/* Sends a packet, from its BTH on, with a correct ICRC. */
static void strike(struct attacker *a, const uint8_t *packet, size_t len)
{
	uint8_t all[8 + 20 + 8 + 512], *ip = all + 8, *udp = ip + 20;
	uint16_t udp_len = htons(8 + len + 4), ip_len = htons(20 + 8 + len + 4);
	memset(all, 0xff, sizeof(all));
	ip[0] = 0x45;
	memcpy(ip + 2, &ip_len, 2);
	memcpy(ip + 4, "\0\0\x40\0", 4);
	ip[9] = IPPROTO_UDP;
	memcpy(ip + 12, &a->own.sin_addr, 4);
	memcpy(ip + 16, &a->victim.sin_addr, 4);
	memcpy(udp, &a->own.sin_port, 2);
	memcpy(udp + 2, &a->victim.sin_port, 2);
	memcpy(udp + 4, &udp_len, 2);
	memcpy(udp + 8, packet, len);
	udp[8 + 4] = 0xff;
	uint32_t sum = htole32(icrc(all, 36 + len));
	memcpy(udp + 8, packet, len);
	memcpy(udp + 8 + len, &sum, 4);
	CHECK_INT(sendto(a->fd, udp + 8, len + 4, 0, (struct sockaddr *)&a->victim, sizeof(a->victim)), len + 4);
}

/* A request of a DC initiator that does not exist: BTH, DCETH, and random bytes. */
static size_t forged_request(uint8_t *packet, uint8_t opcode, uint32_t dct, uint64_t key, uint32_t session,
			     uint8_t flags, size_t len)
{
	memset(packet, 0, 12);
	packet[0] = opcode;
	packet[1] = 0x40;
	packet[2] = packet[3] = 0xff;
	dct = htobe32(dct), session = htobe32(session), key = htobe64(key);
	memcpy(packet + 4, &dct, 4);
	packet[8] = 0x80;
	packet[11] = session & 0xff;
	memcpy(packet + 12, &key, 8);
	packet[20] = flags;
	packet[23] = 0x77;
	memcpy(packet + 24, &session, 4);
	return len;
}

/* Unsolicited packets of all opcodes and lengths, with and without the key, to the target and to
 * the initiator. Connected initiators are not disturbed. */
static void packets_of_unknown_senders(void)
{
	struct ends host = ends_open();
	struct attacker a = attack(getenv("ROCADE_IP"));
	uint64_t secret = 0x5ec2e7;
	memcpy(host.buffer + 2048, &secret, 8);
	uint8_t packet[512];
	uint32_t seed = 1, seen = 0;
	int worked = 0;
	for (int turn = 0; turn < 1500; turn++) {
		for (size_t i = 0; i < sizeof(packet); i++)
			packet[i] = (seed = seed * 1664525 + 1013904223) >> 24;
		/* Every opcode of the range. A third of the packets have the key, and half of them
		 * start a session. */
		int has_key = turn % 3 == 0;
		size_t len = 28 + 4 * (seed >> 8) % 200;
		uint32_t to = turn % 7 ? host.dct->dct_num : host.dci->qp_num;
		forged_request(packet, 0xc0 + turn % 32, to, has_key ? KEY : KEY + 1, turn, turn % 2 ? 0xb0 : 0x30, len);
		/* An RETH in the packet names a key that does not exist. */
		uint32_t rkey = htobe32(host.mr->rkey ^ 0x100);
		memcpy(packet + 36, &rkey, 4);
		strike(&a, packet, len);
		if (turn % 11 == 0)
			strike(&a, packet, 12 + turn % 16);
		if (turn % 15 == 0) {
			struct ibv_sge result;
			struct ibv_exp_send_wr add = add_one(&host, &host, host.dct->dct_num, KEY, 1024, &result);
			CHECK_INT(post(&host, &add), 0);
			CHECK_INT(next_exp(host.cq).status, IBV_WC_SUCCESS);
			CHECK_INT(word(&host, 1024), ++worked);
		}
	}
	/* A packet reaches the target. */
	forged_request(packet, 0xc4, host.dct->dct_num, KEY + 1, 7, 0xb0, 28);
	while ((seen = violations(&host)) == 0)
		strike(&a, packet, 28);
	CHECK_INT(word(&host, 2048), secret);
	struct ibv_exp_qp_attr attr;
	CHECK_INT(ibv_exp_query_qp(host.dci, &attr, 0, NULL), 0);
	CHECK_INT(attr.qp_state, IBV_QPS_RTS);
	close(a.fd);
	ends_close(&host);
}

static const struct test_case cases[] = {
	{ "targets_come_and_go", targets_come_and_go },
	{ "a_storm_of_forged_keys", a_storm_of_forged_keys },
	{ "destroying_waits_for_events", destroying_waits_for_events },
	{ "what_a_target_refuses", what_a_target_refuses },
	{ "unread_events", unread_events },
	{ "packets_of_unknown_senders", packets_of_unknown_senders },
	{ 0 },
};

int main(int argc, char **argv)
{
	/* The honest initiator has a long timeout, for busy machines. */
	dci_timeout = 18;
	return run_case(cases, argc, argv);
}
