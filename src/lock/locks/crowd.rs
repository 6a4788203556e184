//! Locks that several hold at once: the readers of one lock, the holders of a semaphore.
//!
//! Each of them has a record as any holder, with its lease on the same wheel; its key is the crowd's. The crowd
//! says only which records belong together, in the order of their tokens.

use std::collections::BTreeMap;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::id::LockId;
use crate::lock::arena::{Arena, Id};
use crate::lock::types::{Mode, Token};

impl LockId {
    /// The crowd that this is.
    #[inline]
    pub(super) const fn crowd(self) -> Option<Id<Crowd>> {
        if self.is_crowd() { Some(Id::from_number(self.number())) } else { None }
    }

    pub(super) const fn of_crowd(id: Id<Crowd>) -> Self {
        Self::from_number(id.number())
    }
}

/// Up to so many members stand in a plain list.
const FEW_MAX: usize = 8;

/// The same; fewer where a test wants it so.
#[cfg(not(test))]
const fn few_max() -> usize {
    FEW_MAX
}

#[cfg(test)]
fn few_max() -> usize {
    crate::lock::tests::lowered::few_max(FEW_MAX)
}

/// How many emptied lists are kept, so that one holder after the other costs no allocation.
const SPARE_MAX: usize = if cfg!(test) { 2 } else { 16 };

/// The holders of one lock.
#[derive(Debug)]
pub(super) struct Crowd {
    /// How its members hold: shared, or limited.
    pub(super) mode: Mode,
    members: Members,
}

#[derive(Debug)]
enum Members {
    /// By token, the newest last.
    Few(Vec<(Token, LockId)>),
    Many(Box<Many>),
}

#[derive(Debug, Default)]
struct Many {
    by_token: BTreeMap<Token, LockId>,
    by_owner: HashTable<(u64, LockId)>,
}

/// All crowds.
#[derive(Default)]
pub(super) struct Crowds {
    pub(super) all: Arena<Crowd>,
    /// How many records are members of a crowd.
    pub(super) members: usize,
    spare: Vec<Vec<(Token, LockId)>>,
    hasher: DefaultHashBuilder,
}

impl Crowds {
    /// No crowds, for a set of locks beside this one.
    pub(super) fn beside(&self) -> Self {
        Self { all: self.all.beside(), ..Self::default() }
    }

    /// None yet, with numbers that none of these had or has: they take the place of these.
    pub(super) fn successor(&self) -> Self {
        Self { all: self.all.successor(), ..Self::default() }
    }

    /// A crowd of nobody.
    #[inline]
    pub(super) fn form(&mut self, mode: Mode) -> LockId {
        let members = Members::Few(self.spare.pop().unwrap_or_default());
        LockId::of_crowd(self.all.insert(Crowd { mode, members }))
    }

    #[inline]
    pub(super) fn get(&self, id: LockId) -> Option<&Crowd> {
        self.all.get(id.crowd()?)
    }

    /// Takes a member in. False if the plain list of members is full: [`Self::grow`] comes first.
    #[inline]
    pub(super) fn join(&mut self, id: LockId, member: (Token, LockId), owner: &[u8]) -> bool {
        let Some(crowd) = id.crowd().and_then(|id| self.all.get_mut(id)) else {
            return true;
        };
        match &mut crowd.members {
            Members::Few(few) if few.len() >= few_max() => return false,
            Members::Few(few) => {
                // The usual case: the newest token of all.
                if few.last().is_none_or(|last| last.0 <= member.0) {
                    few.push(member);
                } else {
                    let at = few.partition_point(|(token, _)| *token <= member.0);
                    few.insert(at, member);
                }
            }
            Members::Many(many) => {
                let hash = self.hasher.hash_one(owner);
                many.by_token.insert(member.0, member.1);
                many.by_owner.insert_unique(hash, (hash, member.1), |entry| entry.0);
            }
        }
        self.members += 1;
        true
    }

    /// Whether members are found by their owners: then [`Self::part`] must be told whose the member is.
    #[inline]
    pub(super) fn is_large(&self, id: LockId) -> bool {
        self.get(id).is_some_and(|crowd| matches!(crowd.members, Members::Many(_)))
    }

    /// Makes members be found by their owners, which are given in the order of the members.
    #[cold]
    pub(super) fn grow(&mut self, id: LockId, owners: &[Vec<u8>]) {
        let Some(crowd) = id.crowd().and_then(|id| self.all.get_mut(id)) else {
            return;
        };
        if let Members::Few(few) = &mut crowd.members {
            let mut many = Many { by_token: few.drain(..).collect(), by_owner: HashTable::new() };
            for (&member, owner) in many.by_token.values().zip(owners) {
                let hash = self.hasher.hash_one(&**owner);
                many.by_owner.insert_unique(hash, (hash, member), |entry| entry.0);
            }
            crowd.members = Members::Many(Box::new(many));
        }
    }

