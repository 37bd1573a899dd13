//! Enums with one word for each value, which is the same in Redis, the API, the metrics and the command line.

/// Defines an enum with a word for each value, a list of all values, and a lookup by word.
macro_rules! string_enum {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident { $($(#[$doc:meta])* $value:ident = $word:literal),* $(,)? }
    ) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$doc])* $value),*
        }

        impl $name {
            /// All values.
            pub const ALL: &[$name] = &[$($name::$value),*];

            /// The word of this value.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$value => $word),* }
            }

            /// The value with this word.
            #[must_use]
            pub fn of(word: &str) -> Option<$name> {
                match word { $($word => Some($name::$value),)* _ => None }
            }
        }
    };
}
