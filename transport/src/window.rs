//! Memory windows: the access that they grant, and how it changes.
//!
//! A window is a pure value: the owner of the key table locks it, and looks up the region that it
//! is bound to.

use core::fmt;

use rocade_wire::{Lkey, Qpn, Rkey};

use crate::memory::{AccessError, Accessor, PdTag, RemoteAccess};
use crate::wr::AccessFlags;

/// Kind of a window. The discriminants are the `ibv_mw_type` values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[doc(alias = "ibv_mw_type")]
pub enum WindowKind {
    /// For every QP of its protection domain. The device chooses its keys. It may be bound again at
    /// any time.
    Type1 = 1,
    /// For the QP that it is bound on, in its protection domain (type 2B).
    ///
    /// The program chooses the low byte of its key. It can be bound only while free, and is freed
    /// by invalidation.
    Type2 = 2,
}

/// The new binding of a window.
// Packed, so that it does not enlarge all other work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed(4))]
pub struct Bind {
    /// The new key. Its index names the window, its low byte is the new tag.
    pub rkey: Rkey,
    /// The region.
    pub lkey: Lkey,
    /// Start of the range, in the addresses of the region.
    pub va: u64,
    /// Length in bytes. 0 unbinds a type 1 window.
    pub len: u64,
    /// Access of peers, out of [`Window::RIGHTS`]. `LOCAL_WRITE` is ignored.
    pub access: AccessFlags,
}

/// The reason why a window was not bound, or an indirect key not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BindError {
    /// The key names no window, or no indirect key.
    NoWindow,
    /// A type 2 window, or this indirect key, has to be free.
    Bound,
    /// A type 2 window cannot be unbound by a bind.
    NothingToBind,
    /// The key names no region with memory of its own, or an indirect key that is free.
    NoRegion,
    /// Window, region and QP belong to different protection domains.
    WrongPd,
    /// A window cannot have these rights.
    BadRights,
    /// The region does not allow windows, or lacks `LOCAL_WRITE`.
    Permission,
    /// The range is not inside the region, or the indirect key has no room for so many entries.
    OutOfRange,
    /// Too many levels of indirect keys.
    TooDeep,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoWindow => "there is no such window",
            Self::Bound => "the window or indirect key is already bound",
            Self::NothingToBind => "a bind cannot unbind a type 2 window",
            Self::NoRegion => "there is no such memory region",
            Self::WrongPd => "the protection domains of window, region and QP differ",
            Self::BadRights => "a window cannot have these rights",
            Self::Permission => "the region does not allow such a window",
            Self::OutOfRange => "the window is not inside its region",
            Self::TooDeep => "indirect keys are nested too deeply",
        })
    }
}

/// Properties of a region that a bind needs.
#[derive(Clone, Copy, Debug)]
pub struct Bindable {
    /// Its protection domain.
    pub pd: PdTag,
    /// Address of its first byte, and its length in bytes.
    pub iova: u64,
    #[allow(missing_docs, reason = "as above")]
    pub len: u64,
    /// Its rights.
    pub access: AccessFlags,
}

#[derive(Clone, Copy, Debug)]
struct Binding {
    lkey: Lkey,
    start: u64,
    len: u64,
    access: AccessFlags,
    qpn: Qpn,
}

/// A memory window (`ibv_mw`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_mw")]
pub struct Window {
    kind: WindowKind,
    pd: PdTag,
    rkey: Rkey,
    binding: Option<Binding>,
}

impl Window {
    /// The rights that a window can grant.
    pub const RIGHTS: AccessFlags = AccessFlags::REMOTE_WRITE
        .union(AccessFlags::REMOTE_READ)
        .union(AccessFlags::REMOTE_ATOMIC)
        .union(AccessFlags::ZERO_BASED);

    /// Creates a free window.
    #[must_use]
    pub const fn new(kind: WindowKind, pd: PdTag, rkey: Rkey) -> Self {
        Self {
            kind,
            pd,
            rkey,
            binding: None,
        }
    }

