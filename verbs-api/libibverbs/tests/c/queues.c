/* Completion queues: sizes, events, and the fields of extended CQs. */
#include <stdbool.h>
#include <time.h>

#include "rig.h"

/* Posts a receive and the message for it. */
static void exchange(struct rig *r, uint64_t wr_id, unsigned int send_flags)
{
	post_receive(r, wr_id);
	struct ibv_sge sge = sge_at(r, 0, 16);
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND, .send_flags = send_flags }, *bad;
	CHECK_INT(ibv_post_send(r->a, &wr, &bad), 0);
}

/* Creates the rig's QPs again with another CQ. */
static void move_to(struct rig *r, struct ibv_cq *cq)
{
	CHECK_INT(ibv_destroy_qp(r->a), 0);
	CHECK_INT(ibv_destroy_qp(r->b), 0);
	CHECK_INT(ibv_destroy_cq(r->cq), 0);
	r->cq = cq;
	struct ibv_qp_init_attr init = small_qp(cq);
	r->a = ibv_create_qp(r->pd, &init);
	r->b = ibv_create_qp(r->pd, &init);
	CHECK(r->a && r->b);
	connect_qp(r->a, r->b->qp_num);
	connect_qp(r->b, r->a->qp_num);
}

static void take_event(struct rig *r)
{
	struct ibv_cq *cq;
	void *cookie;
	CHECK_INT(ibv_get_cq_event(r->channel, &cq, &cookie), 0);
	CHECK(cq == r->cq);
	ibv_ack_cq_events(cq, 1);
}

/* Completions keep their order while the CQ grows and shrinks under traffic. */
/*= CQ-04 type=test */
static void resizing_under_traffic(void)
{
	struct rig r = rig_open();
	uint64_t received = 0;
	for (uint64_t round = 0; round < 500; round++) {
		for (uint64_t i = 0; i < 4; i++)
			exchange(&r, round * 4 + i, 0);
		int size = round % 2 ? 8 : 64;
		CHECK_INT(ibv_resize_cq(r.cq, size), 0);
		CHECK_INT(r.cq->cqe, size);
		for (uint64_t i = 0; i < 4; i++) {
			struct ibv_wc wc = next_completion(r.cq);
			CHECK_INT(wc.status, IBV_WC_SUCCESS);
			CHECK_INT(wc.opcode, IBV_WC_RECV);
			CHECK_INT(wc.wr_id, received++);
		}
		/* Signals a send now and then, because unsignaled sends fill the queue. */
		post_receive(&r, 0);
		post_send(&r, 0);
		next_completion(r.cq);
		next_completion(r.cq);
	}

	/* A resize below the number of completions fails without effect. All completions are there
	 * once the last one is. */
	CHECK_INT(ibv_resize_cq(r.cq, 64), 0);
	CHECK_INT(ibv_req_notify_cq(r.cq, 1), 0);
	for (uint64_t i = 0; i < 6; i++)
		exchange(&r, i, i < 5 ? 0 : IBV_SEND_SOLICITED);
	wait_readable(r.channel->fd);
	take_event(&r);
	CHECK_INT(ibv_resize_cq(r.cq, 5), EINVAL);
	CHECK_INT(ibv_resize_cq(r.cq, 0), EINVAL);
	CHECK_INT(ibv_resize_cq(r.cq, -1), EINVAL);
	CHECK_INT(ibv_resize_cq(r.cq, 1 << 30), EINVAL);
	CHECK_INT(r.cq->cqe, 64);
	for (uint64_t i = 0; i < 6; i++)
		CHECK_INT(next_completion(r.cq).wr_id, i);
	rig_close(&r);
}

/* A CQ armed for solicited events raises none for other completions. */
/*= CQ-05 CQ-06 type=test */
static void solicited_arming(void)
{
	struct rig r = rig_open();
	CHECK_INT(ibv_req_notify_cq(r.cq, 1), 0);
	exchange(&r, 1, 0);
	CHECK_INT(next_completion(r.cq).wr_id, 1);
	/* Send completions are not solicited, even if the send is marked. */
	exchange(&r, 2, IBV_SEND_SIGNALED);
	next_completion(r.cq);
	next_completion(r.cq);
	CHECK(!is_readable(r.channel->fd));

	exchange(&r, 3, IBV_SEND_SOLICITED);
	wait_readable(r.channel->fd);
	take_event(&r);
	CHECK_INT(next_completion(r.cq).wr_id, 3);

	/* The event is raised once. */
	exchange(&r, 4, IBV_SEND_SOLICITED);
	next_completion(r.cq);
	CHECK(!is_readable(r.channel->fd));

	/* A later arm for solicited events does not replace an earlier arm for all events. */
	CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
	CHECK_INT(ibv_req_notify_cq(r.cq, 1), 0);
	exchange(&r, 5, 0);
	wait_readable(r.channel->fd);
	take_event(&r);
	next_completion(r.cq);

	/* Failed completions count as solicited. */
	CHECK_INT(ibv_req_notify_cq(r.cq, 1), 0);
	post_receive(&r, 6);
	to_error(r.b);
	wait_readable(r.channel->fd);
	take_event(&r);
	CHECK_INT(next_completion(r.cq).status, IBV_WC_WR_FLUSH_ERR);
	rig_close(&r);
}

