/* Floods a listener with REQs as raw datagrams that are never confirmed. Clients can still connect,
 * and the server's memory stays bounded. */
#include "cm_rig.h"

#include <dirent.h>
#include <stdatomic.h>
#include <rdma/rsocket.h>

enum { MAD_AT = 20, DATA_AT = MAD_AT + 24, LEN = MAD_AT + 256 };
enum { PRIVATE_AT = DATA_AT + 140, IP_CM_HEADER = 36 };

/* The sender of the flood: a socket at its own address, or at that of the clients. */
struct flooder {
	int fd;
	struct sockaddr_in from, to;
	int service_port;
	uint32_t sent;
	atomic_int stop;
};

static void put(uint8_t *at, int bytes, uint64_t value)
{
	for (int i = bytes - 1; i >= 0; i--, value >>= 8)
		at[i] = value;
}

static uint32_t crc32(uint32_t crc, const uint8_t *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		crc ^= bytes[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
	}
	return crc;
}

/* Computes the ICRC over the IP and UDP headers as they will be sent. Variant fields count as ones.
 */
static uint32_t icrc(const struct flooder *flooder, const uint8_t *packet)
{
	uint8_t head[8 + 20 + 8 + 12];
	memset(head, 0xff, sizeof(head));
	head[8] = 0x45;
	put(head + 10, 2, 20 + 8 + LEN + 4);
	put(head + 12, 4, 0x4000);
	head[17] = 17;
	memcpy(head + 20, &flooder->from.sin_addr, 4);
	memcpy(head + 24, &flooder->to.sin_addr, 4);
	memcpy(head + 28, &flooder->from.sin_port, 2);
	memcpy(head + 30, &flooder->to.sin_port, 2);
	put(head + 32, 2, 8 + LEN + 4);
	memcpy(head + 36, packet, 12);
	head[40] = 0xff;
	return ~crc32(crc32(0xffffffff, head, sizeof(head)), packet + 12, LEN - 12);
}

/* Sends one more REQ, with the longest timeouts that are possible. */
static void flood_once(struct flooder *flooder)
{
	uint8_t packet[LEN + 4] = { 0x64, 0x40, 0xff, 0xff, 0, 0, 0, 1 };
	uint8_t *mad = packet + MAD_AT, *data = packet + DATA_AT, *user = packet + PRIVATE_AT;
	uint32_t number = ++flooder->sent;
	put(packet + 12, 4, 0x80010000);
	put(packet + 16, 4, 1);
	memcpy(mad, (uint8_t[]){ 1, 7, 2, 3 }, 4);
	put(mad + 8, 8, number);
	put(mad + 16, 2, 0x0010);
	put(data, 4, 0x09000000 + number);
	put(data + 8, 8, 0x01060000 + flooder->service_port);
	put(data + 16, 8, 0xbad);
	put(data + 32, 3, 0x100000 + number);
	data[43] = 31 << 3;
	data[47] = 31 << 3 | 7;
	put(data + 48, 2, 0xffff);
	data[50] = 3 << 4 | 7;
	data[51] = 15 << 4;
	data[93] = 64;
	data[95] = 31 << 3;
	user[1] = 4 << 4;
	put(user + 2, 2, 4791);
	memcpy(user + 16, &flooder->from.sin_addr, 4);
	memcpy(user + 32, &flooder->to.sin_addr, 4);
	/* The private data of rsockets: version, credits, and the lists. */
	user[IP_CM_HEADER] = 1;
	put(user + IP_CM_HEADER + 2, 2, 100);
	put(user + IP_CM_HEADER + 20, 4, 2);
	put(user + IP_CM_HEADER + 36, 4, 65536);
	uint32_t crc = icrc(flooder, packet);
	for (int i = 0; i < 4; i++)
		packet[LEN + i] = crc >> 8 * i;
	CHECK_INT(sendto(flooder->fd, packet, sizeof(packet), 0, (struct sockaddr *)&flooder->to,
			 sizeof(flooder->to)),
		  sizeof(packet));
}

