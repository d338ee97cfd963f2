/* Fault rules for devices and ports, as a C program sees them. */
#include "rig.h"

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

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "a_port_goes_down_and_up", a_port_goes_down_and_up },
		{ "a_port_stays_down", a_port_stays_down },
		{ "tables_and_speed_change", tables_and_speed_change },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
