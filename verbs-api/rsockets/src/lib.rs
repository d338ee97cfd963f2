//! The protocol of rsockets: streams and datagrams over queue pairs.
//!
//! A stream is a connection of an RC queue pair. Each side lends the other two halves of a receive buffer; data are RDMA
//! WRITEs into them, and the 32 bits of immediate data that come with each say how many bytes there are. What else the sides
//! have to tell each other are WRITEs too: that a half of the buffer is free again, that a range of memory may be written
//! directly (*iomap*), that nothing more will come. See `docs/rsockets.md`.
//!
//! A datagram is a SEND of a UD queue pair behind a short header. Which queue pair belongs to an address is found out by
//! a header before the first datagrams, which go over an ordinary UDP socket.
//!
//! Nothing here does I/O, allocates registered memory or looks at a clock: [`Stream`] is told what arrived and what was sent,
//! and says what to write where. Bytes of the protocol are in [`ConnData`], [`Message`], [`datagram`].

#![forbid(unsafe_code)]

mod connect;
pub mod datagram;
mod message;
mod stream;

pub use connect::{ConnData, ConnDataError, IOMAP_LEN, Iomap, SGE_LEN, Sge, scale, unscale};
pub use message::{Control, Message};
pub use stream::{
    Config, End, How, MAX_TRANSFER, NoIomap, Peers, SEND_LOW_WATER, SGL_SLOTS, Source, Stream,
    Violation, Write,
};
