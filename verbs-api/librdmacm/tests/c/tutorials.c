/* Programs like those of tutorials: a server and a client that share only an address. */
#include "cm_rig.h"

#define PORT_FIRST 20000
#define MESSAGE "over ethernet"

/* Runs the server in a thread, and the client in the main thread. */
static void beside(void *(*server)(void *), void *argument, void (*client)(void *))
{
	pthread_t thread;
	CHECK_INT(pthread_create(&thread, NULL, server, argument), 0);
	client(argument);
	CHECK_INT(pthread_join(thread, NULL), 0);
}

static struct ibv_wc completed(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int count;
	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK_INT(count, 1);
	CHECK_INT(wc.status, IBV_WC_SUCCESS);
	return wc;
}

/* The objects that a tutorial creates for an ID: protection domain, CQ, memory region and queue
 * pair. */
struct connection {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char buffer[4096];
};

static struct connection *build(struct rdma_cm_id *id)
{
	struct connection *conn = calloc(1, sizeof(*conn));
	struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
	CHECK((conn->pd = ibv_alloc_pd(id->verbs)));
	CHECK((conn->cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0)));
	conn->mr = ibv_reg_mr(conn->pd, conn->buffer, sizeof(conn->buffer),
			      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(conn->mr);
	attr.send_cq = attr.recv_cq = conn->cq;
	CHECK_INT(rdma_create_qp(id, conn->pd, &attr), 0);
	id->context = conn;
	return conn;
}

static void end(struct rdma_cm_id *id)
{
	struct connection *conn = id->context;
	rdma_destroy_qp(id);
	CHECK_INT(rdma_destroy_id(id), 0);
	CHECK_INT(ibv_dereg_mr(conn->mr), 0);
	CHECK_INT(ibv_destroy_cq(conn->cq), 0);
	CHECK_INT(ibv_dealloc_pd(conn->pd), 0);
	free(conn);
}

