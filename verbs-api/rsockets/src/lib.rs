//! The protocol of rsockets: streams and datagrams over queue pairs.
//!
//! A stream is a connection of an RC queue pair. Each side lets the peer write to the two halves of
//! its receive buffer. Data are RDMA WRITEs into these halves, and the 32 bits of immediate data of
//! each WRITE hold the number of bytes. Control messages are WRITEs, too. They announce a free half
//! of the buffer, a memory range that can be written directly (*iomap*), or the end of the stream.
//! See `docs/rsockets.md`.
//!
//! A datagram is a SEND of a UD queue pair with a short header. The first datagrams to an address
//! go over a UDP socket, with a header that tells the peer the sender's QP number.
//!
//! This crate does no I/O, allocates no registered memory and reads no clock. The caller passes
//! received messages and completions to [`Stream`], which returns the writes to post. [`ConnData`],
//! [`Message`] and [`datagram`] define the wire formats.

#![forbid(unsafe_code)]

mod connect;
pub mod datagram;
mod message;
mod stream;

pub use connect::{ConnData, ConnDataError, IOMAP_LEN, Iomap, SGE_LEN, Sge, scale, unscale};
pub use message::{ControlMessage, Message};
pub use stream::{
    Config, End, How, MAX_TRANSFER, NoIomap, Peers, SEND_LOW_WATER, SGL_SLOTS, Source, Stream,
    Violation, Write,
};
