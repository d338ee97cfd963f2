//! XRC domains.

use std::{ffi::c_int, sync::Arc};

use rocade_abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, IBV_XRCD_INIT_ATTR_RESERVED, ibv_context,
    ibv_xrcd, ibv_xrcd_init_attr,
};
use rocade_emulator::{FileId, VerbsError, Xrcd, XrcdInitAttr};

use crate::{
    args::{Handle, In, Last},
    context::ContextObject,
    diagnostics::Reason,
    ffi::{Errno, int_verb, ptr_verb},
    handle::{CHandle, objects},
    mapping,
};

/// An XRC domain.
pub(crate) type XrcdObject = CHandle<ibv_xrcd, XrcdState>;

objects! {
    ibv_xrcd: ibv_xrcd, XrcdState;
}

/// The Rust state of an `ibv_xrcd`.
pub(crate) struct XrcdState {
    xrcd: Xrcd,
    context: Arc<ContextObject>,
}

impl XrcdState {
    /// Returns the emulator's domain.
    pub(crate) const fn xrcd(&self) -> &Xrcd {
        &self.xrcd
    }

    /// Returns the domain's context.
    pub(crate) const fn context(&self) -> &Arc<ContextObject> {
        &self.context
    }
}

/// Context op `open_xrcd`: opens the domain of the inode behind `fd`, or a private one for -1.
//= XRCL-02
//= XRCL-03
//= XRCL-04
pub(crate) extern "C" fn open_xrcd(
    context: Handle<'_, ibv_context>,
    init: In<'_, ibv_xrcd_init_attr>,
) -> *mut ibv_xrcd {
    ptr_verb(|| {
        let context = context.share()?;
        let init = init.read()?;
        let needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        if init.comp_mask & needed != needed || init.comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED {
            return Err(Errno::INVAL);
        }
        let file = match init.fd {
            -1 => None,
            fd => Some(file_id(fd)?),
        };
        let plan = XrcdInitAttr {
            file,
            create: init.oflags & libc::O_CREAT != 0,
            exclusive: init.oflags & libc::O_EXCL != 0,
        };
        let xrcd = context.context().open_xrcd(plan).map_err(refused)?;
        XrcdObject::create(|_| {
            let c = ibv_xrcd {
                context: context.as_c(),
            };
            Ok((c, XrcdState { xrcd, context }))
        })
    })
}

#[cold]
fn refused(error: VerbsError) -> Errno {
    match error {
        VerbsError::WouldBlock => {
            let what = "the file has no XRC domain";
            Errno(error.errno()).because(Reason::new(what, "create it with oflags = O_CREAT"))
        }
        error => error.into(),
    }
}

/// Returns the identity of the inode behind a descriptor. The descriptor may be closed afterwards.
fn file_id(fd: c_int) -> Result<FileId, Errno> {
    let stat =
        mapping::status(fd).map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EBADF)))?;
    Ok(FileId {
        device: stat.st_dev,
        inode: stat.st_ino,
    })
}

/// Context op `close_xrcd`: fails with `EBUSY` while the domain has SRQs or QPs.
//= DST-05
//= XRCL-05
pub(crate) extern "C" fn close_xrcd(xrcd: Last<'_, ibv_xrcd>) -> c_int {
    int_verb(|| xrcd.destroy(|state| Ok(state.xrcd.close()?)))
}
