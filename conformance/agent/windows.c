/*
 * The memory windows of the agent, and access rights.
 */
#include "agent.h"

#include <errno.h>

/* Access rights in the suite's notation. READ_ONLY leaves out the right of the device to write for
 * its owner. */
enum { WRITE = 1, READ = 2, ATOMIC = 4, FLUSH = 8, READ_ONLY = 16 };
/* Older rdma-cores lack the name. */
enum { ACCESS_FLUSH_GLOBAL = 1 << 8 };

int access_of(unsigned rights)
{
	return (rights & READ_ONLY ? 0 : IBV_ACCESS_LOCAL_WRITE) | (rights & WRITE ? IBV_ACCESS_REMOTE_WRITE : 0) |
	       (rights & READ ? IBV_ACCESS_REMOTE_READ : 0) | (rights & ATOMIC ? IBV_ACCESS_REMOTE_ATOMIC : 0) |
	       (rights & FLUSH && can_flush ? ACCESS_FLUSH_GLOBAL : 0);
}

/* Returns the end that has the windows of this one. */
static struct end *owner(struct end *end)
{
	return end->first ? end->first : end;
}

/* rxe keeps a queue pair until the windows that are bound to it are deallocated. */
void deallocate_windows(struct end *end)
{
	struct end *of = owner(end);
	for (int i = 0; i < of->window_count; i++)
		ibv_dealloc_mw(of->windows[i]);
	of->window_count = 0;
}

/* window HANDLE, window-1 HANDLE */
int window(struct end *end, enum ibv_mw_type type)
{
	struct end *of = owner(end);
	struct ibv_mw *window = NULL;
	errno = ENOSPC;
	if (of->window_count < WINDOWS)
		window = ibv_alloc_mw(of->pd, type);
	if (!window)
		return unable("ibv_alloc_mw");
	of->windows[of->window_count++] = window;
	return answer("ok %u", window->rkey);
}

/* RKEY REGION OFFSET LEN RIGHTS ZERO_BASED: finds the window whose key differs at most in the low
 * byte. */
static struct ibv_mw *read_bind(struct end *end, uint32_t rkey, struct ibv_mw_bind_info *info)
{
	struct ibv_mw *found = NULL;
	struct end *of = owner(end);
	for (int i = 0; i < of->window_count; i++)
		if (of->windows[i]->rkey >> 8 == rkey >> 8)
			found = of->windows[i];
	unsigned region = number();
	if (region >= REGIONS || !end->regions[region].mr)
		return NULL;
	info->mr = end->regions[region].mr;
	info->addr = (uintptr_t)end->regions[region].bytes + number();
	info->length = number();
	int access = access_of(number()) & ~IBV_ACCESS_LOCAL_WRITE;
	info->mw_access_flags = access | (number() ? IBV_ACCESS_ZERO_BASED : 0);
	return found;
}

int bind_type_2(struct end *end, struct ibv_send_wr *wr)
{
	wr->bind_mw.rkey = number();
	wr->bind_mw.mw = read_bind(end, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
	return wr->bind_mw.mw ? 0 : -1;
}

/* bind-1 HANDLE ID RKEY REGION OFFSET LEN RIGHTS ZERO_BASED: answers with the new key. A length
 * of 0 ends the bind of the window. The region stays, because rdma-core's rxe needs one. */
int bind_type_1(struct end *end)
{
	struct ibv_mw_bind bind = {.wr_id = number(), .send_flags = IBV_SEND_SIGNALED};
	struct ibv_mw *window = read_bind(end, number(), &bind.bind_info);
	if (!window || !end->qp)
		return answer("unable no such queue pair, region or window");
	if ((errno = ibv_bind_mw(end->qp, window, &bind)))
		return unable("ibv_bind_mw");
	return answer("ok %u", window->rkey);
}
