//! Attacks and measures instances of punctual from outside.
//!
//! From the ground up; each room knows only those before it:
//!
//! - [`servers`] starts servers and instances as processes, on free ports, in folders of their own.
//! - [`verify`] attacks instances, and judges what they published. It uses nothing of punctual's own code.
//! - [`bench`] measures instances, each figure beside what their parts can do by themselves.
//! - [`cli`] is the command line of `punctual-lab`.
//!
//! The tests of punctual start their servers here too, and ask [`testing`] what the machine has.

pub mod bench;
pub mod cli;
pub mod servers;
pub mod testing;
pub mod verify;
