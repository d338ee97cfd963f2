//! Memory regions, and indirect memory keys (UMR).

use std::{ffi::c_int, ptr, sync::Arc};

use rocade_abi::{
    exp::{
        base::{
            IBV_EXP_ACCESS_MW_ZERO_BASED, IBV_EXP_ACCESS_ON_DEMAND, IBV_EXP_ACCESS_RELAXED,
            IBV_EXP_START_FLAG,
        },
        send::{
            IBV_EXP_SEND_INLINE, IBV_EXP_UMR_MR_LIST, IBV_EXP_UMR_MR_LIST_FIXED_SIZE,
            IBV_EXP_UMR_REPEAT, IBV_EXP_WR_UMR_INVALIDATE, ibv_exp_mem_repeat_block,
            ibv_exp_mkey_list_container, ibv_exp_send_wr, ibv_exp_send_wr_umr,
        },
        umr::{
            IBV_EXP_MKEY_LIST_TYPE_INDIRECT_MR, IBV_EXP_MR_FIXED_BUFFER_SIZE,
            IBV_EXP_MR_INDIRECT_KLMS, IBV_EXP_MR_SIGNATURE_EN, IBV_EXP_REG_MR_CREATE_FLAGS,
            ibv_exp_create_mr_in, ibv_exp_mkey_attr, ibv_exp_mkey_list_container_attr,
            ibv_exp_reg_mr_in,
        },
    },
    ibv_mr,
};
use rocade_emulator::{
    AccessFlags, Block, Layout, Lkey, Remap, SendFlags, SendOp, SendPoster, SendWr, limits,
};

use super::send;
use crate::{
    args::{FromC, Handle, In, InOut, Last, Request, View},
    context::ContextObject,
    diagnostics::Reason,
    ffi::{Errno, int_verb, ptr_verb},
    handle::{CHandle, objects},
    mr::{self, Extent},
    pd_mr::PdRef,
    qp::QpState,
};

/// A key list container. It stays empty, because posting a request copies its list.
type ContainerObject = CHandle<ibv_exp_mkey_list_container, ContainerState>;

objects! {
    ibv_exp_mkey_list_container: ibv_exp_mkey_list_container, ContainerState;
}

pub(crate) struct ContainerState {
    entries: u32,
    _context: Arc<ContextObject>,
    _pd: PdRef,
}

fn invalid(what: &str) -> Errno {
    Errno::INVAL.because(Reason::new(what, ""))
}

/// `ibv_exp_reg_mr`.
//= XDEC-12
pub(crate) extern "C" fn ibv_exp_reg_mr(input: In<'_, ibv_exp_reg_mr_in>) -> *mut ibv_mr {
    ptr_verb(|| {
        let input = input.read()?;
        let has_flags = input.comp_mask & IBV_EXP_REG_MR_CREATE_FLAGS != 0;
        if input.comp_mask & !IBV_EXP_REG_MR_CREATE_FLAGS != 0 {
            return Err(invalid("comp_mask has unknown bits"));
        }
        if has_flags && input.create_flags != 0 {
            return Err(invalid("create_flags has unknown bits"));
        }
        let access = rights(input.exp_access)?;
        // SAFETY: by contract of the verb.
        let extent: Extent = unsafe { FromC::from_c((input.addr, input.length)) };
        mr::register(input.pd(), extent, input.addr.addr() as u64, access)
    })
}

/// Converts 64-bit access rights.
///
/// # Errors
/// `EOPNOTSUPP` if `access` has rights that Rocade does not offer, `EINVAL` if it has unknown bits.
//= XCON-22
pub(super) fn rights(access: u64) -> Result<AccessFlags, Errno> {
    /// The flags for allocated, shared and physical memory, for no RDMA, and for tunneled atomics.
    const NOT_OFFERED: u64 = 0xff << 37 | 3 << 48;
    let known = IBV_EXP_ACCESS_MW_ZERO_BASED | IBV_EXP_ACCESS_ON_DEMAND | IBV_EXP_ACCESS_RELAXED;
    let upper = access & !(IBV_EXP_START_FLAG - 1);
    if upper & !(NOT_OFFERED | known) != 0 {
        return Err(invalid("exp_access has unknown rights"));
    }
    if upper & NOT_OFFERED != 0 {
        let what = "exp_access has rights that Rocade does not support";
        return Err(Errno::OPNOTSUPP.because(Reason::new(what, "")));
    }
    let mut flags = AccessFlags::from_bits_retain(low_half(access));
    for (bit, flag) in [
        (IBV_EXP_ACCESS_ON_DEMAND, AccessFlags::ON_DEMAND),
        (IBV_EXP_ACCESS_RELAXED, AccessFlags::RELAXED_ORDERING),
    ] {
        flags.set(flag, flags.contains(flag) || access & bit != 0);
    }
    Ok(flags)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the plain flags are the lower half"
)]
const fn low_half(flags: u64) -> u32 {
    flags as u32
}