static void post_recv(struct rdma_cm_id *id, uint64_t wr_id)
{
	struct connection *conn = id->context;
	struct ibv_sge sge = { .addr = (uintptr_t)conn->buffer, .length = 1024,
			       .lkey = conn->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK_INT(ibv_post_recv(id->qp, &wr, &bad), 0);
}

static void say(struct rdma_cm_id *id, const char *text)
{
	struct connection *conn = id->context;
	strcpy(conn->buffer + 2048, text);
	struct ibv_sge sge = { .addr = (uintptr_t)conn->buffer + 2048, .length = strlen(text) + 1,
			       .lkey = conn->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK_INT(ibv_post_send(id->qp, &wr, &bad), 0);
}

struct meeting {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener;
	char port[16];
};

/* Posts the receive before accepting, because the first message may arrive with the RTU. */
static void *serve_one(void *argument)
{
	struct meeting *meeting = argument;
	struct rdma_cm_event *event = expect(meeting->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	CHECK_INT(rdma_ack_cm_event(event), 0);
	struct connection *conn = build(id);
	post_recv(id, 1);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	CHECK_INT(rdma_accept(id, &param), 0);
	pass(meeting->channel, RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_wc wc = completed(conn->cq);
	CHECK_INT(wc.opcode, IBV_WC_RECV);
	CHECK(!strcmp(conn->buffer, MESSAGE));
	say(id, "received");
	completed(conn->cq);
	pass(meeting->channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK_INT(rdma_disconnect(id), 0);
	end(id);
	return NULL;
}

static void ask_one(void *argument)
{
	struct meeting *meeting = argument;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct addrinfo *found;
	struct rdma_cm_id *id;
	CHECK_INT(getaddrinfo(own_ip, meeting->port, NULL, &found), 0);
	CHECK_INT(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_resolve_addr(id, NULL, found->ai_addr, 500), 0);
	freeaddrinfo(found);
	pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	struct connection *conn = build(id);
	CHECK_INT(rdma_resolve_route(id, 500), 0);
	pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	post_recv(id, 2);
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1,
					 .retry_count = 7, .rnr_retry_count = 7 };
	CHECK_INT(rdma_connect(id, &param), 0);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	say(id, MESSAGE);
	for (int left = 2; left; left--)
		completed(conn->cq);
	CHECK(!strcmp(conn->buffer, "received"));
	CHECK_INT(rdma_disconnect(id), 0);
	pass(channel, RDMA_CM_EVENT_DISCONNECTED);
	end(id);
	rdma_destroy_event_channel(channel);
}

static void a_receive_before_accepting(void)
{
	struct meeting meeting = { .channel = rdma_create_event_channel() };
	struct sockaddr_in addr = { .sin_family = AF_INET };
	CHECK_INT(rdma_create_id(meeting.channel, &meeting.listener, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_bind_addr(meeting.listener, (struct sockaddr *)&addr), 0);
	CHECK_INT(rdma_listen(meeting.listener, 10), 0);
	snprintf(meeting.port, sizeof(meeting.port), "%d",
		 ntohs(rdma_get_src_port(meeting.listener)));
	beside(serve_one, &meeting, ask_one);
	CHECK_INT(rdma_destroy_id(meeting.listener), 0);
	rdma_destroy_event_channel(meeting.channel);
}

/* A member of a multicast group. It is bound by name or by address and joined, and the manager
 * attaches its queue pair. */
struct member {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	char buffer[512];
	struct ibv_ah *ah;
	uint32_t qpn, qkey;
	struct sockaddr *group;
};

static struct member *join(const char *group, int by_info)
{
	struct member *member = calloc(1, sizeof(*member));
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_UDP, .ai_flags = RAI_PASSIVE };
	struct rdma_addrinfo *info = NULL;
	static struct sockaddr_in plain;
	member->channel = rdma_create_event_channel();
	CHECK_INT(rdma_create_id(member->channel, &member->id, member, RDMA_PS_UDP), 0);
	if (by_info) {
		CHECK_INT(rdma_getaddrinfo(own_ip, NULL, &hints, &info), 0);
		CHECK_INT(rdma_bind_addr(member->id, info->ai_src_addr), 0);
		rdma_freeaddrinfo(info);
		hints.ai_flags = 0;
		CHECK_INT(rdma_getaddrinfo(group, NULL, &hints, &info), 0);
		member->group = info->ai_dst_addr;
	} else {
		struct sockaddr_in own = at_port(0);
		CHECK_INT(rdma_bind_addr(member->id, (struct sockaddr *)&own), 0);
		plain = (struct sockaddr_in){ .sin_family = AF_INET };
		CHECK_INT(inet_pton(AF_INET, group, &plain.sin_addr), 1);
		member->group = (struct sockaddr *)&plain;
	}
	/* A bound ID has a device and a protection domain. */
	CHECK(member->id->verbs && member->id->pd);
	struct ibv_qp_init_attr attr = small_attr(IBV_QPT_UD);
	CHECK_INT(rdma_create_qp(member->id, member->id->pd, &attr), 0);
	CHECK((member->mr = rdma_reg_msgs(member->id, member->buffer, sizeof(member->buffer))));
	CHECK_INT(rdma_post_recv(member->id, NULL, member->buffer, 256, member->mr), 0);

	if (!by_info) {
		/* Resolves the address first, as mckey does. */
		CHECK_INT(rdma_resolve_addr(member->id, NULL, member->group, 2000), 0);
		pass(member->channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	}
	CHECK_INT(rdma_join_multicast(member->id, member->group, "context"), 0);
	struct rdma_cm_event *event = expect(member->channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK_INT(event->status, 0);
	CHECK(!strcmp(event->param.ud.private_data, "context"));
	CHECK_INT(event->param.ud.qp_num, 0xffffff);
	CHECK_INT(event->param.ud.qkey, RDMA_UDP_QKEY);
	member->qpn = event->param.ud.qp_num;
	member->qkey = event->param.ud.qkey;
	member->ah = ibv_create_ah(member->id->pd, &event->param.ud.ah_attr);
	CHECK(member->ah);
	CHECK_INT(rdma_ack_cm_event(event), 0);
	return member;
}

static void groups_by_name_and_by_address(void)
{
	struct member *members[2];
	char group[32];
	struct in_addr ip;
	CHECK_INT(inet_pton(AF_INET, own_ip, &ip), 1);
	uint8_t *bytes = (void *)&ip;
	snprintf(group, sizeof(group), "239.%d.%d.%d", bytes[1], bytes[2], bytes[3]);
	for (int by_info = 0; by_info < 2; by_info++)
		members[by_info] = join(group, by_info);
	for (int i = 0; i < 2; i++) {
		struct member *from = members[i];
		char *text = from->buffer + 256;
		memset(text, 'a' + i, 100);
		CHECK_INT(rdma_post_ud_send(from->id, NULL, text, 100, from->mr, 0, from->ah,
					    from->qpn), 0);
		CHECK_INT(completed(from->id->send_cq).opcode, IBV_WC_SEND);
		/* All members receive the message, including the sender, with the GRH in front. */
		for (int j = 0; j < 2; j++) {
			struct member *to = members[j];
			struct ibv_wc wc = completed(to->id->recv_cq);
			CHECK_INT(wc.byte_len, 140);
			CHECK(!memcmp(to->buffer + 40, text, 100));
			CHECK_INT(wc.src_qp, from->id->qp->qp_num);
			CHECK_INT(rdma_post_recv(to->id, NULL, to->buffer, 256, to->mr), 0);
		}
	}
	for (int i = 0; i < 2; i++) {
		CHECK_INT(rdma_leave_multicast(members[i]->id, members[i]->group), 0);
		CHECK_FAILS(rdma_leave_multicast(members[i]->id, members[i]->group), EADDRNOTAVAIL);
		CHECK_INT(ibv_destroy_ah(members[i]->ah), 0);
		CHECK_INT(rdma_dereg_mr(members[i]->mr), 0);
		rdma_destroy_qp(members[i]->id);
		CHECK_INT(rdma_destroy_id(members[i]->id), 0);
		rdma_destroy_event_channel(members[i]->channel);
	}
}

#define CONNECTIONS 5

/* One shared receive queue for all connections of a listener. */
struct shared {
	struct rdma_cm_id *listener;
	struct rdma_addrinfo *info;
	char port[16];
};

static void *serve_shared(void *argument)
{
	struct shared *shared = argument;
	struct rdma_cm_id *listener = shared->listener, *ids[CONNECTIONS];
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 32, .max_sge = 1 } };
	struct ibv_cq *cq = NULL;
	char *buffer = calloc(CONNECTIONS, 64);
	CHECK_INT(rdma_create_srq(listener, NULL, &srq_attr), 0);
	CHECK_FAILS(rdma_create_srq(listener, NULL, &srq_attr), EINVAL);
	struct ibv_mr *mr = rdma_reg_msgs(listener, buffer, CONNECTIONS * 64);
	CHECK(mr);
	/* With a shared receive queue, the receives are posted there. */
	for (int i = 0; i < CONNECTIONS; i++)
		CHECK_INT(rdma_post_recv(listener, buffer + 64 * i, buffer + 64 * i, 64, mr), 0);
	for (int i = 0; i < CONNECTIONS; i++) {
		CHECK_INT(rdma_get_request(listener, &ids[i]), 0);
		CHECK(!ids[i]->qp);
		if (!cq)
			CHECK((cq = ibv_create_cq(ids[i]->verbs, 64, NULL, NULL, 0)));
		struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
		attr.send_cq = attr.recv_cq = cq;
		attr.srq = listener->srq;
		CHECK_INT(rdma_create_qp(ids[i], listener->pd, &attr), 0);
		CHECK_INT(rdma_accept(ids[i], NULL), 0);
	}
	uint32_t seen = 0;
	for (int left = 2 * CONNECTIONS; left; left--) {
		struct ibv_wc wc = completed(cq);
		if (wc.opcode == IBV_WC_SEND)
			continue;
		CHECK_INT(wc.opcode, IBV_WC_RECV);
		char *text = (void *)(uintptr_t)wc.wr_id;
		int from = -1;
		for (int i = 0; i < CONNECTIONS; i++)
			if (ids[i]->qp->qp_num == wc.qp_num)
				from = i;
		CHECK(from >= 0 && !strncmp(text, "client ", 7));
		seen |= 1 << atoi(text + 7);
		CHECK_INT(rdma_post_send(ids[from], NULL, text, 64, mr, IBV_SEND_SIGNALED), 0);
	}
	CHECK_INT(seen, (1 << CONNECTIONS) - 1);
	for (int i = 0; i < CONNECTIONS; i++) {
		CHECK_INT(rdma_disconnect(ids[i]), 0);
		rdma_destroy_qp(ids[i]);
		rdma_destroy_ep(ids[i]);
	}
	CHECK_INT(ibv_destroy_cq(cq), 0);
	CHECK_INT(rdma_dereg_mr(mr), 0);
	free(buffer);
	return NULL;
}

static void ask_shared(void *argument)
{
	struct shared *shared = argument;
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *info;
	struct rdma_cm_id *ids[CONNECTIONS];
	struct ibv_mr *mrs[CONNECTIONS];
	static char buffers[CONNECTIONS][128];
	CHECK_INT(rdma_getaddrinfo(own_ip, shared->port, &hints, &info), 0);
	for (int i = 0; i < CONNECTIONS; i++) {
		struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
		CHECK_INT(rdma_create_ep(&ids[i], info, NULL, &attr), 0);
		CHECK((mrs[i] = rdma_reg_msgs(ids[i], buffers[i], 128)));
		CHECK_INT(rdma_post_recv(ids[i], NULL, buffers[i] + 64, 64, mrs[i]), 0);
		CHECK_INT(rdma_connect(ids[i], NULL), 0);
	}
	for (int i = 0; i < CONNECTIONS; i++) {
		struct ibv_wc wc;
		snprintf(buffers[i], 64, "client %d", i);
		CHECK_INT(rdma_post_send(ids[i], NULL, buffers[i], 64, mrs[i], IBV_SEND_SIGNALED), 0);
		CHECK_INT(rdma_get_send_comp(ids[i], &wc), 1);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
	}
	for (int i = 0; i < CONNECTIONS; i++) {
		struct ibv_wc wc;
		CHECK_INT(rdma_get_recv_comp(ids[i], &wc), 1);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		CHECK(!strcmp(buffers[i], buffers[i] + 64));
		CHECK_INT(rdma_disconnect(ids[i]), 0);
		CHECK_INT(rdma_dereg_mr(mrs[i]), 0);
		rdma_destroy_ep(ids[i]);
	}
	rdma_freeaddrinfo(info);
}

static void one_queue_for_many_connections(void)
{
	struct shared shared = { 0 };
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
	CHECK_INT(rdma_getaddrinfo(own_ip, NULL, &hints, &shared.info), 0);
	CHECK_INT(rdma_create_ep(&shared.listener, shared.info, NULL, NULL), 0);
	rdma_freeaddrinfo(shared.info);
	CHECK_INT(rdma_listen(shared.listener, CONNECTIONS), 0);
	snprintf(shared.port, sizeof(shared.port), "%d",
		 ntohs(rdma_get_src_port(shared.listener)));
	beside(serve_shared, &shared, ask_shared);
	rdma_destroy_ep(shared.listener);
}

static struct rdma_addrinfo *xrc_info(const char *port, enum ibv_qp_type type, int flags)
{
	struct rdma_addrinfo *info, hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_IB,
					      .ai_qp_type = type };
	CHECK_INT(rdma_getaddrinfo(own_ip, port, &hints, &info), 0);
	CHECK_INT(info->ai_qp_type, type);
	CHECK_INT(info->ai_port_space, RDMA_PS_IB);
	return info;
}

/* Creates an SRQ in the XRC domain of the device. The client gets its number. */
static void make_xrc_queue(struct rdma_cm_id *id, int is_extended, uint32_t *number)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 64, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex ex = { .attr = attr.attr, .srq_type = IBV_SRQT_XRC };
	if (is_extended) {
		CHECK_FAILS(rdma_create_srq_ex(id, &ex), EINVAL);
		ex.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
		CHECK_INT(rdma_create_srq_ex(id, &ex), 0);
		CHECK(ex.xrcd && ex.pd == id->pd && ex.cq == id->recv_cq);
		CHECK_FAILS(rdma_create_srq_ex(id, &ex), EINVAL);
	} else {
		CHECK_INT(rdma_create_srq(id, NULL, &attr), 0);
	}
	/* The CQ has room for all receives of the SRQ. */
	CHECK(id->recv_cq && id->recv_cq->cqe >= 64);
	CHECK_INT(ibv_get_srq_num(id->srq, number), 0);
}

static void *serve_xrc(void *argument)
{
	struct rdma_cm_id *listener = ((struct shared *)argument)->listener;
	char *buffer = calloc(4, 64);
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *id;
		struct ibv_wc wc;
		uint32_t number;
		CHECK_INT(rdma_get_request(listener, &id), 0);
		CHECK_INT(id->qp_type, IBV_QPT_XRC_RECV);
		CHECK_INT(id->qp->qp_type, IBV_QPT_XRC_RECV);
		make_xrc_queue(id, i, &number);
		struct ibv_mr *mr = rdma_reg_write(id, buffer, 256);
		CHECK(mr);
		CHECK_INT(rdma_post_recv(id, NULL, buffer, 64, mr), 0);
		uint64_t told[3] = { number, (uintptr_t)buffer + 128, mr->rkey };
		struct rdma_conn_param param = { .private_data = told, .private_data_len = sizeof(told),
						 .responder_resources = 1 };
		CHECK_INT(rdma_accept(id, &param), 0);
		CHECK_INT(rdma_get_recv_comp(id, &wc), 1);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		CHECK_INT(wc.qp_num, id->qp->qp_num);
		CHECK(!strcmp(buffer, "sent") && !strcmp(buffer + 128, "written"));
		memset(buffer, 0, 256);
		CHECK_INT(rdma_disconnect(id), 0);
		CHECK_INT(rdma_dereg_mr(mr), 0);
		rdma_destroy_ep(id);
	}
	free(buffer);
	return NULL;
}

static void post_xrc(struct rdma_cm_id *id, struct ibv_send_wr wr, char *text, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)text, .length = 16, .lkey = mr->lkey };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	CHECK_INT(ibv_post_send(id->qp, &wr, &bad), 0);
	CHECK_INT(rdma_get_send_comp(id, &wc), 1);
	CHECK_INT(wc.status, IBV_WC_SUCCESS);
}

