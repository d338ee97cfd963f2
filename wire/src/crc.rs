//! CRC-32 of Ethernet, the arithmetic of the ICRC.
//!
//! It is computed over every byte that is sent and received, so it limits the throughput of packets
//! of a kilobyte and more. There are several backends ([`Backend`]), each of which can copy the
//! data in the same pass. The best backend for the processor is selected at run time with the
//! feature `std`, without it at compile time.
//!
//! | | |
//! |---|---|
//! | `fold` | carry-less multiplication, for registers of any width |
//! | `x86`, `arm` | the registers |
//! | `table` | lookup tables |

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

/// Continues `crc` over `bytes`. The CRC of an empty input is 0.
#[inline]
#[must_use]
pub fn update(crc: u32, bytes: &[u8]) -> u32 {
    Backend::current().update(crc, bytes)
}

/// Copies `dst.len()` bytes from `src` and continues `crc` over `head` and the copied bytes.
///
/// The source is read once: the result is the CRC of what `dst` holds, even if the source is
/// written concurrently.
///
/// # Safety
/// `dst.len()` bytes must be readable at `src`, and not overlap `dst`.
#[inline]
#[must_use]
pub unsafe fn copy(crc: u32, head: &[u8], src: *const u8, dst: &mut [u8]) -> u32 {
    // SAFETY: the caller guarantees that `src` is readable and does not overlap `dst`.
    unsafe { Backend::current().copy(crc, head, src, dst) }
}

/// A backend for the CRC that this processor supports.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Backend(Kind);

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

/// The reason why there is no [`Backend`] with a name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NoBackend {
    /// The name is unknown.
    Unknown,
    /// The processor does not support this backend.
    Unavailable,
}

/// The current backend: its index in [`KINDS`], counted from 1. 0 before it has been chosen.
static CURRENT: AtomicU8 = AtomicU8::new(0);

impl Backend {
    /// Returns all backends that this processor supports, the best first.
    pub fn available() -> impl Iterator<Item = Self> {
        KINDS
            .into_iter()
            .filter(|kind| kind.is_available())
            .map(Self)
    }

    /// Returns all names, including those of backends that this processor does not support.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KINDS.into_iter().map(Kind::name)
    }

    /// Returns the name: `avx512`, `vpclmul256`, `pclmul128`, `pmull`, `crc32` or `table`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0.name()
    }

    /// Returns the backend of [`update`] and [`copy`]: the best, unless another has been selected.
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
        // Another thread may have selected a backend meanwhile.
        let place = best.place();
        match CURRENT.compare_exchange(0, place, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => best,
            Err(_) => Self::current(),
        }
    }

    /// Selects this backend for [`update`] and [`copy`] in the whole process. All backends give the
    /// same results.
    pub fn select(self) {
        CURRENT.store(self.place(), Ordering::Relaxed);
    }

    fn place(self) -> u8 {
        let before = (1..).zip(KINDS).find(|(_, kind)| *kind == self.0);
        before.map_or(0, |(place, _)| place)
    }

    /// Continues the CRC like [`update`](self::update()), with this backend.
    #[inline]
    #[must_use]
    pub fn update(self, crc: u32, bytes: &[u8]) -> u32 {
        let (words, rest) = bytes.split_at(bytes.len() & !3);
        // SAFETY: `words` is readable, and nothing is written.
        let crc = unsafe { self.words::<false>(crc, &[], words.as_ptr(), null_mut(), words.len()) };
        if rest.is_empty() {
            crc
        } else {
            table::update(crc, rest)
        }
    }

    /// Copies and continues the CRC like [`copy`](self::copy()), with this backend.
    ///
    /// # Safety
    /// As for [`copy`](self::copy()).
    #[inline]
    #[must_use]
    pub unsafe fn copy(self, crc: u32, head: &[u8], src: *const u8, dst: &mut [u8]) -> u32 {
        let (words, rest) = dst.split_at_mut(dst.len() & !3);
        // If the data starts on a lane boundary, including the head costs almost nothing.
        let full = !words.is_empty() && words.len().is_multiple_of(fold::LANE);
        let (crc, head) = if full && head.len().is_multiple_of(4) {
            (crc, head)
        } else {
            (self.update(crc, head), &[][..])
        };
        // SAFETY: the caller guarantees the source, and `words` is a part of `dst`. The lengths of
        // head and data are as required.
        let crc = unsafe { self.words::<true>(crc, head, src, words.as_mut_ptr(), words.len()) };
        if rest.is_empty() {
            return crc;
        }
        // SAFETY: the caller guarantees the source, which includes the bytes behind the words.
        unsafe {
            let src = src.add(words.len());
            ptr::copy_nonoverlapping(src, rest.as_mut_ptr(), rest.len());
        }
        table::update(crc, rest)
    }

    /// Continues the CRC over `head` and `len` bytes at `src`, and copies the latter to `dst` if
    /// `COPY` is set.
    ///
    /// `len` is a multiple of 4. If `head` is not empty, its length is a multiple of 4, and `len`
    /// is a multiple of [`fold::LANE`] and not 0.
    ///
    /// # Safety
    /// `len` bytes must be readable at `src`. If they are copied, `len` bytes must be writable at
    /// `dst`, and not overlap the source.
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
            // SAFETY: a `Backend` exists only if the processor has the features. The caller
            // guarantees the memory.
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
            // SAFETY: the caller guarantees the memory.
            _ => unsafe { by_table::<COPY>(crc, head, src, dst, len) },
        }
    }
}

/// Continues the CRC like [`Backend::words`], by tables.
///
/// # Safety
/// As for [`Backend::words`].
unsafe fn by_table<const COPY: bool>(
    crc: u32,
    head: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u32 {
    let from = if COPY {
        // SAFETY: the caller guarantees both ranges, which do not overlap.
        unsafe { ptr::copy_nonoverlapping(src, dst, len) };
        dst.cast_const()
    } else {
        src
    };
    // SAFETY: the caller guarantees that the bytes are readable. A copy has just been written.
    // Without a copy, the source is a slice.
    let bytes = unsafe { slice::from_raw_parts(from, len) };
    table::update(table::update(crc, head), bytes)
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Backend {
    type Err = NoBackend;

    /// Returns the backend with this name.
    fn from_str(name: &str) -> Result<Self, NoBackend> {
        let kind = KINDS.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or(NoBackend::Unknown)?;
        kind.is_available()
            .then_some(Self(kind))
            .ok_or(NoBackend::Unavailable)
    }
}

impl fmt::Display for NoBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "there is no such way to compute the ICRC",
            Self::Unavailable => "this processor does not have it",
        })
    }
}

impl Error for NoBackend {}

/// Tests whether the processor has all these features.
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

    /// Returns true if this processor has the features that the function of this name in `x86` or
    /// `arm` is compiled for.
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
            // The feature "aes" covers AES and PMULL.
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
