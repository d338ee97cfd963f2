//! Completion counters of `libefa.so.1`, whose values are in memory of the program.
//!
//! Every device of Rocade offers them, although none has the identity of EFA, so that code for them
//! can be tried.

use std::ffi::c_int;

use rocade_abi::{
    EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM, EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM,
    EFADV_MEMORY_LOCATION_DMABUF, EFADV_MEMORY_LOCATION_VA, ROCADE_EFA_VERSION,
    efadv_comp_cntr_init_attr, efadv_memory_location, ibv_comp_cntr, ibv_comp_cntr_init_attr,
    ibv_context, rocade_efa_ops,
};

use crate::{
    args::{Buffer, Handle, In},
    comp_cntr,
    diagnostics::Reason,
    ffi::{Errno, ptr_verb},
    mapping::Mapping,
    trace::{dv as traced, remote},
};

static OPS: rocade_efa_ops = rocade_efa_ops {
    version: ROCADE_EFA_VERSION,
    unsupported: remote::trace_unsupported,
    create_comp_cntr: traced::efadv_create_comp_cntr,
};

/// Returns the function table for `libefa.so.1`.
pub(crate) extern "C" fn rocade_efa() -> *const rocade_efa_ops {
    &raw const OPS
}

/// A value in memory of the program: its address in this process, and the mapping of a descriptor.
#[derive(Debug, Default)]
struct Place {
    addr: Option<u64>,
    mapping: Option<Mapping>,
}

/// `efadv_create_comp_cntr`: like `ibv_create_comp_cntr`, with values in memory of the program.
///
/// EINVAL for a shorter structure, a longer one with unknown members, an unknown flag or kind of
/// memory, a NULL address, and one that is no multiple of 8. EFAULT if the memory is not mapped for
/// writing.
pub(crate) extern "C" fn efadv_create_comp_cntr(
    context: Handle<'_, ibv_context>,
    attr: In<'_, ibv_comp_cntr_init_attr>,
    efa_attr: In<'_, efadv_comp_cntr_init_attr>,
    inlen: u32,
) -> *mut ibv_comp_cntr {
    ptr_verb(|| {
        let context = context.share()?;
        let unit = comp_cntr::unit(&*attr.read()?)?;
        let efa = read_attr(efa_attr, inlen)?;
        let has = |flag| efa.flags & flag != 0;
        let completed = match has(EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM) {
            true => place(&efa.comp_cntr_ext_mem)?,
            false => Place::default(),
        };
        let failed = match has(EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM) {
            true => place(&efa.err_cntr_ext_mem)?,
            false => Place::default(),
        };
        // SAFETY: by contract the program provides this memory until it destroys the counter, which
        // keeps the mappings.
        let counter = unsafe {
            context
                .context()
                .comp_counter_in(unit, completed.addr, failed.addr)
        }?;
        comp_cntr::object(context, counter, [completed.mapping, failed.mapping])
    })
}

/// Reads the attributes, which programs of later releases may pass with further members of 0.
fn read_attr(
    attr: In<'_, efadv_comp_cntr_init_attr>,
    len: u32,
) -> Result<efadv_comp_cntr_init_attr, Errno> {
    let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
    let known = size_of::<efadv_comp_cntr_init_attr>();
    if len < known {
        let what = format!("inlen is {len}, the structure of rdma-core 65 has {known} bytes");
        return Err(Errno::INVAL.because(Reason::new(what, "")));
    }
    let read = attr.read()?;
    // SAFETY: by contract the program has `len` bytes.
    let rest = unsafe { Buffer::new(attr.as_ptr().add(1).cast(), len - known) }.to_vec();
    let flags =
        EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM | EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM;
    if rest.iter().any(|byte| *byte != 0) || read.comp_mask != 0 || read.flags & !flags != 0 {
        let what = "efa_attr has a member, comp_mask or flag that is unknown";
        return Err(Errno::INVAL.because(Reason::new(what, "")));
    }
    Ok(*read)
}

/// Returns the place of a value. Memory of a descriptor is mapped, unless the program has done so.
fn place(location: &efadv_memory_location) -> Result<Place, Errno> {
    let addr = location.ptr.expose_provenance() as u64;
    match location.r#type {
        EFADV_MEMORY_LOCATION_VA if addr != 0 => Ok(Place {
            addr: Some(addr),
            mapping: None,
        }),
        EFADV_MEMORY_LOCATION_DMABUF => {
            let fd: c_int = location.dmabuf.fd;
            let mapping = Mapping::new(fd, location.dmabuf.offset, size_of::<u64>(), true)?;
            Ok(Place {
                addr: Some(mapping.addr().expose_provenance() as u64),
                mapping: Some(mapping),
            })
        }
        _ => {
            let what = "the memory of a counter is of an unknown type, or its ptr is NULL";
            Err(Errno::INVAL.because(Reason::new(what, "")))
        }
    }
}