/* Opens the socket, next to the address of the clients or at it. */
static void prepare(struct flooder *flooder, int service_port, int beside)
{
	socklen_t len = sizeof(flooder->from);
	int discover = IP_PMTUDISC_DO;
	memset(flooder, 0, sizeof(*flooder));
	flooder->service_port = service_port;
	flooder->to = at_port(4791);
	flooder->from = at_port(0);
	if (beside)
		flooder->from.sin_addr.s_addr ^= htonl(1);
	flooder->fd = socket(AF_INET, SOCK_DGRAM, 0);
	CHECK(flooder->fd >= 0);
	CHECK_INT(setsockopt(flooder->fd, IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof(discover)), 0);
	CHECK_INT(bind(flooder->fd, (struct sockaddr *)&flooder->from, sizeof(flooder->from)), 0);
	CHECK_INT(getsockname(flooder->fd, (struct sockaddr *)&flooder->from, &len), 0);
}

/* Sends some thousand REQs per second until it is stopped. */
static void *flood_on(void *argument)
{
	struct flooder *flooder = argument;
	while (!atomic_load(&flooder->stop)) {
		for (int i = 0; i < 5; i++)
			flood_once(flooder);
		usleep(1000);
	}
	return NULL;
}

static int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static int listening(struct sockaddr_in *addr)
{
	socklen_t len = sizeof(*addr);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	*addr = at_port(0);
	CHECK_INT(rbind(fd, (struct sockaddr *)addr, sizeof(*addr)), 0);
	CHECK_INT(rlisten(fd, 4), 0);
	CHECK_INT(rgetsockname(fd, (struct sockaddr *)addr, &len), 0);
	return fd;
}

/* Establishes and uses a connection within a minute, although requests of the flood have timeouts
 * of hours. */
static void connect_in_time(int listener, struct sockaddr_in *addr)
{
	int active = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), error = 0;
	struct pollfd fd = { .fd = active, .events = POLLOUT };
	socklen_t len = sizeof(error);
	char byte;
	CHECK_FAILS(rconnect(active, (struct sockaddr *)addr, sizeof(*addr)), EINPROGRESS);
	CHECK_INT(rpoll(&fd, 1, 60000), 1);
	CHECK_INT(rgetsockopt(active, SOL_SOCKET, SO_ERROR, &error, &len), 0);
	CHECK_INT(error, 0);
	int passive = raccept(listener, NULL, NULL);
	CHECK(passive >= 0);
	CHECK_INT(rsend(active, "x", 1, 0), 1);
	CHECK_INT(rrecv(passive, &byte, 1, 0), 1);
	CHECK_INT(rclose(active), 0);
	CHECK_INT(rclose(passive), 0);
}

/* More requests than the backlog has room for, each with a timeout of hours. */
static void forty_requests_do_not_block_others(void)
{
	struct flooder flooder;
	struct sockaddr_in addr;
	int listener = listening(&addr);
	connect_in_time(listener, &addr);
	prepare(&flooder, ntohs(addr.sin_port), 0);
	for (int i = 0; i < 40; i++)
		flood_once(&flooder);
	for (int i = 0; i < 5; i++)
		connect_in_time(listener, &addr);
	CHECK_INT(rclose(listener), 0);
}

/* Clients at another address are not affected. Clients at the same address have to retry. */
static void sockets_during_a_flood(void)
{
	for (int beside = 0; beside < 2; beside++) {
		struct flooder flooder;
		struct sockaddr_in addr;
		pthread_t thread;
		int listener = listening(&addr), before = descriptors();
		prepare(&flooder, ntohs(addr.sin_port), beside);
		CHECK_INT(pthread_create(&thread, NULL, flood_on, &flooder), 0);
		while (flooder.sent < 3000)
			usleep(1000);
		for (int i = 0; i < (beside ? 20 : 1); i++) {
			connect_in_time(listener, &addr);
			/* At most 256 connections are half open. */
			CHECK(descriptors() < before + 1000);
		}
		atomic_store(&flooder.stop, 1);
		CHECK_INT(pthread_join(thread, NULL), 0);
		connect_in_time(listener, &addr);
		CHECK_INT(rclose(listener), 0);
		close(flooder.fd);
	}
}

