//! Indirect memory keys of mlx5: created without memory, and configured by builders. Their
//! addresses begin at 0.

use std::{
    ffi::{c_int, c_void},
    sync::Arc,
};

use rocade_abi::{
    ibv_sge,
    mlx5::{
        MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT, MLX5DV_MKEY_INIT_ATTR_FLAGS_REMOTE_INVALIDATE,
        mlx5dv_mkey, mlx5dv_mkey_conf_attr, mlx5dv_mkey_init_attr, mlx5dv_mr_interleaved,
        mlx5dv_qp_ex,
    },
};
use rocade_emulator::{AccessFlags, Block, Indirect, Layout, Lkey, Mr, Operands, Remap};

use super::queue_pair;
use crate::{
    context::ContextObject,
    diagnostics::Reason,
    ffi::{self, Errno, int_verb, ptr_verb},
    handle::CHandle,
    pd_mr::{PdObject, PdRef},
    wr_batch,
};

type MkeyObject = CHandle<mlx5dv_mkey, MkeyState>;

struct MkeyState {
    mr: Mr,
    _context: Arc<ContextObject>,
    _pd: PdRef,
}

const NO_MEMORY: Errno = Errno(libc::ENOMEM);

//= UMU-01
pub(super) unsafe extern "C" fn mlx5dv_create_mkey(
    attr: *mut mlx5dv_mkey_init_attr,
) -> *mut mlx5dv_mkey {
    ptr_verb(|| {
        // SAFETY: by contract NULL or readable.
        let attr = unsafe { ffi::read(attr) }?;
        // Peers may invalidate any indirect key.
        let flags = attr.create_flags & !MLX5DV_MKEY_INIT_ATTR_FLAGS_REMOTE_INVALIDATE;
        if flags != MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT {
            let what = "create_flags other than INDIRECT and REMOTE_INVALIDATE";
            return Err(Errno::OPNOTSUPP.because(Reason::new(what, "")));
        }
        // SAFETY: by contract a live domain.
        let pd = unsafe { PdObject::borrow(attr.pd) }?.inner();
        let entries = u32::from(attr.max_entries);
        let mr = pd.pd().create_indirect(entries, Indirect::RIGHTS)?;
        let context = Arc::clone(pd.context());
        MkeyObject::create(|_| {
            let c = mlx5dv_mkey {
                lkey: mr.lkey().get(),
                rkey: mr.rkey().get(),
            };
            let state = MkeyState {
                mr,
                _context: context,
                _pd: pd.pd_ref(),
            };
            Ok((c, state))
        })
    })
}

pub(super) unsafe extern "C" fn mlx5dv_destroy_mkey(mkey: *mut mlx5dv_mkey) -> c_int {
    // SAFETY: by contract a live key that is not used afterwards.
    int_verb(|| unsafe { MkeyObject::destroy(mkey, |state| Ok(state.mr.destroy()?)) })
}

/// The configuration of a key between `wr_start` and `wr_complete`.
#[derive(Debug)]
pub(crate) struct KeyChange {
    key: Mr,
    access: Option<AccessFlags>,
    remap: Remap,
    if_free: bool,
    /// The number of setter calls that are still missing.
    missing_setters: u8,
}

impl KeyChange {
    /// Returns the operands of the work request.
    ///
    /// # Errors
    /// `EINVAL` if setter calls are missing, or if the key cannot have this configuration.
    //= UMU-07
    pub(crate) fn operands(&self) -> Result<Operands, Errno> {
        if self.missing_setters != 0 {
            return Err(Errno::INVAL);
        }
        Ok(self
            .key
            .change(self.access, self.remap.clone(), self.if_free)?)
    }

    fn step(&mut self) -> Result<(), Errno> {
        self.missing_setters = self.missing_setters.checked_sub(1).ok_or(Errno::INVAL)?;
        Ok(())
    }
}

/// # Safety
/// `mkey` must be NULL or a live key.
unsafe fn key_of(mkey: *mut c_void) -> Result<Mr, Errno> {
    // SAFETY: same contract.
    Ok(unsafe { MkeyObject::borrow(mkey.cast()) }?
        .inner()
        .mr
        .clone())
}

/// # Safety
/// The list must have `count` entries.
//= UMU-02
unsafe fn list_of(key: &Mr, count: u16, list: *const ibv_sge) -> Result<Remap, Errno> {
    //= UMU-04
    if u32::from(count) > key.max_entries().unwrap_or(0) {
        return Err(NO_MEMORY);
    }
    if list.is_null() {
        return Err(Errno::INVAL);
    }
    let blocks = (0..usize::from(count)).map(|index| {
        // SAFETY: same contract.
        let sge = unsafe { list.add(index).read() };
        Block {
            lkey: Lkey::new(sge.lkey),
            addr: sge.addr,
            len: u64::from(sge.length),
            stride: 0,
        }
    });
    let layout = Layout::list(blocks).map_err(|_| Errno::INVAL)?;
    Ok(Remap::To { base: 0, layout })
}

