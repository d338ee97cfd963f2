/*
 * The far end of the conformance suite on a device with verbs. It creates queue pairs, posts work
 * requests and reports the results, as ordered by the suite. It needs only libibverbs and librdmacm
 * of any rdma-core:
 *
 * 	cc -O2 -o agent agent.c states.c windows.c groups.c serve.c cm.c -lrdmacm -libverbs
 * 	./agent -d DEVICE [-p PORT] [-g GID_INDEX] [-f FEATURE] [-t TOKEN] [-l TCP_PORT [-a ADDR]]
 *
 * It reads orders from standard input and writes the answers to standard output. With -l, it uses
 * the first connection to that TCP port of 127.0.0.1, or of the address in -a (:: stands for all),
 * that states its token. The token is that of -t or of ROCADE_CONFORMANCE_TOKEN. Without one, the
 * agent makes one up and prints it. Without -g it uses the GID of the address under test.
 *
 * -f adds a feature that the device does not report: flush, atomic-write, own, masked-swap or
 * rxe-flush. A device with own has the operations of Rocade, one with masked-swap NVIDIA's masked
 * compare-and-swap. One with rxe-flush accepts a FLUSH only with the ICRC of Linux's rxe.
 *
 * An order is a line of words, with numbers in C notation. So is the answer: "ok ...", "none", or
 * "unable WHY". docs/conformance.md lists them.
 */
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { FEATURES = 5, ENDS = 256, REGION_LEN = 1 << 30, SRQN = 0xc0ffee };
/* Constants that headers of older rdma-cores lack. */
enum { CAP_FLUSH_GLOBAL = 38, CAP_ATOMIC_WRITE = 40 };

#define RECEIVE (1ull << 63)

static const char *device_name, *told_features[FEATURES];
static char device_address[INET6_ADDRSTRLEN];
int port = 1;
static int told_gid_index = -1, gid_index = -1, told_feature_count;
static struct ibv_device *device;
static struct end *ends[ENDS];
static FILE *in, *out;
int can_flush;
/* The suite has stated the right token, if there is one. */
static int is_admitted;
/* The unread words of the order. */
static char *rest;

int answer(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vfprintf(out, format, args);
	va_end(args);
	fputc('\n', out);
	return 0;
}

int unable(const char *what)
{
	return answer("unable %s: %s", what, strerror(errno));
}

const char *word(void)
{
	char *start = strtok_r(NULL, " \n", &rest);
	return start ? start : "";
}

uint64_t number(void)
{
	return strtoull(word(), NULL, 0);
}

void gid_of(const char *address, union ibv_gid *gid)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
	if (inet_pton(AF_INET6, address, gid->raw) == 1)
		return;
	memcpy(gid->raw, mapped, sizeof mapped);
	if (inet_pton(AF_INET, address, gid->raw + 12) != 1)
		memset(gid, 0, sizeof *gid);
}

static struct ibv_ah_attr path_to(const char *address)
{
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = port};
	attr.grh.sgid_index = gid_index;
	attr.grh.hop_limit = 64;
	gid_of(address, &attr.grh.dgid);
	return attr;
}

/* Returns true if an entry of the GID table is of type RoCEv2, according to the kernel. */
static int is_v2(int index)
{
	char path[256], type[32] = "v2";
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%d/gid_attrs/types/%d", device_name, port, index);
	FILE *file = fopen(path, "r");
	if (file) {
		if (!fgets(type, sizeof type, file))
			type[0] = 0;
		fclose(file);
	}
	return strstr(type, "v2") != NULL;
}

/* Returns the name of the driver in the kernel. The attribute `parent` is that of rxe, which has no
 * hardware below it. */
static const char *driver(void)
{
	static char target[256];
	char path[256];
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/parent", device_name);
	if (!access(path, F_OK))
		return "rxe";
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/device/driver", device_name);
	ssize_t len = readlink(path, target, sizeof target - 1);
	target[len > 0 ? len : 0] = 0;
	const char *slash = strrchr(target, '/');
	return slash ? slash + 1 : target;
}

static void name_kernel(void)
{
	struct utsname kernel;
	if (*driver())
		fprintf(out, " driver=%s", driver());
	if (!uname(&kernel))
		fprintf(out, " kernel=%s", kernel.release);
}

static void name_feature(const char *name)
{
	can_flush |= !strcmp(name, "flush");
	fprintf(out, " %s", name);
}

