//! The loop that all peers share, and what it writes down.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::time::{self, ClockId, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

/// An event decoded from bytes that arrived.
#[derive(Clone, Copy)]
pub enum Event {
    Granted(usize),
    Freed(usize),
}

/// A lock as its clients see it. Contenders are numbers from 0; connections have tokens, which the peer
/// chooses.
pub trait Peer {
    /// Opens the connections that contenders below this number still lack, and has them watched.
    fn open(&mut self, contenders: usize, watch: &Watch) -> io::Result<()>;
    /// Brings the lock into the free state.
    fn reset(&mut self) -> io::Result<()>;
    fn take(&mut self, who: usize) -> io::Result<()>;
    fn free(&mut self, who: usize) -> io::Result<()>;
    /// A connection can be read.
    fn read(&mut self, token: usize, events: &mut Vec<Event>) -> io::Result<()>;
}

/// The set of connections that are waited for.
pub struct Watch(OwnedFd);

impl Watch {
    pub fn add(&self, stream: &TcpStream, token: usize) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let data = epoll::EventData::new_u64(token as u64);
        Ok(epoll::add(&self.0, stream, data, epoll::EventFlags::IN)?)
    }
}

pub struct Plan {
    pub contenders: usize,
    pub hold: Duration,
    /// A contender that is granted the lock before this time of CLOCK_MONOTONIC keeps it until then.
    pub open_ns: u64,
    /// A contender that frees the lock after this time of CLOCK_MONOTONIC does not ask again.
    pub end_ns: u64,
    /// True if the queue stays for the next run.
    pub is_staying: bool,
}

/// One turn: nanoseconds of CLOCK_MONOTONIC; 0 if it did not come to that.
#[derive(Clone, Copy)]
pub struct Turn {
    who: usize,
    asked: u64,
    granted: u64,
    freed: u64,
}

/// Every turn of a run, from the first to the last.
pub struct Outcome(Vec<Turn>);

/// As one line of JSON.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{\"turns\": [")?;
        for (number, turn) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}[{},{},{},{}]", turn.who, turn.asked, turn.granted, turn.freed)?;
        }
        f.write_str("]}")
    }
}

/// The token of the timer that ends a hold; no connection has it.
const TIMER: u64 = u64::MAX;
/// A run without progress for this many seconds has failed.
const PATIENCE_S: u64 = 30;
const EVENTS_MAX: usize = 256;

/// The behaviour of the loop while nothing has arrived.
#[derive(Clone, Copy)]
pub enum Idle {
    /// Asks again at once. A processor that sleeps takes tens of microseconds to wake up in a virtual machine,
    /// several times what a hand-over takes, and that is neither the server's nor the lock's.
    Polls,
    Sleeps,
}

pub struct Driver {
    idle: Idle,
    peer: Box<dyn Peer>,
    watch: Watch,
    /// Ends a hold: there is one lock, so one holder, so one timer.
    timer: OwnedFd,
    ready: Vec<epoll::Event>,
    events: Vec<Event>,
    /// A run whose line has stayed.
    standing: Option<Run>,
}

/// The state of one run.
struct Run {
    hold: Duration,
    open: u64,
    stop: u64,
    /// When each one asked; 0 for a contender that does not ask.
    asked: Vec<u64>,
    turns: Vec<Turn>,
    holder: Option<usize>,
    waiting: usize,
    is_closed: bool,
    is_staying: bool,
}

impl Run {
    /// Returns whether the end was reached with a queue that stays, after a contender that holds the lock.
    fn stands(&self) -> bool {
        self.is_staying && self.turns.last().is_some_and(|last| last.granted >= self.stop && last.freed == 0)
    }
}

