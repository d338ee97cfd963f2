/* Computing sends: each operation on each supported type and size, in each kind of request, on
 * edge-case operands. Everything else is refused. */
#include "cross_channel.h"

#include <math.h>

enum { ELEMENTS = 6 };

static uint64_t bits_of(double number)
{
	uint64_t bits;
	memcpy(&bits, &number, 8);
	return bits;
}

static double number_of(uint64_t bits)
{
	double number;
	memcpy(&number, &bits, 8);
	return number;
}

/* Returns the result for two operands, computed as the rules state. */
static uint64_t model(enum ibv_exp_calc_op op, enum ibv_exp_calc_data_type type, uint64_t a, uint64_t b)
{
	switch (op) {
	case IBV_EXP_CALC_OP_ADD:
		return type == IBV_EXP_CALC_DATA_TYPE_FLOAT ? bits_of(number_of(a) + number_of(b)) : a + b;
	case IBV_EXP_CALC_OP_MAXLOC: return a >= b ? a : b;
	case IBV_EXP_CALC_OP_BAND: return a & b;
	case IBV_EXP_CALC_OP_BXOR: return a ^ b;
	case IBV_EXP_CALC_OP_BOR: return a | b;
	default: CHECK(0); return 0;
	}
}

static uint64_t random_number(void)
{
	static uint64_t state = 0x9e3779b97f4a7c15;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* Chooses six operands. Integers are near the limits of their range. Doubles include signed,
 * infinite and tiny ones. */
static void choose(uint64_t *values, enum ibv_exp_calc_data_type type, int turn)
{
	static const uint64_t integers[] = { 0, 1, -1ULL, 1ULL << 63, -1ULL >> 1, -5ULL, 0x8000000000000001, 42 };
	const double doubles[] = { 0.0, -0.0, 1.5, -2.25, 1e308, -1e308, 5e-324, INFINITY };
	for (int i = 0; i < ELEMENTS; i++) {
		uint64_t which = random_number();
		if (type == IBV_EXP_CALC_DATA_TYPE_FLOAT)
			values[i] = bits_of(doubles[which % 8]);
		else
			values[i] = turn % 2 ? integers[which % 8] : which;
	}
}

/* Executes one request on `values`, and checks the result and its location. */
static void compute(struct cross *c, enum ibv_exp_wr_opcode opcode, struct ibv_exp_send_wr wr,
		    const uint64_t *values, int located, uint64_t *result, uint64_t *place)
{
	struct rig *r = &c->r;
	uint64_t *from = (uint64_t *)(r->buffer + (opcode == IBV_EXP_WR_RDMA_READ ? 4096 : 0));
	uint64_t *to = (uint64_t *)(r->buffer + (opcode == IBV_EXP_WR_RDMA_READ ? 0 : 4096));
	int words = located ? 2 : 1, length = 8 * words * ELEMENTS;
	for (int i = 0; i < ELEMENTS; i++) {
		from[i * words] = htobe64(values[i]);
		if (located)
			from[i * words + 1] = htobe64(100 + i);
	}
	memset(to, 0x77, 256);
	/* In two scatter/gather entries. The first ends on an element boundary. */
	struct ibv_sge list[2] = { sge_at(r, 0, 8 * words * 2), sge_at(r, 8 * words * 2, length - 8 * words * 2) };
	wr.sg_list = list;
	wr.num_sge = 2;
	wr.exp_opcode = opcode;
	wr.wr.rdma.remote_addr = (uintptr_t)r->buffer + 4096;
	wr.wr.rdma.rkey = r->mr->rkey;
	if (opcode == IBV_EXP_WR_SEND)
		post_receive(r, 9);
	CHECK_INT(post(r->a, wr), 0);
	if (opcode == IBV_EXP_WR_SEND) {
		struct ibv_wc wc = next_completion(c->recv_cq);
		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		CHECK_INT(wc.byte_len, 8 * words);
	}
	expect(r->cq, 5);
	*result = be64toh(to[0]);
	*place = located ? be64toh(to[1]) : 0;
	for (int i = words; i < 32; i++)
		CHECK_INT(to[i], 0x7777777777777777);
}

static void every_operation_on_every_type(void)
{
	struct cross c = cross_open(MASTER, 0);
	struct ibv_exp_device_attr device = { .comp_mask = IBV_EXP_DEVICE_ATTR_CALC_CAP };
	CHECK_INT(ibv_exp_query_device(c.r.context, &device), 0);
	const uint64_t ops[] = { device.calc_cap.int_ops, device.calc_cap.uint_ops, device.calc_cap.fp_ops };
	static const enum ibv_exp_wr_opcode opcodes[] = { IBV_EXP_WR_SEND, IBV_EXP_WR_RDMA_WRITE,
							  IBV_EXP_WR_RDMA_READ };
	int computed = 0, refused = 0;
	for (int type = 0; type < 8; type++) {
		for (int op = 0; op < 8; op++) {
			int offered = device.calc_cap.data_types >> type & 1 && type < 3 && ops[type] >> op & 1;
			for (int turn = 0; turn < 24; turn++) {
				int located = turn / 2 % 2;
				enum ibv_exp_wr_opcode opcode = opcodes[turn % 3];
				struct ibv_exp_send_wr wr = calc(NULL, 0, (enum ibv_exp_calc_op)op,
								 (enum ibv_exp_calc_data_type)type);
				if (located)
					wr.op.calc.data_size = IBV_EXP_CALC_DATA_SIZE_64_BIT_LOC;
				if (turn >= 12 && opcode != IBV_EXP_WR_RDMA_READ && !located)
					wr.exp_send_flags |= IBV_EXP_SEND_INLINE;
				uint64_t values[ELEMENTS], result, place;
				choose(values, (enum ibv_exp_calc_data_type)type, turn);
				if (!offered) {
					struct ibv_sge list = sge_at(&c.r, 0, 16);
					wr.sg_list = &list, wr.num_sge = 1, wr.exp_opcode = opcode;
					CHECK_INT(post(c.r.a, wr), EINVAL);
					refused++;
					continue;
				}
				compute(&c, opcode, wr, values, located, &result, &place);
				uint64_t wanted = values[0], where = 100;
				for (int i = 1; i < ELEMENTS; i++) {
					if (op == IBV_EXP_CALC_OP_MAXLOC && values[i] > wanted)
						where = 100 + i;
					wanted = model((enum ibv_exp_calc_op)op,
						       (enum ibv_exp_calc_data_type)type, wanted, values[i]);
				}
				/* A NaN result may be any NaN. */
				if (type == IBV_EXP_CALC_DATA_TYPE_FLOAT && op == IBV_EXP_CALC_OP_ADD &&
				    isnan(number_of(wanted)))
					CHECK(isnan(number_of(result)));
				else
					CHECK(result == wanted);
				CHECK_INT(place, located ? where : 0);
				computed++;
			}
		}
	}
	/* Four operations per type, and MAX without sign. */
	CHECK_INT(computed, 13 * 24);
	CHECK_INT(refused, (64 - 13) * 24);
	cross_close(&c);
}

/* Unsupported sizes, empty lists, and requests that cannot compute. */
static void nothing_else(void)
{
	struct cross c = cross_open(MASTER, 0);
	struct rig *r = &c.r;
	struct ibv_sge list = sge_at(r, 0, 16);
	const struct ibv_exp_send_wr good = calc(&list, 1, IBV_EXP_CALC_OP_ADD, IBV_EXP_CALC_DATA_TYPE_INT);
	struct ibv_exp_send_wr wr;
	for (int size = 1; size < 0x110; size++) {
		wr = good;
		wr.op.calc.data_size = (enum ibv_exp_calc_data_size)size;
		if (size != IBV_EXP_CALC_DATA_SIZE_64_BIT_LOC)
			CHECK_INT(post(r->a, wr), EINVAL);
	}
	wr = good, wr.num_sge = 0;
	CHECK_INT(post(r->a, wr), EINVAL);
	list.length = 0;
	CHECK_INT(post(r->a, good), EINVAL);
	list.length = 12;
	CHECK_INT(post(r->a, good), EINVAL);
	list.length = 8, wr = good;
	wr.op.calc.data_size = IBV_EXP_CALC_DATA_SIZE_64_BIT_LOC;
	CHECK_INT(post(r->a, wr), EINVAL);
	list.length = 16;
	static const enum ibv_exp_wr_opcode others[] = {
		IBV_EXP_WR_RDMA_WRITE_WITH_IMM, IBV_EXP_WR_SEND_WITH_INV,
		IBV_EXP_WR_ATOMIC_CMP_AND_SWP, IBV_EXP_WR_ATOMIC_FETCH_AND_ADD, IBV_EXP_WR_NOP,
		IBV_EXP_WR_CQE_WAIT, IBV_EXP_WR_UMR_FILL, IBV_EXP_WR_LOCAL_INV, IBV_EXP_WR_BIND_MW, IBV_EXP_WR_TSO,
	};
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
		wr = good, wr.exp_opcode = others[i];
		CHECK_INT(post(r->a, wr), EINVAL);
	}
	/* Errors are detected before anything is posted. */
	struct ibv_wc wc;
	CHECK_INT(ibv_poll_cq(r->cq, 1, &wc), 0);
	/* Operands without read access. */
	list.lkey ^= 0x100;
	CHECK_INT(post(r->a, good), 0);
	CHECK_INT(next_completion(r->cq).status, IBV_WC_LOC_PROT_ERR);
	cross_close(&c);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "every_operation_on_every_type", every_operation_on_every_type },
		{ "nothing_else", nothing_else },
		{ NULL, NULL },
	};
	return run_case(cases, argc, argv);
}
