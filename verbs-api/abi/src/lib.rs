//! `repr(C)` mirrors of the verbs headers (`infiniband/verbs.h`), without any logic.
//!
//! A program that was compiled against the distribution's `verbs.h` reads and writes these
//! structures directly and calls through the function tables inside them: about a hundred verbs
//! are inline functions of the header. Their layout therefore *is* the ABI. Type, field and
//! constant names are those of C, so that they can be looked up in the manual pages.
//!
//! C enumerations are plain integers here, because a caller may pass any value.
//!
//! # Layers
//! * In [`layout`] a mirrored type describes itself to the layout test.
//! * Enumerators are in [`consts`].
//! * The modules [`device`], [`object`], [`attr`], [`wr`], [`extended`], [`flow`], [`context`] hold the
//!   structures; [`rdma`] those of the connection manager.
//! * [`mlx5`] has those of `mlx5dv.h`.
//! * [`exp`] mirrors our own header of experimental verbs.
//! * [`private`] is between two of our own libraries.
//!
//! The test `tests/layout.rs` compares size, alignment and every field offset with figures
//! measured by a C compiler (`tests/abi/layouts.txt` of the repository), in both directions.
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
pub use wr::*;