/// `ibv_exp_create_mr`: an indirect memory key without memory.
//= UMR-05
//= XST-10
//= XCON-19
pub(crate) extern "C" fn ibv_exp_create_mr(input: In<'_, ibv_exp_create_mr_in>) -> *mut ibv_mr {
    ptr_verb(|| {
        let input = input.read()?;
        let pd = input.pd().get()?.inner();
        let flags = input.attr.create_flags;
        let known =
            IBV_EXP_MR_INDIRECT_KLMS | IBV_EXP_MR_FIXED_BUFFER_SIZE | IBV_EXP_MR_SIGNATURE_EN;
        if input.comp_mask != 0 || flags & !known != 0 || flags & known == 0 {
            return Err(invalid(
                "comp_mask is not 0, or create_flags are unknown or 0",
            ));
        }
        if flags & IBV_EXP_MR_SIGNATURE_EN != 0 {
            return Err(
                Errno::OPNOTSUPP.because(Reason::new("Rocade does not support signatures", ""))
            );
        }
        let access = rights(input.attr.exp_access_flags)?;
        let entries = input.attr.max_klm_list_size;
        let key = pd.pd().create_indirect(entries, access)?;
        mr::new_mr(input.pd(), pd, key, Extent::named(ptr::null_mut(), 0))
    })
}

/// `ibv_exp_query_mkey`.
//= UMR-06
//= XST-11
pub(crate) extern "C" fn ibv_exp_query_mkey(
    mr: Handle<'_, ibv_mr>,
    attr: InOut<'_, ibv_exp_mkey_attr>,
) -> c_int {
    int_verb(|| {
        let mr = mr.get()?.inner().mr();
        let asked = attr.read()?;
        let entries = mr
            .max_entries()
            .ok_or_else(|| invalid("not an indirect key"))?;
        if asked.comp_mask != 0 {
            return Err(invalid("comp_mask is not 0"));
        }
        let answer = ibv_exp_mkey_attr {
            max_klm_list_size: entries,
            comp_mask: 0,
        };
        attr.write(answer)
    })
}

/// `ibv_exp_alloc_mkey_list_memory`.
//= UMR-07
//= XST-12
pub(crate) extern "C" fn ibv_exp_alloc_mkey_list_memory(
    attr: In<'_, ibv_exp_mkey_list_container_attr>,
) -> *mut ibv_exp_mkey_list_container {
    ptr_verb(|| {
        let attr = attr.read()?;
        let pd = attr.pd().get()?.inner();
        let entries = attr.max_klm_list_size;
        if attr.comp_mask != 0
            || attr.mkey_list_type != IBV_EXP_MKEY_LIST_TYPE_INDIRECT_MR
            || !(1..=limits::MAX_INDIRECT_ENTRIES).contains(&entries)
        {
            return Err(invalid(
                "comp_mask, mkey_list_type or max_klm_list_size is invalid",
            ));
        }
        let context = Arc::clone(pd.context());
        ContainerObject::create(|_| {
            let c = ibv_exp_mkey_list_container {
                max_klm_list_size: entries,
                context: context.as_c(),
            };
            let state = ContainerState {
                entries,
                _context: context,
                _pd: pd.pd_ref(),
            };
            Ok((c, state))
        })
    })
}

/// `ibv_exp_dealloc_mkey_list_memory`.
pub(crate) extern "C" fn ibv_exp_dealloc_mkey_list_memory(
    container: Last<'_, ibv_exp_mkey_list_container>,
) -> c_int {
    int_verb(|| container.destroy(|_| Ok(())))
}