static int is_told(const char *name)
{
	for (int i = 0; i < told_feature_count; i++)
		if (is(told_features[i], name))
			return 1;
	return 0;
}

/* hello ADDRESS: answers with the name and the optional features of the device. */
static int hello(void)
{
	struct ibv_device_attr_ex attr = {0};
	union ibv_gid wanted = {{0}}, gid;
	struct ibv_port_attr port_attr;
	snprintf(device_address, sizeof device_address, "%s", word());
	gid_of(device_address, &wanted);
	struct ibv_context *context = ibv_open_device(device);
	if (!context)
		return unable("ibv_open_device");
	if (ibv_query_device_ex(context, NULL, &attr))
		attr.device_cap_flags_ex = 0;
	if (ibv_query_port(context, port, &port_attr))
		port_attr.gid_tbl_len = 0;
	gid_index = told_gid_index;
	for (int i = 0; gid_index < 0 && i < port_attr.gid_tbl_len; i++)
		if (!ibv_query_gid(context, port, i, &gid) && !memcmp(&gid, &wanted, sizeof gid) && is_v2(i))
			gid_index = i;
	ibv_close_device(context);
	if (gid_index < 0)
		return answer("unable the device has no GID of that address");
	fprintf(out, "ok %s", device_name);
	for (int i = 0; i < told_feature_count; i++)
		name_feature(told_features[i]);
	static const char *const of_rocade[] = {"own", "masked-swap"};
	for (int i = 0; i < 2; i++)
		if (is(driver(), "rocade") && !is_told(of_rocade[i]))
			name_feature(of_rocade[i]);
	if (attr.device_cap_flags_ex >> CAP_FLUSH_GLOBAL & 1)
		name_feature("flush");
	if (attr.device_cap_flags_ex >> CAP_ATOMIC_WRITE & 1)
		name_feature("atomic-write");
	name_kernel();
	return answer("");
}

static void destroy_resources(struct end *end)
{
	for (int i = 0; i < REGIONS; i++) {
		if (end->regions[i].mr)
			ibv_dereg_mr(end->regions[i].mr);
		free(end->regions[i].bytes);
	}
	if (end->ah)
		ibv_destroy_ah(end->ah);
	if (end->srq)
		ibv_destroy_srq(end->srq);
	if (end->xrcd)
		ibv_close_xrcd(end->xrcd);
	if (end->cq)
		ibv_destroy_cq(end->cq);
	if (end->foreign)
		ibv_dealloc_pd(end->foreign);
	if (end->pd)
		ibv_dealloc_pd(end->pd);
	if (end->context)
		ibv_close_device(end->context);
}

static void destroy(struct end *end)
{
	deallocate_windows(end);
	leave_groups(end);
	if (end->qp)
		ibv_destroy_qp(end->qp);
	if (!end->first)
		destroy_resources(end);
	else if (end->cq)
		ibv_destroy_cq(end->cq);
	free(end);
}

/* Closes a queue pair, after those that use its resources. */
static void close_end(struct end *end)
{
	for (int i = 0; i < ENDS; i++)
		if (ends[i] && ends[i]->first == end)
			close_end(ends[i]);
	for (int i = 0; i < ENDS; i++)
		if (ends[i] == end)
			ends[i] = NULL;
	destroy(end);
}

static int local_sge(struct end *end, struct ibv_sge *sge)
{
	unsigned region = number();
	uint64_t offset = number();
	if (region >= REGIONS || !end->regions[region].bytes)
		return -1;
	sge->addr = (uintptr_t)end->regions[region].bytes + offset;
	sge->length = number();
	sge->lkey = end->regions[region].mr ? end->regions[region].mr->lkey : 0;
	if (number())
		sge->lkey ^= 0x00ff0001;
	return 0;
}

static int post_receive(struct end *end, uint64_t id)
{
	struct ibv_sge sge;
	struct ibv_recv_wr wr = {.wr_id = id | RECEIVE, .sg_list = &sge, .num_sge = 1}, *bad;
	if (local_sge(end, &sge))
		return EINVAL;
	return end->srq ? ibv_post_srq_recv(end->srq, &wr, &bad) : ibv_post_recv(end->qp, &wr, &bad);
}

static int make_region(struct end *end, struct region *region)
{
	region->len = number();
	int access = access_of(number());
	struct ibv_pd *pd = number() ? end->foreign : end->pd;
	access |= number() ? IBV_ACCESS_MW_BIND : 0;
	errno = EINVAL;
	if (region->len > REGION_LEN)
		return -1;
	if (posix_memalign((void **)&region->bytes, 4096, region->len + 1))
		return -1;
	memset(region->bytes, 0, region->len + 1);
	region->mr = ibv_reg_mr(pd, region->bytes, region->len, access);
	return region->mr ? 0 : -1;
}