static int moderate(struct ibv_cq *cq, uint16_t count, uint16_t period)
{
	struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE,
					   .moderate = { .cq_count = count, .cq_period = period } };
	return ibv_modify_cq(cq, &attr);
}

/* A moderated event is delayed, but not longer than its period. */
/*= CQ-10 type=test */
static void events_are_moderated(void)
{
	struct rig r = rig_open();
	struct ibv_device_attr_ex device;
	CHECK_INT(ibv_query_device_ex(r.context, NULL, &device), 0);
	CHECK_INT(device.cq_mod_caps.max_cq_count, 65535);
	CHECK_INT(device.cq_mod_caps.max_cq_period, 65535);

	/* By count. The period is long enough for a busy machine. */
	for (int attempt = 0;; attempt++) {
		struct timespec begin, end;
		CHECK_INT(moderate(r.cq, 3, 65535), 0);
		CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
		clock_gettime(CLOCK_MONOTONIC, &begin);
		exchange(&r, 1, 0);
		next_completion(r.cq);
		exchange(&r, 2, 0);
		next_completion(r.cq);
		int early = is_readable(r.channel->fd);
		clock_gettime(CLOCK_MONOTONIC, &end);
		long us = (end.tv_sec - begin.tv_sec) * 1000000 + (end.tv_nsec - begin.tv_nsec) / 1000;
		if (early) {
			/* Only because the period was over. */
			CHECK(us >= 65535);
			take_event(&r);
			continue;
		}
		exchange(&r, 3, 0);
		next_completion(r.cq);
		wait_readable(r.channel->fd);
		take_event(&r);
		break;
	}

	/* By time: a single completion, which no thread polls. */
	CHECK_INT(moderate(r.cq, 1000, 20000), 0);
	CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
	struct timespec begin, end;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	exchange(&r, 4, 0);
	wait_readable(r.channel->fd);
	clock_gettime(CLOCK_MONOTONIC, &end);
	CHECK((end.tv_sec - begin.tv_sec) * 1000000 + (end.tv_nsec - begin.tv_nsec) / 1000 >= 20000);
	take_event(&r);
	CHECK_INT(next_completion(r.cq).wr_id, 4);

	/* A delayed event is delivered when moderation is turned off, and discarded with its CQ. */
	CHECK_INT(moderate(r.cq, 1000, 65535), 0);
	CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
	exchange(&r, 5, 0);
	next_completion(r.cq);
	CHECK_INT(moderate(r.cq, 0, 0), 0);
	wait_readable(r.channel->fd);
	take_event(&r);
	CHECK_INT(moderate(r.cq, 1000, 65535), 0);
	CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
	exchange(&r, 6, 0);
	next_completion(r.cq);

	struct ibv_modify_cq_attr unknown = { .attr_mask = IBV_CQ_ATTR_RESERVED };
	CHECK_INT(ibv_modify_cq(r.cq, &unknown), EINVAL);
	struct ibv_modify_cq_attr nothing = { 0 };
	CHECK_INT(ibv_modify_cq(r.cq, &nothing), 0);
	rig_close(&r);
}

static struct ibv_cq_ex *create_ex(struct rig *r, uint32_t cqe, uint64_t fields, uint32_t flags)
{
	struct ibv_cq_init_attr_ex init = { .cqe = cqe, .channel = r->channel, .wc_flags = fields,
					    .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = flags };
	return ibv_create_cq_ex(r->context, &init);
}