/// # Safety
/// The list must have the given number of entries.
//= UMU-02
unsafe fn interleaved_of(
    key: &Mr,
    repeats: u32,
    count: u16,
    list: *const mlx5dv_mr_interleaved,
) -> Result<Remap, Errno> {
    //= UMU-04
    if u32::from(count) + 1 > key.max_entries().unwrap_or(0) {
        return Err(NO_MEMORY);
    }
    if list.is_null() {
        return Err(Errno::INVAL);
    }
    let blocks = (0..usize::from(count)).map(|index| {
        // SAFETY: same contract.
        let entry = unsafe { list.add(index).read() };
        Block {
            lkey: Lkey::new(entry.lkey),
            addr: entry.addr,
            len: u64::from(entry.bytes_count),
            stride: u64::from(entry.bytes_count) + u64::from(entry.bytes_skip),
        }
    });
    let layout = Layout::repeated(blocks, u64::from(repeats)).map_err(|_| Errno::INVAL)?;
    Ok(Remap::To { base: 0, layout })
}

/// Returns the configuration of a key that must be free.
fn of_free(key: Mr, access: u32, remap: Remap) -> KeyChange {
    KeyChange {
        key,
        access: Some(AccessFlags::from_bits_retain(access)),
        remap,
        //= UMU-05
        if_free: true,
        missing_setters: 0,
    }
}

pub(super) unsafe extern "C" fn wr_mr_list(
    mqp: *mut mlx5dv_qp_ex,
    mkey: *mut c_void,
    access: u32,
    count: u16,
    list: *mut ibv_sge,
) {
    // SAFETY: by contract between `wr_start` and `wr_complete`, with a live key and a list of so
    // many entries.
    unsafe {
        wr_batch::begin_change(queue_pair(mqp), || {
            let key = key_of(mkey)?;
            let remap = list_of(&key, count, list)?;
            Ok(of_free(key, access, remap))
        });
    }
}

pub(super) unsafe extern "C" fn wr_mr_interleaved(
    mqp: *mut mlx5dv_qp_ex,
    mkey: *mut c_void,
    access: u32,
    repeats: u32,
    count: u16,
    list: *mut c_void,
) {
    // SAFETY: by contract between `wr_start` and `wr_complete`, with a live key and a list of so
    // many entries.
    unsafe {
        wr_batch::begin_change(queue_pair(mqp), || {
            let key = key_of(mkey)?;
            let remap = interleaved_of(&key, repeats, count, list.cast())?;
            Ok(of_free(key, access, remap))
        });
    }
}

//= UMU-07
pub(super) unsafe extern "C" fn wr_mkey_configure(
    mqp: *mut mlx5dv_qp_ex,
    mkey: *mut c_void,
    num_setters: u8,
    attr: *mut c_void,
) {
    // SAFETY: by contract between `wr_start` and `wr_complete`, with a live key. The attributes are
    // NULL or readable.
    unsafe {
        wr_batch::begin_change(queue_pair(mqp), || {
            let attr = ffi::read(attr.cast::<mlx5dv_mkey_conf_attr>())?;
            if attr.conf_flags != 0 || attr.comp_mask != 0 {
                return Err(Errno::OPNOTSUPP);
            }
            Ok(KeyChange {
                key: key_of(mkey)?,
                access: None,
                remap: Remap::Keep,
                if_free: false,
                missing_setters: num_setters,
            })
        });
    }
}

pub(super) unsafe extern "C" fn wr_set_mkey_access_flags(mqp: *mut mlx5dv_qp_ex, access: u32) {
    // SAFETY: by contract between `wr_start` and `wr_complete`.
    unsafe {
        wr_batch::update_change(queue_pair(mqp), |change| {
            change.access = Some(AccessFlags::from_bits_retain(access));
            change.step()
        });
    }
}

pub(super) unsafe extern "C" fn wr_set_mkey_layout_list(
    mqp: *mut mlx5dv_qp_ex,
    count: u16,
    list: *const ibv_sge,
) {
    // SAFETY: by contract between `wr_start` and `wr_complete`, with a list of so many entries.
    unsafe {
        wr_batch::update_change(queue_pair(mqp), |change| {
            change.remap = list_of(&change.key, count, list)?;
            change.step()
        });
    }
}

pub(super) unsafe extern "C" fn wr_set_mkey_layout_interleaved(
    mqp: *mut mlx5dv_qp_ex,
    repeats: u32,
    count: u16,
    list: *const c_void,
) {
    // SAFETY: by contract between `wr_start` and `wr_complete`, with a list of so many entries.
    unsafe {
        wr_batch::update_change(queue_pair(mqp), |change| {
            change.remap = interleaved_of(&change.key, repeats, count, list.cast())?;
            change.step()
        });
    }
}
