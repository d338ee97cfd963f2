/* Fault rules for calls of the connection manager. */
#include "cm_rig.h"

/* Each call fails once with the errno of its rule, has no effect, and succeeds when it is repeated.
 * librdmacm returns -1 and sets errno for all of them. */
static void each_call_fails_once(void)
{
	CHECK_INT(setenv("ROCADE_FAULT",
			 "fail verb=create_id errno=ENOMEM nth=1; fail verb=bind_addr errno=EADDRINUSE nth=1;"
			 "fail verb=listen errno=ENOBUFS nth=1; fail verb=resolve_addr errno=ENODEV nth=1;"
			 "fail verb=resolve_route errno=EHOSTUNREACH nth=1;"
			 "fail verb=create_qp errno=ENOMEM nth=1; fail verb=connect errno=ENETDOWN nth=1;"
			 "fail verb=accept errno=ECONNABORTED nth=1; fail verb=reject errno=EIO nth=1", 1), 0);
	struct ends ends = { .server = rdma_create_event_channel(),
			     .client = rdma_create_event_channel() };
	CHECK(ends.server && ends.client);
	CHECK_FAILS(rdma_create_id(ends.server, &ends.listener, NULL, RDMA_PS_TCP), ENOMEM);
	CHECK_INT(rdma_create_id(ends.server, &ends.listener, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_create_id(ends.client, &ends.active, NULL, RDMA_PS_TCP), 0);

	struct sockaddr_in addr = at_port(0);
	CHECK_FAILS(rdma_bind_addr(ends.listener, (struct sockaddr *)&addr), EADDRINUSE);
	CHECK_INT(rdma_bind_addr(ends.listener, (struct sockaddr *)&addr), 0);
	CHECK_FAILS(rdma_listen(ends.listener, 4), ENOBUFS);
	CHECK_INT(rdma_listen(ends.listener, 4), 0);
	struct sockaddr *to = rdma_get_local_addr(ends.listener);
	CHECK_FAILS(rdma_resolve_addr(ends.active, NULL, to, 2000), ENODEV);
	no_event(ends.client);
	CHECK_INT(rdma_resolve_addr(ends.active, NULL, to, 2000), 0);
	pass(ends.client, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK_FAILS(rdma_resolve_route(ends.active, 2000), EHOSTUNREACH);
	no_event(ends.client);
	CHECK_INT(rdma_resolve_route(ends.active, 2000), 0);
	pass(ends.client, RDMA_CM_EVENT_ROUTE_RESOLVED);

	struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
	CHECK_FAILS(rdma_create_qp(ends.active, NULL, &attr), ENOMEM);
	CHECK_INT(rdma_create_qp(ends.active, NULL, &attr), 0);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	CHECK_FAILS(rdma_connect(ends.active, &param), ENETDOWN);
	CHECK_INT(rdma_connect(ends.active, &param), 0);
	CHECK_INT(rdma_ack_cm_event(request(&ends)), 0);
	CHECK_INT(rdma_create_qp(ends.passive, NULL, &attr), 0);
	/* The QP is in the error state afterwards, as in rdma-core (rdma_accept of cma.c). */
	CHECK_FAILS(rdma_accept(ends.passive, &param), ECONNABORTED);
	struct ibv_qp_attr state;
	CHECK_INT(ibv_query_qp(ends.passive->qp, &state, IBV_QP_STATE, &attr), 0);
	CHECK_INT(state.qp_state, IBV_QPS_ERR);
	CHECK_FAILS(rdma_reject(ends.passive, NULL, 0), EIO);
	no_event(ends.client);
	CHECK_INT(rdma_reject(ends.passive, NULL, 0), 0);
	pass(ends.client, RDMA_CM_EVENT_REJECTED);
	rdma_destroy_qp(ends.active);
	rdma_destroy_qp(ends.passive);
	finish(&ends);
}

static void connect_ends(struct ends *ends)
{
	struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	CHECK_INT(rdma_create_qp(ends->active, NULL, &attr), 0);
	CHECK_INT(rdma_connect(ends->active, &param), 0);
	CHECK_INT(rdma_ack_cm_event(request(ends)), 0);
	CHECK_INT(rdma_create_qp(ends->passive, NULL, &attr), 0);
	CHECK_INT(rdma_accept(ends->passive, &param), 0);
	pass(ends->client, RDMA_CM_EVENT_ESTABLISHED);
	pass(ends->server, RDMA_CM_EVENT_ESTABLISHED);
}

static void destroy_ends(struct ends *ends)
{
	rdma_destroy_qp(ends->active);
	rdma_destroy_qp(ends->passive);
	finish(ends);
}

/* Long enough for a connection on a busy machine. */
#ifdef __aarch64__ /* usually emulated */
#define BEGINS "device-remove at=20s"
#else
#define BEGINS "device-remove at=5s"
#endif

/* cma_process_remove: each ID that is bound to the device gets the event. ucma_close_id: calls for
 * it fail with ENXIO afterwards, but for its destruction. */
static void a_removed_device_ends_its_ids(void)
{
	CHECK_INT(setenv("ROCADE_FAULT", BEGINS, 1), 0);
	struct ends ends = routed(RDMA_PS_TCP);
	connect_ends(&ends);
	/* Bound to all addresses, so to no device. */
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *all, *late;
	CHECK(channel);
	CHECK_INT(rdma_create_id(channel, &all, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_listen(all, 1), 0);
	CHECK(all->verbs == NULL);

	pass(ends.client, RDMA_CM_EVENT_DEVICE_REMOVAL);
	struct rdma_cm_id *told[2];
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_event *event = expect(ends.server, RDMA_CM_EVENT_DEVICE_REMOVAL);
		told[i] = event->id;
		CHECK_INT(rdma_ack_cm_event(event), 0);
	}
	CHECK(told[0] != told[1]);
	for (int i = 0; i < 2; i++)
		CHECK(told[i] == ends.listener || told[i] == ends.passive);
	no_event(channel);

	struct rdma_conn_param param = { .responder_resources = 1 };
	CHECK_FAILS(rdma_listen(ends.listener, 1), ENXIO);
	CHECK_FAILS(rdma_connect(ends.active, &param), ENXIO);
	/* The QP is modified first, which is a verb (rdma_disconnect of cma.c). */
	CHECK_FAILS(rdma_disconnect(ends.active), EIO);
	CHECK_INT(rdma_create_id(channel, &late, NULL, RDMA_PS_TCP), 0);
	struct sockaddr_in addr = at_port(0);
	CHECK_FAILS(rdma_bind_addr(late, (struct sockaddr *)&addr), ENODEV);
	int count = -1;
	struct ibv_context **list = rdma_get_devices(&count);
	CHECK(list && !list[0]);
	CHECK_INT(count, 0);
	rdma_free_devices(list);
	CHECK_INT(rdma_destroy_id(late), 0);
	CHECK_INT(rdma_destroy_id(all), 0);
	rdma_destroy_event_channel(channel);
	destroy_ends(&ends);
}

static void a_device_that_is_back_has_new_ids(void)
{
	CHECK_INT(setenv("ROCADE_FAULT", BEGINS " for=300ms", 1), 0);
	struct ends ends = routed(RDMA_PS_TCP);
	connect_ends(&ends);
	struct ibv_context *old = ends.active->verbs;
	pass(ends.client, RDMA_CM_EVENT_DEVICE_REMOVAL);
	pass(ends.server, RDMA_CM_EVENT_DEVICE_REMOVAL);
	pass(ends.server, RDMA_CM_EVENT_DEVICE_REMOVAL);
	destroy_ends(&ends);

	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct sockaddr_in addr = at_port(0);
	CHECK(channel);
	CHECK_INT(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	while (rdma_bind_addr(id, (struct sockaddr *)&addr)) {
		CHECK_INT(errno, ENODEV);
		usleep(1000);
	}
	CHECK(id->verbs && id->verbs != old);
	CHECK_INT(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
	ends = routed(RDMA_PS_TCP);
	connect_ends(&ends);
	CHECK(ends.active->verbs != old);
	CHECK_INT(rdma_disconnect(ends.active), 0);
	pass(ends.server, RDMA_CM_EVENT_DISCONNECTED);
	CHECK_INT(rdma_disconnect(ends.passive), 0);
	pass(ends.client, RDMA_CM_EVENT_DISCONNECTED);
	pass(ends.client, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	destroy_ends(&ends);
}

/* The address is resolved, because the host has it, and the request is lost (UNREACHABLE comes
 * after a minute, in virtual time in device_failures.rs). Destroying the ID ends the attempt. */
static void no_connection_over_a_port_that_is_down(void)
{
	CHECK_INT(setenv("ROCADE_FAULT", "port-down", 1), 0);
	struct ends ends = routed(RDMA_PS_TCP);
	struct ibv_port_attr port;
	CHECK_INT(ibv_query_port(ends.active->verbs, ends.active->port_num, &port), 0);
	CHECK_INT(port.state, IBV_PORT_DOWN);
	struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
	struct rdma_conn_param param = { .responder_resources = 1 };
	CHECK_INT(rdma_create_qp(ends.active, NULL, &attr), 0);
	CHECK_INT(rdma_connect(ends.active, &param), 0);
	/* A request would have come by now, and the attempt goes on. */
	struct pollfd fd = { .fd = ends.server->fd, .events = POLLIN };
	CHECK_INT(poll(&fd, 1, 500), 0);
	no_event(ends.client);
	rdma_destroy_qp(ends.active);
	finish(&ends);
}

/* The connection manager of the kernel registers no handler of asynchronous events (cma_client of
 * cma.c): GIDs, the LID and the subnet manager change without an event of it, and a connection goes
 * on. The program learns it by the event of the device. */
static void events_of_a_device_are_none_of_a_connection(void)
{
	CHECK_INT(setenv("ROCADE_FAULT",
			 "event type=LID_CHANGE at=5s; event type=SM_CHANGE at=5s;"
			 "event type=CLIENT_REREGISTER at=5s; gid-add gid=192.0.2.77 at=5s", 1), 0);
	struct ends ends = routed(RDMA_PS_TCP);
	connect_ends(&ends);
	int seen[IBV_EVENT_GID_CHANGE + 1] = { 0 };
	for (int i = 0; i < 4; i++) {
		struct ibv_async_event event;
		CHECK_INT(ibv_get_async_event(ends.active->verbs, &event), 0);
		CHECK(event.event_type <= IBV_EVENT_GID_CHANGE);
		seen[event.event_type] = 1;
		ibv_ack_async_event(&event);
	}
	CHECK(seen[IBV_EVENT_LID_CHANGE] && seen[IBV_EVENT_SM_CHANGE]);
	CHECK(seen[IBV_EVENT_CLIENT_REREGISTER] && seen[IBV_EVENT_GID_CHANGE]);
	no_event(ends.client);
	no_event(ends.server);
	CHECK_INT(rdma_disconnect(ends.active), 0);
	pass(ends.server, RDMA_CM_EVENT_DISCONNECTED);
	CHECK_INT(rdma_disconnect(ends.passive), 0);
	pass(ends.client, RDMA_CM_EVENT_DISCONNECTED);
	destroy_ends(&ends);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "each_call_fails_once", each_call_fails_once },
		{ "a_removed_device_ends_its_ids", a_removed_device_ends_its_ids },
		{ "a_device_that_is_back_has_new_ids", a_device_that_is_back_has_new_ids },
		{ "no_connection_over_a_port_that_is_down", no_connection_over_a_port_that_is_down },
		{ "events_of_a_device_are_none_of_a_connection",
		  events_of_a_device_are_none_of_a_connection },
		{ NULL, NULL },
	};
	return run_cm_case(cases, argc, argv);
}
