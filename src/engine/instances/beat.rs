//! What an instance says of itself once a second.

use std::collections::BTreeSet;

use crate::task::Lane;

/// The largest beat that is sent. Lanes that do not fit are left to others, which is right for them and costs this instance
/// only its place.
const MAX_BEAT_BYTES: usize = 4096;

/// A beat. As text: the id of the instance, a space, and its lanes, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Beat {
    pub(super) instance: String,
    /// The lanes that it claims.
    pub(super) lanes: BTreeSet<Lane>,
}

impl Beat {
    pub(super) fn pack(&self) -> String {
        let mut text = format!("{} ", self.instance);
        for (number, lane) in self.lanes.iter().enumerate() {
            if text.len() + 1 + lane.as_str().len() > MAX_BEAT_BYTES {
                break;
            }
            text.push_str(if number > 0 { "," } else { "" });
            text.push_str(lane.as_str());
        }
        text
    }

    /// `None` if the text is no beat. What follows a second space is left to later versions.
    pub(super) fn unpack(text: &str) -> Option<Beat> {
        let mut parts = text.split(' ');
        let (instance, lanes) = (parts.next()?, parts.next()?);
        let lanes = lanes.split(',').filter(|lane| !lane.is_empty()).map(|lane| lane.parse().ok());
        let is_beat = !instance.is_empty() && text.len() <= MAX_BEAT_BYTES;
        Some(Beat { instance: instance.to_owned(), lanes: lanes.collect::<Option<_>>()? }).filter(|_| is_beat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(lanes: &[&str]) -> Beat {
        Beat { instance: "i.1".into(), lanes: lanes.iter().map(|lane| lane.parse().unwrap()).collect() }
    }

    #[test]
    fn a_beat_is_unpacked_as_it_was_packed() {
        for lanes in [&[][..], &["default"], &["default", "mail"]] {
            assert_eq!(Beat::unpack(&beat(lanes).pack()), Some(beat(lanes)));
        }
        assert_eq!(beat(&["b", "a"]).pack(), "i.1 a,b");
        assert_eq!(Beat::unpack("i.1 a,b more of a later version"), Some(beat(&["a", "b"])));
        for text in ["", "i.1", " a", "i.1 a,B?!"] {
            assert_eq!(Beat::unpack(text), None, "{text}");
        }
        assert_eq!(Beat::unpack(&format!("i.1 {}", "a,".repeat(3000))), None);
    }

    #[test]
    fn a_beat_is_at_most_4_kib() {
        let lanes: Vec<String> = (0..1000).map(|n| format!("lane-{n}")).collect();
        let text = beat(&lanes.iter().map(String::as_str).collect::<Vec<_>>()).pack();
        assert!(text.len() > 4000 && text.len() <= MAX_BEAT_BYTES);
        assert!(Beat::unpack(&text).unwrap().lanes.len() > 400);
    }
}
