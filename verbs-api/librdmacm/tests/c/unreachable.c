/* Addresses that cannot be reached, in a network of this program's own. It has 10.77.0.1, with a
 * link on which no host answers, and no route to elsewhere. */
#include "cm_rig.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* The exit status of a program that cannot run on this machine. */
#define SKIPPED 77

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

/* Moves this process into a network with one host. */
static void alone(void)
{
	if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET)) {
		fprintf(stderr, "cannot make a network namespace");
		_exit(SKIPPED);
	}
	const char *commands = "ip link set lo up && ip link add v0 type veth peer name v1 && "
			       "ip addr add 10.77.0.1/24 dev v0 && ip link set v1 up && "
			       "ip link set v0 up";
	if (system(commands)) {
		fprintf(stderr, "cannot make a network namespace with a link");
		_exit(SKIPPED);
	}
	CHECK_INT(setenv("ROCADE_IP", "10.77.0.1", 1), 0);
}

static struct sockaddr_in at(const char *ip)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(7471) };
	CHECK_INT(inet_pton(AF_INET, ip, &addr.sin_addr), 1);
	return addr;
}

static struct ibv_ah *handle_to(struct ibv_pd *pd, const char *ip)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh.hop_limit = 64 };
	attr.grh.dgid.raw[10] = attr.grh.dgid.raw[11] = 0xff;
	CHECK_INT(inet_pton(AF_INET, ip, attr.grh.dgid.raw + 12), 1);
	return ibv_create_ah(pd, &attr);
}

static void address_handles_need_a_route_and_an_answer(void)
{
	alone();
	struct ibv_pd *pd = ibv_alloc_pd(open_device());
	CHECK(pd);
	errno = 0;
	CHECK(!handle_to(pd, "192.0.2.1"));
	CHECK_INT(errno, ENETUNREACH);
	double start = seconds();
	CHECK(!handle_to(pd, "10.77.0.200"));
	CHECK_INT(errno, ETIMEDOUT);
	CHECK(seconds() - start >= 0.9);
	struct ibv_ah *own = handle_to(pd, "10.77.0.1"), *group = handle_to(pd, "239.1.1.1");
	CHECK(own && group);
	CHECK_INT(ibv_destroy_ah(own), 0);
	CHECK_INT(ibv_destroy_ah(group), 0);
}

static void a_silent_address_is_an_event_in_time(void)
{
	alone();
	struct sockaddr_in silent = at("10.77.0.200"), nowhere = at("192.0.2.1");
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id, *other;
	CHECK(channel);
	CHECK_INT(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	double start = seconds();
	CHECK_INT(rdma_resolve_addr(id, NULL, (struct sockaddr *)&silent, 300), 0);
	/* The call does not wait, and the ID is busy until the event. */
	no_event(channel);
	CHECK_FAILS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&silent, 300), EINVAL);
	CHECK_FAILS(rdma_resolve_route(id, 300), EINVAL);
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_ADDR_ERROR);
	CHECK_INT(event->status, -ETIMEDOUT);
	CHECK(seconds() - start >= 0.3);
	CHECK_INT(rdma_ack_cm_event(event), 0);
	/* It may be used again. */
	CHECK_INT(rdma_resolve_addr(id, NULL, (struct sockaddr *)&nowhere, 300), 0);
	event = expect(channel, RDMA_CM_EVENT_ADDR_ERROR);
	CHECK_INT(event->status, -ENETUNREACH);
	CHECK_INT(rdma_ack_cm_event(event), 0);
	/* An ID that ends before has no event. */
	CHECK_INT(rdma_create_id(channel, &other, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_resolve_addr(other, NULL, (struct sockaddr *)&silent, 100), 0);
	CHECK_INT(rdma_resolve_addr(id, NULL, (struct sockaddr *)&silent, 200), 0);
	CHECK_INT(rdma_destroy_id(other), 0);
	pass(channel, RDMA_CM_EVENT_ADDR_ERROR);
	no_event(channel);
	CHECK_INT(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
	/* Without a channel, the call waits. */
	CHECK_INT(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_FAILS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&silent, 100), ETIMEDOUT);
	CHECK_INT(rdma_destroy_id(id), 0);
}

