//! `verbs_exp/base.h`.

use super::constants;

constants! {
    u64, "The first experimental flag.": {
        //= XCON-01
        IBV_EXP_START_FLAG = 1 << 32,
    }
    u32, "The first experimental enumerator.": {
        IBV_EXP_START_ENUM = 0x40,
    }
    u64, "Access right bit. The lower half has those of the plain header. (`enum ibv_exp_access_flags`)": {
        IBV_EXP_ACCESS_LOCAL_WRITE = 1,
        IBV_EXP_ACCESS_REMOTE_WRITE = 2,
        IBV_EXP_ACCESS_REMOTE_READ = 4,
        IBV_EXP_ACCESS_REMOTE_ATOMIC = 8,
        IBV_EXP_ACCESS_MW_BIND = 16,
        IBV_EXP_ACCESS_ALLOCATE_MR = 1 << 37,
        IBV_EXP_ACCESS_SHARED_MR_USER_READ = 1 << 38,
        IBV_EXP_ACCESS_SHARED_MR_USER_WRITE = 1 << 39,
        IBV_EXP_ACCESS_SHARED_MR_GROUP_READ = 1 << 40,
        IBV_EXP_ACCESS_SHARED_MR_GROUP_WRITE = 1 << 41,
        IBV_EXP_ACCESS_SHARED_MR_OTHER_READ = 1 << 42,
        IBV_EXP_ACCESS_SHARED_MR_OTHER_WRITE = 1 << 43,
        IBV_EXP_ACCESS_NO_RDMA = 1 << 44,
        IBV_EXP_ACCESS_MW_ZERO_BASED = 1 << 45,
        IBV_EXP_ACCESS_ON_DEMAND = 1 << 46,
        IBV_EXP_ACCESS_RELAXED = 1 << 47,
        IBV_EXP_ACCESS_PHYSICAL_ADDR = 1 << 48,
        IBV_EXP_ACCESS_TUNNELED_ATOMIC = 1 << 49,
    }
}
