//! Experimental verbs: what our own header, `infiniband/verbs_exp.h`, offers beside the plain one. A module for each
//! of its files.

pub(crate) mod device;
