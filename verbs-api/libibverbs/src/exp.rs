//! Experimental verbs: what our own header, `infiniband/verbs_exp.h`, offers beside the plain one. A module for each
//! of its files.

pub(crate) mod atomics;
pub(crate) mod completion;
pub(crate) mod dct;
pub(crate) mod device;
pub(crate) mod qp;
pub(crate) mod send;
pub(crate) mod umr;
