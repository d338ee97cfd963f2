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

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "each_call_fails_once", each_call_fails_once },
		{ NULL, NULL },
	};
	return run_cm_case(cases, argc, argv);
}
