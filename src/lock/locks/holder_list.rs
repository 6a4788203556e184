//! Locks with several holders: the readers of one lock, the holders of a semaphore.
//!
//! Each holder has a record like any hold, with its lease on the same wheel; its key is that of the list. The list
//! only says which records belong together, in the order of their tokens.

use crate::lock::tuning::Bound;
use std::collections::{BTreeSet, VecDeque};
use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

use super::id::LockId;
use crate::lock::arena::{Arena, Id};
use crate::lock::by_hash::ByHash;
use crate::lock::tuning::few_max;
use crate::lock::types::{Mode, Token};

impl LockId {
    /// Returns the list with this number.
    #[inline]
    pub(super) const fn holders(self) -> Option<Id<Holders>> {
        if self.is_list() { Some(Id::from_number(self.number())) } else { None }
    }

    pub(super) const fn of_list(id: Id<Holders>) -> Self {
        Self::from_number(id.number())
    }
}

/// The most holders of a plain list.
const FEW_MAX: usize = 8;

/// The number of empty lists that are kept, so that a sequence of single holders allocates nothing.
const SPARE_MAX: Bound = Bound::of(16, 2);

/// The holders of one lock.
#[derive(Debug)]
pub(super) struct Holders {
    /// The kind of its holds: shared, or limited.
    pub(super) mode: Mode,
    ids: Ids,
}

#[derive(Debug)]
enum Ids {
    /// By token, the newest last.
    Few(Vec<(Token, LockId)>),
    Many(Box<Many>),
}

#[derive(Debug)]
struct Many {
    /// With the record in addition to the token, because a broken stream can name one token twice, and both are kept.
    by_token: BTreeSet<(Token, LockId)>,
    by_owner: ByHash<LockId>,
}

impl Many {
    /// Builds both indexes at once. The owners are given in the order of the holders.
    fn new<'a>(
        hasher: &DefaultHashBuilder,
        holders: Vec<(Token, LockId)>,
        owners: impl Iterator<Item = &'a [u8]>,
    ) -> Self {
        let mut by_owner = ByHash::with_room(holders.len());
        for (&(_, holder), owner) in holders.iter().zip(owners) {
            by_owner.insert(hasher.hash_one(owner), holder);
        }
        // Sorted input fills a tree in one pass, without a search for each entry.
        Self { by_token: holders.into_iter().collect(), by_owner }
    }
}

/// All lists of holders.
#[derive(Default)]
pub(super) struct HolderLists {
    pub(super) all: Arena<Holders>,
    /// The number of records in lists of holders.
    pub(super) listed: usize,
    /// The holders of removed locks, in the order of removal, and their number.
    pub(super) detached: VecDeque<Holders>,
    pub(super) detached_holds: usize,
    spare: Vec<Vec<(Token, LockId)>>,
    hasher: DefaultHashBuilder,
}

impl HolderLists {
    /// Returns an empty set to replace this one. It issues none of these numbers again.
    pub(super) fn successor(&self) -> Self {
        Self { all: self.all.successor(), ..Self::default() }
    }

    /// Adds an empty list.
    #[inline]
    pub(super) fn form(&mut self, mode: Mode) -> LockId {
        let ids = Ids::Few(self.spare.pop().unwrap_or_default());
        LockId::of_list(self.all.insert(Holders { mode, ids }))
    }

