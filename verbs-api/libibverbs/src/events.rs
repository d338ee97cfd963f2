//! Asynchronous events.

use std::{
    ffi::c_int,
    ptr,
    sync::{Arc, Weak},
};

use rocade_abi::{
    IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR,
    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED,
    IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SQ_DRAINED, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED,
    exp::dct::ibv_exp_dct,
    exp::dct::{
        IBV_EXP_EVENT_DCT_ACCESS_ERR, IBV_EXP_EVENT_DCT_KEY_VIOLATION, IBV_EXP_EVENT_DCT_REQ_ERR,
    },
    ibv_async_element, ibv_async_event, ibv_context, ibv_cq, ibv_qp, ibv_srq,
};
use rocade_emulator::{EventElement, EventWaiter};

use crate::{
    args::{Handle, In, Out, View},
    cancel::{self, Poll},
    context::ContextObject,
    ffi::{Errno, void_verb},
    process, xrc_compat,
};

/// `ibv_get_async_event`: blocks like read(2), or fails with `EAGAIN` if the descriptor is
/// non-blocking. A call on a device that was already closed does not access its memory.
//= AEV-12
//= CQ-14
pub(crate) extern "C-unwind" fn ibv_get_async_event(
    context: Handle<'_, ibv_context>,
    event: Out<'_, ibv_async_event>,
) -> c_int {
    let address = context.addr();
    let context = || process::contexts().lock().find(address, || context.share());
    let prepare = || {
        if event.is_null() {
            return Err(Errno::INVAL);
        }
        match context()? {
            Some(opened) => {
                let waiter = opened.context().begin_async_wait();
                Ok((waiter, Arc::downgrade(&opened)))
            }
            None => Ok((EventWaiter::never()?, Weak::new())),
        }
    };
    let take = |found: &Weak<ContextObject>| {
        let Some(opened) = process::contexts().lock().again(address, found)? else {
            return Ok(Poll::Closed);
        };
        let Some(next) = opened.context().take_async_event()? else {
            return Ok(Poll::Empty);
        };
        let element = match next.element {
            EventElement::Cq(cookie) => ibv_async_element { cq: object(cookie) },
            EventElement::Qp(cookie) => ibv_async_element { qp: object(cookie) },
            EventElement::Srq(cookie) => ibv_async_element {
                srq: object(cookie),
            },
            // The pointer to a DC target is in the member of a QP.
            EventElement::Dct(cookie) => ibv_async_element { qp: object(cookie) },
            EventElement::Device => ibv_async_element { port_num: 0 },
            EventElement::Port(port) => ibv_async_element {
                port_num: c_int::from(port),
            },
        };
        let mut answer = ibv_async_event {
            element,
            event_type: next.kind.code(),
        };
        //= XRCL-14
        if let EventElement::Qp(cookie) = next.element
            && let Some(number) = xrc_compat::number_of(object(cookie))
        {
            let port_num = number.cast_signed();
            answer.element = ibv_async_element { port_num };
            answer.event_type |= xrc_compat::EVENT_FLAG;
        }
        event.write(answer)?;
        Ok(Poll::Event)
    };
    cancel::blocking(prepare, take)
}

/// The C object whose address is `cookie`.
fn object<C>(cookie: u64) -> *mut C {
    ptr::with_exposed_provenance_mut(usize::try_from(cookie).unwrap_or(0))
}

/// The object, or the number of one, that an event is about.
enum Source<'a> {
    Cq(Handle<'a, ibv_cq>),
    Qp(Handle<'a, ibv_qp>),
    Dct(Handle<'a, ibv_exp_dct>),
    Srq(Handle<'a, ibv_srq>),
    /// A receive QP of the legacy XRC verbs.
    Number(u32),
    /// A port or a device, for whose acknowledgement no thread waits.
    Other,
}

impl<'a> View<'a, ibv_async_event> {
    fn source(&self) -> Source<'a> {
        let (kind, element) = (self.event_type, self.element);
        // SAFETY: the type of the event tells which member it carries.
        unsafe {
            match kind {
                _ if kind & xrc_compat::EVENT_FLAG != 0 => {
                    Source::Number(element.port_num.cast_unsigned())
                }
                IBV_EVENT_CQ_ERR => Source::Cq(Handle::new(element.cq)),
                IBV_EVENT_QP_FATAL
                | IBV_EVENT_QP_REQ_ERR
                | IBV_EVENT_QP_ACCESS_ERR
                | IBV_EVENT_COMM_EST
                | IBV_EVENT_SQ_DRAINED
                | IBV_EVENT_PATH_MIG
                | IBV_EVENT_PATH_MIG_ERR
                | IBV_EVENT_QP_LAST_WQE_REACHED => Source::Qp(Handle::new(element.qp)),
                // In the member of a QP.
                IBV_EXP_EVENT_DCT_KEY_VIOLATION
                | IBV_EXP_EVENT_DCT_ACCESS_ERR
                | IBV_EXP_EVENT_DCT_REQ_ERR => Source::Dct(Handle::new(element.qp.cast())),
                IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                    Source::Srq(Handle::new(element.srq))
                }
                _ => Source::Other,
            }
        }
    }
}

/// `ibv_ack_async_event`.
pub(crate) extern "C" fn ibv_ack_async_event(event: In<'_, ibv_async_event>) {
    void_verb(|| {
        match event.read()?.source() {
            Source::Cq(cq) => cq.get()?.inner().cq().ack_async_events(1),
            Source::Qp(qp) => qp.get()?.inner().qp().ack_async_events(1),
            Source::Dct(dct) => dct.get()?.inner().qp().ack_async_events(1),
            Source::Srq(srq) => srq.get()?.inner().srq().ack_async_events(1),
            Source::Number(number) => xrc_compat::ack_event(number),
            Source::Other => {}
        }
        Ok::<(), Errno>(())
    });
}
