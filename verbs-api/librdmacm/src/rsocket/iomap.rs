//! Memory that `riomap` registers: the peer can write to it directly.

use std::ffi::{c_int, c_void};

use rocade_abi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE};
use rocade_rsockets::{Iomap, Sge, Stream};

use super::{
    memory::Region,
    stream::{Phase, StreamSocket},
    stream_qp::StreamQp,
};
use crate::{engine::Lent, ffi::Errno};

/// A mapped range.
struct Map {
    mr: Region,
    start: usize,
    len: usize,
    /// The entry in the peer's list, or `None` if only this side writes to the range.
    index: Option<u16>,
    offset: u64,
    /// Set once the peer has the entry.
    told: bool,
}

/// The mapped ranges of a socket.
#[derive(Default)]
pub(super) struct Maps {
    all: Vec<Map>,
    /// Set if a range is not announced yet.
    pending: bool,
}

impl Maps {
    /// Sends entries to the peer, as many as the stream can send now.
    pub(super) fn announce(&mut self, stream_qp: &mut StreamQp) {
        if !self.pending {
            return;
        }
        for map in self.all.iter_mut().filter(|map| !map.told) {
            let Some(index) = map.index else { continue };
            let entry = Iomap {
                offset: map.offset,
                sge: Sge {
                    addr: map.start as u64,
                    key: map.mr.rkey(),
                    length: u32::try_from(map.len).unwrap_or(u32::MAX),
                },
            };
            let write = stream_qp
                .stream_mut()
                .and_then(|stream| stream.send_iomap(index, entry));
            let Some(write) = write else { return };
            stream_qp.post(&write, None);
            map.told = true;
        }
        self.pending = false;
    }

    /// Returns an unused entry of the peer's list.
    fn free_index(&self, entries: u16) -> Option<u16> {
        (0..entries).find(|index| !self.all.iter().any(|map| map.index == Some(*index)))
    }
}

impl StreamSocket {
    /// `riomap`: returns the offset of the range.
    pub(super) fn map(
        &self,
        lent: Lent,
        len: usize,
        prot: c_int,
        offset: i64,
    ) -> Result<i64, Errno> {
        if prot & !libc::PROT_WRITE != 0 || u32::try_from(len).is_err() {
            return Err(Errno::INVAL);
        }
        let mut state = self.state.lock();
        let state = &mut *state;
        if !matches!(state.phase, Phase::Connected) {
            return Err(Errno::INVAL);
        }
        let pd = state.id.as_ref().ok_or(Errno::INVAL)?.pd()?;
        let mut access = IBV_ACCESS_LOCAL_WRITE;
        let mut index = None;
        if prot & libc::PROT_WRITE != 0 {
            access |= IBV_ACCESS_REMOTE_WRITE;
            let stream = state.stream_qp.as_ref().and_then(StreamQp::stream);
            let entries = stream.map_or(0, Stream::peers_iomaps);
            index = Some(state.maps.free_index(entries).ok_or(Errno(libc::ENOMEM))?);
        }
        let access = c_int::try_from(access).map_err(|_| Errno::INVAL)?;
        let start = lent.expose();
        let mr = Region::new(pd, lent, len, access)?;
        let at = match offset {
            -1 => start as u64,
            offset => offset.cast_unsigned(),
        };
        state.maps.all.push(Map {
            mr,
            start,
            len,
            index,
            offset: at,
            told: index.is_none(),
        });
        state.maps.pending |= index.is_some();
        if let Some(stream_qp) = &mut state.stream_qp {
            state.maps.announce(stream_qp);
        }
        Ok(at.cast_signed())
    }

    /// `riounmap`.
    pub(super) fn unmap(&self, start: *mut c_void, len: usize) -> Result<(), Errno> {
        let start = start.addr();
        let mut state = self.state.lock();
        let all = &mut state.maps.all;
        let found = all
            .iter()
            .position(|map| map.start == start && map.len == len);
        let map = all.remove(found.ok_or(Errno::INVAL)?);
        drop(state);
        drop(map);
        Ok(())
    }
}
