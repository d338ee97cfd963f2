//! The verbs objects. Each is a clonable handle. `destroy` ends the object with the errno that the
//! verb documents. Dropping the last handle ends it silently.

mod ah;
mod comp_channel;
mod comp_counter;
mod connection;
mod context;
mod cq;
mod cross_channel;
mod dct;
mod dm;
mod ece;
mod flow;
mod grh;
mod modify;
mod mr;
mod mw;
mod pd;
mod poster;
mod qp;
mod qp_owner;
mod rss;
mod srq;
mod xrcd;

pub use ah::Ah;
pub use comp_channel::CompChannel;
pub use comp_counter::CompCounter;
pub use connection::Connection;
pub use context::Context;
pub use cq::{Cq, CqInitAttr};
pub use cross_channel::CrossChannel;
pub use dct::{DciInit, DctInitAttr};
pub use dm::Dm;
pub use flow::Flow;
pub use grh::Grh;
pub use mr::{Advice, Mr, Rereg, ReregFlags};
pub use mw::Mw;
pub use pd::Pd;
pub use poster::{Datagram, RecvPoster, SendPoster, ToDct};
pub use qp::{Qp, QpInitAttr};
pub use rss::{RxHash, Wq, WqState};
pub use srq::{Srq, SrqInitAttr, SrqPoster};
pub use xrcd::Xrcd;
