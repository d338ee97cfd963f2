//! Entry points of the fuzz targets (`tests/fuzz`) into the parsers of other processes' data.

pub use crate::broker::fuzz_messages as broker_messages;
pub use crate::link::shm::fuzz::records as ring_records;

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn messages_of_any_bytes_are_refused_or_kept(
            kind in 0..32u16,
            body in vec(any::<u8>(), 0..200),
            fds in 0..20usize,
        ) {
            broker_messages(&body, fds);
            // A header that is right before it.
            let len = u32::try_from(12 + body.len()).expect("a short message");
            let version = crate::broker::PROTOCOL_VERSION.to_le_bytes();
            let kind = kind.to_le_bytes();
            let message = [b"RCDB", &version[..], &kind, &len.to_le_bytes(), &body].concat();
            broker_messages(&message, fds);
        }
    }

    proptest! {
        // Each case has two mappings of a link.
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn a_ring_survives_what_the_peer_writes_into_it(steps in vec(any::<u8>(), 0..600)) {
            ring_records(&steps);
        }
    }
}
