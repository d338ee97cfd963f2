/* Argument handling of single verbs. */
#include "rig.h"

/* A failed batch has no effect, whatever the state of the QP. */
/*= WRX-06 type=test */
static void failed_batch_leaves_nothing(void)
{
	struct rig r = rig_open();
	struct ibv_qp_ex *ex = create_qp_ex(r.context, r.pd, r.cq, IBV_QP_EX_WITH_SEND);
	struct ibv_qp *qp = &ex->qp_base;
	struct ibv_sge sges[3] = { sge_at(&r, 0, 8), sge_at(&r, 8, 8), sge_at(&r, 16, 8) };
	struct ibv_wc wc;
	connect_qp(qp, r.b->qp_num);
	for (int round = 0; round < 2; round++) {
		ibv_wr_start(ex);
		ex->wr_id = 1;
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(ex);
		ibv_wr_set_sge(ex, r.mr->lkey, (uintptr_t)r.buffer, 8);
		ex->wr_id = 2;
		ibv_wr_send(ex);
		ibv_wr_set_sge_list(ex, 3, sges);
		CHECK_INT(ibv_wr_complete(ex), EINVAL);
		CHECK_INT(ibv_poll_cq(r.cq, 1, &wc), 0);
		/* More requests than the queue holds. */
		ibv_wr_start(ex);
		for (int i = 0; i < 17; i++) {
			ibv_wr_send(ex);
			ibv_wr_set_sge(ex, r.mr->lkey, (uintptr_t)r.buffer, 8);
		}
		CHECK_INT(ibv_wr_complete(ex), ENOMEM);
		CHECK_INT(ibv_poll_cq(r.cq, 1, &wc), 0);
		/* In the second round the QP is in ERR, where posted requests are flushed. */
		to_error(qp);
	}
	/* A valid batch is still flushed, and so is a plain request after it. */
	ibv_wr_start(ex);
	ex->wr_id = 3;
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, r.mr->lkey, (uintptr_t)r.buffer, 8);
	CHECK_INT(ibv_wr_complete(ex), 0);
	struct ibv_send_wr plain = { .wr_id = 4, .opcode = IBV_WR_SEND }, *bad;
	CHECK_INT(ibv_post_send(qp, &plain, &bad), 0);
	for (uint64_t id = 3; id <= 4; id++) {
		wc = next_completion(r.cq);
		CHECK_INT(wc.wr_id, id);
		CHECK_INT(wc.status, IBV_WC_WR_FLUSH_ERR);
	}
	CHECK_INT(ibv_destroy_qp(qp), 0);
	rig_close(&r);
}

/* The requests before the wrong one in a chain stay posted, also in ERR (PST-09). */
static void failed_chain_keeps_its_head(void)
{
	struct rig r = rig_open();
	struct ibv_send_wr second = { .wr_id = 2, .opcode = 99 };
	struct ibv_send_wr first = { .wr_id = 1, .opcode = IBV_WR_SEND, .next = &second }, *bad;
	to_error(r.a);
	CHECK_INT(ibv_post_send(r.a, &first, &bad), EINVAL);
	CHECK(bad == &second);
	CHECK_INT(next_completion(r.cq).wr_id, 1);
	struct ibv_wc wc;
	CHECK_INT(ibv_poll_cq(r.cq, 1, &wc), 0);
	rig_close(&r);
}

