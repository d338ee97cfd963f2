/* Shared code of the connection manager's test programs: addresses, events, and two connecting IDs.
 */
#ifndef ROCADE_TESTS_CM_RIG_H
#define ROCADE_TESTS_CM_RIG_H

#include "../../../libibverbs/tests/c/rig.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

/* The address of this program, which no other program uses. */
static const char *own_ip;

static inline int run_cm_case(const struct test_case *cases, int argc, char **argv)
{
	own_ip = argc > 2 ? argv[2] : "127.0.0.1";
	return run_case(cases, argc, argv);
}

static inline struct sockaddr_in at_port(int port)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(port) };
	CHECK_INT(inet_pton(AF_INET, own_ip, &addr.sin_addr), 1);
	return addr;
}

/* Returns the next event of a channel, which must be of this kind. */
static inline struct rdma_cm_event *expect(struct rdma_event_channel *channel, int kind)
{
	struct rdma_cm_event *event;
	CHECK_INT(rdma_get_cm_event(channel, &event), 0);
	if (event->event != (enum rdma_cm_event_type)kind) {
		fprintf(stderr, "%s (status %d) instead of %s\n", rdma_event_str(event->event),
			event->status, rdma_event_str(kind));
		_exit(1);
	}
	return event;
}

/* Acknowledges the next event of a channel, which must be of this kind. */
static inline void pass(struct rdma_event_channel *channel, int kind)
{
	CHECK_INT(rdma_ack_cm_event(expect(channel, kind)), 0);
}

static inline void no_event(struct rdma_event_channel *channel)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	CHECK_INT(poll(&fd, 1, 0), 0);
}

/* Checks that a call fails with this errno. */
#define CHECK_FAILS(call, code)                                                                     \
	do {                                                                                        \
		errno = 0;                                                                          \
		CHECK_INT(call, -1);                                                                \
		CHECK_INT(errno, code);                                                             \
	} while (0)

/* A listener and an ID that connects to it, each with its own channel. */
struct ends {
	struct rdma_event_channel *server, *client;
	struct rdma_cm_id *listener, *active, *passive;
};

static inline void resolve(struct ends *ends, struct sockaddr *to)
{
	CHECK_INT(rdma_resolve_addr(ends->active, NULL, to, 2000), 0);
	pass(ends->client, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK_INT(rdma_resolve_route(ends->active, 2000), 0);
	pass(ends->client, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

static inline struct ends channels(enum rdma_port_space ps)
{
	struct ends ends = { .server = rdma_create_event_channel(),
			     .client = rdma_create_event_channel() };
	CHECK(ends.server && ends.client);
	CHECK_INT(rdma_create_id(ends.server, &ends.listener, NULL, ps), 0);
	CHECK_INT(rdma_create_id(ends.client, &ends.active, NULL, ps), 0);
	return ends;
}

/* Listens on a free port, and resolves the route to it. */
static inline struct ends routed(enum rdma_port_space ps)
{
	struct ends ends = channels(ps);
	struct sockaddr_in addr = at_port(0);
	CHECK_INT(rdma_bind_addr(ends.listener, (struct sockaddr *)&addr), 0);
	CHECK_INT(rdma_listen(ends.listener, 4), 0);
	resolve(&ends, rdma_get_local_addr(ends.listener));
	return ends;
}

/* Returns the event of the connection request, which the caller acknowledges. */
static inline struct rdma_cm_event *request(struct ends *ends)
{
	struct rdma_cm_event *event = expect(ends->server, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == ends->listener);
	ends->passive = event->id;
	return event;
}

static inline void finish(struct ends *ends)
{
	if (ends->passive)
		CHECK_INT(rdma_destroy_id(ends->passive), 0);
	CHECK_INT(rdma_destroy_id(ends->active), 0);
	CHECK_INT(rdma_destroy_id(ends->listener), 0);
	rdma_destroy_event_channel(ends->server);
	rdma_destroy_event_channel(ends->client);
}

/* Returns the attributes of a small queue pair. Its CQs are created along with it. */
static inline struct ibv_qp_init_attr small_attr(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = type,
		.sq_sig_all = 1,
	};
	return attr;
}

#endif