/* Creates the shared receive queue in another protection domain than the queue pair's, and
 * optionally in an XRC domain. */
static int make_srq(struct end *end, int is_xrc)
{
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	struct ibv_srq_init_attr plain = {.attr = {.max_wr = DEPTH, .max_sge = 1}};
	if (!is_xrc) {
		end->srq = ibv_create_srq(end->foreign, &plain);
		return end->srq ? 0 : -1;
	}
	end->xrcd = ibv_open_xrcd(end->context, &domain);
	if (!end->xrcd)
		return -1;
	struct ibv_srq_init_attr_ex attr = {.attr = plain.attr, .srq_type = IBV_SRQT_XRC, .pd = end->foreign,
		.xrcd = end->xrcd, .cq = end->cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ};
	end->srq = ibv_create_srq_ex(end->context, &attr);
	return end->srq ? 0 : -1;
}

static int make_qp(struct end *end, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr_ex attr = {.qp_type = type};
	if (type == IBV_QPT_XRC_RECV) {
		attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
		attr.xrcd = end->xrcd;
	} else {
		attr.comp_mask = IBV_QP_INIT_ATTR_PD;
		attr.pd = end->pd;
		attr.send_cq = end->cq;
		attr.cap.max_send_wr = DEPTH;
		attr.cap.max_send_sge = 1;
		if (type != IBV_QPT_XRC_SEND) {
			attr.recv_cq = end->cq;
			attr.srq = end->srq;
			attr.cap.max_recv_wr = end->srq ? 0 : DEPTH;
			attr.cap.max_recv_sge = end->srq ? 0 : 1;
		}
	}
	end->qp = ibv_create_qp_ex(end->context, &attr);
	return end->qp ? 0 : -1;
}

/* Answers with the number of the queue pair and the addresses of its memory. */
static int describe(int handle, struct end *end, int regions)
{
	uint32_t srqn = 0;
	if (end->xrcd && ibv_get_srq_num(end->srq, &srqn))
		return unable("ibv_get_srq_num");
	fprintf(out, "ok %d %u %u", handle, end->qp->qp_num, srqn);
	for (int i = 0; i < regions; i++)
		fprintf(out, " %llu %u", (unsigned long long)(uintptr_t)end->regions[i].bytes, end->regions[i].mr->rkey);
	return answer("");
}

int is(const char *a, const char *b)
{
	return !strcmp(a, b);
}

static const char *build(struct end *end, int *regions)
{
	const char *service = word(), *from = word(), *rig = word();
	struct ibv_qp_attr attr = {.port_num = port, .qkey = QKEY, .ah_attr = path_to(rig)};
	attr.dest_qp_num = end->rig_qpn = number();
	attr.rq_psn = number();
	attr.sq_psn = number();
	attr.path_mtu = number();
	attr.qp_access_flags = access_of(number());
	attr.max_dest_rd_atomic = number();
	attr.max_rd_atomic = number();
	attr.min_rnr_timer = number();
	attr.timeout = number();
	attr.retry_cnt = number();
	attr.rnr_retry = number();
	int last_state = number(), cq_depth = number(), is_xrc = is(from, "xrc");
	end->attr = attr;
	enum ibv_qp_type type = is(service, "uc")  ? IBV_QPT_UC :
				is(service, "ud")  ? IBV_QPT_UD :
				is(service, "xrc") ? IBV_QPT_XRC_SEND :
				is_xrc             ? IBV_QPT_XRC_RECV :
						     IBV_QPT_RC;
	errno = EOPNOTSUPP;
	if (is(service, "dc"))
		return "dynamic connections";
	if (!(end->context = ibv_open_device(device)))
		return "ibv_open_device";
	fcntl(end->context->async_fd, F_SETFL, fcntl(end->context->async_fd, F_GETFL) | O_NONBLOCK);
	if (!(end->pd = ibv_alloc_pd(end->context)) || !(end->foreign = ibv_alloc_pd(end->context)))
		return "ibv_alloc_pd";
	*regions = number();
	for (int i = 0; i < *regions; i++)
		if (i == REGIONS || make_region(end, &end->regions[i]))
			return "ibv_reg_mr";
	if (!(end->cq = ibv_create_cq(end->context, cq_depth, NULL, NULL, 0)))
		return "ibv_create_cq";
	if (!is(from, "own") && make_srq(end, is_xrc))
		return is_xrc ? "XRC" : "ibv_create_srq";
	if (make_qp(end, type))
		return "ibv_create_qp";
	if (type == IBV_QPT_UD && !(end->ah = ibv_create_ah(end->pd, &attr.ah_attr)))
		return "ibv_create_ah";
	if (to_init(end, &attr))
		return "ibv_modify_qp to INIT";
	for (uint64_t id = 0, count = number(); id < count; id++)
		if ((errno = post_receive(end, id)))
			return "ibv_post_recv";
	if (last_state >= IBV_QPS_RTR && to_rtr(end, &attr))
		return "ibv_modify_qp to RTR";
	if (last_state >= IBV_QPS_RTS && to_rts(end, &attr))
		return "ibv_modify_qp to RTS";
	return NULL;
}

