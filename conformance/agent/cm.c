/*
 * The orders of the connection manager, with librdmacm. There is one user of it at a time, which
 * handles one connection: that of the last request in either direction. The queue pair belongs to
 * the suite, so only its number is told.
 */
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>

enum { IDS = 16, RESOLVE_MS = 2000, PRIVATE = 256 };

static struct rdma_event_channel *channel;
/* All identifiers, and the current connection, which is one of them. */
static struct rdma_cm_id *ids[IDS], *current;
static int id_count;

static socklen_t socket_address(const char *text, int port, struct sockaddr_storage *at)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)at;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)at;
	memset(at, 0, sizeof *at);
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
	} else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
	}
	return at->ss_family == AF_INET ? sizeof *v4 : sizeof *v6;
}

static int keep(struct rdma_cm_id *id)
{
	if (id_count == IDS)
		return -1;
	ids[id_count++] = id;
	return 0;
}

static int close_manager(void)
{
	for (int i = 0; i < id_count; i++)
		rdma_destroy_id(ids[i]);
	if (channel)
		rdma_destroy_event_channel(channel);
	channel = NULL;
	current = NULL;
	id_count = 0;
	return answer("ok");
}

static int open_manager(void)
{
	channel = channel ? channel : rdma_create_event_channel();
	if (!channel)
		return unable("rdma_create_event_channel");
	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	return answer("ok");
}

/* cm-listen DATAGRAMS: answers with the port. */
static int listen_order(const char *device_address)
{
	struct sockaddr_storage at;
	struct rdma_cm_id *id;
	socket_address(device_address, 0, &at);
	if (rdma_create_id(channel, &id, NULL, number() ? RDMA_PS_UDP : RDMA_PS_TCP) || keep(id))
		return unable("rdma_create_id");
	if (rdma_bind_addr(id, (struct sockaddr *)&at) || rdma_listen(id, 4))
		return unable("rdma_listen");
	return answer("ok %u", ntohs(rdma_get_src_port(id)));
}

static struct rdma_conn_param param(uint32_t qpn)
{
	static uint8_t bytes[PRIVATE];
	const char *text = word();
	size_t len = strlen(text) / 2;
	for (size_t i = 0; i < len && i < sizeof bytes; i++) {
		char digits[3] = {text[2 * i], text[2 * i + 1]};
		bytes[i] = strtoul(digits, NULL, 16);
	}
	return (struct rdma_conn_param){.private_data = bytes, .private_data_len = len, .responder_resources = 2,
		.initiator_depth = 3, .retry_count = 7, .rnr_retry_count = 7, .qp_num = qpn};
}

/* cm-connect ADDRESS PORT QPN PRIVATE_DATA */
static int connect_order(const char *device_address)
{
	struct sockaddr_storage own, to;
	struct rdma_cm_id *id;
	const char *address = word();
	socket_address(device_address, 0, &own);
	socket_address(address, number(), &to);
	/* Without a channel the calls wait for their results. */
	if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) || keep(id))
		return unable("rdma_create_id");
	if (rdma_resolve_addr(id, (struct sockaddr *)&own, (struct sockaddr *)&to, RESOLVE_MS))
		return unable("rdma_resolve_addr");
	if (rdma_resolve_route(id, RESOLVE_MS) || rdma_migrate_id(id, channel))
		return unable("rdma_resolve_route");
	uint32_t qpn = number();
	struct rdma_conn_param with = param(qpn);
	if (rdma_connect(id, &with))
		return unable("rdma_connect");
	current = id;
	return answer("ok");
}

static int accept_order(void)
{
	uint32_t qpn = number();
	struct rdma_conn_param with = param(qpn);
	return rdma_accept(current, &with) ? unable("rdma_accept") : answer("ok");
}

static int reject_order(void)
{
	struct rdma_conn_param with = param(0);
	return rdma_reject(current, with.private_data, with.private_data_len) ? unable("rdma_reject") : answer("ok");
}

static void print_event(const struct rdma_cm_event *event, int is_datagram)
{
	const uint8_t *bytes = is_datagram ? event->param.ud.private_data : event->param.conn.private_data;
	size_t len = is_datagram ? event->param.ud.private_data_len : event->param.conn.private_data_len;
	char hex[2 * PRIVATE + 1] = "-";
	for (size_t i = 0; bytes && i < len && i < PRIVATE; i++)
		sprintf(hex + 2 * i, "%02x", bytes[i]);
	answer("ok %d %d %s", event->event, event->status, hex);
}

/* cm-event: answers with the type, the status, and the private data or "-". */
static int event_order(void)
{
	struct rdma_cm_event *event;
	if (rdma_get_cm_event(channel, &event))
		return answer("none");
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST && !keep(event->id))
		current = event->id;
	print_event(event, event->id->ps == RDMA_PS_UDP);
	rdma_ack_cm_event(event);
	return 0;
}

int manage(const char *order, const char *device_address)
{
	if (is(order, "cm-open"))
		return open_manager();
	if (is(order, "cm-close"))
		return close_manager();
	if (!channel)
		return answer("unable no manager");
	if (is(order, "cm-listen"))
		return listen_order(device_address);
	if (is(order, "cm-connect"))
		return connect_order(device_address);
	if (is(order, "cm-event"))
		return event_order();
	if (!current)
		return answer("unable no connection");
	if (is(order, "cm-accept"))
		return accept_order();
	if (is(order, "cm-reject"))
		return reject_order();
	if (is(order, "cm-establish"))
		return rdma_establish(current) ? unable("rdma_establish") : answer("ok");
	if (is(order, "cm-disconnect"))
		return rdma_disconnect(current) ? unable("rdma_disconnect") : answer("ok");
	return answer("unable to %s", order);
}
