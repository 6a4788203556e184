//! A row of numbers in blocks of bytes.
//!
//! A server takes a call for each number. For a lock of very many holders that takes longer than to save a set of as many
//! members. So the row of such a lock is packed: behind the number 2 all but the version stands in blocks of bytes. There
//! each number is its length in bytes, 0 to 8, and that many bytes, little end first, the last of them not 0. No number
//! lies in two blocks.
//!
//! The server reads a block as it reads any string.

use super::row::{BADLY_PACKED, SavedLock, decode, decode_row, encode, encode_row};

const VERSION: u64 = 2;

/// A lock that more hold is packed.
const UNPACKED_MAX: usize = if cfg!(test) { 2 } else { 1_000 };

/// Longest block of a packed row.
pub const BLOCK_BYTES_MAX: usize = if cfg!(test) { 32 } else { 16 * 1024 };

/// What a payload consists of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// A number.
    Number(u64),
    /// Numbers, packed.
    Block(Vec<u8>),
}

/// Where a payload comes from. Each gives the next piece, or `None` if that is not what comes next.
pub trait Source {
    /// A number.
    fn number(&mut self) -> Option<u64>;
    /// A block of [`BLOCK_BYTES_MAX`] at most.
    fn block(&mut self) -> Option<Vec<u8>>;
}

/// Writes a lock piece by piece, packed if very many hold it.
pub fn write(name: &[u8], lock: Option<&SavedLock>, mut put: impl FnMut(Piece)) {
    if lock.is_none_or(|lock| lock.holds.len() <= UNPACKED_MAX) {
        return encode(name, lock, |number| put(Piece::Number(number)));
    }
    put(Piece::Number(VERSION));
    let mut block = Vec::with_capacity(BLOCK_BYTES_MAX);
    encode_row(name, lock, |number| {
        let bytes = number.to_le_bytes();
        let [length, ..] = (8 - number.leading_zeros() / 8).to_le_bytes();
        let bytes = &bytes[..usize::from(length)];
        if block.len() + 1 + bytes.len() > BLOCK_BYTES_MAX {
            put(Piece::Block(std::mem::replace(&mut block, Vec::with_capacity(BLOCK_BYTES_MAX))));
        }
        block.push(length);
        block.extend_from_slice(bytes);
    });
    put(Piece::Block(block));
}

/// Reads a lock that stood under `name`, packed or not, or tells why it cannot be one.
pub fn read(name: &[u8], source: &mut impl Source) -> Result<Option<SavedLock>, &'static str> {
    let first = source.number();
    if first != Some(VERSION) {
        let mut first = Some(first);
        return decode(name, || first.take().unwrap_or_else(|| source.number()));
    }
    let mut numbers = Numbers { source, block: Vec::new(), place: 0 };
    let lock = decode_row(name, UNPACKED_MAX as u64 + 1, || numbers.next())?;
    if numbers.place < numbers.block.len() { Err(BADLY_PACKED) } else { Ok(lock) }
}

impl<I: Iterator<Item = Piece>> Source for I {
    fn number(&mut self) -> Option<u64> {
        self.next().and_then(|piece| if let Piece::Number(number) = piece { Some(number) } else { None })
    }

    fn block(&mut self) -> Option<Vec<u8>> {
        self.next().and_then(|piece| if let Piece::Block(block) = piece { Some(block) } else { None })
    }
}

/// Numbers in blocks.
struct Numbers<'a, S> {
    source: &'a mut S,
    block: Vec<u8>,
    /// What comes next in the block.
    place: usize,
}

