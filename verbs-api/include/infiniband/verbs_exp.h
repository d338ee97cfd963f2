/* Rocade: experimental verbs.
 *
 * What comes on top of <infiniband/verbs.h>: UMR, masked atomics, dynamically connected transport, cross-channel
 * operations. All of it is of Rocade's libibverbs and of no other, so name that library when linking:
 *
 *     cc program.c -I PREFIX/include PREFIX/lib/rocade/libibverbs.so.1
 *
 * The structures of <infiniband/verbs.h> are untouched. Where an experimental verb needs more than they have, it has a
 * structure of its own, ibv_exp_..., that begins with the same members. A plain object works with experimental verbs
 * and the other way round: ibv_exp_create_qp gives an ordinary struct ibv_qp.
 *
 * comp_mask says which members of a structure are valid; a bit that nobody knows is EINVAL. There is one exception:
 * ibv_exp_query_device ignores and clears it. Verbs that return an int return 0 or a positive errno where nothing
 * else is said; those that return a pointer return NULL and set errno.
 */
#ifndef ROCADE_VERBS_EXP_H
#define ROCADE_VERBS_EXP_H

#include <infiniband/verbs_exp/base.h>
#include <infiniband/verbs_exp/device.h>
#include <infiniband/verbs_exp/qp.h>
#include <infiniband/verbs_exp/send.h>
#include <infiniband/verbs_exp/dct.h>
#include <infiniband/verbs_exp/completion.h>
#include <infiniband/verbs_exp/umr.h>

#endif