/// Queues a `UMR_FILL` or `UMR_INVALIDATE`.
//= UMR-10
pub(super) fn push(
    poster: &mut SendPoster<'_>,
    state: &QpState,
    request: Request<'_, ibv_exp_send_wr>,
) -> Result<(), Errno> {
    let exp_attr = state.exp_attr();
    //= UMR-04
    if !exp_attr.umr {
        let what = "the queue pair was created without IBV_EXP_QP_CREATE_UMR";
        return Err(invalid(what));
    }
    let umr = request.umr().ok_or(Errno::INVAL)?;
    let key = umr.modified_mr().get()?.inner().mr();
    let (access, remap) = if request.exp_opcode == IBV_EXP_WR_UMR_INVALIDATE {
        (None, Remap::Free)
    } else {
        //= UMR-11
        let space = if request.exp_send_flags & IBV_EXP_SEND_INLINE != 0 {
            if umr.num_mrs > exp_attr.max_inline_entries {
                let what = "the list has more entries than max_inl_send_klms";
                return Err(Errno(libc::ENOMEM).because(Reason::new(what, "")));
            }
            exp_attr.max_inline_entries
        } else {
            umr.memory_objects().get()?.inner().entries
        };
        if umr.num_mrs > space {
            return Err(invalid(
                "the list has more entries than memory_objects has space for",
            ));
        }
        let layout = layout(&umr)?;
        let base = umr.base_addr;
        let access = AccessFlags::from_bits_retain(low_half(umr.exp_access));
        (Some(access), Remap::To { base, layout })
    };
    let operands = key.change(access, remap, false)?;
    let wr = SendWr {
        wr_id: request.wr_id,
        op: SendOp::Fill,
        flags: send::flags(&request).difference(SendFlags::INLINE),
        sges: &[],
    };
    Ok(poster.push_with(&wr, operands)?)
}

/// Returns the layout that a request describes.
///
/// # Errors
/// `EINVAL` if the description is malformed.
fn layout(umr: &View<'_, ibv_exp_send_wr_umr>) -> Result<Layout, Errno> {
    let count = umr.num_mrs as usize;
    //= UMR-12
    if umr.mem_list.is_null() || count == 0 {
        return Err(invalid("the list is NULL or empty"));
    }
    let too_long = |_| invalid("lengths or addresses wrap around");
    match umr.umr_type {
        //= UMR-25
        IBV_EXP_UMR_MR_LIST | IBV_EXP_UMR_MR_LIST_FIXED_SIZE => {
            let blocks: Result<Vec<Block>, Errno> = umr
                .regions()
                .map(|entry| {
                    Ok(Block {
                        lkey: lkey_of(entry.mr())?,
                        addr: entry.base_addr,
                        len: entry.length as u64,
                        stride: 0,
                    })
                })
                .collect();
            let blocks = blocks?;
            let lengths_differ = blocks.windows(2).any(|two| two[0].len != two[1].len);
            if umr.umr_type == IBV_EXP_UMR_MR_LIST_FIXED_SIZE && lengths_differ {
                return Err(invalid("the entries of a fixed-size list differ in length"));
            }
            Layout::list(blocks).map_err(too_long)
        }
        IBV_EXP_UMR_REPEAT => {
            //= UMR-30
            let repeats = umr.repeats().filter(|_| umr.stride_dim == 1);
            let repeats =
                repeats.ok_or_else(|| invalid("stride_dim is not 1, or repeat_count NULL"))?;
            let blocks: Result<Vec<Block>, Errno> = umr.blocks().map(repeat_block).collect();
            Layout::repeated(blocks?, repeats).map_err(too_long)
        }
        _ => Err(invalid("umr_type is unknown")),
    }
}

fn repeat_block(entry: View<'_, ibv_exp_mem_repeat_block>) -> Result<Block, Errno> {
    let dimension = entry.first_dimension();
    let (len, stride) = dimension.ok_or_else(|| invalid("byte_count or stride is NULL"))?;
    Ok(Block {
        lkey: lkey_of(entry.mr())?,
        addr: entry.base_addr,
        len,
        stride,
    })
}

fn lkey_of(mr: Handle<'_, ibv_mr>) -> Result<Lkey, Errno> {
    Ok(mr.get()?.inner().mr().lkey())
}