static void ask_xrc(void *argument)
{
	struct shared *shared = argument;
	/* The service accepts no queue pair of another type. */
	struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
	struct rdma_cm_id *id;
	struct rdma_addrinfo *info = xrc_info(shared->port, IBV_QPT_RC, 0);
	CHECK_INT(rdma_create_ep(&id, info, NULL, &attr), 0);
	rdma_freeaddrinfo(info);
	CHECK_FAILS(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK_INT(id->event->status, 28);
	rdma_destroy_ep(id);
	for (int i = 0; i < 2; i++) {
		char text[2][16] = { "written", "sent" };
		uint64_t told[3];
		info = xrc_info(shared->port, IBV_QPT_XRC_SEND, 0);
		attr = small_attr(IBV_QPT_XRC_SEND);
		CHECK_INT(rdma_create_ep(&id, info, NULL, &attr), 0);
		rdma_freeaddrinfo(info);
		CHECK_INT(id->qp->qp_type, IBV_QPT_XRC_SEND);
		struct ibv_mr *mr = rdma_reg_msgs(id, text, sizeof(text));
		CHECK(mr);
		CHECK_INT(rdma_connect(id, NULL), 0);
		memcpy(told, id->event->param.conn.private_data, sizeof(told));
		CHECK_INT(id->event->param.conn.srq, 1);
		CHECK(id->event->param.conn.qp_num);
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .qp_type.xrc.remote_srqn = told[0],
					  .wr.rdma = { .remote_addr = told[1], .rkey = told[2] } };
		post_xrc(id, wr, text[0], mr);
		wr.opcode = IBV_WR_SEND;
		post_xrc(id, wr, text[1], mr);
		rdma_disconnect(id);
		CHECK_INT(rdma_dereg_mr(mr), 0);
		rdma_destroy_ep(id);
	}
}

