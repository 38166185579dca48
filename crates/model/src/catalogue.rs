//! The shape of everything that can go wrong and that a user may see: a stable code, what it means, what helps.
//!
//! Each layer lists its own codes, once, with [`catalogue!`]; `muster explain` and `docs/reference/errors.md` show all
//! of them. Programs act on the code; the words beside it may change at any time.

use serde::Serialize;

/// One thing that can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The stable name, in snake_case, unlike any other.
    pub code: &'static str,
    /// What it means, in one sentence.
    pub meaning: &'static str,
    /// What to do about it, in one sentence.
    pub remedy: &'static str,
}

/// Declares an enum of codes, so that none can be without its words: the comment of a variant is its meaning, and
/// after it come the code as it is written everywhere, and the remedy.
#[macro_export]
macro_rules! catalogue {
    (
        $(#[$about:meta])*
        $visibility:vis enum $name:ident {
            $($(#[doc = $meaning:literal])+ $(#[serde($how:ident)])? $variant:ident = $code:literal => $remedy:literal,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $visibility enum $name {
            $($(#[doc = $meaning])+ $(#[serde($how)])? $variant,)+
        }

        impl $name {
            /// Every one of them, as the catalogue lists them.
            $visibility const ALL: &[Self] = &[$(Self::$variant),+];

            /// Its code, what it means, and what helps.
            $visibility const fn entry(self) -> $crate::catalogue::Entry {
                match self {
                    $(Self::$variant => $crate::catalogue::Entry {
                        code: $code,
                        meaning: concat!($($meaning),+).trim_ascii_start(),
                        remedy: $remedy,
                    },)+
                }
            }
        }
    };
}
