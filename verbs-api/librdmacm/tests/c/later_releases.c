/* Calls of rdma-core releases after the one whose headers are installed. */
#define _GNU_SOURCE
#include "cm_rig.h"

#include <dlfcn.h>

enum { ADDRINFO_RESOLVED = 16, USER = 18, RAI_SUBNET = 0x10 };

static int (*write_cm_event)(struct rdma_cm_id *, int, int, uint64_t);
static int (*resolve_addrinfo)(struct rdma_cm_id *, const char *, const char *,
			       const struct rdma_addrinfo *);
static int (*query_addrinfo)(struct rdma_cm_id *, struct rdma_addrinfo **);

static void find_calls(void)
{
	write_cm_event = dlvsym(RTLD_DEFAULT, "rdma_write_cm_event", "RDMACM_1.4");
	resolve_addrinfo = dlvsym(RTLD_DEFAULT, "rdma_resolve_addrinfo", "RDMACM_1.4");
	query_addrinfo = dlvsym(RTLD_DEFAULT, "rdma_query_addrinfo", "RDMACM_1.4");
	CHECK(write_cm_event && resolve_addrinfo && query_addrinfo);
}

static void *wake(void *id)
{
	CHECK_INT(write_cm_event(id, USER, 7, 0x1122334455667788), 0);
	return NULL;
}

/* A program wakes a thread that waits for events. */
static void events_of_the_program(void)
{
	find_calls();
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	CHECK_INT(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	pthread_t thread;
	CHECK_INT(pthread_create(&thread, NULL, wake, id), 0);
	struct rdma_cm_event *event = expect(channel, USER);
	CHECK(event->id == id);
	CHECK_INT(event->status, 7);
	uint64_t argument;
	memcpy(&argument, &event->param, sizeof(argument));
	CHECK(argument == 0x1122334455667788);
	CHECK(!strcmp(rdma_event_str(event->event), "RDMA_CM_EVENT_USER"));
	CHECK_INT(rdma_ack_cm_event(event), 0);
	pthread_join(thread, NULL);

	for (int kind = -1; kind < 21; kind++)
		if (kind != USER)
			CHECK_FAILS(write_cm_event(id, kind, 0, 0), EINVAL);
	CHECK_FAILS(write_cm_event(NULL, USER, 0, 0), EINVAL);
	no_event(channel);
	/* An unread event ends with its ID. */
	CHECK_INT(write_cm_event(id, USER, 0, 0), 0);
	CHECK_INT(rdma_destroy_id(id), 0);
	no_event(channel);
	rdma_destroy_event_channel(channel);
}

static void addresses_by_an_event(void)
{
	find_calls();
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_addrinfo *found = NULL, hints = { .ai_port_space = RDMA_PS_TCP };
	CHECK_INT(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_FAILS(query_addrinfo(id, &found), ENOENT);
	CHECK_INT(resolve_addrinfo(id, own_ip, "7471", &hints), 0);
	CHECK_FAILS(resolve_addrinfo(id, own_ip, "7471", &hints), EBUSY);
	struct rdma_cm_event *event = expect(channel, ADDRINFO_RESOLVED);
	CHECK(event->id == id);
	CHECK_INT(event->status, 0);
	CHECK(!strcmp(rdma_event_str(event->event), "RDMA_CM_EVENT_ADDRINFO_RESOLVED"));
	CHECK_INT(rdma_ack_cm_event(event), 0);
	CHECK_FAILS(query_addrinfo(id, NULL), EINVAL);
	CHECK_INT(query_addrinfo(id, &found), 0);
	struct sockaddr_in wanted = at_port(7471);
	CHECK_INT(found->ai_dst_len, sizeof(wanted));
	CHECK(!memcmp(found->ai_dst_addr, &wanted, sizeof(wanted)));
	rdma_freeaddrinfo(found);
	CHECK_FAILS(query_addrinfo(id, &found), ENOENT);

	CHECK_FAILS(resolve_addrinfo(NULL, own_ip, NULL, NULL), EINVAL);
	CHECK_FAILS(resolve_addrinfo(id, NULL, NULL, NULL), EINVAL);
	hints.ai_flags = RAI_SUBNET;
	CHECK_FAILS(resolve_addrinfo(id, NULL, "7471", &hints), EOPNOTSUPP);
	hints.ai_flags = RAI_NUMERICHOST;
	CHECK_FAILS(resolve_addrinfo(id, "no-address", NULL, &hints), ENOENT);
	no_event(channel);
	/* Addresses that the program does not take end with the ID. */
	hints.ai_flags = 0;
	CHECK_INT(resolve_addrinfo(id, own_ip, "7471", &hints), 0);
	CHECK_INT(rdma_destroy_id(id), 0);
	no_event(channel);
	rdma_destroy_event_channel(channel);

	/* In synchronous mode the call takes the event. */
	CHECK_INT(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(resolve_addrinfo(id, own_ip, "7471", &hints), 0);
	CHECK_INT(id->event->event, ADDRINFO_RESOLVED);
	CHECK_INT(query_addrinfo(id, &found), 0);
	rdma_freeaddrinfo(found);
	CHECK_INT(rdma_destroy_id(id), 0);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "events_of_the_program", events_of_the_program },
		{ "addresses_by_an_event", addresses_by_an_event },
		{ 0 },
	};
	return run_cm_case(cases, argc, argv);
}