/*= CM-FLD-09 LRC-05 LRC-07 type=test */
/*= LRC-22 XRC-15 type=test */
static void targets_are_connected_by_address(void)
{
	struct shared shared = { 0 };
	struct ibv_qp_init_attr attr = small_attr(IBV_QPT_XRC_RECV);
	shared.info = xrc_info(NULL, IBV_QPT_XRC_RECV, RAI_PASSIVE);
	CHECK_INT(rdma_create_ep(&shared.listener, shared.info, NULL, &attr), 0);
	rdma_freeaddrinfo(shared.info);
	CHECK_INT(rdma_listen(shared.listener, 2), 0);
	snprintf(shared.port, sizeof(shared.port), "%d",
		 ntohs(rdma_get_src_port(shared.listener)));
	beside(serve_xrc, &shared, ask_xrc);
	rdma_destroy_ep(shared.listener);
}

/* Configures two ports, whose addresses differ in the second byte. */
static void have_two_ports(void)
{
	unsigned byte[4];
	char devices[64];
	CHECK_INT(sscanf(own_ip, "%u.%u.%u.%u", &byte[0], &byte[1], &byte[2], &byte[3]), 4);
	snprintf(devices, sizeof(devices), "rocade0=%s+%u.%u.%u.%u", own_ip, byte[0], byte[1] ^ 0x80,
		 byte[2], byte[3]);
	unsetenv("ROCADE_IP");
	setenv("ROCADE_DEVICES", devices, 1);
}

