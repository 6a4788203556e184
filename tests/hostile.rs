//! Tampered payloads and files are refused, never half trusted, and never crash the server (G14).

use redis::Value;

use crate::server::{Client, Server};

const MAX_TOKEN: i64 = 1 << 53;

fn restore(client: &mut Client, key: &str, payload: &[u8]) -> Result<Value, String> {
    let mut restore = redis::cmd("RESTORE");
    restore.arg(key).arg(0).arg(payload).arg("REPLACE");
    client.ask_command(&restore)
}

fn dump(client: &mut Client, key: &str) -> Vec<u8> {
    let Value::BulkString(payload) = client.call(&format!("DUMP {key}")) else { panic!("no payload") };
    payload
}

/// A server that takes any payload whatever its checksum, so that the module's own checks are tried.
fn credulous_server() -> (Server, Client) {
    let server = Server::start();
    let mut client = server.client();
    client.call("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    (server, client)
}

/// A payload that was accepted is a lock like any other, or an empty one.
fn assert_sane(client: &mut Client, key: &str, honest: i64, what: &str) {
    let Some(hold) = client.hold(key) else { return };
    assert!((1..=256).contains(&hold.owner.chars().count()), "{what}: {hold:?}");
    assert!(hold.token > 0 && hold.token < MAX_TOKEN, "{what}: {hold:?}");
    let lead = hold.token - honest;
    assert!(lead < 120_000_000, "{what}: a token {lead} us ahead was let in");
    assert!((0..=86_400_000).contains(&hold.lease_left_ms), "{what}: {hold:?}");
}

// G14
#[test]
fn no_changed_byte_of_a_payload_harms_the_server() {
    let (mut server, mut client) = credulous_server();
    client.acquire("stock", "alice-and-a-longer-name", 60_000);
    let payload = dump(&mut client, "stock");
    let mut refused = 0;
    for at in 0..payload.len() {
        for change in [0x01, 0x02, 0x80, 0xFF, 0x7F, 0x40] {
            let mut changed = payload.clone();
            changed[at] ^= change;
            // Another module's type, or none, has nothing to do with this one.
            let Ok(_) = restore(&mut client, "stock", &changed) else {
                refused += 1;
                continue;
            };
            let honest = client.acquire("honest", "bob", 60_000);
            client.release("honest", "bob");
            let is_lock = client.text("TYPE stock") == "redislock";
            if is_lock {
                assert_sane(&mut client, "stock", honest, &format!("byte {at} ^ {change:#x}"));
            }
        }
    }
    assert!(refused > payload.len(), "{refused} of {} were refused", payload.len() * 6);
    assert!(server.is_alive());
    client.call("DEL stock");
    client.acquire("stock", "bob", 1000);
}

// G14
#[test]
fn no_cut_off_or_lengthened_payload_harms_the_server() {
    let (mut server, mut client) = credulous_server();
    let token = client.acquire("stock", "alice", 60_000);
    let payload = dump(&mut client, "stock");
    // The last ten bytes are the server's: version and checksum.
    let (body, end) = payload.split_at(payload.len() - 10);
    let mut refused = 0;
    for length in 0..body.len() {
        let cut = [&body[..length], end].concat();
        // It may be whole by chance: the module cannot know that it reads the server's end already.
        refused += usize::from(restore(&mut client, "stock", &cut).is_err());
        if client.text("TYPE stock") == "redislock" {
            assert_sane(&mut client, "stock", token, &format!("cut to {length}"));
        }
        for filler in [0x00, 0x02, 0x05, 0xFF] {
            let filled = [&body[..length], &vec![filler; body.len() - length][..], end].concat();
            let _ = restore(&mut client, "other", &filled);
            let repeated = [&body[..length], &vec![filler; 4096][..], end].concat();
            let _ = restore(&mut client, "other", &repeated);
        }
    }
    assert!(refused > body.len() - 5, "{refused} of {} were refused", body.len());
    restore(&mut client, "stock", &payload).unwrap();
    assert_eq!(client.fence("stock"), Some(token));
    assert!(server.is_alive());
}

// G14: the server asks for as many bytes as a string claims, as for one of its own. None of them is written to.
#[test]
fn a_payload_that_speaks_of_great_lengths_takes_no_memory() {
    let (mut server, mut client) = credulous_server();
    client.acquire("stock", "alice", 60_000);
    let payload = dump(&mut client, "stock");
    let before = server.resident_peak();
    let (body, end) = payload.split_at(payload.len() - 10);
    for at in 1..body.len() {
        // The two ways in which the server writes a length of 32 or 64 bits.
        for length in [&[0x80, 0x7F, 0xFF, 0xFF, 0xF0][..], &[0x81, 0, 0, 0, 0x10, 0, 0, 0, 0][..]] {
            let mut changed = body.to_vec();
            changed.splice(at..=at, length.iter().copied());
            changed.extend_from_slice(end);
            let _ = restore(&mut client, "other", &changed);
        }
    }
    let grown = server.resident_peak() - before;
    assert!(grown < 64 << 20, "the server took {grown} bytes");
    assert!(server.is_alive());
}

// G14, G10: the lock stays there if the payload that should replace it is refused.
#[test]
fn a_refused_payload_breaks_no_lock_and_wakes_no_waiter() {
    let server = Server::start();
    let mut client = server.client();
    let token = client.acquire("stock", "alice", 60_000);
    let mut payload = dump(&mut client, "stock");
    let waiter = server.in_queue("stock", "bob", 60_000);
    let middle = payload.len() / 2;
    payload[middle] ^= 0xFF;
    assert!(restore(&mut client, "stock", &payload).is_err());
    assert_eq!(client.fence("stock"), Some(token));
    waiter.waits_for(std::time::Duration::from_millis(100));
}

// G14: the server ends with a message, not in distress, whatever byte of its file is wrong.
#[test]
fn a_damaged_rdb_file_is_refused_in_words() {
    let mut server = Server::build().set("rdbchecksum", "no").start();
    let mut client = server.client();
    client.acquire("stock", "alice-and-a-longer-name", 60_000);
    client.call("SAVE");
    server.kill();
    let path = server.directory().join("dump.rdb");
    let whole = std::fs::read(&path).unwrap();
    // The module's part is the end of the file: there is nothing else in it.
    for at in (whole.len().saturating_sub(70)..whole.len() - 9).step_by(4) {
        let mut changed = whole.clone();
        changed[at] ^= 0xFF;
        std::fs::write(&path, &changed).unwrap();
        server.start_or_be_refused();
    }
    std::fs::write(&path, &whole).unwrap();
    server.start_again();
    assert_eq!(server.client().owner("stock").as_deref(), Some("alice-and-a-longer-name"));
}
