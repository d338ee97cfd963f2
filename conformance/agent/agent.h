/* What the files of the agent share. */
#ifndef AGENT_H
#define AGENT_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { REGIONS = 8, WINDOWS = 16, GROUPS = 4, DEPTH = 64, QKEY = 0x1badcafe };

struct region {
	struct ibv_mr *mr;
	uint8_t *bytes;
	size_t len;
};

/* A queue pair with its resources. It has its own context, because asynchronous events belong to a
 * context. Only a sibling uses the context, the protection domain, the memory and the windows of
 * another end. */
struct end {
	struct end *first;
	struct ibv_context *context;
	struct ibv_pd *pd, *foreign;
	struct ibv_cq *cq;
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_ah *ah;
	struct ibv_mw *windows[WINDOWS];
	struct region regions[REGIONS];
	union ibv_gid groups[GROUPS];
	struct ibv_qp_attr attr;
	uint32_t rig_qpn;
	/* The socket that joins the groups at the IP level, as rdma_join_multicast does. */
	int window_count, group_count, group_socket;
};

extern int port, can_flush;

/* Answers an order with a line. Returns 0. */
int answer(const char *format, ...);
/* Answers that a call failed, with the text of errno. */
int unable(const char *what);
/* Returns the next word of the order, or "". */
const char *word(void);
/* Returns the next word of the order as a number. */
uint64_t number(void);
int is(const char *a, const char *b);
/* Sets the GID of an IP address. */
void gid_of(const char *address, union ibv_gid *gid);

/* Moves a queue pair with its attributes to a state. Returns 0, or an error and sets errno. */
int to_init(struct end *end, struct ibv_qp_attr *attr);
int to_rtr(struct end *end, struct ibv_qp_attr *attr);
int to_rts(struct end *end, struct ibv_qp_attr *attr);
/* Execute orders about states. */
int state(struct end *end);
int to_error(struct end *end);
int reset(struct end *end);
int drain(struct end *end);
int resume(struct end *end);

/* Returns rights in the suite's notation as access flags. */
int access_of(unsigned rights);
/* Execute orders about memory windows. */
int window(struct end *end, enum ibv_mw_type type);
int bind_type_1(struct end *end);
/* Reads the rest of the order to bind a type 2 window. Returns 0, or -1 for wrong words. */
int bind_type_2(struct end *end, struct ibv_send_wr *wr);
/* Deallocates the windows of a queue pair and of those that share its resources. */
void deallocate_windows(struct end *end);

/* join HANDLE GROUP, leave HANDLE GROUP, from the group on. */
int join(struct end *end, const char *device_address, int is_leave);
/* Detaches a queue pair from its groups. */
void leave_groups(struct end *end);

/* Executes an order of the connection manager, whose name begins with "cm-". */
int manage(const char *order, const char *device_address);

/* Sets the token that the first order must state. Makes one up if none is given and one must
 * exist. */
int choose_token(const char *given, int must_exist);
/* Returns true if the agent wants a token. */
int wants_token(void);
/* Compares a token with the agent's in constant time. */
int is_token(const char *given);
/* Accepts one connection at a TCP port of an address whose first line states the token. */
int serve(const char *address, int tcp_port, FILE **in, FILE **out);

#endif
