//! A client that waits in a thread of its own, so that the test can watch it wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::client::{Answer, CLOSED, Client, as_int};
use super::until::patient;

const LIMIT: Duration = Duration::from_secs(15);

pub struct Waiter {
    pub client_id: i64,
    line: String,
    answers: Receiver<(Answer, Instant)>,
    is_answered: Arc<AtomicBool>,
    /// When the command was sent, or a little before.
    pub sent_at: Instant,
}

impl Waiter {
    pub fn start(mut client: Client, line: &str) -> Waiter {
        let (answered, answers) = channel();
        let client_id = client.id();
        let sent_at = Instant::now();
        let words = line.to_string();
        let is_answered = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_answered);
        // Ends with the server at the latest: its death closes the connection.
        std::thread::spawn(move || {
            let answer = client.ask(&words);
            flag.store(true, Ordering::Relaxed);
            // The receiver is gone if the test has failed or ended.
            let _ = answered.send((answer, Instant::now()));
        });
        Waiter { client_id, line: line.to_string(), answers, is_answered, sent_at }
    }

    pub fn is_answered(&self) -> bool {
        self.is_answered.load(Ordering::Relaxed)
    }

    /// The answer, and when it came.
    #[track_caller]
    pub fn timed_answer(&self) -> (Answer, Instant) {
        match self.answers.recv_timeout(patient(LIMIT)) {
            Ok(answer) => answer,
            Err(_) => panic!("{}: no answer in {LIMIT:?}", self.line),
        }
    }

    #[track_caller]
    pub fn answer(&self) -> Answer {
        self.timed_answer().0
    }

    /// The token, once it is granted, which it must be.
    #[track_caller]
    pub fn granted(&self) -> i64 {
        let answer = self.answer();
        let token = answer.as_ref().ok().and_then(as_int);
        token.unwrap_or_else(|| panic!("{}: answered {answer:?}", self.line))
    }

    /// The error, which it must get.
    #[track_caller]
    pub fn refused(&self) -> String {
        match self.answer() {
            Ok(value) => panic!("{}: answered {value:?}", self.line),
            Err(error) => error,
        }
    }

    /// Its wait must end for a reason that is not its own, or it must lose the connection.
    #[track_caller]
    pub fn turned_away(&self) {
        let reason = self.refused();
        assert!(
            reason.starts_with("UNBLOCKED") || reason.starts_with(CLOSED),
            "{}: answered {reason}",
            self.line
        );
    }

    /// It must get nil: its time is up.
    #[track_caller]
    pub fn timed_out(&self) {
        let answer = self.answer();
        assert_eq!(answer, Ok(redis::Value::Nil), "{}", self.line);
    }

    /// Fails if it is answered within `duration`.
    #[track_caller]
    pub fn waits_for(&self, duration: Duration) {
        match self.answers.recv_timeout(duration) {
            Err(RecvTimeoutError::Timeout) => {}
            other => panic!("{}: answered too early: {other:?}", self.line),
        }
    }
}
