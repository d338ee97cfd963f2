//! Traced functions, for `rocade trace`. The records are written by `libibverbs`, and the texts are
//! made as there.

pub(crate) mod calls;
#[path = "../../../libibverbs/src/trace/ibv.rs"]
mod ibv;
mod rdma;
#[path = "../../../libibverbs/src/trace/show.rs"]
mod show;
mod sink;
#[path = "../../../libibverbs/src/trace/table.rs"]
mod table;
