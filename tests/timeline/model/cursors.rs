//! Dead records as a user expects to find them.

use punctual::timeline::memory::Twin;

use super::copies::Copy;
use super::rules::{Plan, read_record};
use super::world::key_of;

/// Dead records in order: the tick and the copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct DeadRecords(Vec<(u8, Copy)>);

impl DeadRecords {
    /// Records a copy as dead and replaces one with the same key. Returns the oldest ones above the cap.
    pub(super) fn add_dead(&mut self, plan: &Plan, now: u8, copy: Copy) -> Vec<Copy> {
        self.0.retain(|(_, other)| (other.id, other.due) != (copy.id, copy.due));
        self.0.push((now, copy));
        self.0.sort();
        let over = self.0.len().saturating_sub(usize::from(plan.dead_cap));
        self.0.drain(..over).map(|(_, copy)| copy).collect()
    }

    /// The dead record of a key.
    pub(super) fn find(&self, id: u8, due: u8) -> Option<Copy> {
        self.0.iter().map(|(_, copy)| *copy).find(|copy| (copy.id, copy.due) == (id, due))
    }

    /// Removes a requeued or discarded record.
    pub(super) fn take(&mut self, copy: Copy) {
        self.0.retain(|(_, other)| *other != copy);
    }

    /// Removes the records whose retention has ended at a reap.
    pub(super) fn outlived(&mut self, plan: &Plan, now: u8) -> Vec<Copy> {
        let is_old = |place: &mut (u8, Copy)| place.0 + plan.dead_keep <= now;
        self.0.extract_if(.., is_old).map(|(_, copy)| copy).collect()
    }

    /// The twin has exactly these records, each with its own message.
    pub(super) fn check(&self, twin: &Twin) -> Result<(), String> {
        for (_, copy) in &self.0 {
            let kept = twin.dead_records.get(key_of(copy.id, copy.due).to_string().as_str());
            if kept.is_none_or(|dead_record| read_record(&dead_record.record).1 != copy.payload) {
                return Err(format!("law 2: {copy:?} died, and is not to be found"));
            }
        }
        if twin.dead.len() != self.0.len() || twin.dead_records.len() != self.0.len() {
            return Err("law 10: more dead are kept than have died, or may be kept".into());
        }
        Ok(())
    }
}
