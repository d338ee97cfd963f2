/*
 * Verifies every byte of WRITE, READ and atomics, which perftest does not, also through memory
 * windows that either side invalidates.
 *
 * 	rdma-data requests|requests-part|stores|responds DEVICE GID_INDEX PORT [HOST]
 *
 * With HOST it connects to the other side by TCP, otherwise it waits for a connection. The
 * requester tells the responder over TCP to fill or to verify its buffer, and posts the RDMA
 * operations in between.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER = (1 << 20) + (1 << 16), COUNTER = 64, IDLE = 0xee, RD_ATOMIC = 4 };

/* The connection data of one side. */
struct peer {
	uint64_t addr;
	uint32_t rkey, qpn, psn;
	uint8_t gid[16];
};

enum what { CLEAR, FILL, CHECK, SET, GET, LEND, TAKE, RETURNED, END };

/* An order to the responder, which replies with the same structure. */
struct order {
	uint32_t what, seed;
	uint64_t offset, len, value;
};

static struct ibv_context *context;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
/* For the role "stores" only, whose requests ibv_post_send() does not support. */
static struct ibv_qp_ex *builder;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *buffer;
/* The memory behind this side's key: equally spaced parts of the buffer. In this program it is the
 * whole buffer. */
static struct {
	uint64_t addr, first, width, stride, len;
	uint32_t lkey, rkey;
} opened;
static uint8_t inbox[16];
static struct ibv_mr *inbox_mr;
static struct peer theirs;
/* The key of the peer's memory: of its region, or of a window. */
static uint32_t key;
static int stream;
static unsigned long operations, bytes;

static void fail(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, " (errno %d: %s)\n", errno, strerror(errno));
	exit(1);
}

static void *need(void *p, const char *what)
{
	if (!p)
		fail("%s", what);
	return p;
}

/* The byte at an offset behind the key, which differs between seeds and between offsets. */
static uint8_t pattern(uint32_t seed, uint64_t at)
{
	uint64_t x = (at / 8 + 1) * 0x9e3779b97f4a7c15u ^ (seed + 1) * 0xd1342543de82ef95u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	return x >> at % 8 * 8;
}

/* Converts an offset behind the key to an offset in the buffer. */
static uint64_t place(uint64_t at)
{
	return opened.first + at / opened.width * opened.stride + at % opened.width;
}

/* Checks that the buffer has the pattern in one range behind the key, and nothing elsewhere. */
static void check(const char *what, uint32_t seed, uint64_t offset, uint64_t len)
{
	static uint8_t expected[BUFFER];
	memset(expected, IDLE, BUFFER);
	for (uint64_t at = offset; at < offset + len; at++)
		expected[place(at)] = pattern(seed, at);
	for (uint64_t i = 0; i < BUFFER; i++)
		if (buffer[i] != expected[i])
			fail("%s of %lu bytes at %lu: byte %lu is %02x, not %02x", what, (long)len, (long)offset,
			     (long)i, buffer[i], expected[i]);
}

static void fill(uint32_t seed)
{
	memset(buffer, IDLE, BUFFER);
	for (uint64_t at = 0; at < opened.len; at++)
		buffer[place(at)] = pattern(seed, at);
}

static void put(const void *data, size_t len)
{
	if (write(stream, data, len) != (ssize_t)len)
		fail("write to the peer");
}

static void get(void *data, size_t len)
{
	for (size_t got = 0; got < len;) {
		ssize_t n = read(stream, (char *)data + got, len - got);
		if (n <= 0)
			fail("the peer is gone");
		got += n;
	}
}

static struct order ask(struct order order)
{
	put(&order, sizeof order);
	get(&order, sizeof order);
	return order;
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
	if (host) {
		if (connect(s, info->ai_addr, info->ai_addrlen))
			fail("connect");
		stream = s;
		return;
	}
	if (bind(s, info->ai_addr, info->ai_addrlen) || listen(s, 1) || (stream = accept(s, NULL, NULL)) < 0)
		fail("listen");
}

