//! Commands as the server reads them, encoded before anything is measured.

use crate::options::Options;

/// Commands that are sent in one piece, `take` and `free` in turns.
pub struct Batch {
    pub bytes: Vec<u8>,
    /// The place of its first command in the row of all.
    pub first: usize,
    pub count: usize,
}

/// The batches of one connection, on keys of its own; repeated from the start, they take what they have freed.
pub fn batches(options: &Options, connection: usize) -> Vec<Batch> {
    let pairs_a_batch = (options.depth / 2).max(1);
    let keys = options.keys.div_ceil(options.connections).next_multiple_of(pairs_a_batch);
    let commands: Vec<Vec<u8>> = (connection * keys..(connection + 1) * keys)
        .flat_map(|number| [encoded(&options.take, number), encoded(&options.free, number)])
        .collect();
    let pieces = commands.chunks(options.depth).enumerate();
    pieces
        .map(|(n, piece)| Batch { bytes: piece.concat(), first: n * options.depth, count: piece.len() })
        .collect()
}

/// A command with its key and its owner filled in.
fn encoded(template: &str, number: usize) -> Vec<u8> {
    let (key, owner) = (format!("lock:order:{number:06}"), owner(number as u128));
    let words: Vec<&str> = template.split(' ').collect();
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.replace("{key}", &key).replace("{owner}", &owner);
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

/// A random UUID in its canonical text, the same for a number in every run.
fn owner(number: u128) -> String {
    const SPREAD: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C834;
    const VERSION_4: u128 = 0x4 << 76;
    const VARIANT: u128 = 0x2 << 62;
    let bits = SPREAD.wrapping_mul(number + 1) & !(0xF << 76) & !(0x3 << 62) | VERSION_4 | VARIANT;
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
