/* Rocade: experimental verbs.
 *
 * Extensions of <infiniband/verbs.h>: UMR, masked atomics, dynamically connected transport,
 * cross-channel operations. Only Rocade's libibverbs has them, so name that library when linking:
 *
 *     cc program.c -I PREFIX/include PREFIX/lib/rocade/libibverbs.so.1
 *
 * The structures of <infiniband/verbs.h> are unchanged. If an experimental verb needs more members,
 * it has a structure ibv_exp_..., which begins with the same members. Plain objects work with
 * experimental verbs, and the other way round: ibv_exp_create_qp returns an ordinary struct ibv_qp.
 *
 * comp_mask says which members of a structure are valid. An unknown bit fails with EINVAL, except
 * that ibv_exp_query_device ignores and clears it. Unless stated otherwise, verbs that return an
 * int return 0 or a positive errno. Verbs that return a pointer return NULL and set errno on
 * failure.
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
#include <infiniband/verbs_exp/cross.h>

#endif