/* Returns an end in a free place, or NULL. */
static struct end *new_end(int *handle)
{
	*handle = 0;
	while (*handle < ENDS && ends[*handle])
		++*handle;
	return *handle < ENDS ? ends[*handle] = calloc(1, sizeof **ends) : NULL;
}

/* `open SERVICE FROM RIG_ADDRESS RIG_QPN RQ_PSN SQ_PSN MTU RIGHTS DEST_RD_ATOMIC RD_ATOMIC
 * MIN_RNR_TIMER TIMEOUT RETRY_CNT RNR_RETRY STATE CQ_DEPTH
 * REGIONS {LEN RIGHTS FOREIGN BINDABLE}  RECEIVES {REGION OFFSET LEN BAD_KEY}` */
static int open_end(void)
{
	int handle, regions = 0;
	struct end *end = new_end(&handle);
	if (!end)
		return answer("unable too many queue pairs");
	const char *failed = build(end, &regions);
	if (failed) {
		unable(failed);
		close_end(end);
		return 0;
	}
	return describe(handle, end, regions);
}

/* sibling HANDLE RIG_QPN: answers like open. The queue pair has the context, the protection domain
 * and the memory of the first, but a completion queue of its own. */
static int open_sibling(struct end *first)
{
	int handle, regions = 0;
	if (first->first || first->srq || first->ah || !first->qp)
		return answer("unable to add a queue pair to this one");
	struct end *end = new_end(&handle);
	if (!end)
		return answer("unable too many queue pairs");
	end->first = first;
	end->context = first->context;
	end->pd = first->pd;
	memcpy(end->regions, first->regions, sizeof end->regions);
	while (regions < REGIONS && end->regions[regions].mr)
		regions++;
	end->attr = first->attr;
	end->attr.dest_qp_num = end->rig_qpn = number();
	struct ibv_qp_attr attr = end->attr;
	end->cq = ibv_create_cq(end->context, 2 * DEPTH, NULL, NULL, 0);
	if (!end->cq || make_qp(end, first->qp->qp_type) || to_init(end, &attr) || to_rtr(end, &attr) ||
	    to_rts(end, &attr)) {
		unable("a further queue pair");
		close_end(end);
		return 0;
	}
	return describe(handle, end, regions);
}

static int memory(struct end *end, int is_write)
{
	unsigned region = number();
	size_t offset = number(), len;
	const char *text = word();
	len = is_write ? strlen(text) / 2 : strtoull(text, NULL, 0);
	if (region >= REGIONS || offset > end->regions[region].len || len > end->regions[region].len - offset)
		return answer("unable not inside the region");
	/* Volatile, because the device writes the memory, too. */
	volatile uint8_t *bytes = end->regions[region].bytes + offset;
	for (size_t i = 0; is_write && i < len; i++) {
		char digits[3] = {text[2 * i], text[2 * i + 1]};
		bytes[i] = strtoul(digits, NULL, 16);
	}
	if (is_write)
		return answer("ok");
	fputs("ok ", out);
	for (size_t i = 0; i < len; i++)
		fprintf(out, "%02x", bytes[i]);
	return answer("");
}

static int deregister(struct end *end)
{
	unsigned region = number();
	if (region >= REGIONS || !end->regions[region].mr || end->first)
		return answer("unable no such region");
	if ((errno = ibv_dereg_mr(end->regions[region].mr)))
		return unable("ibv_dereg_mr");
	end->regions[region].mr = NULL;
	return answer("ok");
}

