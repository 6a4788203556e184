//! Searches very many records for one owner.

// The largest record has some hundred bytes.
#![allow(clippy::cast_possible_truncation)]

use super::id::LockId;
use super::name_codec;
use super::record::{HEAD, SPILLED, UUID_OWNER, name_len};
use super::store::Locks;

/// An owner to search for in very many records. The last byte of the owner rules out most other records.
struct Sought {
    /// The last byte of the owner as a record stores it.
    last: u8,
    /// The position of that byte in a record, by the record's shape. 0, the position of the generation, if no record
    /// of this shape can match.
    at: [u16; 256],
}

impl Sought {
    fn new(owner: &[u8]) -> Self {
        let packed = name_codec::uuid_bytes(owner);
        let (last, len) = match &packed {
            Some(bytes) => (bytes[15], bytes.len()),
            None => (owner.last().copied().unwrap_or_default(), 1 + owner.len()),
        };
        let is_shape = |shape: u8| shape != SPILLED && (shape & UUID_OWNER != 0) == packed.is_some();
        let at = |shape| if is_shape(shape) { HEAD + name_len(shape) + len - 1 } else { 0 };
        Self { last, at: std::array::from_fn(|shape| at(shape as u8) as u16) }
    }

    /// Returns true if the hold in this slot may be that owner's; false is certain.
    #[inline(always)]
    fn may_be_in(&self, slot: &[u8]) -> bool {
        const SHAPE_AT: usize = HEAD - 1;
        slot.get(SHAPE_AT).is_some_and(|&shape| {
            shape == SPILLED || slot.get(usize::from(self.at[usize::from(shape)])) == Some(&self.last)
        })
    }
}

impl Locks {
    /// Returns the records of all holds of this owner. Goes through all records.
    pub(super) fn records_of_owner(&self, owner: &[u8]) -> Vec<LockId> {
        let sought = Sought::new(owner);
        let mut own = Vec::new();
        self.records.0.iter().filter(|(_, slot)| sought.may_be_in(slot)).for_each(|(index, slot)| {
            let id = self.id(index, slot.first().copied().unwrap_or_default());
            if self.hold(id).is_some_and(|hold| hold.is_of(owner)) {
                own.push(id);
            }
        });
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::locks::NewHold;
    use crate::lock::types::{Binding, LockKey, Moment, Token};

    const NOW: Moment = Moment(9_000_000);

    #[test]
    fn an_owner_is_found_whatever_record_there_is() {
        let uuid = "0f8fad5b-d9cb-469f-a165-70867728950e";
        let upper = uuid.to_uppercase();
        let long = "o".repeat(255);
        let owners = ["a", "b", "ab", "bb", uuid, &upper, &uuid[1..], &long, &long[1..], "\0", "\u{7f}"];
        let digits = (0..=19).map(|digits| format!("name:{}", &"1234567890123456789"[..digits]));
        let names: Vec<String> = digits.chain([1, 103, 104, 105, 300].map(|len| "n".repeat(len))).collect();
        let mut locks = Locks::default();
        let mut placed = Vec::new();
        for (name, owner) in names.iter().flat_map(|name| owners.map(|owner| (name, owner))) {
            let name = format!("{}{name}", placed.len() % 3);
            let token = Token::new(1 + placed.len() as u64).expect("valid");
            let hold = NewHold {
                owner: owner.as_bytes(),
                token,
                lease_ms: 100,
                client: None,
                binding: Binding::NONE,
            };
            let lock_key = LockKey { db: 0, name: name.as_bytes() };
            placed.push((owner, locks.insert(NOW, lock_key, Some(&hold)).expect("there is room")));
        }
        let (given_up, held) = placed.split_at(40);
        for &(_, id) in given_up {
            locks.remove(id, NOW);
        }
        for owner in owners {
            let mut right: Vec<_> =
                held.iter().filter(|entry| entry.0 == owner).map(|entry| entry.1).collect();
            let mut found = locks.records_of_owner(owner.as_bytes());
            right.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, right, "{owner}");
            assert!(found.len() > 15);
        }
        for nobody in ["", "c", "cb", "0f8fad5b-d9cb-469f-a165-70867728950f", &long[2..]] {
            assert_eq!(locks.records_of_owner(nobody.as_bytes()), [], "{nobody}");
        }
    }
}