/* Loads the second port as alternate path of a connection. Both ends are on this device. */
static void load_alternate_path(struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr = {
		.alt_ah_attr = { .is_global = 1, .port_num = 2, .grh.hop_limit = 64 },
		.alt_port_num = 2,
		.alt_timeout = 14,
		.path_mig_state = IBV_MIG_REARM,
	};
	CHECK_INT(ibv_query_gid(id->verbs, 2, 0, &attr.alt_ah_attr.grh.dgid), 0);
	CHECK_INT(ibv_modify_qp(id->qp, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE), 0);
}

static struct ibv_qp_attr attributes_of(struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK_INT(ibv_query_qp(id->qp, &attr, IBV_QP_PATH_MIG_STATE | IBV_QP_AV, &init), 0);
	return attr;
}

static void wait_for_migration(struct rdma_cm_id *id, enum ibv_mig_state state)
{
	while (attributes_of(id).path_mig_state != state)
		usleep(100);
}

struct crossing {
	struct meeting meeting;
	/* Barriers: both ends have loaded their paths, the client has migrated, the server has
	 * migrated. */
	pthread_barrier_t loaded, asked, moved;
};

/* Each end gets a device event that names its queue pair. */
static void hear_of_migration(struct rdma_cm_id *one, struct rdma_cm_id *other)
{
	int seen = 0;
	for (int i = 0; i < 2; i++) {
		struct ibv_async_event event;
		CHECK_INT(ibv_get_async_event(one->verbs, &event), 0);
		CHECK_INT(event.event_type, IBV_EVENT_PATH_MIG);
		seen |= event.element.qp == one->qp ? 1 : event.element.qp == other->qp ? 2 : 4;
		ibv_ack_async_event(&event);
	}
	CHECK_INT(seen, 3);
}

