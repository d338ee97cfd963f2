//! Entry points of the fuzz targets (`tests/fuzz`) to what reads the bytes of other processes.

pub use crate::broker::fuzz_messages as broker_messages;
pub use crate::link::shm::fuzz::records as ring_records;
