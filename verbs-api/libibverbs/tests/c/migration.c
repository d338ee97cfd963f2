/* Devices with two ports, and QPs that migrate between them. */
#include "rig.h"

/* Gives the device a second port. Its address differs from the first one in the second byte.
 * Packets of the first port are lost from the `dies_at`th on. */
static struct rig two_ports(int dies_at)
{
	unsigned byte[4];
	char devices[64], fault[64];
	const char *ip = getenv("ROCADE_IP");
	CHECK(ip && sscanf(ip, "%u.%u.%u.%u", &byte[0], &byte[1], &byte[2], &byte[3]) == 4);
	snprintf(devices, sizeof(devices), "dev=%s+%u.%u.%u.%u", ip, byte[0], byte[1] & 0x7f, byte[2],
		 byte[3]);
	snprintf(fault, sizeof(fault), "drop ip=%s nth=%d..", ip, dies_at);
	if (dies_at)
		setenv("ROCADE_FAULT", fault, 1);
	unsetenv("ROCADE_IP");
	setenv("ROCADE_DEVICES", devices, 1);
	return rig_open();
}

static struct ibv_ah_attr path_over(struct ibv_context *context, uint8_t port)
{
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = port, .grh.hop_limit = 64 };
	CHECK_INT(ibv_query_gid(context, port, 0, &ah.grh.dgid), 0);
	return ah;
}

static void rearm(struct ibv_qp *qp, uint8_t port)
{
	struct ibv_qp_attr attr = {
		.path_mig_state = IBV_MIG_REARM,
		.alt_ah_attr = path_over(qp->context, port),
		.alt_port_num = port,
		.alt_timeout = 16,
	};
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE), 0);
}

static struct ibv_qp_attr query(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK_INT(ibv_query_qp(qp, &attr, IBV_QP_PATH_MIG_STATE | IBV_QP_AV | IBV_QP_ALT_PATH, &init), 0);
	return attr;
}

/* Sends a message from a to b. It arrives complete and once. */
static void talk(struct rig *r, uint64_t number)
{
	post_receive(r, number);
	memset(r->buffer, (int)number, 16);
	post_send(r, number);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next_completion(r->cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		CHECK_INT(wc.wr_id, number);
	}
	struct ibv_wc more;
	CHECK_INT(ibv_poll_cq(r->cq, 1, &more), 0);
	CHECK_INT(r->buffer[4096 + 15], (char)number);
}

static void arm(struct rig *r, uint8_t port)
{
	rearm(r->a, port);
	rearm(r->b, port);
	CHECK_INT(query(r->a).path_mig_state, IBV_MIG_REARM);
	talk(r, 1);
	CHECK_INT(query(r->a).path_mig_state, IBV_MIG_ARMED);
	CHECK_INT(query(r->b).path_mig_state, IBV_MIG_ARMED);
}

/* Checks that both QPs reported the migration once, and are on `port`. */
static void check_both_moved(struct rig *r, uint8_t port)
{
	struct ibv_qp *first = NULL;
	for (int i = 0; i < 2; i++) {
		struct ibv_async_event event;
		CHECK_INT(ibv_get_async_event(r->context, &event), 0);
		CHECK_INT(event.event_type, IBV_EVENT_PATH_MIG);
		CHECK(event.element.qp == r->a || event.element.qp == r->b);
		CHECK(event.element.qp != first);
		first = event.element.qp;
		ibv_ack_async_event(&event);
	}
	CHECK(!is_readable(r->context->async_fd));
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = query(i ? r->a : r->b);
		CHECK_INT(attr.path_mig_state, IBV_MIG_MIGRATED);
		CHECK_INT(attr.port_num, port);
		CHECK_INT(attr.ah_attr.port_num, port);
		CHECK_INT(attr.timeout, 16);
		CHECK_INT(attr.alt_port_num, 0);
		struct ibv_ah_attr wanted = path_over(r->context, port);
		CHECK(!memcmp(&attr.ah_attr.grh.dgid, &wanted.grh.dgid, sizeof(wanted.grh.dgid)));
	}
}