static void open_device(const char *name)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		     IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
	struct ibv_device **list = need(ibv_get_device_list(NULL), "no devices");
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = need(ibv_open_device(list[i]), "open");
	need(context, "no such device");
	pd = need(ibv_alloc_pd(context), "PD");
	cq = need(ibv_create_cq(context, 64, NULL, NULL, 0), "CQ");
	buffer = need(aligned_alloc(4096, BUFFER), "memory");
	memset(buffer, IDLE, BUFFER);
	mr = need(ibv_reg_mr(pd, buffer, BUFFER, access), "MR");
	opened.addr = (uintptr_t)buffer;
	opened.width = opened.stride = opened.len = BUFFER;
	opened.lkey = mr->lkey;
	opened.rkey = mr->rkey;
	inbox_mr = need(ibv_reg_mr(pd, inbox, sizeof inbox, IBV_ACCESS_LOCAL_WRITE), "MR");
}

static void make_qp(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 32, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	qp = need(ibv_create_qp(pd, &init), "QP");
}

static void make_builder(void)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .pd = pd,
		.cap = { .max_send_wr = 32, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
				  IBV_QP_EX_WITH_RDMA_WRITE,
	};
	qp = need(ibv_create_qp_ex(context, &init), "QP with ATOMIC WRITE");
	builder = need(ibv_qp_to_qp_ex(qp), "QP with ATOMIC WRITE");
}

static void modify(struct ibv_qp_attr attr, int mask)
{
	errno = ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE);
	if (errno)
		fail("modify to state %d", attr.qp_state);
}

static void connect_qp(int gid_index)
{
	struct peer ours = { .addr = opened.addr, .rkey = opened.rkey, .qpn = qp->qp_num, .psn = 0xfffff0 };
	union ibv_gid gid;
	if (ibv_query_gid(context, 1, gid_index, &gid))
		fail("GID %d", gid_index);
	memcpy(ours.gid, &gid, 16);
	put(&ours, sizeof ours);
	get(&theirs, sizeof theirs);
	key = theirs.rkey;
	modify((struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1,
				     .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
							IBV_ACCESS_REMOTE_ATOMIC },
	       IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = theirs.qpn, .rq_psn = theirs.psn,
		.max_dest_rd_atomic = RD_ATOMIC, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = gid_index, .hop_limit = 8 } },
	};
	memcpy(&rtr.ah_attr.grh.dgid, theirs.gid, 16);
	modify(rtr, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			    IBV_QP_MIN_RNR_TIMER);
	/* A long ACK timeout, because either side may run on an emulated CPU. */
	modify((struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7,
				     .sq_psn = ours.psn, .max_rd_atomic = RD_ATOMIC },
	       IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	/* Wait until both sides are ready. */
	char ready = 1;
	put(&ready, 1);
	get(&ready, 1);
}

static void post(enum ibv_wr_opcode opcode, uint64_t local, uint32_t len, struct ibv_send_wr wr)
{
	struct ibv_sge sge = { .addr = opened.addr + local, .length = len, .lkey = opened.lkey };
	struct ibv_send_wr *bad;
	wr.opcode = opcode;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	errno = ibv_post_send(qp, &wr, &bad);
	if (errno)
		fail("post");
	operations++;
	bytes += len;
}

static void wait_for(int count)
{
	struct ibv_wc wc;
	while (count) {
		int n = ibv_poll_cq(cq, 1, &wc);
		if (n < 0 || (n && wc.status != IBV_WC_SUCCESS))
			fail("completion: %s", n < 0 ? "none" : ibv_wc_status_str(wc.status));
		count -= n;
	}
}

static struct ibv_send_wr at(uint64_t offset)
{
	return (struct ibv_send_wr){ .wr.rdma = { .remote_addr = theirs.addr + offset, .rkey = key } };
}

/* The data has the same offset on both sides, so one pattern describes both buffers. */
static void write_and_read(uint32_t seed, uint64_t offset, uint32_t len)
{
	ask((struct order){ .what = CLEAR });
	fill(seed);
	post(IBV_WR_RDMA_WRITE, offset, len, at(offset));
	wait_for(1);
	ask((struct order){ .what = CHECK, .seed = seed, .offset = offset, .len = len });

	ask((struct order){ .what = FILL, .seed = ~seed });
	memset(buffer, IDLE, BUFFER);
	post(IBV_WR_RDMA_READ, offset, len, at(offset));
	wait_for(1);
	check("READ", ~seed, offset, len);
}