static struct rdma_cm_id *server_id;

static void *serve_over_two_paths(void *argument)
{
	struct crossing *crossing = argument;
	struct rdma_event_channel *channel = crossing->meeting.channel;
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = server_id = event->id;
	CHECK_INT(rdma_ack_cm_event(event), 0);
	CHECK_INT(id->port_num, 1);
	struct connection *conn = build(id);
	post_recv(id, 1);
	post_recv(id, 2);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	CHECK_INT(rdma_accept(id, &param), 0);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	load_alternate_path(id);
	pthread_barrier_wait(&crossing->loaded);
	completed(conn->cq);
	pthread_barrier_wait(&crossing->asked);
	/* The next message arrives on the alternate path, and this end migrates, too. */
	completed(conn->cq);
	wait_for_migration(id, IBV_MIG_MIGRATED);
	CHECK_INT(attributes_of(id).port_num, 2);
	pthread_barrier_wait(&crossing->moved);
	say(id, "over there");
	completed(conn->cq);
	pass(channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK_INT(rdma_disconnect(id), 0);
	end(id);
	return NULL;
}

static void ask_over_two_paths(void *argument)
{
	struct crossing *crossing = argument;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct addrinfo *found;
	struct rdma_cm_id *id;
	CHECK_INT(getaddrinfo(own_ip, crossing->meeting.port, NULL, &found), 0);
	CHECK_INT(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_resolve_addr(id, NULL, found->ai_addr, 500), 0);
	freeaddrinfo(found);
	pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	struct connection *conn = build(id);
	CHECK_INT(rdma_resolve_route(id, 500), 0);
	pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	post_recv(id, 3);
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1,
					 .retry_count = 7, .rnr_retry_count = 7 };
	CHECK_INT(rdma_connect(id, &param), 0);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	load_alternate_path(id);
	pthread_barrier_wait(&crossing->loaded);
	/* A message and its acknowledgement tell each end that the other one is ready. */
	say(id, "ready");
	completed(conn->cq);
	wait_for_migration(id, IBV_MIG_ARMED);
	struct ibv_qp_attr attr = { .path_mig_state = IBV_MIG_MIGRATED };
	pthread_barrier_wait(&crossing->asked);
	CHECK_INT(ibv_modify_qp(id->qp, &attr, IBV_QP_PATH_MIG_STATE), 0);
	CHECK_INT(attributes_of(id).port_num, 2);
	say(id, "from the other side");
	for (int left = 2; left; left--) {
		completed(conn->cq);
		if (left == 2)
			pthread_barrier_wait(&crossing->moved);
	}
	CHECK(!strcmp(conn->buffer, "over there"));
	hear_of_migration(id, server_id);
	/* The connection manager reports no event of the migration. */
	no_event(channel);
	CHECK_INT(rdma_disconnect(id), 0);
	pass(channel, RDMA_CM_EVENT_DISCONNECTED);
	end(id);
	rdma_destroy_event_channel(channel);
}

