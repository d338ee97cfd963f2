/* Fault rules for devices and ports, as a C program sees them. */
#include "groups.h"
#include "rig.h"

#include <sys/wait.h>

/* Sets the rules. Has to come before the first verb of the process. */
static void set_rules(const char *rules)
{
	CHECK_INT(setenv("ROCADE_FAULT", rules, 1), 0);
}

/* Waits for the next event, which has to be this one of port 1. */
static void await_event(struct ibv_context *context, int type)
{
	struct ibv_async_event event;
	CHECK_INT(ibv_get_async_event(context, &event), 0);
	CHECK_INT(event.event_type, type);
	CHECK_INT(event.element.port_num, 1);
	ibv_ack_async_event(&event);
}

static struct ibv_port_attr port_of(struct ibv_context *context)
{
	struct ibv_port_attr port;
	CHECK_INT(ibv_query_port(context, 1, &port), 0);
	return port;
}

/* The states are those that RoCE drivers of the kernel report for an interface without carrier. */
static void a_port_goes_down_and_up(void)
{
	set_rules("port-down at=100ms for=400ms");
	struct rig r = rig_open();
	await_event(r.context, IBV_EVENT_PORT_ERR);
	struct ibv_port_attr port = port_of(r.context);
	CHECK_INT(port.state, IBV_PORT_DOWN);
	CHECK_INT(port.phys_state, 3);
	post_receive(&r, 1);
	post_send(&r, 2);
	await_event(r.context, IBV_EVENT_PORT_ACTIVE);
	port = port_of(r.context);
	CHECK_INT(port.state, IBV_PORT_ACTIVE);
	CHECK_INT(port.phys_state, 5);
	/* The QP has retried, and its message arrives. */
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	rig_close(&r);
}

static void a_port_stays_down(void)
{
	set_rules("port-down at=50ms");
	struct rig r = rig_open();
	await_event(r.context, IBV_EVENT_PORT_ERR);
	post_send(&r, 2);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_RETRY_EXC_ERR);
	rig_close(&r);
}

static void tables_and_speed_change(void)
{
	set_rules("gid-add gid=192.0.2.77 at=100ms; pkey-change pkey=0x8001 at=200ms;"
		  "speed-change gbit=25 at=300ms; gid-remove index=0 at=400ms");
	struct ibv_context *context = open_device();
	struct ibv_port_attr before = port_of(context);
	CHECK_INT(before.active_width, 2);
	CHECK_INT(before.active_speed, 32);
	await_event(context, IBV_EVENT_GID_CHANGE);
	CHECK_INT(port_of(context).gid_tbl_len, before.gid_tbl_len + 1);
	union ibv_gid gid;
	CHECK_INT(ibv_query_gid(context, 1, before.gid_tbl_len, &gid), 0);
	static const unsigned char added[4] = { 192, 0, 2, 77 };
	CHECK(!memcmp(gid.raw + 12, added, 4));
	await_event(context, IBV_EVENT_PKEY_CHANGE);
	uint16_t pkey;
	CHECK_INT(ibv_query_pkey(context, 1, 0, &pkey), 0);
	CHECK_INT(be16toh(pkey), 0x8001);
	/* IBV_EVENT_DEVICE_SPEED_CHANGE is not in older headers. */
	await_event(context, 20);
	CHECK_INT(port_of(context).active_width, 1);
	CHECK_INT(port_of(context).active_speed, 32);
	await_event(context, IBV_EVENT_GID_CHANGE);
	struct ibv_gid_entry entry;
	CHECK_INT(ibv_query_gid_ex(context, 1, 0, &entry, 0), ENODATA);
	CHECK_INT(ibv_close_device(context), 0);
}

/* A datagram to a group is lost while the port is down, and its sender does not know. */
static void a_multicast_group_stops_with_the_port(void)
{
	set_rules("port-down at=300ms for=400ms");
	struct rig r = rig_open();
	struct ibv_qp_init_attr init = small_qp(r.cq);
	init.qp_type = IBV_QPT_UD;
	struct ibv_qp *qp = ibv_create_qp(r.pd, &init);
	CHECK(qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_QKEY), 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_INT(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	struct ibv_ah_attr to = path_to_self(r.context);
	to.grh.dgid = own_group();
	CHECK_INT(ibv_attach_mcast(qp, &to.grh.dgid, 0), 0);
	struct ibv_ah *ah = ibv_create_ah(r.pd, &to);
	CHECK(ah);
	await_event(r.context, IBV_EVENT_PORT_ERR);
	for (uint32_t turn = 0; turn < 2; turn++) {
		struct ibv_sge sge = sge_at(&r, 1024, 100);
		struct ibv_recv_wr receive = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 }, *bad_receive;
		CHECK_INT(ibv_post_recv(qp, &receive, &bad_receive), 0);
		struct ibv_sge data = sge_at(&r, 0, 16);
		struct ibv_send_wr wr = { .wr_id = 6, .sg_list = &data, .num_sge = 1,
					  .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(turn),
					  .send_flags = IBV_SEND_SIGNALED }, *bad;
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = 0xffffff;
		wr.wr.ud.remote_qkey = 7;
		CHECK_INT(ibv_post_send(qp, &wr, &bad), 0);
		struct ibv_wc wc = next_completion(r.cq);
		CHECK_INT(wc.wr_id, 6);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		if (!turn)
			await_event(r.context, IBV_EVENT_PORT_ACTIVE);
	}
	struct ibv_wc wc = next_completion(r.cq);
	CHECK_INT(wc.wr_id, 5);
	CHECK_INT(ntohl(wc.imm_data), 1);
	CHECK_INT(ibv_poll_cq(r.cq, 1, &wc), 0);
	CHECK_INT(ibv_destroy_ah(ah), 0);
	CHECK_INT(ibv_detach_mcast(qp, &to.grh.dgid, 0), 0);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	rig_close(&r);
}

