//! CRC-32 of Ethernet, the arithmetic under the ICRC.
//!
//! It runs over every byte that is sent and received, so it decides how fast packets of a kilobyte are. There are several
//! ways to compute it, each of which copies on the way where asked to; [`Way`] says which. The best that the processor
//! has is found out at run time with the feature `std`, without it at compile time.
//!
//! | | |
//! |---|---|
//! | `fold` | by carry-less multiplication, for registers of any width |
//! | `x86`, `arm` | the registers |
//! | `table` | by tables |

use core::error::Error;
use core::fmt;
use core::ptr::{self, null_mut};
use core::slice;
use core::str::FromStr;
use core::sync::atomic::{AtomicU8, Ordering};

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod arm;
#[cfg_attr(
    not(any(
        target_arch = "x86_64",
        all(target_arch = "aarch64", target_endian = "little")
    )),
    expect(dead_code, reason = "for processors with registers for it")
)]
mod fold;
mod table;
#[cfg(target_arch = "x86_64")]
mod x86;

/// The CRC's polynomial, reflected, x^32 left out.
//= ICRC-01
pub(crate) const POLYNOMIAL: u32 = 0xedb8_8320;

/// The polynomial 1.
pub(crate) const ONE: u32 = 1 << 31;

/// Multiplies by x.
pub(crate) const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ if a & 1 != 0 { POLYNOMIAL } else { 0 }
}

/// Continues `crc` over `bytes`. The CRC of nothing is 0.
#[inline]
#[must_use]
pub fn update(crc: u32, bytes: &[u8]) -> u32 {
    Way::current().update(crc, bytes)
}

/// Copies `dst.len()` bytes from `src` and continues `crc` over `head` and them. The source is read once:
/// what has been summed up is what `dst` holds, even if somebody writes to the source meanwhile.
///
/// # Safety
/// `dst.len()` bytes must be readable at `src`, and not overlap `dst`.
#[inline]
#[must_use]
pub unsafe fn copy(crc: u32, head: &[u8], src: *const u8, dst: &mut [u8]) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { Way::current().copy(crc, head, src, dst) }
}

/// A way to compute the CRC which this processor has.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Way(Kind);

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Kind {
    Avx512,
    Vpclmul256,
    Pclmul128,
    Pmull,
    Crc32,
    Table,
}

/// The best first.
const KINDS: [Kind; 6] = [
    Kind::Avx512,
    Kind::Vpclmul256,
    Kind::Pclmul128,
    Kind::Pmull,
    Kind::Crc32,
    Kind::Table,
];

/// Why there is no [`Way`] of a name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NoWay {
    /// Nothing is called so.
    Unknown,
    /// This processor does not have what it takes.
    Unavailable,
}

/// The place of the current way in [`KINDS`], counted from 1; 0 before it has been chosen.
static CURRENT: AtomicU8 = AtomicU8::new(0);

impl Way {
    /// All that this processor has, the best first.
    pub fn available() -> impl Iterator<Item = Self> {
        KINDS
            .into_iter()
            .filter(|kind| kind.is_available())
            .map(Self)
    }

