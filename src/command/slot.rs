//! Hash slots of keys, as the cluster specification defines them, and redirections for waiters whose slot has left.

/// Returns the reply to a client that waits for a key of this slot, which another server has; `node` is its address.
#[must_use]
pub fn redirection(slot: u16, node: Option<String>) -> String {
    match node {
        Some(address) => format!("MOVED {slot} {address}"),
        // By its table, the slot is still this server's, but the key is moving or no node owns the slot. The client
        // retries, and the server itself will redirect it.
        None => "TRYAGAIN the slot of this lock is on its way to another server".to_owned(),
    }
}

/// Returns true if these keys are all in one slot.
pub fn are_of_one<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> bool {
    let mut slots = names.into_iter().map(slot_of);
    let first = slots.next();
    slots.all(|slot| Some(slot) == first)
}

/// Returns the hash slot of a key: the CRC-16 (XMODEM) of its hash tag.
#[must_use]
pub fn slot_of(name: &[u8]) -> u16 {
    const SLOTS: u16 = 16_384;
    crc16(hash_tag(name)) % SLOTS
}

/// Returns the part between the first `{` and the next `}`, if it is not empty; otherwise the whole name.
fn hash_tag(name: &[u8]) -> &[u8] {
    let Some(open) = name.iter().position(|&byte| byte == b'{') else {
        return name;
    };
    let inner = name.get(open + 1..).unwrap_or(&[]);
    match inner.iter().position(|&byte| byte == b'}') {
        Some(len) if len > 0 => inner.get(..len).unwrap_or(name),
        _ => name,
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| {
        (0..8).fold(
            crc ^ u16::from(byte) << 8,
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(hash_tag(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(hash_tag(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(hash_tag(b"foo{bar"), b"foo{bar");
    }

    #[test]
    fn keys_are_of_one_slot_by_their_tags() {
        let are = |names: &[&'static str]| are_of_one(names.iter().map(|name| name.as_bytes()));
        assert!(are(&[]) && are(&["a"]) && are(&["{a}x", "a", "{a}"]));
        assert!(!are(&["a", "b"]) && !are(&["{a}x", "{a}y", "b"]));
    }

    #[test]
    fn who_waits_is_sent_to_the_node_that_has_the_slot() {
        assert_eq!(redirection(7, Some("host:1".to_owned())), "MOVED 7 host:1");
        assert!(redirection(7, None).starts_with("TRYAGAIN "));
    }
}
