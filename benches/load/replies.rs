//! Replies, read only as far as to tell them apart.

use std::io::{ErrorKind, Read};

/// Replies longer than this are not of the commands that are measured.
const BULK_BYTES_MAX: usize = 1 << 12;
const BUFFER_BYTES: usize = 1 << 16;

/// The bytes that came and are not yet a whole reply.
pub struct Replies {
    bytes: Vec<u8>,
    filled: usize,
}

impl Replies {
    pub fn new() -> Replies {
        Replies { bytes: vec![0; BUFFER_BYTES], filled: 0 }
    }

    /// Reads what is there; waits for it, if nothing is.
    pub fn read(&mut self, source: &mut impl Read) -> Result<(), String> {
        match source.read(&mut self.bytes[self.filled..]) {
            Ok(0) => Err("the server closed the connection".into()),
            Ok(length) => {
                self.filled += length;
                Ok(())
            }
            Err(reason) if reason.kind() == ErrorKind::Interrupted => Ok(()),
            Err(reason) => Err(format!("receiving: {reason}")),
        }
    }

    /// Hands every whole reply to `look` and forgets it.
    pub fn take(&mut self, mut look: impl FnMut(&[u8]) -> Result<(), String>) -> Result<(), String> {
        let mut at = 0;
        while let Some(length) = whole(&self.bytes[at..self.filled])? {
            look(&self.bytes[at..at + length])?;
            at += length;
        }
        self.bytes.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }
}

/// The length of the reply at the start of these bytes, if it is whole.
fn whole(bytes: &[u8]) -> Result<Option<usize>, String> {
    let Some(line) = bytes.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    let rest = match bytes[0] {
        b'+' | b'-' | b':' | b'_' => 0,
        b'$' => bulk(&bytes[1..line])?,
        _ => return Err(unexpected(bytes)),
    };
    let length = line + 1 + rest;
    Ok((bytes.len() >= length).then_some(length))
}

/// Returns the number of bytes after the line of a bulk reply.
fn bulk(digits: &[u8]) -> Result<usize, String> {
    match digits.trim_ascii_end() {
        b"-1" => Ok(0),
        digits => {
            let length = std::str::from_utf8(digits).ok().and_then(|text| text.parse::<usize>().ok());
            let length = length.filter(|length| *length <= BULK_BYTES_MAX);
            length.map(|length| length + b"\r\n".len()).ok_or_else(|| unexpected(digits))
        }
    }
}

fn unexpected(bytes: &[u8]) -> String {
    format!("the server sent what is no reply to these commands: {}", shown(bytes))
}

/// The start of a reply, for a message.
pub fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).trim_end().to_string()
}
