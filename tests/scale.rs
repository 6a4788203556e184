//! A million locks. A test binary of its own, so that it runs alone.

mod server;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use server::binary::VALGRIND;
use server::{Client, Server, await_some, millis};

const LOCKS: usize = 1_000_000;
const CHUNK: usize = 20_000;

/// The bound on the slow-down of a hand-over with a million locks: it should not be slower at all.
const RATIO_MAX: f64 = 5.0;

/// The bound on the time for which a million ending leases block the server: it should be 50 ms at most.
const STALL_MAX: Duration = Duration::from_millis(500);

/// Sends a command for each number, in large chunks, and counts the answers that are as they should be: redis-rs,
/// without optimisation, would take longer than the server.
fn for_all(server: &Server, answer: u8, words: impl Fn(usize) -> [String; 5]) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    for start in (0..LOCKS).step_by(CHUNK) {
        let mut request = Vec::with_capacity(CHUNK * 90);
        for number in start..start + CHUNK {
            request.extend_from_slice(b"*5\r\n");
            for word in words(number) {
                write!(request, "${}\r\n{word}\r\n", word.len()).unwrap();
            }
        }
        let mut writer = stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || writer.write_all(&request).unwrap());
            count_answers(&mut stream, answer, CHUNK);
        });
    }
}

/// Reads `count` answers of one line each, all of this kind.
fn count_answers(stream: &mut TcpStream, kind: u8, count: usize) {
    let mut buffer = vec![0; 1 << 16];
    let mut lines = 0;
    let mut is_start = true;
    while lines < count {
        let length = stream.read(&mut buffer).unwrap();
        assert!(length > 0, "the server closed the connection");
        for byte in &buffer[..length] {
            assert!(!is_start || *byte == kind, "{}", String::from_utf8_lossy(&buffer[..length.min(300)]));
            is_start = *byte == b'\n';
            lines += usize::from(is_start);
        }
    }
}

/// The median time from a release to the token of the next in line.
fn hand_over(server: &Server) -> Duration {
    let mut client = server.client();
    client.acquire("other", "owner-0", 600_000);
    let mut times: Vec<Duration> = (0..200)
        .map(|round| {
            let waiter = server.in_queue("other", &format!("owner-{}", round + 1), 600_000);
            let start = Instant::now();
            client.release("other", &format!("owner-{round}"));
            let (answer, at) = waiter.timed_answer();
            assert!(answer.is_ok());
            at - start
        })
        .collect();
    client.call("DEL other");
    times.sort();
    times[times.len() / 2]
}

/// Pings until the flag is set, and returns the longest time that an answer took.
fn longest_ping(mut client: Client, is_done: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    while !is_done.load(Ordering::Relaxed) {
        let start = Instant::now();
        client.call("PING");
        longest = longest.max(start.elapsed());
        std::thread::sleep(millis(1));
    }
    longest
}

fn memory(client: &mut Client) -> u64 {
    client.info("memory", "used_memory").parse().unwrap()
}

/// Renews all leases so that they end within one second, some seconds from now: later on a machine that is busy, where
/// taking them took longer. Returns shortly before the first one ends.
fn let_all_end_together(server: &Server, taken: Duration) {
    let end = Instant::now() + millis(12_000).max(3 * taken);
    for_all(server, b':', |number| {
        let spread = (number % 1000) as u64;
        let left = end.saturating_duration_since(Instant::now()).as_millis() as u64 + spread + 1;
        [
            "LOCK.RENEW".into(),
            format!("lock-{number}"),
            format!("owner-{number}"),
            "PX".into(),
            left.to_string(),
        ]
    });
    let left = end.saturating_duration_since(Instant::now());
    assert!(!left.is_zero(), "renewing took too long for the test to mean anything");
    std::thread::sleep(left.saturating_sub(millis(1_000)));
}

// G3
#[test]
fn a_million_locks_slow_no_hand_over_and_end_without_a_stall() {
    if *VALGRIND {
        eprintln!("left out under valgrind: it measures time");
        return;
    }
    let server = Server::start();
    let mut client = server.client();
    let alone = hand_over(&server);
    let empty = memory(&mut client);
    let start = Instant::now();
    for_all(&server, b':', |number| {
        [
            "LOCK.ACQUIRE".into(),
            format!("lock-{number}"),
            format!("owner-{number}"),
            "PX".into(),
            "600000".into(),
        ]
    });
    let taken = start.elapsed();
    println!("a million locks taken in {taken:?}");
    assert_eq!(client.int("DBSIZE"), LOCKS as i64);
    let full = memory(&mut client);
    println!("{} bytes a lock", (full - empty) / LOCKS as u64);

    let beside = hand_over(&server);
    println!("hand-over alone {alone:?}, beside a million locks {beside:?}");
    let ratio = beside.as_secs_f64() / alone.as_secs_f64();
    assert!(ratio < RATIO_MAX, "a hand-over takes {ratio} times as long");

    let_all_end_together(&server, taken);
    assert_eq!(client.int("DBSIZE"), LOCKS as i64, "none ended early");
    let is_done = AtomicBool::new(false);
    let longest = std::thread::scope(|scope| {
        let pings = scope.spawn(|| longest_ping(server.client(), &is_done));
        let began =
            await_some("the first lease ends", || (client.int("DBSIZE") < LOCKS as i64).then(Instant::now));
        await_some("all leases have ended", || (client.int("DBSIZE") == 0).then_some(()));
        println!("all ended within {:?}", began.elapsed());
        is_done.store(true, Ordering::Relaxed);
        pings.join().unwrap()
    });
    println!("the longest ping meanwhile took {longest:?}");
    assert!(longest < STALL_MAX, "the server was deaf for {longest:?}");
    let left = memory(&mut client).saturating_sub(empty);
    println!("{left} bytes are not given back");
    assert!(left < (full - empty) / 4, "{left} of {} bytes are not given back", full - empty);
}