static void a_device_has_two_ports(void)
{
	struct rig r = two_ports(0);
	struct ibv_device_attr device;
	struct ibv_port_attr port;
	struct ibv_gid_entry table[4];
	CHECK_INT(ibv_query_device(r.context, &device), 0);
	CHECK_INT(device.phys_port_cnt, 2);
	CHECK(device.device_cap_flags & IBV_DEVICE_AUTO_PATH_MIG);
	CHECK_INT(ibv_query_port(r.context, 1, &port), 0);
	CHECK_INT(ibv_query_port(r.context, 2, &port), 0);
	CHECK_INT(port.state, IBV_PORT_ACTIVE);
	CHECK_INT(port.gid_tbl_len, 1);
	CHECK_INT(ibv_query_port(r.context, 3, &port), EINVAL);
	CHECK_INT(ibv_query_gid_table(r.context, table, 1, 0), -EINVAL);
	CHECK_INT(ibv_query_gid_table(r.context, table, 4, 0), 2);
	for (int i = 0; i < 2; i++) {
		struct ibv_gid_entry entry;
		union ibv_gid gid;
		CHECK_INT(table[i].port_num, i + 1);
		CHECK_INT(table[i].gid_index, 0);
		CHECK_INT(ibv_query_gid_ex(r.context, i + 1, 0, &entry, 0), 0);
		CHECK(!memcmp(&entry, &table[i], sizeof(entry)));
		CHECK_INT(ibv_query_gid(r.context, i + 1, 0, &gid), 0);
		CHECK(!memcmp(&gid, &table[i].gid, sizeof(gid)));
	}
	CHECK(memcmp(&table[0].gid, &table[1].gid, sizeof(table[0].gid)));
	/* Address handles and QPs belong to one port. */
	struct ibv_ah_attr over = path_over(r.context, 2);
	struct ibv_ah *ah = ibv_create_ah(r.pd, &over);
	CHECK(ah);
	CHECK_INT(ibv_destroy_ah(ah), 0);
	over.port_num = 3;
	CHECK(!ibv_create_ah(r.pd, &over) && errno == EINVAL);
	struct ibv_qp_attr wrong = {
		.alt_ah_attr = path_over(r.context, 2),
		.alt_port_num = 1,
	};
	CHECK_INT(ibv_modify_qp(r.a, &wrong, IBV_QP_ALT_PATH), EINVAL);
	wrong.alt_port_num = 3;
	wrong.alt_ah_attr.port_num = 3;
	CHECK_INT(ibv_modify_qp(r.a, &wrong, IBV_QP_ALT_PATH), EINVAL);
	wrong.alt_port_num = 2;
	wrong.alt_ah_attr.port_num = 2;
	wrong.alt_ah_attr.grh.sgid_index = 1;
	CHECK_INT(ibv_modify_qp(r.a, &wrong, IBV_QP_ALT_PATH), EINVAL);
	wrong.alt_ah_attr.grh.sgid_index = 0;
	CHECK_INT(ibv_modify_qp(r.a, &wrong, IBV_QP_ALT_PATH), 0);
	rig_close(&r);
}

/*= RC-APM-05 RC-APM-06 AEV-06 type=test */
static void a_path_that_fails_is_left(void)
{
	struct rig r = two_ports(25);
	arm(&r, 2);
	for (uint64_t number = 2; number < 40; number++)
		talk(&r, number);
	check_both_moved(&r, 2);
	rig_close(&r);
}

/*= RC-APM-03 RC-APM-10 type=test */
static void a_program_asks_for_a_migration(void)
{
	struct rig r = two_ports(0);
	arm(&r, 2);
	for (int round = 0; round < 4; round++) {
		struct ibv_qp_attr attr = { .path_mig_state = IBV_MIG_MIGRATED };
		struct ibv_qp *who = round % 2 ? r.b : r.a;
		CHECK_INT(ibv_modify_qp(who, &attr, IBV_QP_PATH_MIG_STATE), 0);
		/* Its next packet tells the peer, whether it is a request or a response. */
		if (who == r.b) {
			struct ibv_send_wr wr = { .wr_id = 99, .opcode = IBV_WR_SEND,
						  .send_flags = IBV_SEND_SIGNALED }, *bad;
			struct ibv_recv_wr receive = { .wr_id = 99 }, *bad_receive;
			CHECK_INT(ibv_post_recv(r.a, &receive, &bad_receive), 0);
			CHECK_INT(ibv_post_send(r.b, &wr, &bad), 0);
			CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
			CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
		}
		talk(&r, 50 + round);
		check_both_moved(&r, round % 2 ? 1 : 2);
		/* A path that was used up cannot be rearmed. */
		attr.path_mig_state = IBV_MIG_REARM;
		CHECK_INT(ibv_modify_qp(who, &attr, IBV_QP_PATH_MIG_STATE), EINVAL);
		arm(&r, round % 2 ? 2 : 1);
	}
	rig_close(&r);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "a_device_has_two_ports", a_device_has_two_ports },
		{ "a_path_that_fails_is_left", a_path_that_fails_is_left },
		{ "a_program_asks_for_a_migration", a_program_asks_for_a_migration },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