    /// All names, also of what this processor does not have.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KINDS.into_iter().map(Kind::name)
    }

    /// Its name: `avx512`, `vpclmul256`, `pclmul128`, `pmull`, `crc32` or `table`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0.name()
    }

    /// What [`update`] and [`copy`] use: the best, unless something else has been selected.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        let place = usize::from(CURRENT.load(Ordering::Relaxed));
        KINDS
            .get(place.wrapping_sub(1))
            .map_or_else(Self::choose, |kind| Self(*kind))
    }

    #[cold]
    fn choose() -> Self {
        let best = Self::available().next().unwrap_or(Self(Kind::Table));
        // A selection may have come first.
        let place = best.place();
        match CURRENT.compare_exchange(0, place, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => best,
            Err(_) => Self::current(),
        }
    }

    /// Makes [`update`] and [`copy`] use it from now on, in the whole process. All ways give the same results.
    pub fn select(self) {
        CURRENT.store(self.place(), Ordering::Relaxed);
    }

    fn place(self) -> u8 {
        let before = (1..).zip(KINDS).find(|(_, kind)| *kind == self.0);
        before.map_or(0, |(place, _)| place)
    }

    /// As [`update`](self::update()), this way.
    #[inline]
    #[must_use]
    pub fn update(self, crc: u32, bytes: &[u8]) -> u32 {
        let (words, rest) = bytes.split_at(bytes.len() & !3);
        // SAFETY: `words` is readable, nothing is written.
        let crc = unsafe { self.words::<false>(crc, &[], words.as_ptr(), null_mut(), words.len()) };
        if rest.is_empty() {
            crc
        } else {
            table::update(crc, rest)
        }
    }

    /// As [`copy`](self::copy()), this way.
    ///
    /// # Safety
    /// As for [`copy`](self::copy()).
    #[inline]
    #[must_use]
    pub unsafe fn copy(self, crc: u32, head: &[u8], src: *const u8, dst: &mut [u8]) -> u32 {
        let (words, rest) = dst.split_at_mut(dst.len() & !3);
        // Where the lanes of the data begin with it, the head costs next to nothing.
        let full = !words.is_empty() && words.len().is_multiple_of(fold::LANE);
        let (crc, head) = if full && head.len().is_multiple_of(4) {
            (crc, head)
        } else {
            (self.update(crc, head), &[][..])
        };
        // SAFETY: the caller promises the source, `words` is ours. The head is as it has to be.
        let crc = unsafe { self.words::<true>(crc, head, src, words.as_mut_ptr(), words.len()) };
        if rest.is_empty() {
            return crc;
        }
        // SAFETY: the bytes behind the words, by the same promise.
        unsafe {
            let src = src.add(words.len());
            ptr::copy_nonoverlapping(src, rest.as_mut_ptr(), rest.len());
        }
        table::update(crc, rest)
    }

    /// Continues the CRC over `head` and `len` bytes at `src`, and copies the latter to `dst` if asked to. `len` is a
    /// multiple of 4. Where there is a head, its length is a multiple of 4, and `len` one of [`fold::LANE`] and not 0.
    ///
    /// # Safety
    /// `len` bytes must be readable at `src`, and writable at `dst` if they are copied; they must not overlap.
    #[inline]
    unsafe fn words<const COPY: bool>(
        self,
        crc: u32,
        head: &[u8],
        src: *const u8,
        dst: *mut u8,
        len: usize,
    ) -> u32 {
        if len == 0 {
            return crc;
        }
        match self.0 {
            // SAFETY: a `Way` exists only where the processor has the features; the rest is the caller's promise.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { x86::avx512::<COPY>(crc, head, src, dst, len) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Vpclmul256 => unsafe { x86::vpclmul256::<COPY>(crc, head, src, dst, len) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Pclmul128 => unsafe { x86::pclmul128::<COPY>(crc, head, src, dst, len) },
            // SAFETY: as above.
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Kind::Pmull => unsafe { arm::pmull::<COPY>(crc, head, src, dst, len) },
            // SAFETY: as above.
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Kind::Crc32 => unsafe { arm::words::<COPY>(crc, head, src, dst, len) },
            // SAFETY: the caller's promise.
            _ => unsafe { by_table::<COPY>(crc, head, src, dst, len) },
        }
    }
}

/// As [`Way::words`].
///
/// # Safety
/// As for [`Way::words`].
unsafe fn by_table<const COPY: bool>(
    crc: u32,
    head: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u32 {
    let from = if COPY {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(src, dst, len) };
        dst.cast_const()
    } else {
        src
    };
    // SAFETY: the caller's promise; a copy has just been written, and what is not copied comes from a slice.
    let bytes = unsafe { slice::from_raw_parts(from, len) };
    table::update(table::update(crc, head), bytes)
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Way {
    type Err = NoWay;

    /// The way with this name.
    fn from_str(name: &str) -> Result<Self, NoWay> {
        let kind = KINDS.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or(NoWay::Unknown)?;
        kind.is_available()
            .then_some(Self(kind))
            .ok_or(NoWay::Unavailable)
    }
}

impl fmt::Display for NoWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "there is no such way to compute the ICRC",
            Self::Unavailable => "this processor does not have it",
        })
    }
}

impl Error for NoWay {}

/// Whether the processor has all these features.
macro_rules! has {
    ($detect:ident, $($feature:tt),+) => {{
        #[cfg(any(feature = "std", test))]
        let has = $(std::arch::$detect!($feature))&&+;
        #[cfg(not(any(feature = "std", test)))]
        let has = cfg!(all($(target_feature = $feature),+));
        has
    }};
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Vpclmul256 => "vpclmul256",
            Self::Pclmul128 => "pclmul128",
            Self::Pmull => "pmull",
            Self::Crc32 => "crc32",
            Self::Table => "table",
        }
    }

    /// Whether this processor has the features that the function of this name in `x86` or `arm` is compiled for.
    fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => has!(
                is_x86_feature_detected,
                "avx512f",
                "vpclmulqdq",
                "pclmulqdq",
                "sse4.1"
            ),
            #[cfg(target_arch = "x86_64")]
            Self::Vpclmul256 => has!(
                is_x86_feature_detected,
                "avx2",
                "vpclmulqdq",
                "pclmulqdq",
                "sse4.1"
            ),
            #[cfg(target_arch = "x86_64")]
            Self::Pclmul128 => has!(is_x86_feature_detected, "pclmulqdq", "sse4.1"),
            // The feature "aes" is AES and PMULL.
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Self::Pmull => has!(is_aarch64_feature_detected, "neon", "aes", "crc"),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Self::Crc32 => has!(is_aarch64_feature_detected, "crc"),
            Self::Table => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