    /// Returns the region that it is bound to.
    #[must_use]
    pub fn region(&self) -> Option<Lkey> {
        self.binding.map(|binding| binding.lkey)
    }

    /// Returns true if it is a type 2 window bound on this QP.
    #[must_use]
    pub fn belongs_to(&self, qpn: Qpn) -> bool {
        let is_bound = |binding: &Binding| binding.qpn == qpn;
        self.kind == WindowKind::Type2 && self.binding.as_ref().is_some_and(is_bound)
    }

    /// Frees the window: its key is no longer valid.
    pub const fn free(&mut self) {
        self.binding = None;
    }

    /// Binds the window to `region`, which `bind` names. Only the new key is valid afterwards.
    ///
    /// # Errors
    /// [`BindError`] if a type 2 window is bound already, or `region` does not exist, does not
    /// allow windows, or does not contain the range. The window stays as it is.
    pub fn bind(
        &mut self,
        who: Accessor,
        bind: &Bind,
        region: Option<&Bindable>,
    ) -> Result<(), BindError> {
        //= MW-04
        if self.pd != who.pd {
            return Err(BindError::WrongPd);
        }
        match self.kind {
            //= MW-02
            WindowKind::Type2 if self.binding.is_some() => return Err(BindError::Bound),
            WindowKind::Type2 if bind.len == 0 => return Err(BindError::NothingToBind),
            //= MW-01
            WindowKind::Type1 if bind.access.contains(AccessFlags::ZERO_BASED) => {
                return Err(BindError::BadRights);
            }
            WindowKind::Type1 | WindowKind::Type2 => {}
        }
        let binding = if bind.len == 0 {
            None
        } else {
            let region = region.ok_or(BindError::NoRegion)?;
            check_region(self.pd, bind, region)?;
            Some(Binding {
                lkey: bind.lkey,
                start: bind.va,
                len: bind.len,
                access: bind.access,
                qpn: who.qpn,
            })
        };
        //= MW-11
        self.binding = binding;
        self.rkey = bind.rkey;
        Ok(())
    }

    /// Frees the window, because a QP or its peer has invalidated it.
    ///
    /// # Errors
    /// [`AccessError`] if the window is of type 1, has another key, or belongs to another
    /// protection domain or QP. The window stays as it is.
    pub fn invalidate(&mut self, who: Accessor, rkey: Rkey) -> Result<(), AccessError> {
        //= MW-01
        if self.kind == WindowKind::Type1 {
            return Err(AccessError::Permission);
        }
        //= INV-02
        //= INV-04
        let binding = self.binding(rkey)?;
        if self.pd != who.pd {
            return Err(AccessError::WrongPd);
        }
        //= MW-02 MW-03
        if binding.qpn != who.qpn {
            return Err(AccessError::WrongQp);
        }
        self.binding = None;
        Ok(())
    }

