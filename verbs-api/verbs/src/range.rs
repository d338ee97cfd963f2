//! Ranges of bytes in memory regions.

use std::ops::{Bound, RangeBounds};

use crate::error::{RangeError, Result};

/// Returns start and length of a range of a region of `region_len` bytes.
pub(crate) fn resolve(
    range: &impl RangeBounds<usize>,
    region_len: usize,
) -> Result<(usize, usize), RangeError> {
    let wide = |bound: Bound<&usize>| bound.map(|&at| at as u64);
    let range = (wide(range.start_bound()), wide(range.end_bound()));
    let (offset, len) = resolve_u64(&range, region_len as u64)?;
    let narrow = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    Ok((narrow(offset), narrow(len)))
}

/// Returns start and length of a range of 64-bit addresses, in a memory of `region_len` bytes.
pub(crate) fn resolve_u64(
    range: &impl RangeBounds<u64>,
    region_len: u64,
) -> Result<(u64, u64), RangeError> {
    let offset = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => region_len,
    };
    let len = end.saturating_sub(offset);
    if offset > end || end > region_len {
        return Err(RangeError {
            offset,
            len,
            region_len,
        });
    }
    Ok((offset, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_to_be_inside() {
        assert_eq!(resolve(&(..), 8), Ok((0, 8)));
        assert_eq!(resolve(&(3..), 8), Ok((3, 5)));
        assert_eq!(resolve(&(..=7), 8), Ok((0, 8)));
        assert_eq!(resolve(&(8..), 8), Ok((8, 0)));
        let (after, end) = (Bound::Excluded(2), Bound::Excluded(4));
        assert_eq!(resolve(&(after, end), 8), Ok((3, 1)));
        let outside = |offset, len| {
            Err(RangeError {
                offset,
                len,
                region_len: 8,
            })
        };
        assert_eq!(resolve(&(2..=8), 8), outside(2, 7));
        assert_eq!(resolve(&(9..), 8), outside(9, 0));
        assert_eq!(
            resolve(&std::ops::Range { start: 5, end: 3 }, 8),
            outside(5, 0)
        );
        assert_eq!(resolve(&(1..=usize::MAX), 8), outside(1, u64::MAX - 1));
    }
}