/* The number of scatter/gather entries is limited for inline data too (PST-09). */
static void inline_elements_are_counted(void)
{
	struct rig r = rig_open();
	struct ibv_sge sges[3] = { sge_at(&r, 0, 1), sge_at(&r, 1, 1), sge_at(&r, 2, 1) };
	struct ibv_send_wr wr = { .wr_id = 7, .sg_list = sges, .num_sge = 3,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE }, *bad = NULL;
	CHECK_INT(ibv_post_send(r.a, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
	wr.num_sge = -1;
	CHECK_INT(ibv_post_send(r.a, &wr, &bad), EINVAL);
	wr.num_sge = 2;
	post_receive(&r, 8);
	CHECK_INT(ibv_post_send(r.a, &wr, &bad), 0);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	rig_close(&r);
}

static int set_migration(struct ibv_qp *qp, enum ibv_mig_state state, int more, uint16_t alt_pkey)
{
	struct ibv_qp_attr attr = {
		.path_mig_state = state,
		.alt_ah_attr = path_to_self(qp->context),
		.alt_port_num = 1,
		.alt_pkey_index = alt_pkey,
		.alt_timeout = 14,
	};
	return ibv_modify_qp(qp, &attr, IBV_QP_PATH_MIG_STATE | more);
}

static int migration_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK_INT(ibv_query_qp(qp, &attr, IBV_QP_PATH_MIG_STATE, &init), 0);
	return attr.path_mig_state;
}

/* A program may rearm if there is an alternate path. Otherwise it may only set the current
 * migration state (RC-APM-03). */
static void migration_states_are_checked(void)
{
	struct rig r = rig_open();
	CHECK_INT(migration_of(r.a), IBV_MIG_MIGRATED);
	CHECK_INT(set_migration(r.a, IBV_MIG_ARMED, 0, 0), EINVAL);
	CHECK_INT(set_migration(r.a, IBV_MIG_ARMED, IBV_QP_ALT_PATH, 0), EINVAL);
	CHECK_INT(set_migration(r.a, 3, IBV_QP_ALT_PATH, 0), EINVAL);
	CHECK_INT(set_migration(r.a, -1, IBV_QP_ALT_PATH, 0), EINVAL);
	CHECK_INT(set_migration(r.a, IBV_MIG_REARM, 0, 0), EINVAL);
	CHECK_INT(set_migration(r.a, IBV_MIG_REARM, IBV_QP_ALT_PATH, 77), EINVAL);
	CHECK_INT(migration_of(r.a), IBV_MIG_MIGRATED);
	CHECK_INT(set_migration(r.a, IBV_MIG_MIGRATED, 0, 0), 0);
	/* A refused call does not load its path. */
	CHECK_INT(set_migration(r.a, IBV_MIG_REARM, 0, 0), EINVAL);
	CHECK_INT(set_migration(r.a, IBV_MIG_REARM, IBV_QP_ALT_PATH, 0), 0);
	CHECK_INT(migration_of(r.a), IBV_MIG_REARM);
	CHECK_INT(set_migration(r.a, IBV_MIG_ARMED, 0, 0), EINVAL);
	CHECK_INT(set_migration(r.a, IBV_MIG_MIGRATED, 0, 0), EINVAL);
	CHECK_INT(migration_of(r.a), IBV_MIG_REARM);
	rig_close(&r);
}

/* Operations that no RC QP has are invalid. Operations that this device lacks are not supported:
 * FLUSH. A bind needs a window, an ATOMIC WRITE eight bytes. */
/*= PST-10 type=test */
static void operations_of_other_types_are_invalid(void)
{
	static const struct { int opcode, status; } rows[] = {
		{ IBV_WR_TSO, EINVAL },
		{ IBV_WR_DRIVER1, EINVAL },
		{ 99, EINVAL },
		{ IBV_WR_BIND_MW, EINVAL },
		{ 14, EOPNOTSUPP },
		{ 15, EINVAL },
	};
	struct rig r = rig_open();
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct ibv_send_wr wr = { .opcode = rows[i].opcode }, *bad = NULL;
		CHECK_INT(ibv_post_send(r.a, &wr, &bad), rows[i].status);
		CHECK(bad == &wr);
	}
	rig_close(&r);
}

