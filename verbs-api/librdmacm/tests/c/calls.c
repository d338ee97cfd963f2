/* Calls of the connection manager, with both sides in one process. */
#include "cm_rig.h"

#include <fcntl.h>

/* If the program creates the queue pair itself, both sides exchange their vendor options in REQ and
 * REP. */
static void enhanced_establishment(void)
{
	struct ends ends = routed(RDMA_PS_TCP);
	struct ibv_ece ece = { .vendor_id = 0x123456, .options = 0xdeadbeef }, got;
	struct rdma_conn_param param = { .qp_num = 0x77, .retry_count = 3 };

	CHECK_FAILS(rdma_set_local_ece(ends.active, NULL), EINVAL);
	CHECK_FAILS(rdma_get_remote_ece(ends.active, NULL), EINVAL);
	struct ibv_ece wrong = { .options = 1 };
	CHECK_FAILS(rdma_set_local_ece(ends.active, &wrong), EINVAL);
	wrong = (struct ibv_ece){ .vendor_id = 1, .comp_mask = 1 };
	CHECK_FAILS(rdma_set_local_ece(ends.active, &wrong), EINVAL);
	CHECK_INT(rdma_set_local_ece(ends.active, &ece), 0);
	memset(&got, 0xff, sizeof(got));
	CHECK_INT(rdma_get_remote_ece(ends.active, &got), 0);
	CHECK(!got.vendor_id && !got.options && !got.comp_mask);

	CHECK_INT(rdma_connect(ends.active, &param), 0);
	struct rdma_cm_event *event = request(&ends);
	memset(&got, 0xff, sizeof(got));
	CHECK_INT(rdma_get_remote_ece(ends.passive, &got), 0);
	CHECK_INT(got.vendor_id, 0x123456);
	CHECK_INT(got.options, 0xdeadbeef);
	CHECK_INT(got.comp_mask, 0);
	rdma_ack_cm_event(event);

	ece = (struct ibv_ece){ .vendor_id = 0xabcdef, .options = 7 };
	CHECK_INT(rdma_set_local_ece(ends.passive, &ece), 0);
	param.qp_num = 0x78;
	CHECK_INT(rdma_accept(ends.passive, &param), 0);
	pass(ends.client, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK_INT(rdma_get_remote_ece(ends.active, &got), 0);
	CHECK_INT(got.vendor_id, 0xabcdef);
	CHECK_INT(got.options, 7);
	CHECK_INT(rdma_establish(ends.active), 0);
	pass(ends.server, RDMA_CM_EVENT_ESTABLISHED);
	finish(&ends);

	/* The peer may reject the options. */
	ends = routed(RDMA_PS_TCP);
	param.qp_num = 0x79;
	CHECK_INT(rdma_connect(ends.active, &param), 0);
	rdma_ack_cm_event(request(&ends));
	CHECK_INT(rdma_get_remote_ece(ends.passive, &got), 0);
	CHECK_INT(got.vendor_id, 0);
	CHECK_INT(rdma_reject_ece(ends.passive, "no", 3), 0);
	event = expect(ends.client, RDMA_CM_EVENT_REJECTED);
	CHECK_INT(event->status, 35);
	CHECK(!strcmp(event->param.conn.private_data, "no"));
	rdma_ack_cm_event(event);
	finish(&ends);

	/* If the manager creates the queue pair, the program cannot set options. */
	ends = routed(RDMA_PS_TCP);
	struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
	CHECK_INT(rdma_create_qp(ends.active, NULL, &attr), 0);
	CHECK_FAILS(rdma_set_local_ece(ends.active, &ece), EINVAL);
	CHECK_FAILS(rdma_get_remote_ece(ends.active, &got), EINVAL);
	rdma_destroy_qp(ends.active);
	finish(&ends);
}

static struct sockaddr_ib ib_at(uint64_t sid, uint64_t mask)
{
	struct sockaddr_ib addr = { .sib_family = AF_IB, .sib_pkey = htons(0xffff),
				    .sib_sid = htobe64(sid), .sib_sid_mask = htobe64(mask) };
	struct in_addr ip;
	CHECK_INT(inet_pton(AF_INET, own_ip, &ip), 1);
	addr.sib_addr.sib_raw[10] = addr.sib_addr.sib_raw[11] = 0xff;
	memcpy(addr.sib_addr.sib_raw + 12, &ip, 4);
	return addr;
}

/* A GID addresses the port, and a service ID the service. Without a header in front, private data
 * have 92 bytes. */
static void addresses_of_infiniband(void)
{
	struct ends ends = channels(RDMA_PS_IB);
	struct sockaddr_ib wrong = ib_at(RDMA_IB_IP_PS_UDP | 7, ~0ull);
	struct sockaddr_ib addr = ib_at(RDMA_IB_PS_IB | 4242, ~0ull);
	struct rdma_conn_param param = { .qp_num = 9 };
	char data[93];

	wrong.sib_sid = htobe64(0x123400000007);
	CHECK_FAILS(rdma_bind_addr(ends.listener, (struct sockaddr *)&wrong), EPROTONOSUPPORT);
	CHECK_INT(rdma_bind_addr(ends.listener, (struct sockaddr *)&addr), 0);
	CHECK(ends.listener->verbs && ends.listener->pd);
	CHECK_INT(rdma_listen(ends.listener, 0), 0);
	struct sockaddr_ib *own = (void *)rdma_get_local_addr(ends.listener);
	CHECK_INT(own->sib_family, AF_IB);
	CHECK(!memcmp(&own->sib_addr, &addr.sib_addr, 16));
	CHECK_INT(be64toh(own->sib_sid), RDMA_IB_PS_IB | 4242);
	CHECK_INT(ntohs(rdma_get_src_port(ends.listener)), 4242);

	resolve(&ends, (struct sockaddr *)&addr);
	own = (void *)rdma_get_peer_addr(ends.active);
	CHECK_INT(own->sib_family, AF_IB);
	CHECK_INT(be64toh(own->sib_sid), RDMA_IB_PS_IB | 4242);
	CHECK_INT(ntohs(rdma_get_dst_port(ends.active)), 4242);
	CHECK(ends.active->route.num_paths == 1);
	for (int i = 0; i < 93; i++)
		data[i] = i + 1;
	param.private_data = data;
	param.private_data_len = 93;
	CHECK_FAILS(rdma_connect(ends.active, &param), EINVAL);
	param.private_data_len = 92;
	CHECK_INT(rdma_connect(ends.active, &param), 0);
	struct rdma_cm_event *event = request(&ends);
	CHECK_INT(event->param.conn.private_data_len, 92);
	CHECK(!memcmp(event->param.conn.private_data, data, 92));
	rdma_ack_cm_event(event);
	CHECK_INT(rdma_get_local_addr(ends.passive)->sa_family, AF_IB);
	CHECK_INT(rdma_reject(ends.passive, NULL, 0), 0);
	event = expect(ends.client, RDMA_CM_EVENT_REJECTED);
	CHECK_INT(event->status, 28);
	rdma_ack_cm_event(event);
	finish(&ends);

	/* A service without a listener, and a port space within that of InfiniBand. */
	ends = channels(RDMA_PS_IB);
	addr = ib_at(RDMA_IB_IP_PS_TCP | 4243, ~0ull);
	resolve(&ends, (struct sockaddr *)&addr);
	param.private_data_len = 0;
	CHECK_INT(rdma_connect(ends.active, &param), 0);
	event = expect(ends.client, RDMA_CM_EVENT_REJECTED);
	CHECK_INT(event->status, 8);
	rdma_ack_cm_event(event);
	addr = ib_at(0, 0);
	CHECK_INT(rdma_bind_addr(ends.listener, (struct sockaddr *)&addr), 0);
	CHECK(ntohs(rdma_get_src_port(ends.listener)) != 0);
	finish(&ends);

	/* With IP addresses, the port space of InfiniBand is like the others. */
	ends = routed(RDMA_PS_IB);
	CHECK_INT(ends.active->qp_type, IBV_QPT_RC);
	CHECK_INT(rdma_connect(ends.active, &param), 0);
	event = request(&ends);
	CHECK_INT(event->param.conn.private_data_len, 56);
	rdma_ack_cm_event(event);
	CHECK_INT(rdma_get_peer_addr(ends.passive)->sa_family, AF_INET);
	finish(&ends);
}

/* The program may set the path instead of resolving it. */
static void a_path_from_elsewhere(void)
{
	struct ends ends = channels(RDMA_PS_TCP);
	struct sockaddr_in addr = at_port(0);
	struct ibv_path_data path[2] = {
		{ .flags = IBV_PATH_FLAG_ALTERNATE },
		{ .flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL,
		  .path = { .tclass = 0x28, .flowlabel_hoplimit = htobe32(0x12345 << 8 | 17) } },
	};

	CHECK_INT(rdma_bind_addr(ends.listener, (struct sockaddr *)&addr), 0);
	CHECK_INT(rdma_listen(ends.listener, 1), 0);
	CHECK_FAILS(rdma_set_option(ends.active, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path,
				    sizeof(path)), EINVAL);
	CHECK_INT(rdma_resolve_addr(ends.active, NULL, rdma_get_local_addr(ends.listener), 99), 0);
	pass(ends.client, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK_FAILS(rdma_set_option(ends.active, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path,
				    sizeof(path) - 1), EINVAL);
	CHECK_FAILS(rdma_set_option(ends.active, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path, 0),
		    EINVAL);
	CHECK_FAILS(rdma_set_option(ends.active, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path,
				    sizeof(path[0])), EINVAL);
	CHECK_FAILS(rdma_set_option(ends.active, RDMA_OPTION_IB, 2, path, sizeof(path)), ENOSYS);
	CHECK_INT(rdma_set_option(ends.active, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, path,
				  sizeof(path)), 0);
	pass(ends.client, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK_INT(ends.active->route.num_paths, 1);
	CHECK_INT(ends.active->route.path_rec->traffic_class, 0x28);
	CHECK_INT(ends.active->route.path_rec->hop_limit, 17);
	CHECK_INT(ntohl(ends.active->route.path_rec->flow_label), 0x12345);

	struct rdma_conn_param param = { .qp_num = 5 };
	CHECK_INT(rdma_connect(ends.active, &param), 0);
	rdma_ack_cm_event(request(&ends));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	int mask;
	CHECK_INT(rdma_init_qp_attr(ends.passive, &attr, &mask), 0);
	CHECK_INT(attr.ah_attr.grh.traffic_class, 0x28);
	CHECK_INT(attr.ah_attr.grh.hop_limit, 17);
	CHECK_INT(attr.ah_attr.grh.flow_label, 0x12345);
	finish(&ends);

	/* Endpoints use the route of their address. */
	ends = routed(RDMA_PS_TCP);
	struct rdma_addrinfo info = {
		.ai_qp_type = IBV_QPT_RC, .ai_port_space = RDMA_PS_TCP,
		.ai_dst_addr = rdma_get_local_addr(ends.listener), .ai_dst_len = sizeof(addr),
		.ai_route = path, .ai_route_len = sizeof(path),
	};
	struct rdma_cm_id *id;
	CHECK_INT(rdma_create_ep(&id, &info, NULL, NULL), 0);
	CHECK_INT(id->route.path_rec->traffic_class, 0x28);
	CHECK_INT(id->event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
	rdma_destroy_ep(id);
	info.ai_route_len = 72;
	CHECK_FAILS(rdma_create_ep(&id, &info, NULL, NULL), EINVAL);
	finish(&ends);
}

static void options_are_checked(void)
{
	struct ends ends = channels(RDMA_PS_TCP);
	struct rdma_cm_id *id = ends.active, *ud;
	uint8_t byte = 0x60;
	int flag = 1, zero = 0;

	CHECK_INT(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1), 0);
	CHECK_FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 2), EINVAL);
	CHECK_FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1), EINVAL);
	CHECK_INT(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &flag, 4), 0);
	CHECK_FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &flag, 1), EINVAL);
	CHECK_INT(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &flag, 4), 0);
	byte = 14;
	CHECK_INT(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), 0);
	byte = 32;
	CHECK_FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), EINVAL);
	CHECK_FAILS(rdma_set_option(id, RDMA_OPTION_ID, 17, &byte, 1), ENOSYS);
	CHECK_FAILS(rdma_set_option(id, 3, 0, &byte, 1), ENOSYS);
	CHECK_INT(rdma_create_id(ends.client, &ud, NULL, RDMA_PS_UDP), 0);
	byte = 14;
	CHECK_FAILS(rdma_set_option(ud, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), EINVAL);
	CHECK_INT(rdma_destroy_id(ud), 0);

	/* Two IDs share a port if both set the option. Neither can listen before the other one is
	 * destroyed, and the option comes too late then. */
	struct sockaddr_in addr = at_port(0);
	CHECK_INT(rdma_set_option(ends.listener, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &flag, 4), 0);
	CHECK_INT(rdma_bind_addr(ends.listener, (struct sockaddr *)&addr), 0);
	struct sockaddr_in same = *(struct sockaddr_in *)rdma_get_local_addr(ends.listener);
	CHECK_INT(rdma_bind_addr(id, (struct sockaddr *)&same), 0);
	CHECK_FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &zero, 4), EINVAL);
	CHECK_FAILS(rdma_listen(ends.listener, 1), EADDRINUSE);
	CHECK_FAILS(rdma_listen(id, 1), EADDRINUSE);
	CHECK_INT(rdma_destroy_id(id), 0);
	CHECK_INT(rdma_create_id(ends.client, &ends.active, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_listen(ends.listener, 1), 0);
	CHECK_FAILS(rdma_set_option(ends.listener, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &flag, 4),
		    EINVAL);
	CHECK_FAILS(rdma_set_option(ends.listener, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &flag, 4),
		    EINVAL);
	finish(&ends);

	/* The options that are visible in the path. */
	ends = channels(RDMA_PS_TCP);
	byte = 0x60;
	CHECK_INT(rdma_set_option(ends.active, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1), 0);
	byte = 14;
	CHECK_INT(rdma_set_option(ends.active, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), 0);
	CHECK_INT(rdma_bind_addr(ends.listener, (struct sockaddr *)&addr), 0);
	CHECK_INT(rdma_listen(ends.listener, 1), 0);
	resolve(&ends, rdma_get_local_addr(ends.listener));
	CHECK_INT(ends.active->route.path_rec->traffic_class, 0x60);
	CHECK_INT(ends.active->route.path_rec->packet_life_time, 13);
	finish(&ends);
}