#define EVERY_FIELD                                                                                 \
	(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_CVLAN |       \
	 IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_TM_INFO |                                         \
	 IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

static uint64_t time_of_day(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * UINT64_C(1000000000) + now.tv_nsec;
}

/* Checks all fields of the completion of a receive that was posted after a time. */
static void check_received(struct rig *r, struct ibv_cq_ex *cq, uint64_t before)
{
	CHECK_INT(cq->wr_id, 77);
	CHECK_INT(cq->status, IBV_WC_SUCCESS);
	CHECK_INT(ibv_wc_read_opcode(cq), IBV_WC_RECV);
	CHECK_INT(ibv_wc_read_vendor_err(cq), 0);
	CHECK_INT(ibv_wc_read_byte_len(cq), 16);
	CHECK_INT(be32toh(ibv_wc_read_imm_data(cq)), 0x01020304);
	CHECK_INT(ibv_wc_read_qp_num(cq), r->b->qp_num);
	CHECK_INT(ibv_wc_read_wc_flags(cq), IBV_WC_WITH_IMM);
	CHECK_INT(ibv_wc_read_slid(cq), 0);
	CHECK_INT(ibv_wc_read_sl(cq), 0);
	CHECK_INT(ibv_wc_read_dlid_path_bits(cq), 0);
	CHECK_INT(ibv_wc_read_cvlan(cq), 0);
	CHECK_INT(ibv_wc_read_flow_tag(cq), 0);
	struct ibv_wc_tm_info tag = { 1, 2 };
	ibv_wc_read_tm_info(cq, &tag);
	CHECK(tag.tag == 0 && tag.priv == 0);
	uint64_t received = ibv_wc_read_completion_wallclock_ns(cq);
	/* The clocks are read one after the other, and the system may adjust its time in
	 * between. */
	const uint64_t slack = 50 * 1000 * 1000;
	CHECK(before <= received + slack && received <= time_of_day() + slack);
}

/* All fields of a completion that an extended CQ can return. */
/*= CQX-01 CQX-02 CQX-03 type=test */
/*= CQX-04 CQX-05 CQ-12 type=test */
static void every_field_of_an_extended_queue(void)
{
	struct rig r = rig_open();
	struct ibv_cq_ex *cq = create_ex(&r, 16, EVERY_FIELD, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
	CHECK(cq);
	CHECK(!create_ex(&r, 16, UINT64_C(1) << 40, 0));
	CHECK_INT(errno, EOPNOTSUPP);
	CHECK(!create_ex(&r, 16, 0, 1u << 31));
	CHECK_INT(errno, EINVAL);
	CHECK(!create_ex(&r, 0, 0, 0));
	CHECK_INT(errno, EINVAL);
	move_to(&r, ibv_cq_ex_to_cq(cq));

	struct ibv_poll_cq_attr attr = { 0 }, unknown = { .comp_mask = 1 };
	CHECK_INT(ibv_start_poll(cq, &attr), ENOENT);
	CHECK_INT(ibv_start_poll(cq, &unknown), EINVAL);

	uint64_t before = time_of_day();
	post_receive(&r, 77);
	struct ibv_sge sge = sge_at(&r, 0, 16);
	struct ibv_send_wr wr = { .wr_id = 78, .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htobe32(0x01020304),
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK_INT(ibv_post_send(r.a, &wr, &bad), 0);
	while (ibv_start_poll(cq, &attr) == ENOENT)
		;
	/* Both ends complete side by side, so the acknowledgement may overtake the receive. */
	bool has_sent = false;
	for (int i = 0; i < 2; i++) {
		int status = 0;
		while (i > 0 && (status = ibv_next_poll(cq)) == ENOENT)
			;
		CHECK_INT(status, 0);
		if (has_sent || cq->wr_id != 78) {
			check_received(&r, cq, before);
			continue;
		}
		has_sent = true;
		CHECK_INT(ibv_wc_read_opcode(cq), IBV_WC_SEND);
		CHECK_INT(ibv_wc_read_qp_num(cq), r.a->qp_num);
		CHECK(ibv_wc_read_completion_ts(cq) > 0);
	}
	CHECK(has_sent);
	CHECK_INT(ibv_next_poll(cq), ENOENT);
	ibv_end_poll(cq);

	/* An extended CQ can be polled, armed and resized like a plain one. */
	CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
	exchange(&r, 79, 0);
	wait_readable(r.channel->fd);
	take_event(&r);
	CHECK_INT(next_completion(r.cq).wr_id, 79);
	CHECK_INT(ibv_resize_cq(r.cq, 32), 0);
	CHECK_INT(cq->cqe, 32);
	rig_close(&r);
}

/* With IGNORE_OVERRUN the newest completions stay, and no QP fails. */
/*= CQ-02 CQX-06 type=test */
static void an_overrun_may_be_ignored(void)
{
	struct rig r = rig_open();
	struct ibv_cq_ex *cq = create_ex(&r, 4, IBV_WC_STANDARD_FLAGS,
					 IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
	CHECK(cq);
	move_to(&r, ibv_cq_ex_to_cq(cq));
	/* More receives than entries. The last message is signaled, and its completion comes
	 * last. */
	for (uint64_t i = 0; i < 14; i++)
		exchange(&r, i, 0);
	struct ibv_wc wc = { 0 };
	CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
	exchange(&r, 14, IBV_SEND_SIGNALED);
	struct ibv_wc all[8];
	/* Polls only after the last completion is there, when the peer has acknowledged
	 * everything. */
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	do {
		wait_readable(r.channel->fd);
		take_event(&r);
		CHECK_INT(ibv_req_notify_cq(r.cq, 0), 0);
		int polled = ibv_poll_cq(r.cq, 8, all);
		CHECK(polled >= 0 && polled <= 4);
		for (int i = 0; i < polled; i++) {
			CHECK_INT(all[i].status, IBV_WC_SUCCESS);
			CHECK(all[i].wr_id >= wc.wr_id);
			wc = all[i];
		}
	} while (wc.opcode != IBV_WC_SEND || wc.wr_id != 14);
	CHECK_INT(ibv_query_qp(r.a, &attr, IBV_QP_STATE, &init), 0);
	CHECK_INT(attr.qp_state, IBV_QPS_RTS);

	/* The QPs keep working. */
	exchange(&r, 15, IBV_SEND_SIGNALED);
	next_completion(r.cq);
	next_completion(r.cq);
	set_nonblocking(r.context->async_fd);
	struct ibv_async_event event;
	CHECK_INT(ibv_get_async_event(r.context, &event), -1);
	CHECK_INT(errno, EAGAIN);
	while (is_readable(r.channel->fd))
		take_event(&r);
	rig_close(&r);
}

/* Polls a completion, and returns by how much its time of day is ahead of its timestamp. */
static uint64_t wallclock_offset(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = { 0 };
	while (ibv_start_poll(cq, &attr) == ENOENT)
		;
	CHECK_INT(cq->status, IBV_WC_SUCCESS);
	uint64_t raw = ibv_wc_read_completion_ts(cq);
	uint64_t wallclock = ibv_wc_read_completion_wallclock_ns(cq);
	CHECK(ibv_wc_read_completion_wallclock_ns(cq) == wallclock);
	ibv_end_poll(cq);
	return wallclock - raw;
}

/* Both clocks have the same order and the same distances, also for several queues. */
static void the_time_of_day_is_that_of_the_timestamp(void)
{
	const uint64_t fields = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
				IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	uint64_t before = time_of_day(), offset = 0;
	for (int queue = 0; queue < 2; queue++) {
		struct rig r = rig_open();
		struct ibv_cq_ex *cq = create_ex(&r, 16, fields, 0);
		CHECK(cq);
		move_to(&r, ibv_cq_ex_to_cq(cq));
		for (int i = 0; i < 200; i++) {
			post_receive(&r, 1);
			post_send(&r, 2);
			for (int completion = 0; completion < 2; completion++) {
				uint64_t found = wallclock_offset(cq);
				CHECK(!offset || found == offset);
				offset = found;
			}
		}
		rig_close(&r);
	}
	struct rig r = rig_open();
	struct ibv_values_ex now = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	CHECK_INT(ibv_query_rt_values_ex(r.context, &now), 0);
	/* The system may set its time in between. */
	const uint64_t slack = 50 * 1000 * 1000;
	CHECK(now.raw_clock.tv_nsec + offset >= before - slack);
	CHECK(now.raw_clock.tv_nsec + offset <= time_of_day() + slack);
	rig_close(&r);
}

int main(int argc, char **argv)
{
	const struct test_case cases[] = {
		{ "resizing_under_traffic", resizing_under_traffic },
		{ "solicited_arming", solicited_arming },
		{ "events_are_moderated", events_are_moderated },
		{ "every_field_of_an_extended_queue", every_field_of_an_extended_queue },
		{ "the_time_of_day_is_that_of_the_timestamp", the_time_of_day_is_that_of_the_timestamp },
		{ "an_overrun_may_be_ignored", an_overrun_may_be_ignored },
		{ 0 },
	};
	return run_case(cases, argc, argv);
}