/* Unknown flags are invalid. Flags that this device lacks are not supported (QPC-02, WRX-01). */
static void flags_of_extended_qps_are_checked(void)
{
	static const struct { uint32_t create; uint64_t operations; int error; } rows[] = {
		{ 1u << 20, 0, EOPNOTSUPP },
		{ IBV_QP_CREATE_SCATTER_FCS | 1, 0, EOPNOTSUPP },
		{ IBV_QP_CREATE_SCATTER_FCS, 0, EOPNOTSUPP },
		/* Flags of UD on a connected QP. */
		{ IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, 0, EOPNOTSUPP },
		{ 0, IBV_QP_EX_WITH_TSO, EOPNOTSUPP },
		{ 0, 1ull << 40, EOPNOTSUPP },
	};
	struct rig r = rig_open();
	struct ibv_parent_domain_init_attr parent = { .pd = r.pd, .comp_mask = 1u << 20 };
	CHECK(!ibv_alloc_parent_domain(r.context, &parent));
	CHECK_INT(errno, EOPNOTSUPP);
	struct ibv_qp_init_attr_ex raw = {
		.send_cq = r.cq, .recv_cq = r.cq, .qp_type = IBV_QPT_RAW_PACKET, .pd = r.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB };
	CHECK(!ibv_create_qp_ex(r.context, &raw));
	CHECK_INT(errno, EOPNOTSUPP);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct ibv_qp_init_attr_ex init = {
			.send_cq = r.cq, .recv_cq = r.cq, .qp_type = IBV_QPT_RC, .pd = r.pd,
			.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS |
				     IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
			.create_flags = rows[i].create, .send_ops_flags = rows[i].operations };
		CHECK(!ibv_create_qp_ex(r.context, &init));
		CHECK_INT(errno, rows[i].error);
	}
	rig_close(&r);
}

/* CQs and channels must be of the same context. */
static void queues_of_other_contexts_are_refused(void)
{
	struct rig r = rig_open();
	struct ibv_context *other = open_device();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(other);
	struct ibv_cq *cq = ibv_create_cq(other, 8, NULL, channel, 0);
	CHECK(channel && cq);
	errno = 0;
	CHECK(!ibv_create_cq(r.context, 8, NULL, channel, 0));
	CHECK_INT(errno, EINVAL);
	struct ibv_cq_init_attr_ex extended = { .cqe = 8, .channel = channel };
	errno = 0;
	CHECK(!ibv_create_cq_ex(r.context, &extended));
	CHECK_INT(errno, EINVAL);
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		for (int which = 0; which < 2; which++) {
			struct ibv_qp_init_attr init = small_qp(r.cq);
			init.qp_type = types[i];
			*(which ? &init.send_cq : &init.recv_cq) = cq;
			errno = 0;
			CHECK(!ibv_create_qp(r.pd, &init));
			CHECK_INT(errno, EINVAL);
		}
	CHECK_INT(ibv_destroy_cq(cq), 0);
	CHECK_INT(ibv_destroy_comp_channel(channel), 0);
	CHECK_INT(ibv_close_device(other), 0);
	rig_close(&r);
}

