//! The places of the payloads of a run, before its packets are handled.
//!
//! A receiver whose memory is copied by system calls copies a whole run at once. Handling the
//! packets afterwards has the same result as without that.

use rocade_wire::{Lkey, Rkey};

use crate::memory::Accessor;

/// The place of the payload of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement<'p> {
    /// The accessor that the key is checked against.
    pub who: Accessor,
    /// The key of the place.
    pub key: PlacementKey,
    /// The address of its first byte.
    pub addr: u64,
    /// The payload.
    pub payload: &'p [u8],
    /// The packet is the last one of its message, on whose last byte a program may poll.
    pub ends: bool,
}

/// The key of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementKey {
    /// The buffer of a receive, for writing.
    Local(Lkey),
    /// Memory that the requester has named, for writing.
    Remote(Rkey),
}
