//! The messages between the tool and its guard: frames of one size over a pair of sockets.

use std::time::Duration;

use crate::timing::Deadline;

/// The size of a frame: a kind and two numbers.
pub const FRAME: usize = 17;

/// The tool's orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Start the command, with this fencing token.
    Begin { token: u64 },
    /// End the command at this deadline, unless another one comes.
    Extend(Deadline),
    /// End the command now: SIGTERM, and SIGKILL after the pause.
    Terminate,
    /// Kill all processes now.
    Kill,
    /// Send this signal to the group of the command.
    Signal(i32),
}

/// The reason why the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It ended on its own.
    Itself,
    /// The deadline of the lease.
    Deadline,
    /// An order of the tool.
    Order,
}

/// The guard's reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The command runs, and leads this process group.
    Began { group: i32 },
    /// The command could not be started: the number of the error.
    Failed { errno: i32 },
    /// The deadline had passed already: nothing was started.
    TooLate,
    /// The command was stopped by this signal.
    Stopped { signal: i32 },
    /// The command has ended; processes that it left are being ended.
    Leftovers,
    /// The command and all that it left have ended: its status as waitpid gives it.
    Ended { status: i32, cause: Cause },
}

fn frame(kind: u8, one: u64, two: u64) -> [u8; FRAME] {
    let mut bytes = [kind; FRAME];
    bytes[1..9].copy_from_slice(&one.to_le_bytes());
    bytes[9..].copy_from_slice(&two.to_le_bytes());
    bytes
}

fn numbers(bytes: &[u8; FRAME]) -> (u8, u64, u64) {
    let (mut one, mut two) = ([0; 8], [0; 8]);
    one.copy_from_slice(&bytes[1..9]);
    two.copy_from_slice(&bytes[9..]);
    (bytes[0], u64::from_le_bytes(one), u64::from_le_bytes(two))
}

fn nanoseconds(moment: Duration) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_sign_loss, reason = "the bits are read back as they were")]
fn unsigned(number: i32) -> u64 {
    u64::from(number as u32)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "these bits were a signed number"
)]
fn signed(number: u64) -> i32 {
    number as u32 as i32
}

impl Order {
    pub fn to_frame(self) -> [u8; FRAME] {
        match self {
            Self::Begin { token } => frame(1, token, 0),
            Self::Extend(deadline) => frame(2, nanoseconds(deadline.term), nanoseconds(deadline.kill)),
            Self::Terminate => frame(3, 0, 0),
            Self::Kill => frame(4, 0, 0),
            Self::Signal(signal) => frame(5, unsigned(signal), 0),
        }
    }

    /// `None` for a frame of another version.
    pub fn of_frame(bytes: &[u8; FRAME]) -> Option<Self> {
        let (kind, one, two) = numbers(bytes);
        Some(match kind {
            1 => Self::Begin { token: one },
            2 => Self::Extend(Deadline { term: Duration::from_nanos(one), kill: Duration::from_nanos(two) }),
            3 => Self::Terminate,
            4 => Self::Kill,
            5 => Self::Signal(signed(one)),
            _ => return None,
        })
    }
}

impl Report {
    pub fn to_frame(self) -> [u8; FRAME] {
        match self {
            Self::Began { group } => frame(1, unsigned(group), 0),
            Self::Failed { errno } => frame(2, unsigned(errno), 0),
            Self::TooLate => frame(3, 0, 0),
            Self::Stopped { signal } => frame(4, unsigned(signal), 0),
            Self::Leftovers => frame(5, 0, 0),
            Self::Ended { status, cause } => frame(6, unsigned(status), cause as u64),
        }
    }

    /// `None` for a frame of another version.
    pub fn of_frame(bytes: &[u8; FRAME]) -> Option<Self> {
        let (kind, one, two) = numbers(bytes);
        Some(match kind {
            1 => Self::Began { group: signed(one) },
            2 => Self::Failed { errno: signed(one) },
            3 => Self::TooLate,
            4 => Self::Stopped { signal: signed(one) },
            5 => Self::Leftovers,
            6 => {
                let cause = match two {
                    0 => Cause::Itself,
                    1 => Cause::Deadline,
                    _ => Cause::Order,
                };
                Self::Ended { status: signed(one), cause }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_back() {
        let deadline = Deadline { term: Duration::from_nanos(7), kill: Duration::from_secs(1 << 30) };
        for order in [
            Order::Begin { token: (1 << 53) - 1 },
            Order::Extend(deadline),
            Order::Terminate,
            Order::Kill,
            Order::Signal(15),
        ] {
            assert_eq!(Order::of_frame(&order.to_frame()), Some(order));
        }
        for report in [
            Report::Began { group: i32::MAX },
            Report::Failed { errno: 2 },
            Report::TooLate,
            Report::Stopped { signal: 19 },
            Report::Leftovers,
            Report::Ended { status: -1, cause: Cause::Deadline },
            Report::Ended { status: 9, cause: Cause::Order },
            Report::Ended { status: 0, cause: Cause::Itself },
        ] {
            assert_eq!(Report::of_frame(&report.to_frame()), Some(report));
        }
        assert_eq!(Order::of_frame(&frame(99, 0, 0)), None);
        assert_eq!(Report::of_frame(&frame(99, 0, 0)), None);
    }
}
