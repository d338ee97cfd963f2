//! The pointers in structures of the program.

use libc::msghdr;
use rocade_abi::{
    IBV_CQ_INIT_ATTR_MASK_PD, IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_XRCD, IBV_QP_OPEN_ATTR_XRCD, IBV_REG_MR_MASK_BUF, IBV_SRQ_INIT_ATTR_CQ,
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_XRCD,
    exp::{
        dct::ibv_exp_dct_init_attr,
        qp::{IBV_EXP_QP_INIT_ATTR_PD, IBV_EXP_QP_INIT_ATTR_XRCD, ibv_exp_qp_init_attr},
        umr::{ibv_exp_create_mr_in, ibv_exp_mkey_list_container_attr, ibv_exp_reg_mr_in},
    },
    ibv_buf, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_init_attr_ex, ibv_mr, ibv_mr_init_attr,
    ibv_mw_bind, ibv_mw_bind_info, ibv_parent_domain_init_attr, ibv_pd, ibv_qp, ibv_qp_cap,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr, ibv_rwq_ind_table,
    ibv_rwq_ind_table_init_attr, ibv_rx_hash_conf, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, ibv_td, ibv_wq, ibv_wq_init_attr, ibv_xrcd,
    mlx5::mlx5dv_mkey_init_attr,
    rdma_addrinfo, rdma_cm_join_mc_attr_ex, rdma_conn_param,
};

use crate::{
    args::{
        Address, Answer, Buffer, FromC, Handle, In, InOut, List, Out, Reads, Scattered, View,
        Writes, member,
    },
    ffi::Errno,
};

/// Defines an accessor for each pointer to an object in a structure. With a bit, it returns NULL
/// unless `comp_mask` has the bit.
macro_rules! members {
    ($($structure:ty { $($member:ident $(($bit:expr))?: $object:ty),+ $(,)? })+) => { $(
        impl<'a> $crate::args::View<'a, $structure> {
            $(
                /// Returns the object that the member names.
                pub(crate) fn $member(&self) -> $crate::args::Handle<'a, $object> {
                    $( if self.comp_mask & $bit == 0 {
                        return $crate::args::Handle::NULL;
                    } )?
                    // SAFETY: the program has set the member, to NULL or to a live object.
                    unsafe { $crate::args::Handle::new((**self).$member) }
                }
            )+
        }
    )+ };
}

pub(crate) use members;

members! {
    ibv_cq_init_attr_ex {
        channel: ibv_comp_channel,
        parent_domain(IBV_CQ_INIT_ATTR_MASK_PD): ibv_pd,
    }
    ibv_exp_create_mr_in { pd: ibv_pd }
    ibv_exp_dct_init_attr { pd: ibv_pd, cq: ibv_cq, srq: ibv_srq }
    ibv_exp_mkey_list_container_attr { pd: ibv_pd }
    ibv_exp_qp_init_attr {
        send_cq: ibv_cq,
        recv_cq: ibv_cq,
        srq: ibv_srq,
        pd(IBV_EXP_QP_INIT_ATTR_PD): ibv_pd,
        xrcd(IBV_EXP_QP_INIT_ATTR_XRCD): ibv_xrcd,
    }
    ibv_exp_reg_mr_in { pd: ibv_pd }
    ibv_mr_init_attr { buf(IBV_REG_MR_MASK_BUF): ibv_buf }
    ibv_mw_bind_info { mr: ibv_mr }
    ibv_parent_domain_init_attr { pd: ibv_pd, td: ibv_td }
    ibv_qp_init_attr { send_cq: ibv_cq, recv_cq: ibv_cq, srq: ibv_srq }
    ibv_qp_init_attr_ex {
        send_cq: ibv_cq,
        recv_cq: ibv_cq,
        srq: ibv_srq,
        pd(IBV_QP_INIT_ATTR_PD): ibv_pd,
        xrcd(IBV_QP_INIT_ATTR_XRCD): ibv_xrcd,
        rwq_ind_tbl(IBV_QP_INIT_ATTR_IND_TABLE): ibv_rwq_ind_table,
    }
    ibv_qp_open_attr { xrcd(IBV_QP_OPEN_ATTR_XRCD): ibv_xrcd }
    ibv_srq_init_attr_ex {
        pd(IBV_SRQ_INIT_ATTR_PD): ibv_pd,
        xrcd(IBV_SRQ_INIT_ATTR_XRCD): ibv_xrcd,
        cq(IBV_SRQ_INIT_ATTR_CQ): ibv_cq,
    }
    ibv_wq_init_attr { pd: ibv_pd, cq: ibv_cq }
    mlx5dv_mkey_init_attr { pd: ibv_pd }
}

/// Defines an accessor for the context of an object.
macro_rules! contexts {
    ($($object:ty),+) => { $(
        impl<'a> Handle<'a, $object> {
            /// Returns the device context of the object. NULL for NULL.
            #[inline]
            pub(crate) fn context(self) -> Handle<'a, ibv_context> {
                let context = self.member(member!($object, context));
                // SAFETY: a device context lives longer than its objects.
                unsafe { Handle::new(context.unwrap_or(std::ptr::null_mut())) }
            }
        }
    )+ };
}

contexts!(ibv_cq, ibv_pd, ibv_qp);

/// Defines a place for each member to which a call writes a result.
macro_rules! results {
    ($($structure:ty { $($member:ident: $kind:ty),+ })+) => { $(
        impl<'a> InOut<'a, $structure> {
            $(
                /// Returns the place of the member. NULL without a structure.
                pub(crate) fn $member(self) -> Out<'a, $kind> {
                    self.part(member!($structure, $member)).out()
                }
            )+
        }
    )+ };
}

