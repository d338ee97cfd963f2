//! Entry points of the fuzz targets (`tests/fuzz`) into the parsers of other processes' data.

pub use crate::broker::fuzz_messages as broker_messages;
pub use crate::link::shm::fuzz::records as ring_records;