/* Waits until a file has this line. */
static void await_line(const char *path, const char *wanted)
{
	for (;;) {
		char line[64] = "";
		FILE *file = fopen(path, "r");
		if (file) {
			CHECK(fgets(line, sizeof(line), file));
			fclose(file);
		}
		if (!strcmp(line, wanted))
			return;
		usleep(1000);
	}
}

/* Waits until a path leads nowhere, or until it leads to something. */
static void await_path(const char *path, int there)
{
	while ((access(path, F_OK) == 0) != there)
		usleep(1000);
}

/* The files that `rocade run` makes for a device, as far as this test reads them. */
static void the_files_of_a_port_follow(void)
{
	char root[] = "/tmp/rocade-sysfs-XXXXXX", path[512], state[256], carrier[512], link[200];
	CHECK(mkdtemp(root));
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	const char *name = ibv_get_device_name(list[0]);
	int child = fork();
	CHECK(child >= 0);
	if (child) {
		int status;
		CHECK_INT(waitpid(child, &status, 0), child);
		CHECK_INT(status, 0);
		snprintf(path, sizeof(path), "rm -r %s", root);
		CHECK_INT(system(path), 0);
		return;
	}
	snprintf(path, sizeof(path), "mkdir -p %s/sys/class/infiniband %s/sys/class/net/lo "
		 "%s/sys/devices/rocade/hca/%s/infiniband/%s/ports/1/counters "
		 "%s/sys/devices/rocade/net/lo", root, root, root, name, name, root);
	CHECK_INT(system(path), 0);
	for (const char **dir = (const char *[]){ "gids", "gid_attrs/types", "gid_attrs/ndevs", "pkeys",
						  "hw_counters", NULL }; *dir; dir++) {
		snprintf(path, sizeof(path), "mkdir -p %s/sys/devices/rocade/hca/%s/infiniband/%s/ports/1/%s",
			 root, name, name, *dir);
		CHECK_INT(system(path), 0);
	}
	snprintf(link, sizeof(link), "%s/sys/class/infiniband/%s", root, name);
	snprintf(path, sizeof(path), "../../devices/rocade/hca/%s/infiniband/%s", name, name);
	CHECK_INT(symlink(path, link), 0);
	snprintf(carrier, sizeof(carrier), "%s/sys/devices/rocade/net/lo/carrier", root);
	FILE *file = fopen(carrier, "w");
	CHECK(file && fputs("1\n", file) >= 0 && !fclose(file));
	snprintf(path, sizeof(path), "%s/sys/class/net/lo/carrier", root);
	CHECK_INT(symlink(carrier, path), 0);
	strcpy(carrier, path);

	snprintf(path, sizeof(path), "%s/sys/devices/rocade/hca", root);
	CHECK_INT(setenv("ROCADE_VIEW_COUNTERS", path, 1), 0);
	set_rules("port-down at=300ms for=500ms; device-remove at=1500ms for=500ms");
	struct ibv_context *context = open_device();
	snprintf(state, sizeof(state), "%s/ports/1/state", link);
	await_line(state, "4: ACTIVE\n");
	await_event(context, IBV_EVENT_PORT_ERR);
	await_line(state, "1: DOWN\n");
	await_line(carrier, "0\n");
	await_event(context, IBV_EVENT_PORT_ACTIVE);
	await_line(state, "4: ACTIVE\n");
	await_line(carrier, "1\n");
	await_path(link, 0);
	CHECK_INT(errno, ENOENT);
	await_path(link, 1);
	await_line(state, "4: ACTIVE\n");
	CHECK_INT(ibv_close_device(context), 0);
	exit(0);
}