static struct ibv_send_wr atomic(uint64_t compare_add, uint64_t swap)
{
	return (struct ibv_send_wr){ .wr.atomic = { .remote_addr = theirs.addr + COUNTER, .rkey = theirs.rkey,
						    .compare_add = compare_add, .swap = swap } };
}

static void expect_value(const char *what, uint64_t value, uint64_t expected)
{
	if (value != expected)
		fail("%s: %016lx instead of %016lx", what, (long)value, (long)expected);
}

static void atomics(void)
{
	uint64_t value = 0xfffffffffffffff0u, result;
	ask((struct order){ .what = SET, .value = value });
	for (int i = 0; i < 60; i++) {
		uint64_t original = value, number = 0x0123456789abcdefu * (i + 1);
		if (i % 3 == 0) {
			post(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, atomic(number, 0));
			value += number;
		} else {
			/* Half of the comparisons fail. */
			int hit = i % 3 == 1;
			post(IBV_WR_ATOMIC_CMP_AND_SWP, 0, 8, atomic(hit ? value : ~value, number));
			value = hit ? number : value;
		}
		wait_for(1);
		memcpy(&result, buffer, 8);
		expect_value(i % 3 ? "compare and swap" : "fetch and add", result, original);
		expect_value("counter", ask((struct order){ .what = GET }).value, value);
	}
	/* Several outstanding atomics: each executes once, in order. */
	for (int i = 0; i < 16; i++)
		post(IBV_WR_ATOMIC_FETCH_AND_ADD, 8 * i, 8, atomic(1, 0));
	wait_for(16);
	for (int i = 0; i < 16; i++) {
		memcpy(&result, buffer + 8 * i, 8);
		expect_value("fetch and add in a row", result, value + i);
	}
	expect_value("counter", ask((struct order){ .what = GET }).value, value + 16);
}

/* Writes and reads through memory windows of the peer, which either side invalidates. */
static void windows(void)
{
	static const struct { uint64_t offset; uint32_t len; } parts[] = {
		{ 0, 8 }, { 4096, 1025 }, { 12345, 4096 }, { 65536, 65537 },
	};
	for (uint32_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		struct order lend = { .what = LEND, .offset = parts[i].offset, .len = parts[i].len };
		key = ask(lend).value;
		write_and_read(100 + i, parts[i].offset, parts[i].len);
		if (i % 2) {
			post(IBV_WR_SEND_WITH_INV, 0, 16, (struct ibv_send_wr){ .invalidate_rkey = key });
			wait_for(1);
			ask((struct order){ .what = RETURNED, .value = key });
		} else {
			ask((struct order){ .what = TAKE, .value = key });
		}
	}
	key = theirs.rkey;
}

static void store(uint64_t offset, uint64_t value)
{
	ibv_wr_start(builder);
	builder->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_write(builder, theirs.rkey, theirs.addr + offset, &value);
	errno = ibv_wr_complete(builder);
	if (errno)
		fail("post of ATOMIC WRITE");
	operations++;
	bytes += sizeof value;
}

/* Checks that each ATOMIC WRITE stores its 8 bytes, in order with other requests. */
static void stores(void)
{
	uint64_t value = 0x0123456789abcdefu, result;
	for (int i = 0; i < 20; i++, value = value * 0x9e3779b97f4a7c15u + 1) {
		store(COUNTER, value);
		wait_for(1);
		expect_value("stored", ask((struct order){ .what = GET }).value, value);
	}
	/* Several outstanding requests: the last value remains. */
	for (int i = 1; i <= 16; i++)
		store(COUNTER, value + i);
	wait_for(16);
	expect_value("stored last", ask((struct order){ .what = GET }).value, value + 16);
	/* A subsequent atomic reads the stored value. */
	store(COUNTER, value);
	ibv_wr_start(builder);
	builder->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_fetch_add(builder, theirs.rkey, theirs.addr + COUNTER, 1);
	ibv_wr_set_sge(builder, opened.lkey, opened.addr, sizeof result);
	errno = ibv_wr_complete(builder);
	if (errno)
		fail("post of an atomic");
	wait_for(2);
	memcpy(&result, buffer, sizeof result);
	expect_value("fetched", result, value);
	expect_value("counter", ask((struct order){ .what = GET }).value, value + 1);
	operations++;
	ask((struct order){ .what = END });
}