static int operation(struct end *end, struct ibv_send_wr *wr)
{
	const char *name = word();
	int with_imm = is(name, "send-imm") || is(name, "write-imm");
	if (is(name, "send") || is(name, "send-imm")) {
		wr->opcode = with_imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
	} else if (is(name, "send-inv") || is(name, "invalidate")) {
		wr->opcode = is(name, "send-inv") ? IBV_WR_SEND_WITH_INV : IBV_WR_LOCAL_INV;
		wr->invalidate_rkey = number();
		wr->num_sge = wr->opcode == IBV_WR_SEND_WITH_INV;
	} else if (is(name, "bind")) {
		wr->opcode = IBV_WR_BIND_MW;
		wr->num_sge = 0;
		return bind_type_2(end, wr);
	} else if (is(name, "write") || is(name, "write-imm") || is(name, "read")) {
		wr->opcode = with_imm          ? IBV_WR_RDMA_WRITE_WITH_IMM :
			     is(name, "write") ? IBV_WR_RDMA_WRITE :
						 IBV_WR_RDMA_READ;
		wr->wr.rdma.remote_addr = number();
		wr->wr.rdma.rkey = number();
	} else if (is(name, "cmp-swap") || is(name, "fetch-add")) {
		wr->opcode = is(name, "cmp-swap") ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr->wr.atomic.remote_addr = number();
		wr->wr.atomic.rkey = number();
		wr->wr.atomic.compare_add = number();
		wr->wr.atomic.swap = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? number() : 0;
	} else {
		return -1;
	}
	if (with_imm)
		wr->imm_data = htonl(number());
	return 0;
}

/* send HANDLE ID SIGNALED SOLICITED FENCE REGION OFFSET LEN BAD_KEY OPERATION ... */
static int post_send(struct end *end)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = {.wr_id = number(), .sg_list = &sge, .num_sge = 1}, *bad;
	wr.send_flags = number() ? IBV_SEND_SIGNALED : 0;
	wr.send_flags |= number() ? IBV_SEND_SOLICITED : 0;
	wr.send_flags |= number() ? IBV_SEND_FENCE : 0;
	if (!end->qp || local_sge(end, &sge))
		return answer("unable no such queue pair or region");
	if (operation(end, &wr))
		return answer("unable not a request of plain verbs");
	if (end->ah) {
		wr.wr.ud.ah = end->ah;
		wr.wr.ud.remote_qpn = end->rig_qpn;
		wr.wr.ud.remote_qkey = QKEY;
	}
	if (end->qp->qp_type == IBV_QPT_XRC_SEND)
		wr.qp_type.xrc.remote_srqn = SRQN;
	if ((errno = ibv_post_send(end->qp, &wr, &bad)))
		return unable("ibv_post_send");
	return answer("ok");
}

/* ok ID STATUS IS_RECEIVE BYTE_LEN WITH VALUE. WITH is 1 for immediate data, and 2 for an
 * invalidated key. */
static int poll_one(struct end *end)
{
	struct ibv_wc wc = {0};
	int got = ibv_poll_cq(end->cq, 1, &wc);
	if (got <= 0)
		return got ? answer("unable ibv_poll_cq") : answer("none");
	int with = wc.wc_flags & IBV_WC_WITH_IMM ? 1 : wc.wc_flags & IBV_WC_WITH_INV ? 2 : 0;
	return answer("ok %llu %d %d %u %d %u", (unsigned long long)(wc.wr_id & ~RECEIVE), wc.status,
		      !!(wc.wr_id & RECEIVE), wc.byte_len, with, with == 1 ? ntohl(wc.imm_data) : wc.invalidated_rkey);
}

static int event(struct end *end)
{
	struct ibv_async_event event;
	if (ibv_get_async_event(end->context, &event))
		return answer("none");
	ibv_ack_async_event(&event);
	return answer("ok %d", event.event_type);
}

/* limit HANDLE LIMIT */
static int limit(struct end *end)
{
	struct ibv_srq_attr attr = {.srq_limit = number()};
	errno = end->srq ? ibv_modify_srq(end->srq, &attr, IBV_SRQ_LIMIT) : EINVAL;
	return errno ? unable("ibv_modify_srq") : answer("ok");
}

/* rearm HANDLE ADDRESS: loads the alternate path to the address. */
static int rearm(struct end *end)
{
	struct ibv_qp_attr attr = {.alt_ah_attr = path_to(word()), .alt_port_num = port, .path_mig_state = IBV_MIG_REARM};
	errno = end->qp ? ibv_modify_qp(end->qp, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE) : EINVAL;
	return errno ? unable("path migration") : answer("ok");
}

