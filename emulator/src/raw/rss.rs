//! RSS: distributes frames to receive queues by a hash of their addresses.

use rocade_wire::Qpn;

use super::frame::{Layout, NetworkHeader, TCP, UDP};

/// Length of a key of the Toeplitz hash, enough for the longest input.
pub const RSS_KEY_LEN: usize = 40;

/// The hashed fields (`ibv_rx_hash_fields`): the bits of source and destination.
const IPV4: [u32; 2] = [1, 1 << 1];
const IPV6: [u32; 2] = [1 << 2, 1 << 3];
const TCP_PORTS: [u32; 2] = [1 << 4, 1 << 5];
const UDP_PORTS: [u32; 2] = [1 << 6, 1 << 7];
/// All fields.
pub const RSS_FIELDS: u32 = 0xff;

/// The receive queues of an RSS queue pair, and the parameters of the hash.
#[derive(Clone, Debug)]
pub(crate) struct RssTable {
    queues: Vec<Qpn>,
    key: [u8; RSS_KEY_LEN],
    fields: u32,
}

impl RssTable {
    /// Creates the distribution to these queues, whose number must be a power of two.
    pub(crate) const fn new(queues: Vec<Qpn>, key: [u8; RSS_KEY_LEN], fields: u32) -> Self {
        Self {
            queues,
            key,
            fields,
        }
    }

    /// Returns the queue of a frame. This is the first queue if the frame has none of the fields.
    pub(crate) fn queue_of(&self, frame: &[u8]) -> Option<Qpn> {
        let hash = Layout::of(frame).map_or(0, |layout| self.hash(frame, &layout));
        let index = hash as usize & (self.queues.len().checked_sub(1)?);
        self.queues.get(index).copied()
    }

    fn hash(&self, frame: &[u8], layout: &Layout) -> u32 {
        let mut input = Vec::with_capacity(36);
        let mut add = |bits: [u32; 2], at: usize, len: usize| {
            for (side, bit) in bits.into_iter().enumerate() {
                let start = at + side * len;
                if let Some(field) = frame
                    .get(start..start + len)
                    .filter(|_| self.fields & bit != 0)
                {
                    input.extend_from_slice(field);
                }
            }
        };
        match layout.network {
            Some((NetworkHeader::V4(_), at)) => add(IPV4, at + 12, 4),
            Some((NetworkHeader::V6, at)) => add(IPV6, at + 8, 16),
            None => {}
        }
        match layout.transport {
            Some((TCP, at)) => add(TCP_PORTS, at, 2),
            Some((UDP, at)) => add(UDP_PORTS, at, 2),
            _ => {}
        }
        toeplitz(&self.key, &input)
    }
}

/// Computes the Toeplitz hash: for each set bit of the input, the 32 bits of the key from that
/// position on.
fn toeplitz(key: &[u8; RSS_KEY_LEN], input: &[u8]) -> u32 {
    let mut window = u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
    let mut hash = 0;
    for (byte, next) in input.iter().zip(key.iter().skip(4)) {
        for bit in (0..8).rev() {
            if byte >> bit & 1 != 0 {
                hash ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    hash
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::frame::tests::frame;
    use super::*;

    /// The key of the examples in the definition of RSS.
    const KEY: [u8; RSS_KEY_LEN] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn the_hash_is_that_of_the_published_examples() {
        let mut input = vec![66, 9, 149, 187, 161, 142, 100, 80];
        assert_eq!(toeplitz(&KEY, &input), 0x323e_8fc2);
        input.extend(2794u16.to_be_bytes());
        input.extend(1766u16.to_be_bytes());
        assert_eq!(toeplitz(&KEY, &input), 0x51cc_c178);
    }

    #[test]
    fn only_the_fields_that_were_asked_for_count() {
        let queues: Vec<_> = (0..256).map(Qpn::new).collect();
        let udp = frame(false, UDP, None, b"x");
        let of = |fields, bytes: &[u8]| {
            let rss_table = RssTable::new(queues.clone(), KEY, fields);
            rss_table.queue_of(bytes).expect("there are some").get()
        };
        let addresses = toeplitz(&KEY, &[192, 0, 2, 1, 192, 0, 2, 2]) & 0xff;
        assert_eq!(of(3, &udp), addresses);
        assert_eq!(of(3 | 0x3c, &udp), addresses, "those of other headers");
        let ports = toeplitz(&KEY, &[3, 0xe8, 7, 0xd0]) & 0xff;
        assert_eq!(of(0xc0, &udp), ports);
        let source = toeplitz(&KEY, &[192, 0, 2, 1]) & 0xff;
        assert_eq!(of(1, &udp), source);
        assert_eq!(of(RSS_FIELDS, &[0; 20]), 0, "none of them is there");
        assert_eq!(of(RSS_FIELDS, &[]), 0);
    }
}
