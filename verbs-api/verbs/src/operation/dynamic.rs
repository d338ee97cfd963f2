//! Operations of DC initiators as futures.

use rocade_emulator::Sge;

use super::Operation;
use crate::datagram::AddressHandle;
use crate::dynamic::{DctAddress, DynamicInitiator};
use crate::endpoint::RemoteMemory;
use crate::request::SendRequest;
use crate::slice::Slices;

/// Operations as futures, with the rules of [`Operation`]. Each names its target `to`, over the
/// route `address`. Messages to a target consume receives of its
/// [shared receive queue](crate::SharedReceiveQueue::recv).
impl DynamicInitiator {
    /// Posts a request, as a future. The memory that the request names is not kept: see
    /// [`Operation::keep`]. Its own `wr_id` is replaced, and it generates a completion in any case.
    pub fn submit(
        &self,
        request: &SendRequest<'_>,
        address: &AddressHandle,
        to: &DctAddress,
    ) -> Operation {
        self.submit_on(0, request, address, to)
    }

    /// Posts a request on one of the [streams](crate::DynamicInitiatorBuilder::streams), like
    /// [`submit`](Self::submit).
    pub fn submit_on(
        &self,
        stream: u16,
        request: &SendRequest<'_>,
        address: &AddressHandle,
        to: &DctAddress,
    ) -> Operation {
        self.ends()
            .start(false, self.number(), Slices::default(), |wr_id| {
                self.post_own(stream, &request.wr_id(wr_id).signaled(), address, to)
            })
    }

    fn submit_with<'m>(
        &self,
        memory: Slices,
        (address, to): (&AddressHandle, &DctAddress),
        request: impl for<'a> FnOnce(&'a [Sge]) -> SendRequest<'a> + 'm,
    ) -> Operation {
        let kept = memory.clone();
        self.ends().start(false, self.number(), kept, |wr_id| {
            memory.with_sges(|sges| self.post_own(0, &request(sges).wr_id(wr_id), address, to))
        })
    }

    /// Sends the bytes of `memory` to a receive of the target.
    pub fn send(
        &self,
        memory: impl Into<Slices>,
        address: &AddressHandle,
        to: &DctAddress,
    ) -> Operation {
        self.submit_with(memory.into(), (address, to), |sges| SendRequest::send(sges))
    }

    /// Sends `data`, which need not be registered, up to 64 bytes.
    pub fn send_inline(&self, data: &[u8], address: &AddressHandle, to: &DctAddress) -> Operation {
        self.submit(&SendRequest::send_inline(data), address, to)
    }

    /// Writes the bytes of `memory` to the memory `at` of the target's host.
    ///
    /// ```
    /// use rocade_verbs::{AccessFlags, Config, DeviceList};
    ///
    /// let list = DeviceList::new(Config::simulated(1))?;
    /// let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
    /// let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
    /// let receives = b.shared_receive_queue(16, 1)?;
    /// let target = b.dynamic_target(&b_cq, &receives, AccessFlags::REMOTE_WRITE, 7)?;
    /// let there = b.register(4, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
    ///
    /// let initiator = a.dynamic_initiator(&a_cq)?;
    /// let (address, to) = (a.address(target.address().gid)?, target.address());
    /// let here = a.register_vec(*b"data", AccessFlags::empty())?;
    /// let write = initiator.write(here, there.remote(), &address, &to);
    /// list.simulation()?.block_on(write)??;
    /// assert_eq!(there.to_vec(..)?, b"data");
    /// # Ok::<(), rocade_verbs::Error>(())
    /// ```
    pub fn write(
        &self,
        memory: impl Into<Slices>,
        at: RemoteMemory,
        address: &AddressHandle,
        to: &DctAddress,
    ) -> Operation {
        self.submit_with(memory.into(), (address, to), |sges| {
            SendRequest::write(sges, at)
        })
    }

    /// Reads the memory `from` of the target's host into `memory`.
    pub fn read(
        &self,
        memory: impl Into<Slices>,
        from: RemoteMemory,
        address: &AddressHandle,
        to: &DctAddress,
    ) -> Operation {
        self.submit_with(memory.into(), (address, to), |sges| {
            SendRequest::read(sges, from)
        })
    }

    /// Adds `add` to the 8 bytes at `at`. The old value is written to the 8 bytes of `result`.
    pub fn fetch_add(
        &self,
        result: impl Into<Slices>,
        (at, add): (RemoteMemory, u64),
        address: &AddressHandle,
        to: &DctAddress,
    ) -> Operation {
        self.submit_with(result.into(), (address, to), |sges| {
            SendRequest::fetch_add(sges, at, add)
        })
    }

    /// Replaces the 8 bytes at `at` by `swap` if they equal `compare`. The old value is written to
    /// the 8 bytes of `result`.
    pub fn compare_swap(
        &self,
        result: impl Into<Slices>,
        (at, compare, swap): (RemoteMemory, u64, u64),
        address: &AddressHandle,
        to: &DctAddress,
    ) -> Operation {
        self.submit_with(result.into(), (address, to), |sges| {
            SendRequest::compare_swap(sges, at, compare, swap)
        })
    }
}