impl<S: Source> Numbers<'_, S> {
    /// The next number. `None`: there is none, or it is not written as this module writes it.
    fn next(&mut self) -> Option<u64> {
        if self.place == self.block.len() {
            self.block = self.source.block()?;
            self.place = 0;
        }
        let (&length, rest) = self.block.get(self.place..)?.split_first()?;
        let bytes = rest.get(..usize::from(length))?;
        let mut number = [0; 8];
        number.get_mut(..bytes.len())?.copy_from_slice(bytes);
        self.place += 1 + bytes.len();
        (bytes.last() != Some(&0)).then_some(u64::from_le_bytes(number))
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::{locks, written};
    use super::super::row::{CUT_SHORT, KIND_LIMITED};
    use super::*;

    fn pieces_of(lock: &SavedLock) -> Vec<Piece> {
        let mut pieces = Vec::new();
        write(b"k", Some(lock), |piece| pieces.push(piece));
        pieces
    }

    fn read_pieces(pieces: &[Piece]) -> Result<Option<SavedLock>, &'static str> {
        read(b"k", &mut pieces.iter().cloned())
    }

    /// A packed row in one block.
    fn in_one(bytes: Vec<u8>) -> [Piece; 2] {
        [Piece::Number(VERSION), Piece::Block(bytes)]
    }

    /// All bytes of the blocks.
    fn bytes_of(pieces: &[Piece]) -> Vec<u8> {
        let blocks = pieces.iter().filter_map(|piece| match piece {
            Piece::Block(block) => Some(block.as_slice()),
            Piece::Number(_) => None,
        });
        blocks.collect::<Vec<_>>().concat()
    }

    #[test]
    fn a_lock_of_very_many_holders_is_packed_and_read_as_it_was() {
        for lock in locks() {
            let (pieces, numbers) = (pieces_of(&lock), written(b"k", Some(&lock)));
            let is_packed = lock.holds.len() > UNPACKED_MAX;
            assert_eq!(pieces[0], Piece::Number(if is_packed { VERSION } else { 1 }));
            assert_eq!(is_packed, pieces.iter().any(|piece| matches!(piece, Piece::Block(_))));
            assert_eq!(read_pieces(&pieces), Ok(Some(lock.clone())));
            assert_eq!(read(b"other", &mut pieces.into_iter()), Ok(None));
            let unpacked = numbers.into_iter().map(Piece::Number).collect::<Vec<_>>();
            assert_eq!(read_pieces(&unpacked), Ok(Some(lock)), "as 0.1.0 writes it");
        }
        // Blocks are full: the next number would not have fitted. Where one ends does not matter.
        let pieces = pieces_of(&locks()[4]);
        assert!(pieces.len() > 2, "{pieces:?}");
        for pair in pieces[1..].windows(2) {
            let [Piece::Block(block), Piece::Block(next)] = pair else { panic!("{pair:?}") };
            assert!(
                block.len() <= BLOCK_BYTES_MAX && block.len() + 1 + usize::from(next[0]) > BLOCK_BYTES_MAX
            );
        }
        let bytes = bytes_of(&pieces);
        assert_eq!(read_pieces(&in_one(bytes)), read_pieces(&pieces));
    }

    #[test]
    fn every_cut_and_every_wrong_byte_of_a_packed_lock_is_refused_or_read_as_another_lock() {
        let lock = &locks()[4];
        let good = pieces_of(lock);
        (0..good.len()).for_each(|cut| assert!(read_pieces(&good[..cut]).is_err(), "cut at {cut}"));
        let bytes = bytes_of(&good);
        let read_bytes = |bytes: &[u8]| read_pieces(&in_one(bytes.to_vec()));
        (0..bytes.len()).for_each(|cut| assert!(read_bytes(&bytes[..cut]).is_err(), "cut at {cut}"));
        assert_eq!(read_bytes(&[&*bytes, &[0]].concat()), Err(BADLY_PACKED), "something follows");
        // An empty block, and a number where a block should be.
        assert_eq!(read_pieces(&in_one(Vec::new())), Err(CUT_SHORT));
        assert_eq!(read_pieces(&[Piece::Number(VERSION), Piece::Number(7)]), Err(CUT_SHORT));
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[place] ^= 1 << bit;
                assert_ne!(read_bytes(&bad), Ok(Some(lock.clone())), "bit {bit} of byte {place}");
            }
        }
        // The hash is 8 bytes behind its length. The kind follows, in more bytes than it needs.
        assert_eq!(bytes[9..11], [1, KIND_LIMITED as u8]);
        let longer = [&bytes[..9], &[2, KIND_LIMITED as u8, 0], &bytes[11..]].concat();
        assert_eq!(read_bytes(&longer), Err(CUT_SHORT));
        let too_long = [&bytes[..9], &[9, KIND_LIMITED as u8, 0, 0, 0, 0, 0, 0, 0, 1], &bytes[11..]].concat();
        assert_eq!(read_bytes(&too_long), Err(CUT_SHORT));
    }

    #[test]
    fn what_fewer_hold_is_not_packed() {
        let locks = locks();
        for lock in [None].into_iter().chain(locks.iter().map(Some)) {
            let mut bytes = Vec::new();
            for number in &written(b"k", lock)[1..] {
                let length = 8 - number.leading_zeros() as usize / 8;
                bytes.push(length as u8);
                bytes.extend_from_slice(&number.to_le_bytes()[..length]);
            }
            let expected = match lock {
                Some(lock) if lock.holds.len() > UNPACKED_MAX => Ok(Some(lock.clone())),
                _ => Err(BADLY_PACKED),
            };
            assert_eq!(read_pieces(&in_one(bytes)).map_err(|_| BADLY_PACKED), expected, "{lock:?}");
        }
    }
}
