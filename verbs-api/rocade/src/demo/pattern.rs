//! Test patterns that depend on series and message.

/// Fills `data` with the pattern of message `index` of the series `seed`.
pub(super) fn fill(data: &mut [u8], seed: u64, index: u64) {
    // xorshift64*, whose initial state must not be 0.
    let mut state = (seed << 32 ^ index)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        | 1;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes()
    };
    let (words, rest) = data.as_chunks_mut::<8>();
    for word in words {
        *word = next();
    }
    let last = next();
    for (to, from) in rest.iter_mut().zip(last) {
        *to = from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize, seed: u64, index: u64) -> Vec<u8> {
        let mut data = vec![0; len];
        fill(&mut data, seed, index);
        data
    }

    #[test]
    fn messages_differ_and_repeat() {
        assert_eq!(bytes(100, 1, 2), bytes(100, 1, 2));
        let all = [
            bytes(13, 1, 2),
            bytes(13, 2, 1),
            bytes(13, 1, 3),
            bytes(13, 0, 0),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|other| other != one));
            assert!(one.iter().any(|&byte| byte != 0));
        }
    }
}