/* A server that creates a queue pair for each request, and destroys it when the connection fails.
 */
struct server {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener;
	atomic_int open, most, established, stop;
};

static void *serve(void *argument)
{
	struct server *server = argument;
	struct rdma_cm_event *event;
	while (!atomic_load(&server->stop)) {
		struct pollfd fd = { .fd = server->channel->fd, .events = POLLIN };
		if (poll(&fd, 1, 10) != 1)
			continue;
		CHECK_INT(rdma_get_cm_event(server->channel, &event), 0);
		struct rdma_cm_id *id = event->id;
		int kind = event->event;
		if (kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
			struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
			CHECK_INT(rdma_create_qp(id, NULL, &attr), 0);
			CHECK_INT(rdma_accept(id, NULL), 0);
			int open = atomic_fetch_add(&server->open, 1) + 1;
			if (open > atomic_load(&server->most))
				atomic_store(&server->most, open);
		}
		CHECK_INT(rdma_ack_cm_event(event), 0);
		if (kind == RDMA_CM_EVENT_ESTABLISHED)
			atomic_fetch_add(&server->established, 1);
		if (kind == RDMA_CM_EVENT_UNREACHABLE || kind == RDMA_CM_EVENT_DISCONNECTED) {
			rdma_destroy_qp(id);
			CHECK_INT(rdma_destroy_id(id), 0);
			atomic_fetch_sub(&server->open, 1);
		}
	}
	return NULL;
}

static void a_server_during_a_flood(void)
{
	struct server server = { .channel = rdma_create_event_channel() };
	struct sockaddr_in addr = at_port(0);
	struct flooder flooder;
	pthread_t serving, flooding;
	CHECK_INT(rdma_create_id(server.channel, &server.listener, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_bind_addr(server.listener, (struct sockaddr *)&addr), 0);
	CHECK_INT(rdma_listen(server.listener, 0), 0);
	CHECK_INT(pthread_create(&serving, NULL, serve, &server), 0);
	prepare(&flooder, ntohs(rdma_get_src_port(server.listener)), 1);
	int before = descriptors();
	CHECK_INT(pthread_create(&flooding, NULL, flood_on, &flooder), 0);
	/* Waits until the manager has dropped the first requests. */
	while (flooder.sent < 20000)
		usleep(1000);
	CHECK(descriptors() < before + 1000);
	for (int i = 0; i < 5; i++) {
		struct rdma_cm_id *active;
		struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
		CHECK_INT(rdma_create_id(NULL, &active, NULL, RDMA_PS_TCP), 0);
		CHECK_INT(rdma_resolve_addr(active, NULL, rdma_get_local_addr(server.listener), 2000), 0);
		CHECK_INT(rdma_resolve_route(active, 2000), 0);
		CHECK_INT(rdma_create_qp(active, NULL, &attr), 0);
		CHECK_INT(rdma_connect(active, NULL), 0);
		CHECK_INT(rdma_disconnect(active), 0);
		rdma_destroy_qp(active);
		CHECK_INT(rdma_destroy_id(active), 0);
	}
	CHECK(atomic_load(&server.most) <= 256 + 8);
	atomic_store(&flooder.stop, 1);
	CHECK_INT(pthread_join(flooding, NULL), 0);
	atomic_store(&server.stop, 1);
	CHECK_INT(pthread_join(serving, NULL), 0);
}

static const struct test_case cases[] = {
	{ "forty_requests_do_not_block_others", forty_requests_do_not_block_others },
	{ "sockets_during_a_flood", sockets_during_a_flood },
	{ "a_server_during_a_flood", a_server_during_a_flood },
	{},
};

int main(int argc, char **argv)
{
	return run_cm_case(cases, argc, argv);
}
