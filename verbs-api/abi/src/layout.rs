//! Layouts of the mirrored types, for the layout test.

use crate::{attr, consts, context, device, extended, flow, mlx5, object, rdma, release65, wr};

/// One member of a mirrored aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Name as in C. Members of nested anonymous aggregates have dots in their names.
    pub name: &'static str,
    /// Offset from the start of the aggregate in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// One mirrored aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// C name with its keyword, such as `struct ibv_qp`.
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// All members, top level and nested.
    pub fields: &'static [Field],
}

/// Returns all mirrored aggregates, by module.
#[must_use]
pub fn all() -> [&'static [Layout]; 10] {
    [
        device::LAYOUTS,
        object::LAYOUTS,
        attr::LAYOUTS,
        wr::LAYOUTS,
        extended::LAYOUTS,
        context::LAYOUTS,
        rdma::LAYOUTS,
        flow::LAYOUTS,
        mlx5::LAYOUTS,
        release65::LAYOUTS,
    ]
}

/// Returns all enumerators as (name, value).
#[must_use]
pub fn enumerators() -> &'static [(&'static str, i64)] {
    consts::ENUMERATORS
}

/// Defines mirrored aggregates and the table of their [`Layout`]s.
///
/// `also { "nested.name": Type = path.of.fields }` adds members of nested aggregates, and second
/// names of members that share an offset in C.
macro_rules! mirror {
    ($(
        $(#[$meta:meta])*
        pub $kind:ident $name:ident {
            $( $(#[$fmeta:meta])* $field:ident : $ty:ty ),+ $(,)?
        }
        $( also { $( $alias:literal : $aty:ty = $($path:tt).+ ),+ $(,)? } )?
    )+) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            #[allow(
                missing_docs,
                reason = "the members are those of the C header, described there and in the manual pages"
            )]
            pub $kind $name {
                $( $(#[$fmeta])* pub $field: $ty, )+
            }

            impl core::fmt::Debug for $name {
                fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                    f.debug_struct(stringify!($name)).finish_non_exhaustive()
                }
            }
        )+

        /// Layouts of the aggregates of this module.
        pub(crate) const LAYOUTS: &[crate::layout::Layout] = &[$(
            crate::layout::Layout {
                name: concat!(stringify!($kind), " ", stringify!($name)),
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: &[
                    $( crate::layout::Field {
                        name: stringify!($field),
                        offset: core::mem::offset_of!($name, $field),
                        size: size_of::<$ty>(),
                    }, )+
                    $( $( crate::layout::Field {
                        name: $alias,
                        offset: core::mem::offset_of!($name, $($path).+),
                        size: size_of::<$aty>(),
                    }, )+ )?
                ],
            },
        )+];
    };
}
pub(crate) use mirror;