    /// Lets a member go. Returns how many are left.
    #[inline]
    pub(super) fn part(
        &mut self,
        id: LockId,
        (token, member): (Token, LockId),
        owner: &[u8],
    ) -> Option<usize> {
        let crowd = self.all.get_mut(id.crowd()?)?;
        let left = match &mut crowd.members {
            Members::Few(few) => {
                if few.last().is_some_and(|last| last.1 == member) {
                    few.pop();
                } else {
                    let at = few.iter().position(|entry| entry.1 == member)?;
                    few.remove(at);
                }
                few.len()
            }
            Members::Many(many) => {
                many.by_token.remove(&token)?;
                let hash = self.hasher.hash_one(owner);
                if let Ok(entry) = many.by_owner.find_entry(hash, |entry| entry.1 == member) {
                    entry.remove();
                }
                if many.by_token.len() == few_max() / 2 {
                    let few = std::mem::take(&mut many.by_token).into_iter().collect();
                    crowd.members = Members::Few(few);
                    few_max() / 2
                } else {
                    many.by_token.len()
                }
            }
        };
        self.members -= 1;
        Some(left)
    }

    /// Takes a crowd away.
    #[inline]
    pub(super) fn dissolve(&mut self, id: LockId) {
        let Some(crowd) = id.crowd().and_then(|id| self.all.remove(id)) else {
            return;
        };
        self.members -= crowd.len();
        if let Members::Few(mut few) = crowd.members
            && self.spare.len() < SPARE_MAX
        {
            few.clear();
            self.spare.push(few);
        }
    }

    /// The member that this owner is.
    #[inline]
    pub(super) fn of_owner(
        &self,
        id: LockId,
        owner: &[u8],
        is_of: impl Fn(LockId) -> bool,
    ) -> Option<LockId> {
        match &self.get(id)?.members {
            Members::Few(few) => few.iter().map(|entry| entry.1).find(|&member| is_of(member)),
            Members::Many(many) => {
                let hash = self.hasher.hash_one(owner);
                many.by_owner.find(hash, |entry| entry.0 == hash && is_of(entry.1)).map(|entry| entry.1)
            }
        }
    }
}

impl Crowd {
    /// How many hold.
    #[inline]
    pub(super) fn len(&self) -> usize {
        match &self.members {
            Members::Few(few) => few.len(),
            Members::Many(many) => many.by_token.len(),
        }
    }

    /// Whether as many are found by owner as there are members. For checks.
    pub(super) fn knows_its_members_only(&self) -> bool {
        match &self.members {
            Members::Few(_) => true,
            Members::Many(many) => many.by_owner.len() == many.by_token.len(),
        }
    }

    /// Takes a member out, in no order.
    pub(super) fn pop(&mut self) -> Option<LockId> {
        match &mut self.members {
            Members::Few(few) => few.pop().map(|entry| entry.1),
            Members::Many(many) => many.by_token.pop_last().map(|entry| entry.1),
        }
    }

    /// The members, if there are few of them.
    #[inline]
    pub(super) fn few(&self) -> &[(Token, LockId)] {
        match &self.members {
            Members::Few(few) => few,
            Members::Many(_) => &[],
        }
    }

    /// The member with the newest token.
    #[inline]
    pub(super) fn newest(&self) -> Option<LockId> {
        match &self.members {
            Members::Few(few) => few.last().map(|entry| entry.1),
            Members::Many(many) => many.by_token.last_key_value().map(|entry| *entry.1),
        }
    }

    /// The member with this token.
    pub(super) fn of_token(&self, token: Token) -> Option<LockId> {
        match &self.members {
            Members::Few(few) => few.iter().find(|entry| entry.0 == token).map(|entry| entry.1),
            Members::Many(many) => many.by_token.get(&token).copied(),
        }
    }

