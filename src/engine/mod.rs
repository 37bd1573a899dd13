//! What runs: claims what is due, publishes it, judges the outcomes, settles. Knows the timeline and the sinks by their traits alone.

pub mod intake;