impl Driver {
    pub fn new(peer: Box<dyn Peer>, idle: Idle) -> io::Result<Self> {
        let watch = Watch(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let timer =
            time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        epoll::add(&watch.0, &timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN)?;
        Ok(Self {
            idle,
            peer,
            watch,
            timer,
            ready: Vec::with_capacity(EVENTS_MAX),
            events: Vec::new(),
            standing: None,
        })
    }

    pub fn open(&mut self, contenders: usize) -> io::Result<()> {
        self.peer.open(contenders, &self.watch)
    }

    /// All contenders ask, and continue until the time has passed.
    pub fn run(&mut self, plan: Plan) -> io::Result<Outcome> {
        let mut run = match self.standing.take() {
            Some(run) if run.asked.len() == plan.contenders => self.go_on(run, &plan)?,
            Some(_) => return Err(io::Error::other("another number of contenders stands in line")),
            None => self.begin(&plan)?,
        };
        while run.waiting > 0 && !run.stands() {
            self.step(&mut run)?;
        }
        let mut turns = run.turns.clone();
        if run.stands() {
            turns.pop(); // it is not over, and will be told by the next run
            let asking = run.asked.iter().enumerate().filter(|(_, asked)| **asked > 0);
            turns.extend(asking.map(|(who, &asked)| Turn { who, asked, granted: 0, freed: 0 }));
            self.standing = Some(run);
        }
        Ok(Outcome(turns))
    }

    fn begin(&mut self, plan: &Plan) -> io::Result<Run> {
        self.peer.reset()?;
        let mut run = Run {
            hold: plan.hold,
            open: plan.open_ns,
            stop: plan.end_ns,
            asked: vec![0; plan.contenders],
            turns: Vec::with_capacity(1 << 16),
            holder: None,
            waiting: plan.contenders,
            is_closed: false,
            is_staying: plan.is_staying,
        };
        for who in 0..plan.contenders {
            run.asked[who] = now();
            self.peer.take(who)?;
        }
        Ok(run)
    }

    /// The line is there already: its holder waits for the opening.
    fn go_on(&mut self, mut run: Run, plan: &Plan) -> io::Result<Run> {
        run.turns.drain(..run.turns.len() - 1);
        (run.hold, run.open, run.stop) = (plan.hold, plan.open_ns, plan.end_ns);
        run.is_staying = plan.is_staying;
        self.set_timer(Duration::from_nanos(run.open.saturating_sub(now()).max(1)))?;
        Ok(run)
    }

    /// Waits for something to arrive, and answers it.
    fn step(&mut self, run: &mut Run) -> io::Result<()> {
        self.ready.clear();
        let (until, timeout) = match self.idle {
            Idle::Polls => (now() + PATIENCE_S * 1_000_000_000, Timespec::default()),
            Idle::Sleeps => (0, Timespec { tv_sec: PATIENCE_S.cast_signed(), tv_nsec: 0 }),
        };
        while epoll::wait(&self.watch.0, spare_capacity(&mut self.ready), Some(&timeout))? == 0 {
            if now() >= until {
                let waiting = run.waiting;
                return Err(io::Error::other(format!(
                    "nothing happened for {PATIENCE_S} s, {waiting} still wait"
                )));
            }
        }
        if !run.is_closed && !run.is_staying && now() >= run.stop {
            // The rest of the queue is served without a hold.
            (run.is_closed, run.hold) = (true, Duration::ZERO);
        }
        for number in 0..self.ready.len() {
            let token = self.ready[number].data.u64();
            if token == TIMER {
                let mut count = [MaybeUninit::uninit(); 8];
                rustix::io::read(&self.timer, &mut count[..])?;
                self.free(run)?;
                continue;
            }
            self.peer.read(usize::try_from(token).map_err(io::Error::other)?, &mut self.events)?;
            self.answer_all(run)?;
        }
        Ok(())
    }

    fn answer_all(&mut self, run: &mut Run) -> io::Result<()> {
        while let Some(event) = self.events.pop() {
            self.answer(run, event)?;
        }
        Ok(())
    }

    fn answer(&mut self, run: &mut Run, event: Event) -> io::Result<()> {
        match event {
            Event::Granted(who) => {
                if let Some(other) = run.holder.replace(who) {
                    return Err(io::Error::other(format!("{who} was granted what {other} holds")));
                }
                let granted = now();
                run.turns.push(Turn { who, asked: run.asked[who], granted, freed: 0 });
                run.asked[who] = 0;
                if run.stands() {
                    return Ok(());
                }
                let hold = run.hold.max(Duration::from_nanos(run.open.saturating_sub(granted)));
                if hold.is_zero() { self.free(run) } else { self.set_timer(hold) }
            }
            Event::Freed(who) => {
                let time = now();
                if time >= run.stop && !run.is_staying {
                    run.waiting -= 1;
                    return Ok(());
                }
                run.asked[who] = time;
                self.peer.take(who)
            }
        }
    }

    /// The holder's time has passed. It holds no longer from the moment when it sends its release.
    fn free(&mut self, run: &mut Run) -> io::Result<()> {
        let who = run.holder.take().ok_or_else(|| io::Error::other("nobody holds the lock"))?;
        if let Some(turn) = run.turns.iter_mut().rev().find(|turn| turn.who == who) {
            turn.freed = now();
        }
        self.peer.free(who)
    }

    fn set_timer(&self, after: Duration) -> io::Result<()> {
        let value = time::Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec::try_from(after).map_err(io::Error::other)?,
        };
        time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)?;
        Ok(())
    }
}

fn now() -> u64 {
    let now = time::clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
