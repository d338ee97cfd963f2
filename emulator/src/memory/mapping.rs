//! Is a range of this process's memory mapped, and how?

use std::fs;

/// Checks that every page of `addr..addr+len` is mapped readable, and writable where `write`
/// (MR-08). Where `/proc` is not mounted nothing can be said: the range is taken as mapped.
pub(crate) fn is_mapped(addr: u64, len: u64, write: bool) -> bool {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else {
        return true;
    };
    covers(&maps, addr, len, write)
}

/// `maps` lists mappings in ascending order, a line each: `start-end perms ...`.
fn covers(maps: &str, addr: u64, len: u64, write: bool) -> bool {
    let Some(end) = addr.checked_add(len) else {
        return false;
    };
    let mut need = addr;
    for line in maps.lines() {
        let Some((start, stop, perms)) = parse(line) else {
            continue;
        };
        if stop <= need {
            continue;
        }
        let allowed = perms.as_bytes().first() == Some(&b'r')
            && (!write || perms.as_bytes().get(1) == Some(&b'w'));
        if start > need || !allowed {
            return false;
        }
        need = stop;
        if need >= end {
            return true;
        }
    }
    false
}

fn parse(line: &str) -> Option<(u64, u64, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (start, stop) = words.next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let stop = u64::from_str_radix(stop, 16).ok()?;
    Some((start, stop, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0
3000-4000 r--p 00000000 00:00 0 [x]
6000-7000 rw-p 00000000 00:00 0
";

    #[test]
    fn ranges_must_be_covered_without_a_hole() {
        assert!(covers(MAPS, 0x1000, 0x2000, true));
        assert!(covers(MAPS, 0x2fff, 2, false));
        assert!(
            !covers(MAPS, 0x2fff, 2, true),
            "the second page is read-only"
        );
        assert!(
            !covers(MAPS, 0x3fff, 2, false),
            "the page after is not mapped"
        );
        assert!(
            !covers(MAPS, 0x0fff, 2, false),
            "the page before is not mapped"
        );
        assert!(!covers(MAPS, 0x5000, 0x1800, false));
        assert!(!covers(MAPS, u64::MAX - 1, 4, false), "wraps");
    }

    #[test]
    fn own_memory() {
        let local = [0u8; 64];
        assert!(is_mapped(local.as_ptr() as u64, 64, true));
        assert!(!is_mapped(8, 64, false));
    }
}