static void await_fatal(struct ibv_context *context)
{
	struct ibv_async_event event;
	CHECK_INT(ibv_get_async_event(context, &event), 0);
	CHECK_INT(event.event_type, IBV_EVENT_DEVICE_FATAL);
	ibv_ack_async_event(&event);
}

static int device_count(void)
{
	int count = -1;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list);
	ibv_free_device_list(list);
	return count;
}

/* What the kernel and mlx5 make of a device that is unplugged: EIO of rdma_lookup_get_uobject but
 * for destroying, EIO of ib_uverbs_event_read for a thread that waits, and queues in the memory of
 * the program. */
static void a_removed_device_answers_with_eio(void)
{
	set_rules("device-remove at=200ms");
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	struct ibv_device *device = list[0];
	struct rig r = rig_open();
	post_receive(&r, 1);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(r.pd, &shared);
	CHECK(srq);
	CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
	struct ibv_cq *cq;
	void *cq_context;
	errno = 0;
	CHECK_INT(ibv_get_cq_event(r.channel, &cq, &cq_context), -1);
	CHECK_INT(errno, EIO);
	await_fatal(r.context);

	struct ibv_port_attr port;
	CHECK_INT(ibv_query_port(r.context, 1, &port), EIO);
	struct ibv_device_attr attr;
	CHECK_INT(ibv_query_device(r.context, &attr), EIO);
	struct ibv_device_attr_ex attr_ex;
	CHECK_INT(ibv_query_device_ex(r.context, NULL, &attr_ex), EIO);
	union ibv_gid gid;
	CHECK_INT(ibv_query_gid(r.context, 1, 0, &gid), -1);
	struct ibv_gid_entry entry;
	CHECK_INT(ibv_query_gid_ex(r.context, 1, 0, &entry, 0), EIO);
	CHECK_INT(ibv_query_gid_table(r.context, &entry, 1, 0), -EIO);
	uint16_t pkey;
	CHECK_INT(ibv_query_pkey(r.context, 1, 0, &pkey), -1);
	struct ibv_qp_attr qp_attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init = small_qp(r.cq);
	CHECK_INT(ibv_modify_qp(r.a, &qp_attr, IBV_QP_STATE), EIO);
	CHECK_INT(ibv_query_qp(r.a, &qp_attr, IBV_QP_STATE, &init), EIO);
	struct ibv_srq_attr srq_attr;
	CHECK_INT(ibv_query_srq(srq, &srq_attr), EIO);
	errno = 0;
	CHECK(!ibv_alloc_pd(r.context));
	CHECK_INT(errno, EIO);
	errno = 0;
	CHECK(!ibv_reg_mr(r.pd, r.buffer, 64, IBV_ACCESS_LOCAL_WRITE));
	CHECK_INT(errno, EIO);
	CHECK(!ibv_create_qp(r.pd, &init) && !ibv_create_cq(r.context, 1, NULL, NULL, 0));
	CHECK(!ibv_create_comp_channel(r.context));

	for (int i = 0; i < 16; i++)
		post_send(&r, i);
	struct ibv_sge sge = sge_at(&r, 0, 16);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	CHECK_INT(ibv_post_send(r.a, &wr, &bad), ENOMEM);
	post_receive(&r, 2);
	struct ibv_wc wc;
	CHECK_INT(ibv_poll_cq(r.cq, 1, &wc), 0);
	CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);

	CHECK_INT(device_count(), 0);
	errno = 0;
	CHECK(!ibv_open_device(device));
	CHECK_INT(errno, ENODEV);
	ibv_free_device_list(list);
	CHECK_INT(ibv_destroy_srq(srq), 0);
	rig_close(&r);
}

static void a_removed_device_comes_back(void)
{
	set_rules("device-remove at=200ms for=500ms");
	struct rig before = rig_open();
	await_fatal(before.context);
	CHECK_INT(device_count(), 0);
	while (device_count() == 0)
		usleep(1000);
	struct rig after = rig_open();
	post_receive(&after, 1);
	post_send(&after, 2);
	CHECK_INT(next_completion(after.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(next_completion(after.cq).status, IBV_WC_SUCCESS);
	struct ibv_port_attr port;
	CHECK_INT(ibv_query_port(before.context, 1, &port), EIO);
	rig_close(&before);
	CHECK(!is_readable(after.context->async_fd));
	rig_close(&after);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "a_port_goes_down_and_up", a_port_goes_down_and_up },
		{ "a_port_stays_down", a_port_stays_down },
		{ "tables_and_speed_change", tables_and_speed_change },
		{ "a_multicast_group_stops_with_the_port", a_multicast_group_stops_with_the_port },
		{ "the_files_of_a_port_follow", the_files_of_a_port_follow },
		{ "a_removed_device_answers_with_eio", a_removed_device_answers_with_eio },
		{ "a_removed_device_comes_back", a_removed_device_comes_back },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
