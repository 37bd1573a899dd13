//! Attacks and measures instances of punctual from outside.
//!
//! From the bottom up; each module knows only those before it:
//!
//! - [`servers`] starts servers and instances as processes, on free ports, in folders of their own.
//! - [`verify`] attacks instances, and checks what they published. It uses no code of punctual.
//! - [`bench`] measures instances, and beside that what the sink and Redis can do alone.
//! - [`cli`] is the command line of `punctual-lab`.
//!
//! The tests of punctual also start their servers here, and use [`testing`] to find out what is installed.

pub mod bench;
pub mod cli;
pub mod servers;
pub mod testing;
pub mod verify;