static void request(void)
{
	static const uint32_t lengths[] = { 1, 3, 8, 1023, 1024, 1025, 4096, 65537, 1 << 20 };
	for (uint32_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
		for (uint32_t j = 0; j < 2; j++)
			write_and_read(2 * i + j, j * 4093, lengths[i]);
	atomics();
	windows();
	ask((struct order){ .what = END });
}

/* Uses the first 16 KiB only, which is the length of rdma-matrix's key. */
static void request_part(void)
{
	static const uint32_t lengths[] = { 1, 15, 16, 17, 1024, 4097 };
	for (uint32_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
		for (uint32_t j = 0; j < 2; j++)
			write_and_read(2 * i + j, 5 * j, lengths[i]);
	atomics();
	ask((struct order){ .what = END });
}

static void post_local(struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;
	errno = ibv_post_send(qp, &wr, &bad);
	if (errno)
		fail("post of opcode %d", wr.opcode);
	wait_for(1);
}

static void lend(struct order *order)
{
	struct ibv_mw *mw = need(ibv_alloc_mw(pd, IBV_MW_TYPE_2), "window");
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW };
	order->value = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = order->value;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
		.mr = mr, .addr = (uintptr_t)buffer + order->offset, .length = order->len,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	post_local(wr);
}

/* Checks the completion of a SEND with Invalidate. */
static void returned(const struct order *order)
{
	struct ibv_wc wc = { 0 };
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	if (n < 0 || wc.status != IBV_WC_SUCCESS || wc.opcode != IBV_WC_RECV || wc.byte_len != sizeof inbox)
		fail("receive: status %d, opcode %d, %d bytes", wc.status, wc.opcode, wc.byte_len);
	/* rxe returns the kernel's value of this flag. */
	const int with_invalidate_of_the_kernel = 1 << 2;
	if (!(wc.wc_flags & (IBV_WC_WITH_INV | with_invalidate_of_the_kernel)) || wc.invalidated_rkey != order->value)
		fail("flags %x, key %08x instead of %08x", wc.wc_flags, wc.invalidated_rkey, (int)order->value);
}

static void post_receive(void)
{
	/* A separate buffer, which the other side does not verify. */
	struct ibv_sge sge = { .addr = (uintptr_t)inbox, .length = sizeof inbox, .lkey = inbox_mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	errno = ibv_post_recv(qp, &wr, &bad);
	if (errno)
		fail("post of a receive");
}

static void respond(void)
{
	struct order order = { 0 };
	post_receive();
	while (order.what != END) {
		get(&order, sizeof order);
		switch (order.what) {
		case CLEAR:
			memset(buffer, IDLE, BUFFER);
			break;
		case FILL:
			fill(order.seed);
			break;
		case CHECK:
			check("WRITE", order.seed, order.offset, order.len);
			operations++;
			bytes += order.len;
			break;
		case SET:
			memcpy(buffer + place(COUNTER), &order.value, 8);
			break;
		case GET:
			memcpy(&order.value, buffer + place(COUNTER), 8);
			break;
		case LEND:
			lend(&order);
			break;
		case TAKE:
			post_local((struct ibv_send_wr){ .opcode = IBV_WR_LOCAL_INV,
							 .invalidate_rkey = order.value });
			break;
		case RETURNED:
			returned(&order);
			post_receive();
			break;
		}
		put(&order, sizeof order);
	}
}

int main(int argc, char **argv)
{
	if (argc < 5) {
		fprintf(stderr, "usage: %s requests|requests-part|stores|responds DEVICE GID_INDEX PORT [HOST]\n", argv[0]);
		return 2;
	}
	int is_storing = !strcmp(argv[1], "stores");
	open_device(argv[2]);
	if (is_storing)
		make_builder();
	else
		make_qp();
	connect_tcp(argv[4], argv[5]);
	connect_qp(atoi(argv[3]));
	if (!strcmp(argv[1], "requests"))
		request();
	else if (!strcmp(argv[1], "requests-part"))
		request_part();
	else if (is_storing)
		stores();
	else
		respond();
	printf("verified %lu operations, %lu bytes\n", operations, bytes);
	return 0;
}
