//! Occurrences with their payloads, and sets of them.

/// An occurrence with its payload: what a consumer can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Copy {
    pub(crate) id: u8,
    pub(crate) due: u8,
    pub(crate) payload: u8,
}

impl Copy {
    fn bit(self) -> u16 {
        1 << (self.id * 8 + (self.due - 1) * 2 + self.payload)
    }

    pub(super) fn other_payload(self) -> Copy {
        Copy { payload: 1 - self.payload, ..self }
    }

    /// Both messages that may have a key.
    pub(super) fn under_key(id: u8, due: u8) -> [Copy; 2] {
        [0, 1].map(|payload| Copy { id, due, payload })
    }
}

/// A set of copies, one bit each: two ids, four dues, two payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Copies(u16);

impl Copies {
    pub(super) fn has(self, copy: Copy) -> bool {
        self.0 & copy.bit() != 0
    }

    pub(super) fn add(&mut self, copy: Copy) {
        self.0 |= copy.bit();
    }

    pub(super) fn drop(&mut self, copy: Copy) {
        self.0 &= !copy.bit();
    }

    pub(super) fn drop_key(&mut self, id: u8, due: u8) {
        Copy::under_key(id, due).into_iter().for_each(|copy| self.drop(copy));
    }

    pub(super) fn drop_task(&mut self, id: u8) {
        self.0 &= !(0xff << (id * 8));
    }

    pub(super) fn of_task(self, id: u8) -> impl Iterator<Item = Copy> {
        let all = (1..=4).flat_map(move |due| Copy::under_key(id, due));
        all.filter(move |copy| self.has(*copy))
    }
}