results! {
    ibv_exp_qp_init_attr { cap: ibv_qp_cap, max_inl_recv: u32 }
    ibv_qp_init_attr { cap: ibv_qp_cap, qp_type: u32 }
    ibv_qp_init_attr_ex { cap: ibv_qp_cap }
    ibv_srq_init_attr { attr: ibv_srq_attr }
    ibv_srq_init_attr_ex {
        attr: ibv_srq_attr,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        cq: *mut ibv_cq
    }
}

impl<'a> In<'a, msghdr> {
    /// Reads a message that is sent: its structure, its buffers and the address of the peer.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    pub(crate) fn message(self) -> Result<(msghdr, Scattered<'a, Reads>, Buffer<'a>), Errno> {
        let message = *self.read()?;
        let (list, name) = (
            (message.msg_iov, message.msg_iovlen),
            (message.msg_name, message.msg_namelen),
        );
        // SAFETY: the message has as many buffers as it says, and an address of that length. All
        // are readable.
        let (buffers, name) = unsafe { (FromC::from_c(list), FromC::from_c(name)) };
        Ok((message, buffers, name))
    }
}

impl<'a> InOut<'a, msghdr> {
    /// Reads a message that is received: its buffers and the room for the address of the peer.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    pub(crate) fn message(self) -> Result<(Scattered<'a, Writes>, Answer<'a>), Errno> {
        let message = *self.read()?;
        let (list, name) = (
            (message.msg_iov, message.msg_iovlen),
            (
                message.msg_name,
                self.part(member!(msghdr, msg_namelen)).as_ptr(),
            ),
        );
        // SAFETY: the message has as many buffers as it says, and room for an address of that
        // length. All are writable.
        Ok(unsafe { (FromC::from_c(list), FromC::from_c(name)) })
    }
}

/// Defines accessors for socket addresses, and for bytes whose length is another member.
macro_rules! memory {
    ($($structure:ty {
        $(address $address:ident: $of:ident;)*
        $(bytes $bytes:ident: $first:ident, $len:ident;)*
    })+) => { $(
        impl<'a> View<'a, $structure> {
            $(
                /// Returns the socket address that the member names.
                pub(crate) fn $address(&self) -> Address<'a> {
                    // SAFETY: NULL, or an address.
                    unsafe { Address::new((**self).$of) }
                }
            )*
            $(
                /// Returns the bytes that the member names.
                pub(crate) fn $bytes(&self) -> Buffer<'a> {
                    // SAFETY: the bytes have the length that the other member says.
                    unsafe { FromC::from_c(((**self).$first, (**self).$len)) }
                }
            )*
        }
    )+ };
}

memory! {
    rdma_addrinfo {
        address src: ai_src_addr;
        address dst: ai_dst_addr;
        bytes src_bytes: ai_src_addr, ai_src_len;
        bytes dst_bytes: ai_dst_addr, ai_dst_len;
        bytes route: ai_route, ai_route_len;
        // They precede the private data of a connection.
        bytes private: ai_connect, ai_connect_len;
    }
    rdma_cm_join_mc_attr_ex {
        address addr: addr;
    }
    rdma_conn_param {
        bytes private: private_data, private_data_len;
    }
}

impl<'a> View<'a, rdma_conn_param> {
    /// Makes parameters with private data of this library.
    ///
    /// # Errors
    /// `EINVAL` for more than 255 bytes.
    pub(crate) fn with_private(param: rdma_conn_param, data: &'a [u8]) -> Result<Self, Errno> {
        let param = rdma_conn_param {
            private_data: data.as_ptr().cast(),
            private_data_len: u8::try_from(data.len()).map_err(|_| Errno::INVAL)?,
            ..param
        };
        // SAFETY: the private data is there during `'a`, and there is no other pointer.
        Ok(unsafe { View::new(param) })
    }
}

impl<'a> View<'a, ibv_mw_bind> {
    /// Returns the range of the bind.
    pub(crate) fn info(&self) -> View<'a, ibv_mw_bind_info> {
        // SAFETY: a member of the structure.
        unsafe { View::new(self.bind_info) }
    }
}

impl<'a> View<'a, ibv_rwq_ind_table_init_attr> {
    /// Returns the work queues of the table, none without a list.
    pub(crate) fn queues(&self) -> impl Iterator<Item = Handle<'a, ibv_wq>> {
        let count = 1usize.checked_shl(self.log_ind_tbl_size).unwrap_or(0);
        // SAFETY: the list has that many entries, each NULL or a live queue.
        let list: List<'a, *mut ibv_wq> = unsafe { FromC::from_c((self.ind_tbl, count)) };
        list.handles()
    }
}

impl<'a> View<'a, ibv_qp_init_attr_ex> {
    /// Returns the key of the hash of an RSS queue pair.
    pub(crate) fn rx_hash_key(&self) -> Buffer<'a> {
        let ibv_rx_hash_conf {
            rx_hash_key,
            rx_hash_key_len,
            ..
        } = self.rx_hash_conf;
        // SAFETY: the key has that length.
        unsafe { Buffer::new(rx_hash_key.cast(), rx_hash_key_len.into()) }
    }

    /// Returns the members that the structure shares with the short one.
    pub(crate) fn short(&self) -> View<'a, ibv_qp_init_attr> {
        let short = ibv_qp_init_attr {
            qp_context: self.qp_context,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            srq: self.srq,
            cap: self.cap,
            qp_type: self.qp_type,
            sq_sig_all: self.sq_sig_all,
        };
        // SAFETY: the pointers are those of this structure.
        unsafe { View::new(short) }
    }
}