/*= RC-APM-03 RC-APM-06 CM-ST-11 type=test */
static void a_path_loaded_after_connecting(void)
{
	have_two_ports();
	struct crossing crossing = { .meeting.channel = rdma_create_event_channel() };
	struct meeting *meeting = &crossing.meeting;
	CHECK_INT(pthread_barrier_init(&crossing.loaded, NULL, 2), 0);
	CHECK_INT(pthread_barrier_init(&crossing.asked, NULL, 2), 0);
	CHECK_INT(pthread_barrier_init(&crossing.moved, NULL, 2), 0);
	struct sockaddr_in addr = at_port(0);
	CHECK_INT(rdma_create_id(meeting->channel, &meeting->listener, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_bind_addr(meeting->listener, (struct sockaddr *)&addr), 0);
	CHECK_INT(rdma_listen(meeting->listener, 1), 0);
	snprintf(meeting->port, sizeof(meeting->port), "%d",
		 ntohs(rdma_get_src_port(meeting->listener)));
	beside(serve_over_two_paths, &crossing, ask_over_two_paths);
	CHECK_INT(rdma_destroy_id(meeting->listener), 0);
	rdma_destroy_event_channel(meeting->channel);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "a_receive_before_accepting", a_receive_before_accepting },
		{ "groups_by_name_and_by_address", groups_by_name_and_by_address },
		{ "a_path_loaded_after_connecting", a_path_loaded_after_connecting },
		{ "one_queue_for_many_connections", one_queue_for_many_connections },
		{ "targets_are_connected_by_address", targets_are_connected_by_address },
		{ 0 },
	};
	return run_cm_case(cases, argc, argv);
}