static void addresses_by_hints(void)
{
	struct rdma_addrinfo hints, *info;

	CHECK_FAILS(rdma_getaddrinfo(NULL, NULL, NULL, &info), EINVAL);
	CHECK_INT(rdma_getaddrinfo(own_ip, "7471", NULL, &info), 0);
	CHECK(info->ai_dst_len == sizeof(struct sockaddr_in) && !info->ai_src_len && !info->ai_next);
	CHECK_INT(((struct sockaddr_in *)info->ai_dst_addr)->sin_port, htons(7471));
	CHECK(info->ai_qp_type == IBV_QPT_RC && info->ai_port_space == RDMA_PS_TCP);
	CHECK(!info->ai_route_len && !info->ai_connect_len);
	rdma_freeaddrinfo(info);

	hints = (struct rdma_addrinfo){ .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_UDP };
	CHECK_INT(rdma_getaddrinfo(NULL, "7471", &hints, &info), 0);
	CHECK(info->ai_src_len && !info->ai_dst_len && info->ai_flags == RAI_PASSIVE);
	CHECK(info->ai_qp_type == IBV_QPT_UD && info->ai_port_space == RDMA_PS_UDP);
	rdma_freeaddrinfo(info);

	/* Given hints are kept, even if they make no sense. */
	hints = (struct rdma_addrinfo){ .ai_flags = RAI_NUMERICHOST | RAI_NOROUTE,
					.ai_qp_type = IBV_QPT_UC, .ai_port_space = RDMA_PS_IB };
	CHECK_INT(rdma_getaddrinfo(own_ip, NULL, &hints, &info), 0);
	CHECK(info->ai_qp_type == IBV_QPT_UC && info->ai_port_space == RDMA_PS_IB);
	CHECK_INT(info->ai_flags, RAI_NUMERICHOST | RAI_NOROUTE);
	rdma_freeaddrinfo(info);
	CHECK_INT(rdma_getaddrinfo("localhost", NULL, &hints, &info), EAI_NONAME);
	hints = (struct rdma_addrinfo){ .ai_flags = RAI_FAMILY, .ai_family = AF_INET6 };
	CHECK_INT(rdma_getaddrinfo("::1", "1", &hints, &info), 0);
	CHECK_INT(info->ai_family, AF_INET6);
	CHECK_INT(info->ai_dst_addr->sa_family, AF_INET6);
	rdma_freeaddrinfo(info);
	CHECK(rdma_getaddrinfo(own_ip, "1", &hints, &info) > 0 ||
	      rdma_getaddrinfo(own_ip, "1", &hints, &info) < -1);

	/* There is nothing to look up. */
	struct sockaddr_in src = at_port(1), dst = at_port(2);
	hints = (struct rdma_addrinfo){
		.ai_family = AF_INET, .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC,
		.ai_src_addr = (void *)&src, .ai_src_len = sizeof(src),
		.ai_dst_addr = (void *)&dst, .ai_dst_len = sizeof(dst),
	};
	CHECK_INT(rdma_getaddrinfo(NULL, NULL, &hints, &info), 0);
	CHECK(!memcmp(info->ai_src_addr, &src, sizeof(src)) && info->ai_src_addr != (void *)&src);
	CHECK(!memcmp(info->ai_dst_addr, &dst, sizeof(dst)) && info->ai_dst_addr != (void *)&dst);
	CHECK(info->ai_family == AF_INET && info->ai_port_space == RDMA_PS_TCP);
	rdma_freeaddrinfo(info);

	/* A GID looks like an IPv6 address. The service is a port of the port space. */
	struct rdma_addrinfo by_gid = { .ai_flags = RAI_NUMERICHOST | RAI_FAMILY,
					.ai_family = AF_IB, .ai_port_space = RDMA_PS_TCP };
	CHECK_INT(rdma_getaddrinfo("::ffff:192.0.2.7", "7471", &by_gid, &info), 0);
	CHECK(info->ai_family == AF_IB && info->ai_port_space == RDMA_PS_TCP);
	CHECK(info->ai_dst_len == sizeof(struct sockaddr_ib) && !info->ai_src_len);
	struct sockaddr_ib *ib = (void *)info->ai_dst_addr;
	CHECK_INT(ib->sib_family, AF_IB);
	CHECK(ib->sib_addr.sib_raw[10] == 0xff && ib->sib_addr.sib_raw[15] == 7);
	CHECK_INT(be64toh(ib->sib_sid), RDMA_IB_IP_PS_TCP | 7471);
	CHECK(ib->sib_sid_mask == ~0ull);
	rdma_freeaddrinfo(info);
	by_gid.ai_flags |= RAI_PASSIVE;
	by_gid.ai_port_space = RDMA_PS_UDP;
	CHECK_INT(rdma_getaddrinfo("fd00::5", NULL, &by_gid, &info), 0);
	CHECK(info->ai_src_len == sizeof(struct sockaddr_ib) && !info->ai_dst_len);
	ib = (void *)info->ai_src_addr;
	CHECK_INT(be64toh(ib->sib_sid), RDMA_IB_IP_PS_UDP);
	CHECK(be64toh(ib->sib_sid_mask) == ~0xffffull);
	rdma_freeaddrinfo(info);
	CHECK_INT(rdma_getaddrinfo("localhost", NULL, &by_gid, &info), EAI_NONAME);

	/* The source comes from the hints, and the destination from the node. */
	CHECK_INT(rdma_getaddrinfo(own_ip, "3", &hints, &info), 0);
	CHECK(!memcmp(info->ai_src_addr, &src, sizeof(src)));
	CHECK_INT(((struct sockaddr_in *)info->ai_dst_addr)->sin_port, htons(3));
	rdma_freeaddrinfo(info);
	rdma_freeaddrinfo(NULL);
}

