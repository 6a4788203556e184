//! The replication stream, read as a replica reads it: the commands of a server for others, in order.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use redis::{Parser, Value};

use super::client::{as_list, as_text};
use super::until::patient;
use super::{Client, Server, millis};

pub struct Stream {
    parser: Parser,
    reader: BufReader<TcpStream>,
    db: String,
    markers: u32,
}

/// One command of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub db: String,
    pub words: Vec<String>,
}

impl Record {
    pub fn name(&self) -> String {
        self.words[0].to_ascii_uppercase()
    }

    /// The name; with the kind of the fact in the records that only this module writes: `LOCK.APPLY key 1 KIND ...`.
    pub fn title(&self) -> String {
        match self.name().as_str() {
            "LOCK.APPLY" => format!("LOCK.APPLY {}", self.words[3].to_ascii_uppercase()),
            name => name.to_string(),
        }
    }

    /// Returns whether it says that this owner now holds something.
    pub fn grants(&self, owner: &str) -> bool {
        let grants = ["LOCK.ACQUIRE", "LOCK.APPLY HOLD"].contains(&self.title().as_str());
        grants && self.words.iter().any(|word| word == owner)
    }
}

impl Stream {
    /// Attaches to a server as a replica does and skips the snapshot.
    pub fn attach(server: &Server) -> Stream {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(patient(millis(15_000)))).unwrap();
        (&stream).write_all(b"*3\r\n$5\r\nPSYNC\r\n$1\r\n?\r\n$2\r\n-1\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        assert!(line(&mut reader).starts_with("+FULLRESYNC"));
        let length = line(&mut reader).strip_prefix('$').unwrap().parse().unwrap();
        let copied = std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink()).unwrap();
        assert_eq!(copied, length);
        Stream { parser: Parser::new(), reader, db: String::new(), markers: 0 }
    }

    /// All records up to now, but for those in which a server only keeps in touch.
    pub fn records(&mut self, client: &mut Client) -> Vec<Record> {
        self.markers += 1;
        let marker = format!("marker-{}", self.markers);
        client.call(&format!("PUBLISH {marker} x"));
        let mut records = Vec::new();
        loop {
            let words = self.next();
            match words[0].to_ascii_uppercase().as_str() {
                "SELECT" => self.db = words[1].clone(),
                "PING" | "REPLCONF" => {}
                "PUBLISH" if words[1] == marker => return records,
                _ => records.push(Record { db: self.db.clone(), words }),
            }
        }
    }

    fn next(&mut self) -> Vec<String> {
        loop {
            let value: Value = self.parser.parse_value(&mut self.reader).unwrap();
            let words: Vec<String> = as_list(&value).iter().filter_map(as_text).collect();
            if !words.is_empty() {
                return words;
            }
        }
    }
}

/// The next line that is not one of the empty ones by which a server keeps the connection alive.
fn line(reader: &mut impl BufRead) -> String {
    loop {
        let mut text = String::new();
        reader.read_line(&mut text).unwrap();
        assert!(!text.is_empty(), "the server closed the connection");
        if !text.trim().is_empty() {
            return text.trim().to_string();
        }
    }
}