static int destroy_qp(struct end *end)
{
	if (!end->qp || (errno = ibv_destroy_qp(end->qp)))
		return unable("ibv_destroy_qp");
	end->qp = NULL;
	return answer("ok");
}

static int refuse(void)
{
	fputs("agent: refused orders with another token\n", stderr);
	return answer("unable another token than the agent's: give both sides the same one");
}

static int obey(char *line)
{
	const char *order = strtok_r(line, " \n", &rest);
	if (!order)
		return 0;
	if (is(order, "token")) {
		is_admitted = !wants_token() || is_token(word());
		return is_admitted ? answer("ok") : refuse();
	}
	if (!is_admitted)
		return refuse();
	if (is(order, "hello"))
		return hello();
	if (!strncmp(order, "cm-", 3))
		return manage(order, device_address);
	if (is(order, "open"))
		return open_end();
	unsigned handle = number();
	struct end *end = handle < ENDS ? ends[handle] : NULL;
	if (!end)
		return answer("unable no such queue pair");
	if (is(order, "close")) {
		close_end(end);
		return answer("ok");
	}
	if (is(order, "read") || is(order, "write"))
		return memory(end, is(order, "write"));
	if (is(order, "receive")) {
		errno = end->qp ? post_receive(end, number()) : EINVAL;
		return errno ? unable("ibv_post_recv") : answer("ok");
	}
	return is(order, "send")       ? post_send(end) :
	       is(order, "poll")       ? poll_one(end) :
	       is(order, "event")      ? event(end) :
	       is(order, "state")      ? state(end) :
	       is(order, "error")      ? to_error(end) :
	       is(order, "deregister") ? deregister(end) :
	       is(order, "sibling")    ? open_sibling(end) :
	       is(order, "window")     ? window(end, IBV_MW_TYPE_2) :
	       is(order, "window-1")   ? window(end, IBV_MW_TYPE_1) :
	       is(order, "bind-1")     ? bind_type_1(end) :
	       is(order, "drain")      ? drain(end) :
	       is(order, "resume")     ? resume(end) :
	       is(order, "rearm")      ? rearm(end) :
	       is(order, "reset")      ? reset(end) :
	       is(order, "limit")      ? limit(end) :
	       is(order, "join")       ? join(end, device_address, 0) :
	       is(order, "leave")      ? join(end, device_address, 1) :
	       is(order, "destroy")    ? destroy_qp(end) :
					 answer("unable to %s", order);
}

static int fail(const char *what)
{
	fprintf(stderr, "agent: %s\n", what);
	return 2;
}

int main(int argc, char **argv)
{
	const char *address = "127.0.0.1", *token = getenv("ROCADE_CONFORMANCE_TOKEN");
	int option, tcp_port = 0, count = 0;
	while ((option = getopt(argc, argv, "d:p:g:f:l:a:t:")) != -1)
		switch (option) {
		case 'd': device_name = optarg; break;
		case 'p': port = atoi(optarg); break;
		case 'g': told_gid_index = atoi(optarg); break;
		case 'l': tcp_port = atoi(optarg); break;
		case 'a': address = optarg; break;
		case 't': token = optarg; break;
		case 'f':
			if (told_feature_count == FEATURES)
				return fail("too many features");
			told_features[told_feature_count++] = optarg;
			break;
		default: return fail("see the head of agent.c");
		}
	struct ibv_device **devices = ibv_get_device_list(&count);
	for (int i = 0; i < count; i++)
		if (!device_name || is(ibv_get_device_name(devices[i]), device_name))
			device = device ? device : devices[i];
	if (!device)
		return fail("no such device");
	device_name = ibv_get_device_name(device);
	in = stdin;
	out = stdout;
	if (choose_token(token, tcp_port))
		return fail("a token has 1 to 128 characters and no blank");
	is_admitted = !wants_token();
	if (tcp_port && serve(address, tcp_port, &in, &out))
		return fail(strerror(errno));
	is_admitted |= tcp_port;
	char *line = NULL;
	size_t room = 0;
	while (getline(&line, &room, in) > 0) {
		obey(line);
		fflush(out);
	}
	for (int i = 0; i < ENDS; i++)
		if (ends[i])
			close_end(ends[i]);
	free(line);
	ibv_free_device_list(devices);
	return 0;
}
