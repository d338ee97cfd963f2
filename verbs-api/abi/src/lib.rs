//! `repr(C)` mirrors of the verbs headers (`infiniband/verbs.h`), without any logic.
//!
//! A program compiled against the distribution's `verbs.h` reads and writes these structures
//! directly. It calls through the function tables inside them, because about a hundred verbs are
//! inline functions of the header. Their layout therefore *is* the ABI. Types, fields and constants
//! have their C names, as in the manual pages.
//!
//! C enumerations are plain integers here, because a caller may pass any value.
//!
//! # Layers
//! * [`layout`] describes the mirrored types to the layout test.
//! * [`consts`] has the enumerators.
//! * [`device`], [`object`], [`attr`], [`wr`], [`extended`], [`flow`] and [`context`] have the
//!   structures of `verbs.h`.
//! * [`release65`] has structures of `verbs.h` that later releases have added.
//! * [`rdma`] has the structures of the connection manager.
//! * [`mlx5`] has the structures of `mlx5dv.h`.
//! * [`exp`] mirrors Rocade's header of experimental verbs.
//! * [`private`] is the interface between Rocade's libraries.
//!
//! The test `tests/layout.rs` compares size, alignment and every field offset with values measured
//! by a C compiler (`tests/abi/layouts*.txt` of the repository), in both directions.
#![no_std]
#![expect(
    non_snake_case,
    reason = "the members carry the names of the C header they mirror"
)]

pub mod attr;
pub mod consts;
pub mod context;
pub mod device;
pub mod exp;
pub mod extended;
pub mod flow;
pub mod layout;
pub mod mlx5;
pub mod object;
pub mod private;
pub mod rdma;
pub mod release65;
pub mod wr;

pub use attr::*;
pub use consts::*;
pub use context::*;
pub use device::*;
pub use extended::*;
pub use flow::*;
pub use object::*;
pub use private::*;
pub use rdma::*;
pub use release65::*;
pub use wr::*;
