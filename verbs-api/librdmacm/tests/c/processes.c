/* Processes that die, and their connected peers. Each process forks before it uses the library. */
#include "cm_rig.h"

#include <sys/wait.h>
#include <time.h>

/* A child, and the pipes to it and from it. */
struct child {
	pid_t pid;
	int tell, hear;
};

static int to_parent, from_parent;

static struct child spawn(void (*run)(void))
{
	int down[2], up[2];
	CHECK_INT(pipe(down), 0);
	CHECK_INT(pipe(up), 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		alarm(DEADLINE);
		from_parent = down[0];
		to_parent = up[1];
		close(down[1]);
		close(up[0]);
		run();
		_exit(0);
	}
	close(down[0]);
	close(up[1]);
	return (struct child){ .pid = pid, .tell = down[1], .hear = up[0] };
}

static void tell(int fd, int number)
{
	CHECK_INT(write(fd, &number, sizeof(number)), sizeof(number));
}

static int hear(int fd)
{
	int number;
	CHECK_INT(read(fd, &number, sizeof(number)), sizeof(number));
	return number;
}

static void murder(struct child *child)
{
	int status;
	CHECK_INT(kill(child->pid, SIGKILL), 0);
	CHECK_INT(waitpid(child->pid, &status, 0), child->pid);
	CHECK(WIFSIGNALED(status));
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/* Seconds. Without the broker's word, peers would never hear of an end, and a REQ would wait for a
 * minute. A busy machine may take some of them. */
#define PROMPTLY 30

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener;

/* Listens, and returns the port. */
static int serve(int port)
{
	struct sockaddr_in addr = at_port(port);
	channel = rdma_create_event_channel();
	CHECK_INT(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_bind_addr(listener, (struct sockaddr *)&addr), 0);
	CHECK_INT(rdma_listen(listener, 0), 0);
	return ntohs(rdma_get_src_port(listener));
}

/* Requests a connection. */
static struct rdma_cm_id *ask(int port)
{
	struct sockaddr_in addr = at_port(port);
	struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
	struct rdma_cm_id *id;
	if (!channel)
		channel = rdma_create_event_channel();
	CHECK_INT(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_INT(rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 2000), 0);
	pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK_INT(rdma_resolve_route(id, 2000), 0);
	pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK_INT(rdma_create_qp(id, NULL, &attr), 0);
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	CHECK_INT(rdma_connect(id, &param), 0);
	return id;
}

static struct rdma_cm_id *accept_one(void)
{
	struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	CHECK_INT(rdma_create_qp(id, NULL, &attr), 0);
	CHECK_INT(rdma_accept(id, NULL), 0);
	CHECK_INT(rdma_ack_cm_event(event), 0);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	return id;
}

static void leave(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	CHECK_INT(rdma_destroy_id(id), 0);
}

/* Checks that the connection ended promptly. */
static void ended(struct rdma_cm_id *id, double since)
{
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(event->id == id);
	CHECK_INT(event->status, 0);
	rdma_ack_cm_event(event);
	CHECK(seconds() - since < PROMPTLY);
	CHECK_INT(rdma_disconnect(id), 0);
	pass(channel, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	leave(id);
}

static void client(void)
{
	int port = hear(from_parent);
	for (int i = 0; i < 3; i++) {
		ask(port);
		pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	}
	tell(to_parent, 1);
	hear(from_parent);
	_exit(3);
}

static void a_client_that_is_killed_is_missed(void)
{
	struct child child = spawn(client);
	struct rdma_cm_id *ids[3];
	tell(child.tell, serve(0));
	for (int i = 0; i < 3; i++)
		ids[i] = accept_one();
	hear(child.hear);
	murder(&child);
	double since = seconds();
	struct rdma_cm_event *event;
	int missed = 0;
	for (int left = 3; left; left--) {
		event = expect(channel, RDMA_CM_EVENT_DISCONNECTED);
		for (int i = 0; i < 3; i++)
			missed |= (event->id == ids[i]) << i;
		rdma_ack_cm_event(event);
	}
	CHECK_INT(missed, 7);
	CHECK(seconds() - since < PROMPTLY);
	for (int i = 0; i < 3; i++)
		leave(ids[i]);
}

/* A client that ends with _exit, which runs no code of the library. */
static void a_client_that_leaves_without_a_word(void)
{
	struct child child = spawn(client);
	struct rdma_cm_id *ids[3];
	int status;
	tell(child.tell, serve(0));
	for (int i = 0; i < 3; i++)
		ids[i] = accept_one();
	hear(child.hear);
	tell(child.tell, 1);
	CHECK_INT(waitpid(child.pid, &status, 0), child.pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
	for (int i = 0; i < 3; i++)
		pass(channel, RDMA_CM_EVENT_DISCONNECTED);
	for (int i = 0; i < 3; i++)
		leave(ids[i]);
}

static void server(void)
{
	tell(to_parent, serve(hear(from_parent)));
	accept_one();
	tell(to_parent, 1);
	/* The second request is not answered. */
	expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	tell(to_parent, 2);
	hear(from_parent);
}

static void a_server_that_is_killed_is_missed(void)
{
	struct child child = spawn(server);
	tell(child.tell, 0);
	int port = hear(child.hear);
	struct rdma_cm_id *id = ask(port);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	hear(child.hear);
	struct rdma_cm_id *waiting = ask(port);
	hear(child.hear);
	murder(&child);
	/* The connection ends and the request is rejected, in any order. */
	double since = seconds();
	int seen = 0;
	while (seen != 3) {
		struct rdma_cm_event *event;
		CHECK_INT(rdma_get_cm_event(channel, &event), 0);
		if (event->id == id && event->event == RDMA_CM_EVENT_DISCONNECTED)
			seen |= 1;
		if (event->id == waiting && event->event == RDMA_CM_EVENT_REJECTED) {
			CHECK_INT(event->status, 28);
			seen |= 2;
		}
		rdma_ack_cm_event(event);
	}
	CHECK(seconds() - since < PROMPTLY);
	leave(id);
	leave(waiting);

	/* The port is free, and a new request to it is rejected. */
	id = ask(port);
	struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_REJECTED);
	CHECK_INT(event->status, 8);
	rdma_ack_cm_event(event);
	leave(id);
	struct rdma_event_channel *old = channel;
	CHECK_INT(serve(port), port);
	CHECK_INT(rdma_destroy_id(listener), 0);
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(old);
}

static void late_server(void)
{
	serve(hear(from_parent));
	tell(to_parent, 1);
	accept_one();
	hear(from_parent);
}

/* A new server takes the port of the killed one, and the same client connects again. */
static void a_server_comes_back(void)
{
	struct child first = spawn(server), second = spawn(late_server);
	tell(first.tell, 0);
	int port = hear(first.hear);
	struct rdma_cm_id *id = ask(port);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	hear(first.hear);
	murder(&first);
	ended(id, seconds());
	tell(second.tell, port);
	hear(second.hear);
	id = ask(port);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED);
	murder(&second);
	ended(id, seconds());
}

#define MANY 1000

/* The expected events of a connection, and the number of those seen. */
struct story {
	const int *events;
	int number, seen;
};

static const int of_active[] = { RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ROUTE_RESOLVED,
				 RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_DISCONNECTED,
				 RDMA_CM_EVENT_TIMEWAIT_EXIT, -1 };
static const int of_passive[] = { RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_ESTABLISHED,
				  RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_TIMEWAIT_EXIT, -1 };
static struct story stories[MANY];
/* Protects the IDs that two threads use. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Drops a tenth of the packets that this process sends to connection managers. */
static void lose_a_tenth(int seed)
{
	char rule[64];
	snprintf(rule, sizeof(rule), "drop qpn=1 p=10%% seed=%d", seed);
	CHECK_INT(setenv("ROCADE_FAULT", rule, 1), 0);
}

static void make_queue_pair(struct rdma_cm_id *id)
{
	static struct ibv_cq *cq;
	struct ibv_qp_init_attr attr = small_attr(IBV_QPT_RC);
	if (!cq)
		CHECK((cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0)));
	attr.send_cq = attr.recv_cq = cq;
	CHECK_INT(rdma_create_qp(id, NULL, &attr), 0);
}