    /// Adds a list of these holders, which are in the order of their tokens. The owners are given in the same order.
    pub(super) fn form_with<'a>(
        &mut self,
        mode: Mode,
        holders: Vec<(Token, LockId)>,
        owners: impl Iterator<Item = &'a [u8]>,
    ) -> LockId {
        self.listed += holders.len();
        let ids = if holders.len() <= few_max(FEW_MAX) {
            Ids::Few(holders)
        } else {
            Ids::Many(Box::new(Many::new(&self.hasher, holders, owners)))
        };
        LockId::of_list(self.all.insert(Holders { mode, ids }))
    }

    #[inline]
    pub(super) fn get(&self, id: LockId) -> Option<&Holders> {
        self.all.get(id.holders()?)
    }

    /// Adds a holder. Returns false if the plain list of holders is full: [`Self::grow`] comes first.
    #[inline]
    pub(super) fn join(&mut self, id: LockId, holder: (Token, LockId), owner: &[u8]) -> bool {
        let Some(holders) = id.holders().and_then(|id| self.all.get_mut(id)) else {
            return true;
        };
        match &mut holders.ids {
            Ids::Few(few) if few.len() >= few_max(FEW_MAX) => return false,
            Ids::Few(few) => {
                // The common case: the newest token of all.
                if few.last().is_none_or(|last| last.0 <= holder.0) {
                    few.push(holder);
                } else {
                    let at = few.partition_point(|(token, _)| *token <= holder.0);
                    few.insert(at, holder);
                }
            }
            Ids::Many(many) => {
                let hash = self.hasher.hash_one(owner);
                many.by_token.insert(holder);
                many.by_owner.insert(hash, holder.1);
            }
        }
        self.listed += 1;
        true
    }

    /// Returns true if the list has an index by owner: then [`Self::remove_holder`] needs the owner of the
    /// holder.
    #[inline]
    pub(super) fn is_large(&self, id: LockId) -> bool {
        self.get(id).is_some_and(|holders| matches!(holders.ids, Ids::Many(_)))
    }

    /// Builds the index by owner. The owners are given in the order of the holders.
    #[cold]
    pub(super) fn grow(&mut self, id: LockId, owners: &[Vec<u8>]) {
        let Some(holders) = id.holders().and_then(|id| self.all.get_mut(id)) else {
            return;
        };
        if let Ids::Few(few) = &mut holders.ids {
            let few = std::mem::take(few);
            let many = Many::new(&self.hasher, few, owners.iter().map(Vec::as_slice));
            holders.ids = Ids::Many(Box::new(many));
        }
    }

    /// Removes a holder. Returns how many are left.
    #[inline]
    pub(super) fn remove_holder(
        &mut self,
        id: LockId,
        (token, holder): (Token, LockId),
        owner: &[u8],
    ) -> Option<usize> {
        let holders = self.all.get_mut(id.holders()?)?;
        let left = match &mut holders.ids {
            Ids::Few(few) => {
                if few.last().is_some_and(|last| last.1 == holder) {
                    few.pop();
                } else {
                    let at = few.iter().position(|entry| entry.1 == holder)?;
                    few.remove(at);
                }
                few.len()
            }
            Ids::Many(many) => {
                if !many.by_token.remove(&(token, holder)) {
                    return None;
                }
                let hash = self.hasher.hash_one(owner);
                many.by_owner.remove(hash, holder);
                if many.by_token.len() == few_max(FEW_MAX) / 2 {
                    let few = std::mem::take(&mut many.by_token).into_iter().collect();
                    holders.ids = Ids::Few(few);
                    few_max(FEW_MAX) / 2
                } else {
                    many.by_token.len()
                }
            }
        };
        self.listed -= 1;
        Some(left)
    }

    /// Removes a list of holders.
    #[inline]
    pub(super) fn dissolve(&mut self, id: LockId) {
        let Some(holders) = id.holders().and_then(|id| self.all.remove(id)) else {
            return;
        };
        self.listed -= holders.len();
        if let Ids::Few(mut few) = holders.ids
            && self.spare.len() < SPARE_MAX.get()
        {
            few.clear();
            self.spare.push(few);
        }
    }

    /// Returns the holder that is this owner's.
    #[inline]
    pub(super) fn of_owner(
        &self,
        id: LockId,
        owner: &[u8],
        is_of: impl Fn(LockId) -> bool,
    ) -> Option<LockId> {
        match &self.get(id)?.ids {
            Ids::Few(few) => few.iter().map(|entry| entry.1).find(|&holder| is_of(holder)),
            Ids::Many(many) => {
                let hash = self.hasher.hash_one(owner);
                many.by_owner.find(hash, is_of)
            }
        }
    }
}

impl Holders {
    /// Returns the number of holders.
    #[inline]
    pub(super) fn len(&self) -> usize {
        match &self.ids {
            Ids::Few(few) => few.len(),
            Ids::Many(many) => many.by_token.len(),
        }
    }

    /// Returns true if the index by owner has as many entries as there are holders. For checks.
    pub(super) fn knows_its_holders_only(&self) -> bool {
        match &self.ids {
            Ids::Few(_) => true,
            Ids::Many(many) => many.by_owner.len() == many.by_token.len(),
        }
    }

    /// Removes a holder, in no particular order.
    pub(super) fn pop(&mut self) -> Option<LockId> {
        match &mut self.ids {
            Ids::Few(few) => few.pop().map(|entry| entry.1),
            Ids::Many(many) => many.by_token.pop_last().map(|entry| entry.1),
        }
    }

    /// Returns the holders, if they are in a plain list.
    #[inline]
    pub(super) fn few(&self) -> &[(Token, LockId)] {
        match &self.ids {
            Ids::Few(few) => few,
            Ids::Many(_) => &[],
        }
    }

    /// Returns the holder with the newest token.
    #[inline]
    pub(super) fn newest(&self) -> Option<LockId> {
        match &self.ids {
            Ids::Few(few) => few.last().map(|entry| entry.1),
            Ids::Many(many) => many.by_token.last().map(|entry| entry.1),
        }
    }

