//! Indirect memory keys of mlx5: created without memory, and configured by builders. Their
//! addresses begin at 0.

use std::{
    ffi::{c_int, c_void},
    fmt,
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

use super::DvBatch;
use crate::{
    args::{Handle, In, Last, List, slot::combined},
    context::ContextObject,
    diagnostics::Reason,
    ffi::{Errno, int_verb, ptr_verb},
    handle::{CHandle, objects},
    pd_mr::PdRef,
    trace::access_names,
};

type MkeyObject = CHandle<mlx5dv_mkey, MkeyState>;

objects! {
    mlx5dv_mkey: mlx5dv_mkey, MkeyState;
}

pub(crate) struct MkeyState {
    mr: Mr,
    _context: Arc<ContextObject>,
    _pd: PdRef,
}

const NO_MEMORY: Errno = Errno(libc::ENOMEM);

//= UMU-01
pub(crate) extern "C" fn mlx5dv_create_mkey(
    attr: In<'_, mlx5dv_mkey_init_attr>,
) -> *mut mlx5dv_mkey {
    ptr_verb(|| {
        let attr = attr.read()?;
        // Peers may invalidate any indirect key.
        let flags = attr.create_flags & !MLX5DV_MKEY_INIT_ATTR_FLAGS_REMOTE_INVALIDATE;
        if flags != MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT {
            let what = "create_flags other than INDIRECT and REMOTE_INVALIDATE";
            return Err(Errno::OPNOTSUPP.because(Reason::new(what, "")));
        }
        let pd = attr.pd().get()?.inner();
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

pub(crate) extern "C" fn mlx5dv_destroy_mkey(mkey: Last<'_, mlx5dv_mkey>) -> c_int {
    int_verb(|| mkey.destroy(|state| Ok(state.mr.destroy()?)))
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

impl fmt::Display for KeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lkey, rkey) = (self.key.lkey().get(), self.key.rkey().get());
        write!(f, "mkey {{lkey={lkey:#x}, rkey={rkey:#x}}}")?;
        if let Some(access) = self.access {
            let mut names = String::new();
            access_names(access.bits().into(), &mut names);
            write!(f, ", access={names}")?;
        }
        match &self.remap {
            Remap::Keep => Ok(()),
            Remap::Free => f.write_str(", without a layout"),
            Remap::To { layout, .. } => {
                let (entries, len) = (layout.entries(), layout.len());
                write!(f, ", {entries} entries of {len} bytes in all")
            }
        }
    }
}

fn key_of(mkey: Handle<'_, mlx5dv_mkey>) -> Result<Mr, Errno> {
    Ok(mkey.get()?.inner().mr.clone())
}

//= UMU-02
fn list_of(key: &Mr, list: List<'_, ibv_sge>) -> Result<Remap, Errno> {
    //= UMU-04
    if i64::from(list.count()) > i64::from(key.max_entries().unwrap_or(0)) {
        return Err(NO_MEMORY);
    }
    if list.is_null() {
        return Err(Errno::INVAL);
    }
    let blocks = list.iter().map(|sge| Block {
        lkey: Lkey::new(sge.lkey),
        addr: sge.addr,
        len: u64::from(sge.length),
        stride: 0,
    });
    let layout = Layout::list(blocks).map_err(|_| Errno::INVAL)?;
    Ok(Remap::To { base: 0, layout })
}

//= UMU-02
fn interleaved_of(
    key: &Mr,
    repeats: u32,
    list: List<'_, mlx5dv_mr_interleaved>,
) -> Result<Remap, Errno> {
    //= UMU-04
    if i64::from(list.count()) + 1 > i64::from(key.max_entries().unwrap_or(0)) {
        return Err(NO_MEMORY);
    }
    if list.is_null() {
        return Err(Errno::INVAL);
    }
    let blocks = list.iter().map(|entry| Block {
        lkey: Lkey::new(entry.lkey),
        addr: entry.addr,
        len: u64::from(entry.bytes_count),
        stride: u64::from(entry.bytes_count) + u64::from(entry.bytes_skip),
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

// Builders have parameters that point to no type.
combined! {
    pub(super) fn c_mr_list(
        mqp: *mut mlx5dv_qp_ex, mkey: *mut c_void, access: u32, count: u16, list: *mut ibv_sge
    ) = wr_mr_list [mqp, mkey.cast::<mlx5dv_mkey>(), access, (list, count)];
    pub(super) fn c_mr_interleaved(
        mqp: *mut mlx5dv_qp_ex, mkey: *mut c_void, access: u32, repeats: u32, count: u16,
        list: *mut c_void
    ) = wr_mr_interleaved [
        mqp, mkey.cast::<mlx5dv_mkey>(), access, repeats,
        (list.cast::<mlx5dv_mr_interleaved>(), count)
    ];
    pub(super) fn c_mkey_configure(
        mqp: *mut mlx5dv_qp_ex, mkey: *mut c_void, setters: u8, attr: *mut c_void
    ) = wr_mkey_configure [
        mqp, mkey.cast::<mlx5dv_mkey>(), setters, attr.cast::<mlx5dv_mkey_conf_attr>()
    ];
    pub(super) fn c_set_mkey_layout_list(
        mqp: *mut mlx5dv_qp_ex, count: u16, list: *const ibv_sge
    ) = wr_set_mkey_layout_list [mqp, (list, count)];
    pub(super) fn c_set_mkey_layout_interleaved(
        mqp: *mut mlx5dv_qp_ex, repeats: u32, count: u16, list: *const c_void
    ) = wr_set_mkey_layout_interleaved [
        mqp, repeats, (list.cast::<mlx5dv_mr_interleaved>(), count)
    ];
}

fn wr_mr_list(
    mqp: DvBatch<'_>,
    mkey: Handle<'_, mlx5dv_mkey>,
    access: u32,
    list: List<'_, ibv_sge>,
) {
    mqp.batch().begin_change(|| {
        let key = key_of(mkey)?;
        let remap = list_of(&key, list)?;
        Ok(of_free(key, access, remap))
    });
}

fn wr_mr_interleaved(
    mqp: DvBatch<'_>,
    mkey: Handle<'_, mlx5dv_mkey>,
    access: u32,
    repeats: u32,
    list: List<'_, mlx5dv_mr_interleaved>,
) {
    mqp.batch().begin_change(|| {
        let key = key_of(mkey)?;
        let remap = interleaved_of(&key, repeats, list)?;
        Ok(of_free(key, access, remap))
    });
}

//= UMU-07
fn wr_mkey_configure(
    mqp: DvBatch<'_>,
    mkey: Handle<'_, mlx5dv_mkey>,
    num_setters: u8,
    attr: In<'_, mlx5dv_mkey_conf_attr>,
) {
    mqp.batch().begin_change(|| {
        let attr = attr.read()?;
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

pub(super) extern "C" fn wr_set_mkey_access_flags(mqp: DvBatch<'_>, access: u32) {
    mqp.batch().update_change(|change| {
        change.access = Some(AccessFlags::from_bits_retain(access));
        change.step()
    });
}

fn wr_set_mkey_layout_list(mqp: DvBatch<'_>, list: List<'_, ibv_sge>) {
    mqp.batch().update_change(|change| {
        change.remap = list_of(&change.key, list)?;
        change.step()
    });
}

fn wr_set_mkey_layout_interleaved(
    mqp: DvBatch<'_>,
    repeats: u32,
    list: List<'_, mlx5dv_mr_interleaved>,
) {
    mqp.batch().update_change(|change| {
        change.remap = interleaved_of(&change.key, repeats, list)?;
        change.step()
    });
}
