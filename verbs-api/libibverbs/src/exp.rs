//! The experimental verbs of Rocade's header `infiniband/verbs_exp.h`. Each file of the header has
//! a module here.

pub(crate) mod atomics;
pub(crate) mod completion;
pub(crate) mod cross_channel;
pub(crate) mod dct;
pub(crate) mod device;
pub(crate) mod qp;
pub(crate) mod request;
pub(crate) mod send;
pub(crate) mod umr;
