//! Chains of work requests.

use std::{fmt, marker::PhantomData, ops::Deref, ptr};

use rocade_abi::{
    IBV_SEND_INLINE, IBV_WR_BIND_MW, IBV_WR_TSO, ibv_ah, ibv_mw, ibv_mw_bind_info, ibv_recv_wr,
    ibv_send_wr, ibv_send_wr_atomic, ibv_send_wr_rdma, ibv_sge,
};

use crate::{
    args::{Buffer, Handle, List, Out, View},
    ffi::Errno,
};

/// A work request with a pointer to the next one.
pub(crate) trait Chained {
    /// Returns the next request of the chain, or NULL.
    fn next(&self) -> *mut Self;
}

/// The first of several work requests, or NULL.
#[repr(transparent)]
pub(crate) struct Chain<'a, R> {
    first: *mut R,
    call: PhantomData<&'a R>,
}

impl<R> Clone for Chain<'_, R> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Chain<'_, R> {}

impl<R> fmt::Debug for Chain<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)
    }
}

impl<'a, R> Chain<'a, R> {
    /// Makes an argument of a pointer.
    ///
    /// # Safety
    /// `first` must be NULL, or a request that is readable during `'a`. All that it links to and
    /// names must be readable or alive, too.
    #[inline]
    pub(crate) const unsafe fn new(first: *mut R) -> Self {
        Self {
            first,
            call: PhantomData,
        }
    }

    /// Returns the pointer to the first request.
    pub(crate) const fn as_ptr(self) -> *mut R {
        self.first
    }
}

impl<'a, R: Chained> Chain<'a, R> {
    /// Calls `push` with each request. On failure `*bad_wr` is the first one that is not queued.
    ///
    /// # Errors
    /// The error of `push`.
    //= PST-09
    //= RC-WQE-13
    #[inline]
    pub(crate) fn each(
        self,
        bad_wr: Out<'_, *mut R>,
        mut push: impl FnMut(Request<'a, R>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut current = self.first;
        while !current.is_null() {
            // SAFETY: not NULL, and readable by the promise of the type.
            let request = Request(unsafe { &*current });
            if let Err(error) = push(request) {
                // Programs may pass NULL for the place.
                let _ = bad_wr.write(current);
                return Err(error);
            }
            current = request.0.next();
        }
        Ok(())
    }
}

impl<'a, R: Chained> Chain<'a, R> {
    /// Calls `f` with each request.
    pub(crate) fn for_each(self, mut f: impl FnMut(Request<'a, R>)) {
        let mut bad = ptr::null_mut();
        let all = |request| {
            f(request);
            Ok(())
        };
        // No request fails.
        let _ = self.each(Out::of(&mut bad), all);
    }
}

/// A work request of a [`Chain`]. What it names is as the program promised during `'a`.
pub(crate) struct Request<'a, R>(&'a R);

impl<R> Clone for Request<'_, R> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Request<'_, R> {}

impl<R> Deref for Request<'_, R> {
    type Target = R;

    #[inline]
    fn deref(&self) -> &R {
        self.0
    }
}

impl<'a, R> Request<'a, R> {
    /// Makes a request of a structure that this library has filled in.
    ///
    /// # Safety
    /// Pointers in `request` must be as the program promises of a request.
    #[inline]
    pub(crate) const unsafe fn new(request: &'a R) -> Self {
        Self(request)
    }

    /// Makes a request of a copy.
    pub(crate) fn of(copy: &'a View<'_, R>) -> Self {
        Self(copy)
    }

    /// Returns the structure.
    #[inline]
    pub(crate) const fn get(self) -> &'a R {
        self.0
    }
}

impl<'a> Request<'a, ibv_send_wr> {
    /// Returns the scatter/gather list.
    #[inline(always)]
    pub(crate) const fn list(self) -> List<'a, ibv_sge> {
        // SAFETY: the list has as many entries as the request says.
        unsafe { List::new(self.0.sg_list, self.0.num_sge) }
    }

    /// Returns the operands of a READ or a WRITE.
    #[inline(always)]
    pub(crate) const fn rdma(self) -> ibv_send_wr_rdma {
        // SAFETY: all members of the union are integers and pointers, for which any bytes are a
        // value. The memory is the program's.
        unsafe { self.0.wr.rdma }
    }

    /// Returns the operands of an atomic.
    #[inline]
    pub(crate) const fn atomic(self) -> ibv_send_wr_atomic {
        // SAFETY: as for `rdma`.
        unsafe { self.0.wr.atomic }
    }

    /// Returns the address handle of a datagram, the number of the peer's QP and the Q_Key.
    ///
    /// # Safety
    /// The request must be posted to a UD queue pair. Others need not name an address handle.
    #[inline]
    pub(crate) const unsafe fn datagram(self) -> (Handle<'a, ibv_ah>, u32, u32) {
        // SAFETY: as for `rdma`.
        let ud = unsafe { self.0.wr.ud };
        // SAFETY: in a request to a UD queue pair, the program has set this member.
        (unsafe { Handle::new(ud.ah) }, ud.remote_qpn, ud.remote_qkey)
    }

    /// Returns the window of a bind, the new key, and the range. `None` for another operation.
    pub(crate) fn bind(self) -> Option<(Handle<'a, ibv_mw>, u32, View<'a, ibv_mw_bind_info>)> {
        if self.0.opcode != IBV_WR_BIND_MW {
            return None;
        }
        // SAFETY: as for `rdma`. The opcode says that the program has set this member.
        let bind = unsafe { self.0.bind_mw.bind_mw };
        // SAFETY: as above, for all pointers in it.
        Some(unsafe { (Handle::new(bind.mw), bind.rkey, View::new(bind.bind_info)) })
    }

    /// Returns the header of a request that is cut into segments, and the length of a segment.
    /// `None` for another operation.
    pub(crate) fn tso(self) -> Option<(Buffer<'a>, u16)> {
        if self.0.opcode != IBV_WR_TSO {
            return None;
        }
        // SAFETY: as for `rdma`. The opcode says that the program has set this member.
        let tso = unsafe { self.0.bind_mw.tso };
        // SAFETY: by the promise of a request.
        Some((unsafe { Buffer::new(tso.hdr, tso.hdr_sz.into()) }, tso.mss))
    }

    /// Returns the inline data that an entry of the list names. `None` for an index beyond the
    /// list, and for a request without inline data.
    #[inline]
    pub(crate) fn inline(self, index: usize) -> Option<Buffer<'a>> {
        if self.0.send_flags & IBV_SEND_INLINE == 0 {
            return None;
        }
        let sge = self.list().get(index)?;
        let addr = usize::try_from(sge.addr).unwrap_or(0);
        let len = usize::try_from(sge.length).unwrap_or(0);
        // SAFETY: with this flag, each entry names readable memory of the program.
        Some(unsafe { Buffer::new(ptr::with_exposed_provenance(addr), len) })
    }
}

impl<'a> Request<'a, ibv_recv_wr> {
    /// Returns the scatter/gather list.
    #[inline(always)]
    pub(crate) const fn list(self) -> List<'a, ibv_sge> {
        // SAFETY: the list has as many entries as the request says.
        unsafe { List::new(self.0.sg_list, self.0.num_sge) }
    }
}

impl Chained for ibv_send_wr {
    #[inline]
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl Chained for ibv_recv_wr {
    #[inline]
    fn next(&self) -> *mut Self {
        self.next
    }
}