/* Domains in use cannot be destroyed. */
/*= DST-01 type=test */
static void domains_in_use_are_busy(void)
{
	struct rig r = rig_open();
	struct ibv_td_init_attr td_init = { 0 };
	struct ibv_td *td = ibv_alloc_td(r.context, &td_init);
	CHECK(td);
	struct ibv_parent_domain_init_attr init = { .pd = r.pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(r.context, &init);
	CHECK(parent);
	CHECK_INT(ibv_dealloc_td(td), EBUSY);

	struct ibv_mr *mr = ibv_reg_mr(parent, r.buffer, 64, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	CHECK_INT(ibv_dealloc_pd(parent), EBUSY);
	CHECK_INT(ibv_dereg_mr(mr), 0);

	struct ibv_qp_init_attr qp_init = small_qp(r.cq);
	struct ibv_qp *qp = ibv_create_qp(parent, &qp_init);
	CHECK(qp);
	CHECK_INT(ibv_dealloc_pd(parent), EBUSY);
	CHECK_INT(ibv_destroy_qp(qp), 0);

	struct ibv_cq_init_attr_ex cq_init = { .cqe = 4, .parent_domain = parent,
					       .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(r.context, &cq_init);
	CHECK(cq);
	CHECK_INT(ibv_dealloc_pd(parent), EBUSY);
	CHECK_INT(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);

	init.pd = parent;
	init.td = NULL;
	struct ibv_pd *grandparent = ibv_alloc_parent_domain(r.context, &init);
	CHECK(grandparent);
	CHECK_INT(ibv_dealloc_pd(parent), EBUSY);
	CHECK_INT(ibv_dealloc_pd(grandparent), 0);

	CHECK_INT(ibv_dealloc_pd(r.pd), EBUSY);
	CHECK_INT(ibv_dealloc_td(td), EBUSY);
	CHECK_INT(ibv_dealloc_pd(parent), 0);
	CHECK_INT(ibv_dealloc_td(td), 0);
	rig_close(&r);
}

/* A GID table that does not fit is not truncated. */
static void gid_table_fits_or_fails(void)
{
	/* Two addresses. */
	unsetenv("ROCADE_IP");
	setenv("ROCADE_DEVICES", "rocade0=lo", 1);
	struct ibv_context *context = open_device();
	struct ibv_gid_entry entries[256];
	ssize_t count = ibv_query_gid_table(context, entries, 256, 0);
	CHECK(count > 1);
	CHECK_INT(ibv_query_gid_table(context, entries, count, 0), count);
	memset(entries, 0x5a, sizeof(entries));
	CHECK_INT(ibv_query_gid_table(context, entries, count - 1, 0), -EINVAL);
	CHECK_INT(ibv_query_gid_table(context, entries, 0, 0), -EINVAL);
	CHECK_INT(ibv_query_gid_table(context, NULL, 256, 0), -EINVAL);
	CHECK_INT(((unsigned char *)entries)[0], 0x5a);
	CHECK_INT(ibv_close_device(context), 0);
}

/* The clock of ibv_query_rt_values_ex is the one of completion timestamps. */
static void raw_clock_stamps_completions(void)
{
	struct rig r = rig_open();
	struct ibv_device_attr_ex attr;
	CHECK_INT(ibv_query_device_ex(r.context, NULL, &attr), 0);
	CHECK(attr.completion_timestamp_mask && attr.hca_core_clock);

	struct ibv_cq_init_attr_ex init = {
		.cqe = 4, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(r.context, &init);
	CHECK(cq);
	struct ibv_qp_init_attr qp_init = small_qp(ibv_cq_ex_to_cq(cq));
	struct ibv_qp *qp = ibv_create_qp(r.pd, &qp_init);
	CHECK(qp);
	connect_qp(qp, r.b->qp_num);
	to_error(qp);

	struct ibv_values_ex before = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK }, after = before;
	CHECK_INT(ibv_query_rt_values_ex(r.context, &before), 0);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	CHECK_INT(ibv_post_send(qp, &wr, &bad), 0);
	struct ibv_poll_cq_attr poll_attr = { 0 };
	while (ibv_start_poll(cq, &poll_attr) == ENOENT)
		;
	uint64_t stamp = ibv_wc_read_completion_ts(cq);
	ibv_end_poll(cq);
	CHECK_INT(ibv_query_rt_values_ex(r.context, &after), 0);
	CHECK_INT(before.comp_mask, IBV_VALUES_MASK_RAW_CLOCK);
	CHECK_INT(before.raw_clock.tv_sec, 0);
	CHECK_INT(before.raw_clock.tv_nsec & ~attr.completion_timestamp_mask, 0);
	CHECK((uint64_t)before.raw_clock.tv_nsec <= stamp);
	CHECK(stamp <= (uint64_t)after.raw_clock.tv_nsec);
	CHECK(before.raw_clock.tv_nsec < after.raw_clock.tv_nsec);

	/* Unknown values are cleared in the result. */
	struct ibv_values_ex none = { .comp_mask = 1u << 31, .raw_clock = { 5, 6 } };
	CHECK_INT(ibv_query_rt_values_ex(r.context, &none), 0);
	CHECK_INT(none.comp_mask, 0);
	CHECK(none.raw_clock.tv_sec == 5 && none.raw_clock.tv_nsec == 6);

	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	rig_close(&r);
}

static void watch(int epoll, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };
	CHECK_INT(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
}

/*
 * Returns true if what was watched as `fd` has been closed. A thread of the library may have
 * another file of that number already.
 */
static int is_gone(int epoll, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };
	if (epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) == 0)
		return 0;
	CHECK(errno == EBADF || errno == ENOENT);
	return 1;
}

/* The command descriptor is a real one: it can be duplicated and polled, and is closed with the
 * context. */
static void command_descriptor_is_one(void)
{
	struct rig r = rig_open();
	struct ibv_context *other = open_device();
	int fd = r.context->cmd_fd, other_fd = other->cmd_fd;
	int watcher = epoll_create1(EPOLL_CLOEXEC);
	watch(watcher, fd);
	watch(watcher, other_fd);
	CHECK(fd >= 0 && fd != other->cmd_fd && fd != r.context->async_fd);
	CHECK_INT(fcntl(fd, F_GETFD), FD_CLOEXEC);
	int copy = dup(fd), closed_on_exec = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	CHECK(copy >= 0 && closed_on_exec >= 0);
	CHECK(!is_readable(fd) && !is_readable(copy));
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	CHECK_INT(epoll_ctl(epoll, EPOLL_CTL_ADD, copy, &event), 0);
	post_receive(&r, 1);
	post_send(&r, 2);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(epoll_wait(epoll, &event, 1, 0), 0);
	char bytes[8] = { 0 };
	set_nonblocking(copy);
	CHECK(read(copy, bytes, sizeof(bytes)) < 0);
	close(epoll);
	close(copy);
	close(closed_on_exec);
	CHECK(!is_gone(watcher, other_fd));
	CHECK_INT(ibv_close_device(other), 0);
	CHECK(is_gone(watcher, other_fd) && !is_gone(watcher, fd));
	rig_close(&r);
	CHECK(is_gone(watcher, fd));
	close(watcher);
}

/* A call with a NULL result pointer takes no event. */
static void a_missing_answer_costs_no_event(void)
{
	struct rig r = rig_open();
	struct ibv_cq *cq;
	void *cookie;
	CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
	post_receive(&r, 1);
	post_send(&r, 2);
	wait_readable(r.channel->fd);
	CHECK(ibv_get_cq_event(r.channel, NULL, &cookie) < 0 && errno == EINVAL);
	CHECK(ibv_get_cq_event(r.channel, &cq, NULL) < 0 && errno == EINVAL);
	CHECK(is_readable(r.channel->fd));
	CHECK_INT(ibv_get_cq_event(r.channel, &cq, &cookie), 0);
	CHECK(cq == r.cq && cookie == cq->cq_context);
	ibv_ack_cq_events(cq, 1);
	CHECK(ibv_get_async_event(r.context, NULL) < 0 && errno == EINVAL);
	rig_close(&r);
}

/* The objects of a closed device keep working. The last one releases everything. */
static void a_device_closed_before_its_objects(void)
{
	struct rig r = rig_open();
	int fd = r.context->async_fd;
	int watcher = epoll_create1(EPOLL_CLOEXEC);
	watch(watcher, fd);
	CHECK_INT(ibv_close_device(r.context), 0);
	post_receive(&r, 1);
	post_send(&r, 2);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_SUCCESS);
	struct ibv_context *other = open_device();
	CHECK_INT(ibv_close_device(other), 0);
	CHECK_INT(ibv_destroy_qp(r.a), 0);
	CHECK_INT(ibv_destroy_qp(r.b), 0);
	CHECK_INT(ibv_destroy_cq(r.cq), 0);
	CHECK_INT(ibv_destroy_comp_channel(r.channel), 0);
	CHECK_INT(ibv_dereg_mr(r.mr), 0);
	CHECK(!is_gone(watcher, fd));
	CHECK_INT(ibv_dealloc_pd(r.pd), 0);
	CHECK(is_gone(watcher, fd));
	close(watcher);
	free(r.buffer);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "failed_batch_leaves_nothing", failed_batch_leaves_nothing },
		{ "failed_chain_keeps_its_head", failed_chain_keeps_its_head },
		{ "inline_elements_are_counted", inline_elements_are_counted },
		{ "migration_states_are_checked", migration_states_are_checked },
		{ "operations_of_other_types_are_invalid", operations_of_other_types_are_invalid },
		{ "flags_of_extended_qps_are_checked", flags_of_extended_qps_are_checked },
		{ "queues_of_other_contexts_are_refused", queues_of_other_contexts_are_refused },
		{ "domains_in_use_are_busy", domains_in_use_are_busy },
		{ "gid_table_fits_or_fails", gid_table_fits_or_fails },
		{ "raw_clock_stamps_completions", raw_clock_stamps_completions },
		{ "command_descriptor_is_one", command_descriptor_is_one },
		{ "a_missing_answer_costs_no_event", a_missing_answer_costs_no_event },
		{ "a_device_closed_before_its_objects", a_device_closed_before_its_objects },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
