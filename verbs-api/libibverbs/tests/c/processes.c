/* Two processes of one host, which share an address and exchange packets through shared memory. */
#include "rig.h"

#include <sys/wait.h>

enum { TURNS = 2000, RECEIVES = 3 };

/* One of the two processes: its ends of the pipes to the other. */
struct side {
	int in, out;
	int begins;
};

/* Sends a number to the other process and receives one. Not a cancellation point. */
static uint32_t exchange(struct side *side, uint32_t number)
{
	int state;
	CHECK_INT(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state), 0);
	CHECK_INT(write(side->out, &number, sizeof(number)), sizeof(number));
	CHECK_INT(read(side->in, &number, sizeof(number)), sizeof(number));
	CHECK_INT(pthread_setcancelstate(state, &state), 0);
	return number;
}

/* Sends and receives alternately. Arms the CQ when it is empty, so that threads must be woken. */
static void converse(struct side *side, struct rig *r)
{
	int sent = 0, received = 0, turn;
	for (turn = 0; turn < RECEIVES; turn++)
		post_receive(r, 1);
	exchange(side, 0);
	for (turn = 0; turn < TURNS; turn++) {
		if (side->begins)
			post_send(r, 2);
		while (received <= turn || sent < turn + side->begins) {
			struct ibv_wc wc;
			int polled = ibv_poll_cq(r->cq, 1, &wc);
			CHECK(polled >= 0);
			if (polled == 0) {
				if (turn % 16 == 0)
					CHECK_INT(ibv_req_notify_cq(r->cq, 0), 0);
				continue;
			}
			CHECK_INT(wc.status, IBV_WC_SUCCESS);
			if (wc.opcode == IBV_WC_RECV) {
				received++;
				post_receive(r, 1);
			} else {
				sent++;
			}
		}
		if (!side->begins)
			post_send(r, 2);
	}
	exchange(side, 0);
}

/* With a cancellation pending, the first cancellation point ends the thread. */
static void *live_on(void *argument)
{
	struct side *side = argument;
	CHECK_INT(pthread_cancel(pthread_self()), 0);
	struct rig r = { .context = open_device() };
	r.pd = ibv_alloc_pd(r.context);
	r.channel = ibv_create_comp_channel(r.context);
	r.cq = ibv_create_cq(r.context, 64, NULL, r.channel, 0);
	CHECK(r.pd && r.channel && r.cq);
	struct ibv_qp_init_attr init = small_qp(r.cq);
	r.a = r.b = ibv_create_qp(r.pd, &init);
	CHECK(r.a);
	r.buffer = calloc(1, BUFFER_LEN);
	r.mr = ibv_reg_mr(r.pd, r.buffer, BUFFER_LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(r.mr);
	connect_qp(r.a, exchange(side, r.a->qp_num));
	converse(side, &r);
	CHECK_INT(ibv_destroy_qp(r.a), 0);
	CHECK_INT(ibv_destroy_cq(r.cq), 0);
	CHECK_INT(ibv_destroy_comp_channel(r.channel), 0);
	CHECK_INT(ibv_dereg_mr(r.mr), 0);
	CHECK_INT(ibv_dealloc_pd(r.pd), 0);
	CHECK_INT(ibv_close_device(r.context), 0);
	free(r.buffer);
	side->begins = -1;
	pthread_testcancel();
	return NULL;
}

static void no_verb_is_a_cancellation_point(void)
{
	int there[2], back[2], status;
	CHECK_INT(pipe(there), 0);
	CHECK_INT(pipe(back), 0);
	pid_t child = fork();
	CHECK(child >= 0);
	alarm(DEADLINE);
	struct side side = child ? (struct side){ back[0], there[1], 1 }
				 : (struct side){ there[0], back[1], 0 };
	pthread_t thread;
	void *result;
	CHECK_INT(pthread_create(&thread, NULL, live_on, &side), 0);
	CHECK_INT(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
	CHECK_INT(side.begins, -1);
	if (!child)
		_exit(0);
	CHECK_INT(waitpid(child, &status, 0), child);
	CHECK_INT(status, 0);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "no_verb_is_a_cancellation_point", no_verb_is_a_cancellation_point },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