    /// Returns true if this record, with this token, is one of the holders.
    #[inline]
    pub(super) fn has(&self, token: Token, holder: LockId) -> bool {
        match &self.ids {
            Ids::Few(few) => few.iter().any(|entry| entry.1 == holder),
            Ids::Many(many) => many.by_token.contains(&(token, holder)),
        }
    }

    /// Returns the holder with this token.
    pub(super) fn of_token(&self, token: Token) -> Option<LockId> {
        match &self.ids {
            Ids::Few(few) => few.iter().find(|entry| entry.0 == token).map(|entry| entry.1),
            Ids::Many(many) => {
                let first = many.by_token.range((token, LockId::from_number(0))..).next()?;
                (first.0 == token).then_some(first.1)
            }
        }
    }

    /// Returns all holders, in the order of their tokens.
    pub(super) fn ids(&self) -> impl Iterator<Item = LockId> + '_ {
        let (few, many) = match &self.ids {
            Ids::Few(few) => (Some(few), None),
            Ids::Many(many) => (None, Some(many)),
        };
        let few = few.into_iter().flatten().map(|entry| entry.1);
        few.chain(many.into_iter().flat_map(|many| many.by_token.iter().map(|entry| entry.1)))
    }

    /// Returns the bytes that it occupies, without the records of its holders.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
            + match &self.ids {
                Ids::Few(few) => few.capacity() * size_of::<(Token, LockId)>(),
                Ids::Many(many) => {
                    let of_tree = many.by_token.len() * 3 / 2 * size_of::<(Token, LockId)>();
                    size_of::<Many>() + of_tree + many.by_owner.bytes()
                }
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::locks::id::Epoch;

    const MODE: Mode = Mode::Limit(100);

    fn token(number: u64) -> Token {
        Token::new(number).expect("valid")
    }

    const fn holder(number: u64) -> LockId {
        LockId::new(Epoch::new(0), number as u32, 1)
    }

    /// Returns a name for every holder.
    fn owner(number: u64) -> Vec<u8> {
        number.to_string().into_bytes()
    }

    /// Adds one more holder, as the locks do.
    fn join(holder_lists: &mut HolderLists, id: LockId, number: u64) {
        let new = (token(number), holder(number));
        if !holder_lists.join(id, new, &owner(number)) {
            let owners: Vec<_> = tokens(holder_lists, id).into_iter().map(owner).collect();
            holder_lists.grow(id, &owners);
            assert!(holder_lists.join(id, new, &owner(number)));
        }
    }

    /// Returns the holders by their tokens, which are their numbers.
    fn tokens(holder_lists: &HolderLists, id: LockId) -> Vec<u64> {
        holder_lists.get(id).expect("there").ids().map(|holder| u64::from(holder.index())).collect()
    }

    fn find(holder_lists: &HolderLists, id: LockId, number: u64) -> Option<LockId> {
        holder_lists.of_owner(id, &owner(number), |found| found == holder(number))
    }

    #[test]
    fn holders_are_a_list_up_to_eight_and_again_from_four_down() {
        let mut holder_lists = HolderLists::default();
        let id = holder_lists.form(MODE);
        for number in 1..=8 {
            assert!(holder_lists.join(id, (token(number), holder(number)), &owner(number)));
            assert!(!holder_lists.is_large(id));
        }
        assert!(!holder_lists.join(id, (token(9), holder(9)), &owner(9)));
        assert_eq!((holder_lists.listed, holder_lists.get(id).expect("there").few().len()), (8, 8));
        join(&mut holder_lists, id, 9);
        assert!(holder_lists.is_large(id));
        assert_eq!((holder_lists.listed, holder_lists.get(id).expect("there").few().len()), (9, 0));
        for number in (5..=9).rev() {
            assert!(holder_lists.is_large(id), "{number}");
            let left = holder_lists.remove_holder(id, (token(number), holder(number)), &owner(number));
            assert_eq!(left, Some(number as usize - 1));
        }
        assert!(!holder_lists.is_large(id));
        assert_eq!((holder_lists.listed, tokens(&holder_lists, id)), (4, vec![1, 2, 3, 4]));
    }

    #[test]
    fn holders_stand_in_the_order_of_their_tokens() {
        for count in [5, 8, 12] {
            let mut holder_lists = HolderLists::default();
            let id = holder_lists.form(MODE);
            for number in (1..=count).rev() {
                join(&mut holder_lists, id, number);
            }
            assert_eq!(tokens(&holder_lists, id), (1..=count).collect::<Vec<_>>());
            assert_eq!(holder_lists.get(id).and_then(Holders::newest), Some(holder(count)));
            // Neither the last one nor the first.
            assert_eq!(
                holder_lists.remove_holder(id, (token(2), holder(2)), &owner(2)),
                Some(count as usize - 1)
            );
            assert_eq!(tokens(&holder_lists, id), [1].into_iter().chain(3..=count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_holder_is_found_by_its_owner_until_it_is_removed() {
        let mut holder_lists = HolderLists::default();
        let id = holder_lists.form(MODE);
        for number in 1..=40 {
            join(&mut holder_lists, id, number);
            assert!((1..=number).all(|each| find(&holder_lists, id, each) == Some(holder(each))), "{number}");
            assert_eq!(find(&holder_lists, id, number + 1), None);
        }
        for number in 1..=40 {
            holder_lists.remove_holder(id, (token(number), holder(number)), &owner(number));
            assert_eq!(find(&holder_lists, id, number), None);
            assert!(
                (number + 1..=40).all(|each| find(&holder_lists, id, each) == Some(holder(each))),
                "{number}"
            );
        }
    }

    /// No server mints a token twice, but a list must survive a stream that names one twice.
    #[test]
    fn holders_with_one_token_are_counted_and_removed_one_by_one() {
        let mut holder_lists = HolderLists::default();
        let id = holder_lists.form(MODE);
        for number in 1..=12 {
            let new = (token(7), holder(number));
            if !holder_lists.join(id, new, &owner(number)) {
                let owners: Vec<_> = (1..number).map(owner).collect();
                holder_lists.grow(id, &owners);
                assert!(holder_lists.join(id, new, &owner(number)));
            }
        }
        let holders = holder_lists.get(id).expect("there");
        assert_eq!(
            (holder_lists.listed, holders.len(), holders.of_token(token(7))),
            (12, 12, Some(holder(1)))
        );
        assert_eq!((holders.of_token(token(6)), holders.of_token(token(8))), (None, None));
        assert!((1..=12).all(|number| holders.has(token(7), holder(number))));
        assert!(!holders.has(token(7), holder(13)));
        for number in (1..=12).rev() {
            let left = holder_lists.remove_holder(id, (token(7), holder(number)), &owner(number));
            assert_eq!(left, Some(number as usize - 1));
            let holders = holder_lists.get(id).expect("there");
            assert!(holders.knows_its_holders_only());
            assert_eq!((holder_lists.listed, holders.len()), (number as usize - 1, number as usize - 1));
        }
    }

    #[test]
    fn a_dissolved_list_of_holders_leaves_only_a_spare_one() {
        let mut holder_lists = HolderLists::default();
        let ids: Vec<_> = (0..SPARE_MAX.get() as u64 + 2).map(|_| holder_lists.form(MODE)).collect();
        for (&id, number) in ids.iter().zip(1..) {
            join(&mut holder_lists, id, 10 * number);
            join(&mut holder_lists, id, 10 * number + 1);
        }
        for (done, &id) in ids.iter().enumerate() {
            assert_eq!(
                (holder_lists.listed, holder_lists.spare.len()),
                (2 * (ids.len() - done), done.min(SPARE_MAX.get()))
            );
            holder_lists.dissolve(id);
            assert!(holder_lists.get(id).is_none());
        }
        assert_eq!((holder_lists.listed, holder_lists.spare.len()), (0, SPARE_MAX.get()));
        let next = holder_lists.form(MODE);
        assert_eq!((tokens(&holder_lists, next).len(), holder_lists.spare.len()), (0, SPARE_MAX.get() - 1));
    }

    #[test]
    fn a_list_of_holders_occupies_what_its_holders_need() {
        let mut holder_lists = HolderLists::default();
        let id = holder_lists.form(MODE);
        let entry = size_of::<(Token, LockId)>();
        let bytes = |holder_lists: &HolderLists| holder_lists.get(id).expect("there").bytes();
        assert_eq!(bytes(&holder_lists), size_of::<Holders>());
        for number in 1..=8 {
            join(&mut holder_lists, id, number);
        }
        assert_eq!(bytes(&holder_lists), size_of::<Holders>() + 8 * entry);
        for number in 9..=100 {
            join(&mut holder_lists, id, number);
        }
        let Ids::Many(many) = &holder_lists.get(id).expect("there").ids else {
            panic!("a hundred are many");
        };
        let by_owner = many.by_owner.bytes();
        assert!(by_owner >= 100 * size_of::<(u64, LockId)>());
        assert_eq!(bytes(&holder_lists), size_of::<Holders>() + size_of::<Many>() + 150 * entry + by_owner);
    }
}
