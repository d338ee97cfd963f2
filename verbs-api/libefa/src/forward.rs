//! Functions that call the implementation in `libibverbs.so.1`.

use std::{ptr, sync::OnceLock};

use rocade_abi::{
    ROCADE_EFA_VERSION, efadv_comp_cntr_init_attr, ibv_comp_cntr, ibv_comp_cntr_init_attr,
    ibv_context, rocade_efa_ops,
};

use crate::{
    library::{self, function},
    unsupported,
};

/// Returns the private table, or `None` if the process uses another `libibverbs.so.1` than
/// Rocade's.
fn ops() -> Option<&'static rocade_efa_ops> {
    static OPS: OnceLock<Option<&'static rocade_efa_ops>> = OnceLock::new();
    *OPS.get_or_init(|| {
        let library = library::find();
        if library.is_null() {
            return None;
        }
        // SAFETY: a handle of dlopen. Only Rocade's library has this function, with this type.
        let ops: extern "C" fn() -> *const rocade_efa_ops =
            unsafe { function(library, c"rocade_efa".as_ptr()) }?;
        // SAFETY: the table is a static of the library, which is never unloaded.
        let ops = unsafe { ops().as_ref() }?;
        (ops.version == ROCADE_EFA_VERSION).then_some(ops)
    })
}

/// Records a call of a function that Rocade does not offer, if the process is traced.
pub(crate) fn trace_unsupported(function: &str) {
    if let Some(ops) = ops() {
        // SAFETY: a readable text.
        unsafe { (ops.unsupported)(function.as_ptr(), function.len()) };
    }
}

/// `efadv_create_comp_cntr`.
pub(crate) unsafe extern "C" fn efadv_create_comp_cntr(
    context: *mut ibv_context,
    attr: *mut ibv_comp_cntr_init_attr,
    efa_attr: *mut efadv_comp_cntr_init_attr,
    inlen: u32,
) -> *mut ibv_comp_cntr {
    match ops() {
        // SAFETY: same contract.
        Some(ops) => unsafe { (ops.create_comp_cntr)(context, attr, efa_attr, inlen) },
        None => {
            unsupported("efadv_create_comp_cntr");
            ptr::null_mut()
        }
    }
}