/* Returns the next event of the process, which must be the next one of its connection. */
static struct story *take(struct rdma_cm_event **event)
{
	CHECK_INT(rdma_get_cm_event(channel, event), 0);
	struct rdma_cm_id *id = (*event)->id;
	if ((*event)->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		int number;
		memcpy(&number, (*event)->param.conn.private_data, sizeof(number));
		CHECK(number >= 0 && number < MANY);
		id->context = stories + number;
	}
	struct story *story = id->context;
	if ((int)(*event)->event != story->events[story->seen] || (*event)->status) {
		fprintf(stderr, "connection %d, after %d events: %s, status %d\n", story->number,
			story->seen, rdma_event_str((*event)->event), (*event)->status);
		_exit(1);
	}
	story->seen++;
	return story;
}

/* Handles all events of all connections. The acceptor ends the connections with odd numbers. The
 * requester ends the others when both sides are established. An RTU may be lost, and a connection
 * that ends before is never established. */
static void live_through(const int *events)
{
	int left = MANY;
	while (left) {
		struct rdma_cm_event *event;
		struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
		struct story *story = take(&event);
		struct rdma_cm_id *id = event->id;
		int kind = event->event;
		CHECK_INT(rdma_ack_cm_event(event), 0);
		switch (kind) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			CHECK_INT(rdma_resolve_route(id, 2000), 0);
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			make_queue_pair(id);
			param.private_data = &story->number;
			param.private_data_len = sizeof(story->number);
			CHECK_INT(rdma_connect(id, &param), 0);
			break;
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			make_queue_pair(id);
			CHECK_INT(rdma_accept(id, &param), 0);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			if (events == of_passive && story->number % 2)
				CHECK_INT(rdma_disconnect(id), 0);
			else if (events == of_passive)
				tell(to_parent, story->number);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			CHECK_INT(rdma_disconnect(id), 0);
			break;
		default:
			pthread_mutex_lock(&lock);
			leave(id);
			pthread_mutex_unlock(&lock);
			left--;
		}
	}
	no_event(channel);
	for (int i = 0; i < MANY; i++)
		CHECK_INT(stories[i].events[stories[i].seen], -1);
}

