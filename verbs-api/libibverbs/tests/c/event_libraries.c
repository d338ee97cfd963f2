/* link: ev /usr/include/ev.h libev-dev */
/* link: uv /usr/include/uv.h libuv1-dev */
/* Programs that wait for the descriptor of a channel in a loop of a library. */
#include "event_loop.h"

#include <ev.h>
#include <uv.h>

static void ev_readable(struct ev_loop *loop, ev_io *io, int events)
{
	struct side *side = io->data;
	(void)events;
	on_readable(side);
	if (is_over(side))
		ev_break(loop, EVBREAK_ALL);
}

static void by_libev(struct side *side)
{
	struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
	ev_io io;
	CHECK(loop);
	ev_io_init(&io, ev_readable, fd_of(side), EV_READ);
	io.data = side;
	ev_io_start(loop, &io);
	ev_run(loop, 0);
	ev_loop_destroy(loop);
}

static void uv_readable(uv_poll_t *poll, int status, int events)
{
	struct side *side = poll->data;
	CHECK_INT(status, 0);
	CHECK(events & UV_READABLE);
	on_readable(side);
	if (is_over(side))
		uv_stop(poll->loop);
}

static void by_libuv(struct side *side)
{
	uv_loop_t loop;
	uv_poll_t poll;
	CHECK_INT(uv_loop_init(&loop), 0);
	CHECK_INT(uv_poll_init(&loop, &poll, fd_of(side)), 0);
	poll.data = side;
	CHECK_INT(uv_poll_start(&poll, UV_READABLE, uv_readable), 0);
	uv_run(&loop, UV_RUN_DEFAULT);
	CHECK_INT(uv_poll_stop(&poll), 0);
}

static void libev_waits(void) { on_both_links(by_libev); }
static void libuv_waits(void) { on_both_links(by_libuv); }

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "libev_waits", libev_waits },
		{ "libuv_waits", libuv_waits },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