/* Each cause is on standard error, once. */
static void failed_connections_are_explained(void)
{
	int ends[2], real_stderr = dup(2);
	char text[4096] = "", line[128];
	struct sockaddr_in own = at_port(7470), nowhere = at("192.0.2.1");
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	CHECK(channel);
	CHECK_INT(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
	CHECK(real_stderr >= 0 && dup2(ends[1], 2) >= 0);
	for (int i = 0; i < 2; i++) {
		struct rdma_conn_param param = { .retry_count = 7 };
		CHECK_INT(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
		CHECK_INT(rdma_resolve_addr(id, NULL, (struct sockaddr *)&own, 2000), 0);
		pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK_INT(rdma_resolve_route(id, 2000), 0);
		pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
		struct ibv_qp_init_attr init = {
			.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1,
				 .max_recv_sge = 1 },
			.qp_type = IBV_QPT_RC,
		};
		CHECK_INT(rdma_create_qp(id, NULL, &init), 0);
		CHECK_INT(rdma_connect(id, &param), 0);
		struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_REJECTED);
		CHECK_INT(event->status, 8);
		CHECK_INT(rdma_ack_cm_event(event), 0);
		rdma_destroy_qp(id);
		CHECK_INT(rdma_destroy_id(id), 0);
	}
	CHECK_INT(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_bind_addr(id, (struct sockaddr *)&own), 0);
	CHECK_INT(rdma_resolve_addr(id, NULL, (struct sockaddr *)&nowhere, 2000), 0);
	pass(channel, RDMA_CM_EVENT_ADDR_ERROR);
	CHECK_INT(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
	CHECK(dup2(real_stderr, 2) >= 0);
	CHECK(read(ends[0], text, sizeof(text) - 1) > 0);
	snprintf(line, sizeof(line), "rdma_connect: %s:7470: the peer rejects the connection "
		 "(status 8): no program listens there\n", own_ip);
	char *first = strstr(text, line);
	if (!first || strstr(first + 1, "rdma_connect") ||
	    !strstr(text, "rdma_resolve_addr: 192.0.2.1:7471: the host has no route to the")) {
		fprintf(stderr, "%s", text);
		_exit(1);
	}
}

/* A seccomp filter forbids getsockname in this thread. */
static void forbid_getsockname(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockname, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = 4, .filter = filter };
	CHECK_INT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	CHECK_INT(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

/* The event has only a number. Standard error says what is forbidden, and what helps. */
static void a_forbidden_call_is_named_with_a_remedy(void)
{
	alone();
	int ends[2], real_stderr = dup(2);
	char text[4096] = "";
	struct sockaddr_in own = at("10.77.0.1"), other = at("10.77.0.200");
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	CHECK(channel);
	/* All that needs the call otherwise has happened before. */
	CHECK_INT(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_resolve_addr(id, NULL, (struct sockaddr *)&own, 2000), 0);
	pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK_INT(rdma_destroy_id(id), 0);
	CHECK_INT(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
	CHECK(real_stderr >= 0 && dup2(ends[1], 2) >= 0);
	forbid_getsockname();
	CHECK_INT(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_resolve_addr(id, NULL, (struct sockaddr *)&other, 2000), 0);
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_ADDR_ERROR);
	CHECK_INT(event->status, -EPERM);
	CHECK_INT(rdma_ack_cm_event(event), 0);
	CHECK_INT(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
	CHECK(dup2(real_stderr, 2) >= 0);
	CHECK(read(ends[0], text, sizeof(text) - 1) > 0);
	if (!strstr(text, "rdma_resolve_addr: 10.77.0.200:7471: the system forbids") ||
	    !strstr(text, "getsockname") || !strstr(text, "seccomp")) {
		fprintf(stderr, "%s", text);
		_exit(1);
	}
}

static const struct test_case cases[] = {
	{ "a_forbidden_call_is_named_with_a_remedy", a_forbidden_call_is_named_with_a_remedy },
	{ "failed_connections_are_explained", failed_connections_are_explained },
	{ "address_handles_need_a_route_and_an_answer",
	  address_handles_need_a_route_and_an_answer },
	{ "a_silent_address_is_an_event_in_time", a_silent_address_is_an_event_in_time },
	{ NULL, NULL },
};

int main(int argc, char **argv)
{
	return run_cm_case(cases, argc, argv);
}
