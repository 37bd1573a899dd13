//! Enums whose every value has one word: in Redis, the API, the metrics and the command line it is the same.

/// An enum with a word for each value, a list of all, and the way back from a word.
macro_rules! words {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident { $($(#[$doc:meta])* $value:ident = $word:literal),* $(,)? }
    ) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$doc])* $value),*
        }

        impl $name {
            /// All of them.
            pub const ALL: &[$name] = &[$($name::$value),*];

            /// Its word.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$value => $word),* }
            }

            /// The value of a word.
            #[must_use]
            pub fn of(word: &str) -> Option<$name> {
                match word { $($word => Some($name::$value),)* _ => None }
            }
        }
    };
}