static void begin_stories(const int *events)
{
	for (int i = 0; i < MANY; i++)
		stories[i] = (struct story){ .events = events, .number = i };
}

static void server_of_many(void)
{
	lose_a_tenth(2);
	begin_stories(of_passive);
	tell(to_parent, serve(0));
	live_through(of_passive);
	tell(to_parent, 1);
	hear(from_parent);
}

static struct rdma_cm_id *asked[MANY];

static void *end_the_even(void *argument)
{
	for (int left = MANY / 2; left; left--) {
		int number = hear(*(int *)argument);
		pthread_mutex_lock(&lock);
		CHECK_INT(rdma_disconnect(asked[number]), 0);
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

/* A tenth of the messages of both processes is lost. Every connection is established and ended
 * once, without additional events. */
static void a_thousand_connections_though_a_tenth_is_lost(void)
{
	struct child child = spawn(server_of_many);
	lose_a_tenth(1);
	begin_stories(of_active);
	struct sockaddr_in addr = at_port(hear(child.hear));
	channel = rdma_create_event_channel();
	double since = seconds();
	for (int i = 0; i < MANY; i++) {
		CHECK_INT(rdma_create_id(channel, &asked[i], stories + i, RDMA_PS_TCP), 0);
		CHECK_INT(rdma_resolve_addr(asked[i], NULL, (struct sockaddr *)&addr, 2000), 0);
	}
	pthread_t thread;
	CHECK_INT(pthread_create(&thread, NULL, end_the_even, &child.hear), 0);
	live_through(of_active);
	CHECK_INT(pthread_join(thread, NULL), 0);
	CHECK_INT(hear(child.hear), 1);
	/* Lost messages cause delays. */
	CHECK(seconds() - since > 4);
	tell(child.tell, 1);
	int status;
	CHECK_INT(waitpid(child.pid, &status, 0), child.pid);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "a_client_that_is_killed_is_missed", a_client_that_is_killed_is_missed },
		{ "a_client_that_leaves_without_a_word", a_client_that_leaves_without_a_word },
		{ "a_server_that_is_killed_is_missed", a_server_that_is_killed_is_missed },
		{ "a_server_comes_back", a_server_comes_back },
		{ "a_thousand_connections_though_a_tenth_is_lost",
		  a_thousand_connections_though_a_tenth_is_lost },
		{ 0 },
	};
	return run_cm_case(cases, argc, argv);
}