    /// All who hold, in the order of their tokens.
    pub(super) fn members(&self) -> impl Iterator<Item = LockId> + '_ {
        let (few, many) = match &self.members {
            Members::Few(few) => (Some(few), None),
            Members::Many(many) => (None, Some(many)),
        };
        let few = few.into_iter().flatten().map(|entry| entry.1);
        few.chain(many.into_iter().flat_map(|many| many.by_token.values().copied()))
    }

    /// Bytes that it occupies, the records of its members not counted.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
            + match &self.members {
                Members::Few(few) => few.capacity() * size_of::<(Token, LockId)>(),
                Members::Many(many) => {
                    let of_tree = many.by_token.len() * 3 / 2 * size_of::<(Token, LockId)>();
                    size_of::<Many>() + of_tree + many.by_owner.allocation_size()
                }
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::locks::id::Set;

    const MODE: Mode = Mode::Limit(100);

    fn token(number: u64) -> Token {
        Token::new(number).expect("valid")
    }

    const fn member(number: u64) -> LockId {
        LockId::new(Set::new(0), number as u32, 1)
    }

    /// A name for every member.
    fn owner(number: u64) -> Vec<u8> {
        number.to_string().into_bytes()
    }

    /// Takes one more in, as the locks do it.
    fn join(crowds: &mut Crowds, id: LockId, number: u64) {
        let new = (token(number), member(number));
        if !crowds.join(id, new, &owner(number)) {
            let owners: Vec<_> = tokens(crowds, id).into_iter().map(owner).collect();
            crowds.grow(id, &owners);
            assert!(crowds.join(id, new, &owner(number)));
        }
    }

    /// The members by their tokens, which are their numbers.
    fn tokens(crowds: &Crowds, id: LockId) -> Vec<u64> {
        crowds.get(id).expect("there").members().map(|member| u64::from(member.index())).collect()
    }

    fn find(crowds: &Crowds, id: LockId, number: u64) -> Option<LockId> {
        crowds.of_owner(id, &owner(number), |found| found == member(number))
    }

    #[test]
    fn it_is_a_list_of_up_to_eight_and_again_of_four() {
        let mut crowds = Crowds::default();
        let id = crowds.form(MODE);
        for number in 1..=8 {
            assert!(crowds.join(id, (token(number), member(number)), &owner(number)));
            assert!(!crowds.is_large(id));
        }
        assert!(!crowds.join(id, (token(9), member(9)), &owner(9)));
        assert_eq!((crowds.members, crowds.get(id).expect("there").few().len()), (8, 8));
        join(&mut crowds, id, 9);
        assert!(crowds.is_large(id));
        assert_eq!((crowds.members, crowds.get(id).expect("there").few().len()), (9, 0));
        for number in (5..=9).rev() {
            assert!(crowds.is_large(id), "{number}");
            let left = crowds.part(id, (token(number), member(number)), &owner(number));
            assert_eq!(left, Some(number as usize - 1));
        }
        assert!(!crowds.is_large(id));
        assert_eq!((crowds.members, tokens(&crowds, id)), (4, vec![1, 2, 3, 4]));
    }

    #[test]
    fn its_members_stand_in_the_order_of_their_tokens() {
        for count in [5, 8, 12] {
            let mut crowds = Crowds::default();
            let id = crowds.form(MODE);
            for number in (1..=count).rev() {
                join(&mut crowds, id, number);
            }
            assert_eq!(tokens(&crowds, id), (1..=count).collect::<Vec<_>>());
            assert_eq!(crowds.get(id).and_then(Crowd::newest), Some(member(count)));
            // Neither the last one nor the first.
            assert_eq!(crowds.part(id, (token(2), member(2)), &owner(2)), Some(count as usize - 1));
            assert_eq!(tokens(&crowds, id), [1].into_iter().chain(3..=count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_member_is_found_by_its_owner_until_it_parts() {
        let mut crowds = Crowds::default();
        let id = crowds.form(MODE);
        for number in 1..=40 {
            join(&mut crowds, id, number);
            assert!((1..=number).all(|each| find(&crowds, id, each) == Some(member(each))), "{number}");
            assert_eq!(find(&crowds, id, number + 1), None);
        }
        for number in 1..=40 {
            crowds.part(id, (token(number), member(number)), &owner(number));
            assert_eq!(find(&crowds, id, number), None);
            assert!((number + 1..=40).all(|each| find(&crowds, id, each) == Some(member(each))), "{number}");
        }
    }

    #[test]
    fn of_a_crowd_that_is_dissolved_nothing_is_left_but_a_spare_list() {
        let mut crowds = Crowds::default();
        let ids: Vec<_> = (0..SPARE_MAX as u64 + 2).map(|_| crowds.form(MODE)).collect();
        for (&id, number) in ids.iter().zip(1..) {
            join(&mut crowds, id, 10 * number);
            join(&mut crowds, id, 10 * number + 1);
        }
        for (done, &id) in ids.iter().enumerate() {
            assert_eq!((crowds.members, crowds.spare.len()), (2 * (ids.len() - done), done.min(SPARE_MAX)));
            crowds.dissolve(id);
            assert!(crowds.get(id).is_none());
        }
        assert_eq!((crowds.members, crowds.spare.len()), (0, SPARE_MAX));
        let next = crowds.form(MODE);
        assert_eq!((tokens(&crowds, next).len(), crowds.spare.len()), (0, SPARE_MAX - 1));
    }

    #[test]
    fn it_occupies_what_its_members_need() {
        let mut crowds = Crowds::default();
        let id = crowds.form(MODE);
        let entry = size_of::<(Token, LockId)>();
        let bytes = |crowds: &Crowds| crowds.get(id).expect("there").bytes();
        assert_eq!(bytes(&crowds), size_of::<Crowd>());
        for number in 1..=8 {
            join(&mut crowds, id, number);
        }
        assert_eq!(bytes(&crowds), size_of::<Crowd>() + 8 * entry);
        for number in 9..=100 {
            join(&mut crowds, id, number);
        }
        let Members::Many(many) = &crowds.get(id).expect("there").members else {
            panic!("a hundred are many");
        };
        let table = many.by_owner.allocation_size();
        assert!(table >= 100 * size_of::<(u64, LockId)>());
        assert_eq!(bytes(&crowds), size_of::<Crowd>() + size_of::<Many>() + 150 * entry + table);
    }
}