    /// Returns the region, and the address in it, for an access through the window. Range and write
    /// access were checked when the window was bound.
    ///
    /// # Errors
    /// [`AccessError`] if the window has another key, is not for this QP, or lacks the right or the
    /// range.
    //= MW-08
    pub fn resolve(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(Lkey, u64), AccessError> {
        let binding = self.binding(rkey)?;
        if self.pd != who.pd {
            return Err(AccessError::WrongPd);
        }
        //= MW-03
        if self.kind == WindowKind::Type2 && binding.qpn != who.qpn {
            return Err(AccessError::WrongQp);
        }
        if !binding.access.contains(access.right()) {
            return Err(AccessError::Permission);
        }
        //= MW-07
        let offset = if binding.access.contains(AccessFlags::ZERO_BASED) {
            va
        } else {
            va.checked_sub(binding.start)
                .ok_or(AccessError::OutOfRange)?
        };
        match offset.checked_add(len) {
            Some(end) if end <= binding.len => Ok((binding.lkey, binding.start + offset)),
            _ => Err(AccessError::OutOfRange),
        }
    }

    /// Returns the binding, if the key equals that of the window in all bits.
    fn binding(&self, rkey: Rkey) -> Result<&Binding, AccessError> {
        match &self.binding {
            Some(binding) if self.rkey == rkey => Ok(binding),
            _ => Err(AccessError::BadKey),
        }
    }
}

//= MW-04
fn check_region(pd: PdTag, bind: &Bind, region: &Bindable) -> Result<(), BindError> {
    if region.pd != pd {
        return Err(BindError::WrongPd);
    }
    // Programs also name `LOCAL_WRITE`, which has no meaning for a window.
    let of_peers = bind.access.difference(AccessFlags::LOCAL_WRITE);
    if !Window::RIGHTS.contains(of_peers) {
        return Err(BindError::BadRights);
    }
    //= ODP-06
    let unfit = AccessFlags::ZERO_BASED | AccessFlags::ON_DEMAND;
    let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let lacks_write =
        bind.access.intersects(writes) && !region.access.contains(AccessFlags::LOCAL_WRITE);
    if !region.access.contains(AccessFlags::MW_BIND)
        || region.access.intersects(unfit)
        || lacks_write
    {
        return Err(BindError::Permission);
    }
    let end = bind
        .va
        .checked_sub(region.iova)
        .and_then(|offset| offset.checked_add(bind.len));
    match end {
        Some(end) if end <= region.len => Ok(()),
        _ => Err(BindError::OutOfRange),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: PdTag = PdTag(3);
    const WHO: Accessor = Accessor {
        pd: PD,
        qpn: Qpn::new(0x17),
    };
    const OTHER_QP: Accessor = Accessor {
        qpn: Qpn::new(0x18),
        ..WHO
    };
    const OTHER_PD: Accessor = Accessor {
        pd: PdTag(4),
        ..WHO
    };
    const KEY: Rkey = Rkey::new(0x55_00);
    const REGION: Bindable = Bindable {
        pd: PD,
        iova: 0x1000,
        len: 0x100,
        access: AccessFlags::LOCAL_WRITE.union(AccessFlags::MW_BIND),
    };
    const ALL: AccessFlags = AccessFlags::REMOTE_WRITE
        .union(AccessFlags::REMOTE_READ)
        .union(AccessFlags::REMOTE_ATOMIC);
    const BIND: Bind = Bind {
        rkey: Rkey::new(0x55_07),
        lkey: Lkey::new(9),
        va: 0x1010,
        len: 0x20,
        access: ALL,
    };

    fn window(kind: WindowKind) -> Window {
        Window::new(kind, PD, KEY)
    }

    fn bound(kind: WindowKind) -> Window {
        let mut window = window(kind);
        assert_eq!(window.bind(WHO, &BIND, Some(&REGION)), Ok(()));
        assert_eq!(window.region(), Some(BIND.lkey));
        window
    }

    //= MW-01 type=test
    //= MW-11 type=test
    //= KEY-02 type=test
    #[test]
    fn type_1_is_bound_again_at_any_time_and_only_the_last_key_counts() {
        let mut window = bound(WindowKind::Type1);
        let read =
            |window: &Window, rkey, va| window.resolve(OTHER_QP, rkey, va, 8, RemoteAccess::Read);
        assert_eq!(read(&window, BIND.rkey, 0x1010), Ok((BIND.lkey, 0x1010)));
        assert_eq!(read(&window, KEY, 0x1010), Err(AccessError::BadKey));
        let again = Bind {
            rkey: Rkey::new(0x55_08),
            va: 0x1040,
            ..BIND
        };
        assert_eq!(window.bind(WHO, &again, Some(&REGION)), Ok(()));
        assert_eq!(read(&window, BIND.rkey, 0x1010), Err(AccessError::BadKey));
        assert_eq!(
            read(&window, again.rkey, 0x1010),
            Err(AccessError::OutOfRange)
        );
        assert_eq!(read(&window, again.rkey, 0x1040), Ok((BIND.lkey, 0x1040)));
        // A failed bind changes nothing.
        assert_eq!(window.bind(WHO, &BIND, None), Err(BindError::NoRegion));
        assert_eq!(read(&window, again.rkey, 0x1040), Ok((BIND.lkey, 0x1040)));
        let unbind = Bind { len: 0, ..BIND };
        assert_eq!(window.bind(WHO, &unbind, None), Ok(()));
        assert_eq!(window.region(), None);
        assert_eq!(read(&window, BIND.rkey, 0x1010), Err(AccessError::BadKey));
        // A type 1 window cannot be invalidated.
        let mut other = bound(WindowKind::Type1);
        let refused = other.invalidate(WHO, BIND.rkey);
        assert_eq!(refused, Err(AccessError::Permission));
        assert!(other.region().is_some());
        let zero_based = Bind {
            access: ALL | AccessFlags::ZERO_BASED,
            ..BIND
        };
        let refused = window.bind(WHO, &zero_based, Some(&REGION));
        assert_eq!(refused, Err(BindError::BadRights));
    }

    //= MW-02 type=test
    //= INV-02 type=test
    //= INV-04 type=test
    #[test]
    fn type_2_is_bound_while_free_and_freed_by_invalidation() {
        let mut window = bound(WindowKind::Type2);
        let again = window.bind(WHO, &BIND, Some(&REGION));
        assert_eq!(again, Err(BindError::Bound));
        let mut refused = |who, rkey| {
            let refused = window.invalidate(who, rkey);
            assert!(window.region().is_some());
            refused
        };
        assert_eq!(refused(WHO, KEY), Err(AccessError::BadKey));
        assert_eq!(refused(OTHER_PD, BIND.rkey), Err(AccessError::WrongPd));
        assert_eq!(refused(OTHER_QP, BIND.rkey), Err(AccessError::WrongQp));
        assert_eq!(window.invalidate(WHO, BIND.rkey), Ok(()));
        assert_eq!(window.region(), None);
        let free = window.invalidate(WHO, BIND.rkey);
        assert_eq!(free, Err(AccessError::BadKey));
        let gone = window.resolve(WHO, BIND.rkey, 0x1010, 1, RemoteAccess::Read);
        assert_eq!(gone, Err(AccessError::BadKey));
        assert_eq!(window.bind(WHO, &BIND, Some(&REGION)), Ok(()));
        assert_eq!(window.invalidate(WHO, BIND.rkey), Ok(()));
        let unbind = Bind { len: 0, ..BIND };
        let refused = window.bind(WHO, &unbind, Some(&REGION));
        assert_eq!(refused, Err(BindError::NothingToBind));
    }

    //= MW-03 type=test
    //= MW-08 type=test
    #[test]
    fn type_2_is_for_the_qp_that_it_was_bound_on() {
        let window = bound(WindowKind::Type2);
        let write = |who| window.resolve(who, BIND.rkey, 0x1010, 0x20, RemoteAccess::Write);
        assert_eq!(write(WHO), Ok((BIND.lkey, 0x1010)));
        assert_eq!(write(OTHER_QP), Err(AccessError::WrongQp));
        assert_eq!(write(OTHER_PD), Err(AccessError::WrongPd));
        assert!(window.belongs_to(WHO.qpn) && !window.belongs_to(OTHER_QP.qpn));
        let mut window = window;
        window.free();
        assert!(!window.belongs_to(WHO.qpn));
        let everyone = bound(WindowKind::Type1);
        assert!(!everyone.belongs_to(WHO.qpn));
        let foreign = everyone.resolve(OTHER_PD, BIND.rkey, 0x1010, 1, RemoteAccess::Read);
        assert_eq!(foreign, Err(AccessError::WrongPd));
    }

    //= MW-04 type=test
    //= ODP-06 type=test
    #[test]
    fn what_may_be_bound() {
        for kind in [WindowKind::Type1, WindowKind::Type2] {
            let bind = |who, change: &dyn Fn(&mut Bind, &mut Bindable)| {
                let (mut of, mut to) = (BIND, REGION);
                change(&mut of, &mut to);
                let mut window = window(kind);
                let result = window.bind(who, &of, Some(&to));
                assert_eq!(window.region().is_some(), result.is_ok());
                result
            };
            assert_eq!(bind(OTHER_PD, &|_, _| ()), Err(BindError::WrongPd));
            let foreign = bind(WHO, &|_, to| to.pd = OTHER_PD.pd);
            assert_eq!(foreign, Err(BindError::WrongPd));
            let bare = bind(WHO, &|_, to| to.access = AccessFlags::LOCAL_WRITE);
            assert_eq!(bare, Err(BindError::Permission));
            for unfit in [AccessFlags::ZERO_BASED, AccessFlags::ON_DEMAND] {
                let refused = bind(WHO, &|_, to| to.access |= unfit);
                assert_eq!(refused, Err(BindError::Permission), "{unfit:?}");
            }
            for (right, allowed) in [
                (AccessFlags::empty(), true),
                (AccessFlags::REMOTE_READ, true),
                (AccessFlags::REMOTE_WRITE, false),
                (AccessFlags::REMOTE_ATOMIC, false),
            ] {
                let read_only = bind(WHO, &|of, to| {
                    of.access = right;
                    to.access = AccessFlags::MW_BIND;
                });
                assert_eq!(read_only.is_ok(), allowed, "{right:?}");
            }
            let owners = bind(WHO, &|of, _| of.access |= AccessFlags::LOCAL_WRITE);
            assert_eq!(owners, Ok(()));
            for right in [
                AccessFlags::MW_BIND,
                AccessFlags::ON_DEMAND,
                AccessFlags::RELAXED_ORDERING,
                AccessFlags::from_bits_retain(1 << 30),
            ] {
                let refused = bind(WHO, &|of, _| of.access |= right);
                assert_eq!(refused, Err(BindError::BadRights), "{right:?}");
            }
            for (va, len, inside) in [
                (0x1000, 0x100, true),
                (0x10ff, 1, true),
                (0x1000, 0x101, false),
                (0xfff, 1, false),
                (0x1100, 1, false),
                (0x1001, u64::MAX, false),
                (u64::MAX, 2, false),
            ] {
                let result = bind(WHO, &|of, _| (of.va, of.len) = (va, len));
                let expected = if inside {
                    Ok(())
                } else {
                    Err(BindError::OutOfRange)
                };
                assert_eq!(result, expected, "{va:#x} {len:#x}");
            }
        }
    }

    //= MW-07 type=test
    //= MW-08 type=test
    #[test]
    fn rights_and_range_of_an_access() {
        let access = [
            RemoteAccess::Read,
            RemoteAccess::Write,
            RemoteAccess::Atomic,
        ];
        for granted in access {
            let bind = Bind {
                access: granted.right(),
                ..BIND
            };
            let mut window = window(WindowKind::Type2);
            assert_eq!(window.bind(WHO, &bind, Some(&REGION)), Ok(()));
            for wanted in access {
                let result = window.resolve(WHO, BIND.rkey, 0x1010, 8, wanted);
                assert_eq!(
                    result.is_ok(),
                    wanted == granted,
                    "{wanted:?} of {granted:?}"
                );
            }
        }
        let zero_based = Bind {
            access: ALL | AccessFlags::ZERO_BASED,
            ..BIND
        };
        let mut offsets = window(WindowKind::Type2);
        assert_eq!(offsets.bind(WHO, &zero_based, Some(&REGION)), Ok(()));
        for (window, base) in [(bound(WindowKind::Type2), 0x1010), (offsets, 0)] {
            let read = |va: u64, len| window.resolve(WHO, BIND.rkey, va, len, RemoteAccess::Read);
            assert_eq!(read(base, 0x20), Ok((BIND.lkey, 0x1010)));
            assert_eq!(read(base + 0x1f, 1), Ok((BIND.lkey, 0x102f)));
            for (va, len) in [
                (base, 0x21),
                (base + 0x20, 1),
                (base.wrapping_sub(1), 2),
                (base + 1, u64::MAX),
            ] {
                assert_eq!(read(va, len), Err(AccessError::OutOfRange), "{va:#x}");
            }
        }
    }
}
