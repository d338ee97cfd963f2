//! Operations of UD queue pairs as futures.

use super::{Operation, recv};
use crate::datagram::{AddressHandle, DatagramQueuePair, UdAddress};
use crate::request::SendRequest;
use crate::slice::Slices;

/// Operations as futures, with the rules of [`Operation`]. A datagram may be lost, so a receive may
/// wait for ever: limit its time as the runtime allows, such as by
/// [`Simulation::timeout`](crate::Simulation::timeout).
impl DatagramQueuePair {
    /// Posts a request to the queue pair or multicast group `to`, over the route `address`, as a
    /// future. The memory that the request names is not kept: see [`Operation::keep`]. Its own
    /// `wr_id` is replaced, and it generates a completion in any case.
    pub fn submit(
        &self,
        request: &SendRequest<'_>,
        address: &AddressHandle,
        to: &UdAddress,
    ) -> Operation {
        let qp_num = self.address().qp_num;
        self.ends()
            .start(false, qp_num, Slices::default(), |wr_id| {
                self.post_own(&request.wr_id(wr_id).signaled(), address, to)
            })
    }

    /// Sends the bytes of `memory` to a receive of `to`.
    ///
    /// ```
    /// use rocade_verbs::{AccessFlags, Config, DeviceList, GRH_LEN};
    ///
    /// let list = DeviceList::new(Config::simulated(1))?;
    /// let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
    /// let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
    /// let (from, to) = (a.datagram_queue_pair(&a_cq, 7)?, b.datagram_queue_pair(&b_cq, 7)?);
    /// let address = a.address(to.address().gid)?;
    ///
    /// let received = to.recv(b.register(GRH_LEN + 64, AccessFlags::LOCAL_WRITE)?);
    /// list.simulation()?.block_on(async {
    ///     let text = a.register_vec(*b"hello", AccessFlags::empty())?;
    ///     from.send(text, &address, &to.address()).await?;
    ///     assert_eq!(received.await?.byte_len as usize, GRH_LEN + 5);
    ///     Ok::<(), rocade_verbs::Error>(())
    /// })??;
    /// # Ok::<(), rocade_verbs::Error>(())
    /// ```
    pub fn send(
        &self,
        memory: impl Into<Slices>,
        address: &AddressHandle,
        to: &UdAddress,
    ) -> Operation {
        let memory = memory.into();
        let (kept, qp_num) = (memory.clone(), self.address().qp_num);
        self.ends().start(false, qp_num, kept, |wr_id| {
            memory
                .with_sges(|sges| self.post_own(&SendRequest::send(sges).wr_id(wr_id), address, to))
        })
    }

    /// Sends `data`, which need not be registered, up to 64 bytes.
    pub fn send_inline(&self, data: &[u8], address: &AddressHandle, to: &UdAddress) -> Operation {
        self.submit(&SendRequest::send_inline(data), address, to)
    }

    /// Posts a receive. Its memory needs [`GRH_LEN`](crate::GRH_LEN) bytes more than the longest
    /// message, and the length in the completion includes them.
    pub fn recv(&self, memory: impl Into<Slices>) -> Operation {
        let qp_num = self.address().qp_num;
        recv(self.ends(), qp_num, memory.into(), |wr_id, sges| {
            self.post_own_recv(wr_id, sges)
        })
    }
}