/* The attributes of a queue pair that the program creates, on both sides and in every state. */
static void attributes_for_each_state(void)
{
	struct ends ends = routed(RDMA_PS_TCP);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	int mask = 0;

	CHECK_FAILS(rdma_init_qp_attr(ends.active, NULL, &mask), EINVAL);
	CHECK_INT(rdma_init_qp_attr(ends.active, &attr, &mask), 0);
	CHECK_INT(mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	CHECK_INT(attr.port_num, 1);
	CHECK_INT(attr.qp_access_flags, 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK_FAILS(rdma_init_qp_attr(ends.active, &attr, &mask), EINVAL);

	struct rdma_conn_param param = { .qp_num = 0x55, .responder_resources = 3,
					 .initiator_depth = 2, .retry_count = 5,
					 .rnr_retry_count = 4 };
	CHECK_INT(rdma_connect(ends.active, &param), 0);
	rdma_ack_cm_event(request(&ends));
	for (int side = 0; side < 2; side++) {
		struct rdma_cm_id *id = side ? ends.active : ends.passive;
		attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT };
		CHECK_INT(rdma_init_qp_attr(id, &attr, &mask), 0);
		CHECK_INT(attr.qp_access_flags, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
						IBV_ACCESS_REMOTE_ATOMIC);
		attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR };
		CHECK_INT(rdma_init_qp_attr(id, &attr, &mask), 0);
		CHECK_INT(mask, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
		CHECK_INT(attr.dest_qp_num, side ? 0x66 : 0x55);
		/* The passive side's responder depth is the active side's initiator depth, and vice
		 * versa. */
		CHECK_INT(attr.max_dest_rd_atomic, side ? 3 : 2);
		CHECK_INT(attr.min_rnr_timer, 0);
		CHECK_INT(attr.ah_attr.is_global, 1);
		uint32_t rq_psn = attr.rq_psn;
		attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS };
		CHECK_INT(rdma_init_qp_attr(id, &attr, &mask), 0);
		CHECK_INT(mask, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
		CHECK_INT(attr.timeout, 17);
		CHECK_INT(attr.retry_cnt, 5);
		CHECK_INT(attr.rnr_retry, side ? 6 : 4);
		/*= RC-LIM-03 type=test */
		CHECK_INT(attr.max_rd_atomic, side ? 2 : 3);
		/* The initial send PSN of one side is the receive PSN of the other. */
		static uint32_t first_sq_psn, first_rq_psn;
		if (!side) {
			first_sq_psn = attr.sq_psn;
			first_rq_psn = rq_psn;
			param.qp_num = 0x66;
			param.rnr_retry_count = 6;
			param.responder_resources = 2;
			param.initiator_depth = 3;
			CHECK_INT(rdma_accept(id, &param), 0);
			pass(ends.client, RDMA_CM_EVENT_CONNECT_RESPONSE);
		} else {
			CHECK_INT(attr.sq_psn, first_rq_psn);
			CHECK_INT(rq_psn, first_sq_psn);
		}
		attr.qp_state = IBV_QPS_SQD;
		CHECK_FAILS(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
		attr.qp_state = 77;
		CHECK_FAILS(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	}
	CHECK_INT(rdma_establish(ends.active), 0);
	pass(ends.server, RDMA_CM_EVENT_ESTABLISHED);
	CHECK_INT(rdma_disconnect(ends.active), 0);
	pass(ends.server, RDMA_CM_EVENT_DISCONNECTED);
	CHECK_INT(rdma_disconnect(ends.passive), 0);
	pass(ends.client, RDMA_CM_EVENT_DISCONNECTED);
	finish(&ends);

	/* Datagrams have the Q_Key of the service, and no peer. */
	ends = routed(RDMA_PS_UDP);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT };
	CHECK_INT(rdma_init_qp_attr(ends.active, &attr, &mask), 0);
	CHECK_INT(mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	CHECK_INT(attr.qkey, RDMA_UDP_QKEY);
	finish(&ends);
}

/* The thread that is expected to wait. */
static volatile pid_t waits_as;

/* Stores the ID of this thread. */
static void waits_from_here(void)
{
	waits_as = (pid_t)syscall(SYS_gettid);
}

/* Returns when that thread sleeps in the kernel. */
static void wait_until_it_waits(void)
{
	while (!waits_as)
		sched_yield();
	wait_until_asleep(waits_as);
	waits_as = 0;
}

struct migration {
	struct rdma_cm_id *id;
	struct rdma_event_channel *to;
	volatile int done;
};

static void *migrate(void *argument)
{
	struct migration *job = argument;
	waits_from_here();
	CHECK_INT(rdma_migrate_id(job->id, job->to), 0);
	job->done = 1;
	return NULL;
}

/* Pending events move to the new channel. An event that was read has to be acknowledged before. */
static void channels_are_changed(void)
{
	struct ends ends = channels(RDMA_PS_TCP);
	struct rdma_event_channel *third = rdma_create_event_channel();
	struct sockaddr_in addr = at_port(0);
	CHECK_INT(rdma_bind_addr(ends.listener, (struct sockaddr *)&addr), 0);
	CHECK_INT(rdma_listen(ends.listener, 0), 0);

	struct rdma_cm_id *id;
	CHECK_FAILS(rdma_get_request(ends.listener, &id), EINVAL);

	CHECK_INT(rdma_resolve_addr(ends.active, NULL, rdma_get_local_addr(ends.listener), 9), 0);
	CHECK_INT(rdma_migrate_id(ends.active, third), 0);
	CHECK(ends.active->channel == third);
	no_event(ends.client);
	struct rdma_cm_event *event = expect(third, RDMA_CM_EVENT_ADDR_RESOLVED);

	struct migration job = { .id = ends.active, .to = ends.client };
	pthread_t thread;
	CHECK_INT(pthread_create(&thread, NULL, migrate, &job), 0);
	wait_until_it_waits();
	CHECK(!job.done);
	CHECK_INT(rdma_ack_cm_event(event), 0);
	CHECK_INT(pthread_join(thread, NULL), 0);
	CHECK(job.done && ends.active->channel == ends.client);

	/* Changes to synchronous mode and back. */
	CHECK_INT(rdma_migrate_id(ends.active, NULL), 0);
	CHECK(ends.active->channel && ends.active->channel != ends.client);
	CHECK_FAILS(rdma_migrate_id(ends.active, NULL), EINVAL);
	CHECK_INT(rdma_resolve_route(ends.active, 9), 0);
	CHECK_INT(ends.active->event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK_INT(rdma_migrate_id(ends.active, third), 0);
	CHECK(!ends.active->event);
	struct rdma_conn_param param = { .qp_num = 1 };
	CHECK_INT(rdma_connect(ends.active, &param), 0);
	rdma_ack_cm_event(request(&ends));
	CHECK_INT(rdma_reject(ends.passive, NULL, 0), 0);
	pass(third, RDMA_CM_EVENT_REJECTED);
	finish(&ends);
	rdma_destroy_event_channel(third);
}

/* A listening thread that rejects the first request and accepts the next ones. */
static void *rejects_then_accepts(void *argument)
{
	struct rdma_cm_id *listener = argument, *id;
	CHECK_INT(rdma_get_request(listener, &id), 0);
	CHECK_INT(id->event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(id->event->listen_id == listener);
	CHECK(id->qp && id->recv_cq && id->send_cq);
	CHECK(!strcmp(id->event->param.conn.private_data, "one"));
	CHECK_INT(rdma_reject(id, "no", 3), 0);
	rdma_destroy_ep(id);
	CHECK_INT(rdma_get_request(listener, &id), 0);
	CHECK(!strcmp(id->event->param.conn.private_data, "two"));
	CHECK_INT(rdma_accept(id, NULL), 0);
	CHECK_INT(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
	/* The peer disconnects. This side also disconnects, and its call returns the event that has
	 * arrived. */
	CHECK_INT(rdma_disconnect(id), 0);
	CHECK_INT(id->event->event, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_ep(id);
	return NULL;
}

static void synchronous_calls_fail_as_events_say(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *info;
	struct ibv_qp_init_attr attr = small_attr(0);
	struct rdma_cm_id *listener, *id;
	char port[16];

	CHECK_INT(rdma_getaddrinfo(own_ip, NULL, &hints, &info), 0);
	CHECK_INT(rdma_create_ep(&listener, info, NULL, &attr), 0);
	rdma_freeaddrinfo(info);
	CHECK(!listener->qp);
	CHECK_INT(rdma_listen(listener, 0), 0);
	snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(listener)));
	pthread_t thread;
	CHECK_INT(pthread_create(&thread, NULL, rejects_then_accepts, listener), 0);

	hints.ai_flags = 0;
	CHECK_INT(rdma_getaddrinfo(own_ip, port, &hints, &info), 0);
	CHECK_INT(rdma_create_ep(&id, info, NULL, &attr), 0);
	CHECK(id->qp && id->pd);
	struct rdma_conn_param param = { .private_data = "one", .private_data_len = 4 };
	CHECK_FAILS(rdma_connect(id, &param), ECONNREFUSED);
	CHECK_INT(id->event->event, RDMA_CM_EVENT_REJECTED);
	CHECK_INT(id->event->status, 28);
	CHECK(!strcmp(id->event->param.conn.private_data, "no"));
	CHECK_FAILS(rdma_connect(id, &param), EINVAL);
	rdma_destroy_ep(id);

	/* The data of `ai_connect` precede the private data of the next connection only. */
	info->ai_connect = strdup("tw");
	info->ai_connect_len = 2;
	CHECK_INT(rdma_create_ep(&id, info, NULL, &attr), 0);
	param.private_data = "o";
	param.private_data_len = 2;
	CHECK_INT(rdma_connect(id, &param), 0);
	CHECK_INT(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
	CHECK_INT(rdma_disconnect(id), 0);
	CHECK_INT(id->event->event, RDMA_CM_EVENT_DISCONNECTED);
	CHECK_INT(pthread_join(thread, NULL), 0);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(info);
	rdma_destroy_ep(listener);

	/* Without a listener, the event has the reason. Without a host, no route is found. */
	CHECK_INT(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	struct sockaddr_in addr = at_port(9);
	CHECK_INT(rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 2000), 0);
	CHECK_INT(id->event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK_INT(rdma_resolve_route(id, 2000), 0);
	CHECK_INT(rdma_create_qp(id, NULL, &attr), 0);
	CHECK_FAILS(rdma_create_qp(id, NULL, &attr), EINVAL);
	CHECK_FAILS(rdma_connect(id, NULL), ECONNREFUSED);
	CHECK_INT(id->event->status, 8);
	rdma_destroy_qp(id);
	CHECK_INT(rdma_destroy_id(id), 0);
}

struct taken {
	struct rdma_cm_id *id;
	volatile int done;
};

static void *end_id(void *argument)
{
	struct taken *taken = argument;
	waits_from_here();
	CHECK_INT(rdma_destroy_id(taken->id), 0);
	taken->done = 1;
	return NULL;
}

/* Destroying an ID waits for the acknowledgement of its events. A request counts as an event of the
 * listener. */
static void identifiers_outlive_no_event(void)
{
	struct ends ends = routed(RDMA_PS_TCP);
	struct rdma_conn_param param = { .qp_num = 1 };
	CHECK_INT(rdma_connect(ends.active, &param), 0);
	struct rdma_cm_event *event = request(&ends);
	CHECK_INT(rdma_destroy_id(ends.passive), 0);
	ends.passive = NULL;
	struct taken taken = { .id = ends.listener };
	pthread_t thread;
	CHECK_INT(pthread_create(&thread, NULL, end_id, &taken), 0);
	wait_until_it_waits();
	CHECK(!taken.done);
	CHECK_INT(rdma_ack_cm_event(event), 0);
	CHECK_INT(pthread_join(thread, NULL), 0);
	event = expect(ends.client, RDMA_CM_EVENT_REJECTED);
	CHECK_INT(event->status, 28);
	rdma_ack_cm_event(event);
	CHECK_INT(rdma_destroy_id(ends.active), 0);
	rdma_destroy_event_channel(ends.client);
	rdma_destroy_event_channel(ends.server);
}

/* The devices stay open after the list is freed, and IDs use the same ones. */
static void devices_stay_open(void)
{
	int count = -1, same;
	struct ibv_context **list = rdma_get_devices(&count), **again;
	CHECK(list && count == 1 && list[0] && !list[1]);
	struct ibv_context *first = list[0];
	rdma_free_devices(list);
	struct ibv_device_attr attr;
	CHECK_INT(ibv_query_device(first, &attr), 0);
	again = rdma_get_devices(&same);
	CHECK(again && same == 1 && again[0] == first);
	rdma_free_devices(again);
	again = rdma_get_devices(NULL);
	CHECK(again && again[0] == first);
	rdma_free_devices(again);
	struct ends ends = routed(RDMA_PS_TCP);
	CHECK(ends.active->verbs == first && ends.listener->verbs == first);
	finish(&ends);
}

/* A program may use the count alone. */
static void there_are_no_devices_where_asking_fails(void)
{
	setenv("ROCADE_LINK", "no such link", 1);
	for (int i = 0; i < 2; i++) {
		int count = -1;
		errno = 0;
		CHECK(!rdma_get_devices(&count));
		CHECK_INT(count, 0);
		CHECK(errno);
		CHECK(!rdma_get_devices(NULL));
	}
}

static void *wait_for_ever(void *channel)
{
	struct rdma_cm_event *event;
	waits_from_here();
	rdma_get_cm_event(channel, &event);
	CHECK(!"there was no event");
	return NULL;
}

static void do_nothing(int number)
{
	(void)number;
}

/* rping destroys its channel while its thread waits in it. The thread continues to wait, even if
 * the memory is reused. */
static void a_channel_ends_under_a_waiter(void)
{
	struct sigaction action = { .sa_handler = do_nothing, .sa_flags = SA_RESTART };
	CHECK_INT(sigaction(SIGUSR1, &action, NULL), 0);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	pthread_t thread;
	CHECK_INT(pthread_create(&thread, NULL, wait_for_ever, channel), 0);
	while (!waits_as)
		sched_yield();
	wait_until_asleep(waits_as);
	rdma_destroy_event_channel(channel);
	/* However many others end, the memory that it looks at is kept. */
	for (int i = 0; i < 200; i++)
		rdma_destroy_event_channel(rdma_create_event_channel());
	/* Other allocations reuse the memory. */
	for (int i = 0; i < 4096; i++) {
		size_t length = 8 + i % 512;
		memset(malloc(length), 0xff, length);
	}
	for (int i = 0; i < 100; i++) {
		CHECK_INT(pthread_kill(thread, SIGUSR1), 0);
		wait_until_asleep(waits_as);
	}
}

/* A call may start after the end of its channel. It sleeps as well, or fails on a non-blocking
 * channel. */
static void a_call_comes_too_late_for_its_channel(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	rdma_destroy_event_channel(channel);
	for (int i = 0; i < 4096; i++) {
		size_t length = 8 + i % 512;
		memset(malloc(length), 0xff, length);
	}
	pthread_t thread;
	CHECK_INT(pthread_create(&thread, NULL, wait_for_ever, channel), 0);
	while (!waits_as)
		sched_yield();
	wait_until_asleep(waits_as);
	channel = rdma_create_event_channel();
	CHECK(channel);
	CHECK_INT(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
	rdma_destroy_event_channel(channel);
	struct rdma_cm_event *event;
	CHECK_INT(rdma_get_cm_event(channel, &event), -1);
	CHECK_INT(errno, EBADF);
}

/* A call may start at the same moment. */
static void a_channel_ends_while_a_call_begins(void)
{
	for (int round = 0; round < 200; round++) {
		struct rdma_event_channel *channel = rdma_create_event_channel();
		CHECK(channel);
		waits_as = 0;
		pthread_t thread;
		CHECK_INT(pthread_create(&thread, NULL, wait_for_ever, channel), 0);
		while (!waits_as)
			;
		for (volatile int wait = 0; wait < round * 20; wait++)
			;
		rdma_destroy_event_channel(channel);
		wait_until_asleep(waits_as);
	}
}

/* A thread may be about to use the pointer of a channel that another one destroys. So of 64
 * channels that are made and destroyed, no two have the same address. */
static void an_address_of_a_channel_is_not_used_again_soon(void)
{
	struct rdma_event_channel *seen[64];
	for (int i = 0; i < 64; i++) {
		seen[i] = rdma_create_event_channel();
		CHECK(seen[i]);
		for (int before = 0; before < i; before++)
			CHECK(seen[before] != seen[i]);
		rdma_destroy_event_channel(seen[i]);
	}
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "a_call_comes_too_late_for_its_channel", a_call_comes_too_late_for_its_channel },
		{ "a_channel_ends_while_a_call_begins", a_channel_ends_while_a_call_begins },
		{ "an_address_of_a_channel_is_not_used_again_soon",
		  an_address_of_a_channel_is_not_used_again_soon },
		{ "a_channel_ends_under_a_waiter", a_channel_ends_under_a_waiter },
		{ "enhanced_establishment", enhanced_establishment },
		{ "addresses_of_infiniband", addresses_of_infiniband },
		{ "a_path_from_elsewhere", a_path_from_elsewhere },
		{ "options_are_checked", options_are_checked },
		{ "addresses_by_hints", addresses_by_hints },
		{ "attributes_for_each_state", attributes_for_each_state },
		{ "channels_are_changed", channels_are_changed },
		{ "synchronous_calls_fail_as_events_say", synchronous_calls_fail_as_events_say },
		{ "identifiers_outlive_no_event", identifiers_outlive_no_event },
		{ "devices_stay_open", devices_stay_open },
		{ "there_are_no_devices_where_asking_fails", there_are_no_devices_where_asking_fails },
		{ 0 },
	};
	return run_cm_case(cases, argc, argv);
}
