//! Finds the servers of locks, keeps a connection to each, and sends and repeats requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::{Cmd, ConnectionInfo, Value};
use tokio::time::{sleep, timeout};

use crate::clock::Moment;
use crate::error::Error;
use crate::link::{Address, Before, Failure, Link, OnChange, Request, address_of, at, lock};
use crate::rules::{ATTEMPT, LONGEST_PAUSE, PAUSE, Step, judge, slot};
use crate::wanted::Wanted;

/// Which servers there are.
#[derive(Clone, Debug)]
pub(crate) enum Topology {
    /// One.
    Single(ConnectionInfo),
    /// The primary that sentinels know by this name, and how to log in there.
    Sentinel { sentinels: Vec<ConnectionInfo>, service: String, primary: ConnectionInfo },
    /// A cluster, and some of its nodes.
    Cluster(Vec<ConnectionInfo>),
}

impl Topology {
    fn login(&self) -> &ConnectionInfo {
        match self {
            Self::Single(info) => info,
            Self::Sentinel { primary, .. } => primary,
            Self::Cluster(nodes) => &nodes[0],
        }
    }
}

/// Why an attempt failed that had no time left to connect.
const TOO_LATE: &str = "it took too long to connect";

/// A reply, and when the request was sent that got it.
pub(crate) struct Answer {
    pub(crate) reply: Value,
    pub(crate) sent: Moment,
    /// The place of the request among all, and its connection's.
    pub(crate) number: u64,
    pub(crate) link: u64,
    /// Whether the request was sent before and not answered: it may have been done then.
    pub(crate) is_repeated: bool,
    /// Whether that one may still come: nobody knows what becomes of a connection that was given up.
    pub(crate) may_come_late: bool,
}

/// What has become of a request that was sent before.
#[derive(Clone, Copy, Default)]
struct Earlier {
    is_unanswered: bool,
    may_come_late: bool,
}

/// A request for the server that has this lock.
pub(crate) struct Ask<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) command: &'a Cmd,
    /// Until when it is repeated.
    pub(crate) until: Moment,
    /// The acquire that it is for, which is told if it goes unanswered.
    pub(crate) wanted: Option<&'a Wanted>,
    /// What is sent before it where the server tells of changes, if anything.
    pub(crate) before: Option<Before<'a>>,
}

impl<'a> Ask<'a> {
    pub(crate) fn new(name: &'a [u8], command: &'a Cmd, until: Moment) -> Self {
        Self { name, command, until, wanted: None, before: None }
    }
}

/// The door to one server: one task after the other makes its connection, in the order in which they came.
#[derive(Default)]
struct Door {
    gate: tokio::sync::Mutex<()>,
    link: Mutex<Option<Arc<Link>>>,
}

impl Door {
    fn link(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        lock(&self.link)
    }

    fn ready(&self) -> Option<Arc<Link>> {
        self.link().as_ref().filter(|link| !link.is_closed()).cloned()
    }
}

#[derive(Default)]
struct Known {
    primary: Option<Address>,
    slots: HashMap<u16, Address>,
    nodes: Vec<ConnectionInfo>,
    doors: HashMap<Address, Arc<Door>>,
}

/// The servers of one client.
pub(crate) struct Servers {
    topology: Topology,
    known: Mutex<Known>,
    finding: tokio::sync::Mutex<()>,
    closed: AtomicBool,
    on_change: OnChange,
}

impl Servers {
    pub(crate) fn new(topology: Topology, on_change: OnChange) -> Self {
        let mut known = Known::default();
        match &topology {
            Topology::Single(info) => known.primary = Some(address_of(info)),
            Topology::Sentinel { sentinels, .. } => known.nodes.clone_from(sentinels),
            Topology::Cluster(nodes) => known.nodes.clone_from(nodes),
        }
        let (finding, closed) = (tokio::sync::Mutex::new(()), AtomicBool::new(false));
        Self { topology, known: Mutex::new(known), finding, closed, on_change }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    /// Whether there is but one server, which cannot be found anew.
    pub(crate) fn is_single(&self) -> bool {
        matches!(self.topology, Topology::Single(_))
    }

    // Where the servers are.

    /// The server of this lock, as far as it is known.
    pub(crate) fn address(&self, name: &[u8]) -> Option<Address> {
        self.address_in(&self.known(), name).cloned()
    }

    fn address_in<'a>(&self, known: &'a Known, name: &[u8]) -> Option<&'a Address> {
        match self.topology {
            Topology::Cluster(_) => known.slots.get(&slot(name)),
            _ => known.primary.as_ref(),
        }
    }

    /// All servers that grant locks.
    pub(crate) async fn primaries(&self) -> Result<Vec<Address>, Failure> {
        let is_cluster = matches!(self.topology, Topology::Cluster(_));
        if is_cluster || self.known().primary.is_none() {
            self.find().await.map_err(unknown)?;
        }
        let known = self.known();
        let mut found: Vec<_> = if is_cluster { known.slots.values().cloned().collect() } else { Vec::new() };
        found.extend(known.primary.clone());
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// Notes that this server may be the primary no more.
    pub(crate) fn forget(&self, address: Option<&Address>) {
        let mut known = self.known();
        match self.topology {
            Topology::Cluster(_) => known.slots.retain(|_, at| Some(&*at) != address),
            Topology::Sentinel { .. } if known.primary.as_ref() == address => known.primary = None,
            _ => {}
        }
    }

    /// A server says that another one has this slot.
    pub(crate) fn moved(&self, slot: u16, host: String, port: u16, by: Option<&Address>) {
        let host = by.filter(|_| host.is_empty()).map_or_else(|| host.into(), |by| by.host.clone());
        self.known().slots.insert(slot, Address { host, port });
    }

    /// Finds the server of this lock, unless another task has just done so.
    async fn find_for(&self, name: &[u8]) -> Result<Address, Failure> {
        if let Some(address) = self.address(name) {
            return Ok(address);
        }
        let _alone = self.finding.lock().await;
        if self.address(name).is_none() {
            self.find().await.map_err(unknown)?;
        }
        self.address(name).ok_or_else(|| unknown("no node has its slot".to_owned()))
    }

    /// Asks where the primary is, or the primaries of a cluster; why it is left unknown if nobody can tell.
    async fn find(&self) -> Result<(), String> {
        let (nodes, mut why) = (self.known().nodes.clone(), String::new());
        for (number, node) in nodes.into_iter().enumerate() {
            let found = match &self.topology {
                Topology::Sentinel { service, .. } => self.ask_sentinel(&node, service).await,
                Topology::Cluster(_) => self.ask_cluster(&node).await,
                Topology::Single(_) => return Ok(()),
            };
            if let Err(its) = found {
                why = format!("{}: {its}", address_of(&node));
                continue;
            }
            // The one that answers is asked first.
            let mut known = self.known();
            if number < known.nodes.len() {
                known.nodes[..=number].rotate_right(1);
            }
            return Ok(());
        }
        Err(why)
    }

    async fn ask_sentinel(&self, sentinel: &ConnectionInfo, service: &str) -> Result<(), String> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
        let address = match ask_once(sentinel, &command).await? {
            Value::Array(found) => primary_address(&found),
            _ => return Err(format!("this sentinel watches no primary named {service}")),
        };
        self.known().primary = Some(address.ok_or("its reply is no address")?);
        Ok(())
    }

    async fn ask_cluster(&self, node: &ConnectionInfo) -> Result<(), String> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let Value::Array(rows) = ask_once(node, &command).await? else {
            return Err("its reply is no table of slots".to_owned());
        };
        let by = address_of(node);
        let (mut slots, mut nodes) = (HashMap::new(), Vec::new());
        for row in rows {
            let Value::Array(row) = row else { continue };
            let [Value::Int(first), Value::Int(last), servers @ ..] = &row[..] else { continue };
            let addresses: Vec<_> = servers.iter().filter_map(|server| node_address(server, &by)).collect();
            let Some(primary) = addresses.first() else { continue };
            slots.extend(
                (*first..=*last).filter_map(|slot| Some((u16::try_from(slot).ok()?, primary.clone()))),
            );
            nodes.extend(addresses);
        }
        if slots.is_empty() {
            return Err("no node that it knows has slots".to_owned());
        }
        let mut known = self.known();
        known.slots = slots;
        for address in nodes {
            if known.nodes.iter().all(|node| address_of(node) != address) {
                known.nodes.push(at(self.topology.login(), &address));
            }
        }
        Ok(())
    }

    // Connections.

    fn door(&self, address: &Address) -> Arc<Door> {
        self.known().doors.entry(address.clone()).or_default().clone()
    }

    fn known_door(&self, name: &[u8]) -> Option<Arc<Door>> {
        let known = self.known();
        known.doors.get(self.address_in(&known, name)?).cloned()
    }

    /// The connection to the server of this lock, if there is one.
    pub(crate) fn ready(&self, name: &[u8]) -> Option<Arc<Link>> {
        self.known_door(name)?.ready()
    }

    /// The connection to the server of this lock, if it is ready. `None` also while others wait for it to be made.
    fn at_once(&self, name: &[u8]) -> Option<Arc<Link>> {
        let door = self.known_door(name)?;
        let _nobody_else = door.gate.try_lock().ok()?;
        door.ready()
    }

    /// The connection to the server of this lock. The caller that is first here sends first.
    pub(crate) async fn link(&self, name: &[u8]) -> Result<Arc<Link>, Failure> {
        self.link_to(&self.find_for(name).await?).await
    }

    /// The connection to this server.
    pub(crate) async fn link_to(&self, address: &Address) -> Result<Arc<Link>, Failure> {
        let door = self.door(address);
        let _in_order = door.gate.lock().await;
        if let Some(link) = door.ready() {
            return Ok(link);
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(Failure::Broken("these locks were closed".to_owned()));
        }
        let link = Link::told(at(self.topology.login(), address), self.on_change.clone()).await?;
        *door.link() = Some(link.clone());
        Ok(link)
    }

    /// A connection to the server of this lock for one request that waits.
    pub(crate) async fn own_link(&self, name: &[u8]) -> Result<(Arc<Link>, Address), Failure> {
        let address = self.find_for(name).await?;
        let link = Link::plain(at(self.topology.login(), &address)).await;
        Ok((link.map_err(|failure| failure.at(&address))?, address))
    }

    /// Ends all connections, and makes no new ones.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let doors: Vec<_> = self.known().doors.values().cloned().collect();
        for door in doors {
            if let Some(link) = door.link().take() {
                link.close();
            }
        }
    }

    // Requests.

    /// The reply of the server that has this lock. Repeats the request until its time is over.
    pub(crate) async fn request(&self, ask: Ask<'_>) -> Result<Answer, Error> {
        let (mut pause, mut earlier, mut asking, mut reason) = (PAUSE, Earlier::default(), None, None);
        loop {
            let address = asking.clone().or_else(|| self.address(ask.name));
            let failure = match self.attempt(&ask, asking.as_ref(), &mut earlier).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Broken(why)) => {
                    asking = None;
                    self.forget(address.as_ref());
                    why
                }
                Err(Failure::Refused(text)) => {
                    asking = None;
                    match judge(&text) {
                        Step::Fail => return Err(Error::from_reply(&text)),
                        Step::Moved { .. } if self.is_single() => return Err(Error::from_reply(&text)),
                        Step::Again => self.leave(address.as_ref(), &text),
                        Step::Moved { slot, host, port } => self.moved(slot, host, port, address.as_ref()),
                        Step::Ask { host, port } => asking = Some(Address { host: host.into(), port }),
                    }
                    text
                }
            };
            let at = address.map(|address| format!("{address}: ")).unwrap_or_default();
            // The last attempt may have been cut short: what was told before says more.
            let told = reason.take().filter(|_| failure == TOO_LATE);
            let failure = told.unwrap_or_else(|| format!("{at}{failure}"));
            let left = ask.until.left();
            if left.is_zero() || self.closed.load(Ordering::Acquire) {
                return Err(Error::connection(failure));
            }
            reason = Some(failure);
            sleep(pause.min(left)).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    async fn attempt(
        &self,
        ask: &Ask<'_>,
        node: Option<&Address>,
        earlier: &mut Earlier,
    ) -> Result<Answer, Failure> {
        let left = ask.until.left();
        let at_once = if node.is_none() { self.at_once(ask.name) } else { None };
        let link = match at_once {
            Some(link) => link,
            None => self.link_in(left.max(5 * PAUSE), ask.name, node).await?,
        };
        // A node that has the slot only half tells of nothing.
        let before = ask.before.filter(|_| link.is_told() && node.is_none());
        let request = Request { command: ask.command, asks: node.is_some(), before };
        let sent = Moment::now();
        let most = ATTEMPT.min((left / 2).max(5 * PAUSE));
        ask.wanted.inspect(|wanted| wanted.sends());
        match link.call_for(&request, most).await {
            Ok((reply, number)) => {
                ask.wanted.filter(|_| reply == Value::Nil).inspect(|wanted| wanted.got_nothing());
                let Earlier { is_unanswered: is_repeated, may_come_late } = *earlier;
                Ok(Answer { reply, sent, number, link: link.number, is_repeated, may_come_late })
            }
            Err(failure) => {
                match &failure {
                    Failure::Broken(_) => {
                        earlier.is_unanswered = true;
                        earlier.may_come_late |= link.is_given_up();
                        ask.wanted.inspect(|wanted| wanted.doubt());
                    }
                    // What it has begun may still be undone.
                    Failure::Refused(text) if text.starts_with("NOREPLICAS") => {}
                    Failure::Refused(_) => drop(ask.wanted.inspect(|wanted| wanted.got_nothing())),
                }
                Err(failure)
            }
        }
    }

    async fn link_in(
        &self,
        most: Duration,
        name: &[u8],
        node: Option<&Address>,
    ) -> Result<Arc<Link>, Failure> {
        let linking = async {
            match node {
                Some(address) => self.link_to(address).await,
                None => self.link(name).await,
            }
        };
        let late = |_| Err(Failure::Broken(TOO_LATE.to_owned()));
        timeout(most, linking).await.unwrap_or_else(late)
    }

    /// Looks for the primary anew, after a server said that it is none.
    fn leave(&self, address: Option<&Address>, text: &str) {
        self.forget(address);
        if let Some(address) = address.filter(|_| !self.is_single() && text.starts_with("READONLY"))
            && let Some(link) = self.door(address).link().take()
        {
            link.close();
        }
    }
}

/// The reply of a server that is asked nothing else, or why there is none.
async fn ask_once(server: &ConnectionInfo, command: &Cmd) -> Result<Value, String> {
    let asked = async { Link::plain(server.clone()).await?.call(command, ATTEMPT).await };
    asked.await.map(|(value, _)| value).map_err(|failure| match failure {
        Failure::Broken(text) | Failure::Refused(text) => text,
    })
}

fn unknown(why: String) -> Failure {
    Failure::Broken(format!("nobody knows which server is the primary: {why}"))
}

/// The address of a primary as a sentinel names it.
fn primary_address(found: &[Value]) -> Option<Address> {
    let [Value::BulkString(host), Value::BulkString(port)] = found else { return None };
    Some(Address {
        host: String::from_utf8_lossy(host).into(),
        port: String::from_utf8_lossy(port).parse().ok()?,
    })
}

/// A node as `CLUSTER SLOTS` names it; without a host it is the one that answered.
fn node_address(server: &Value, by: &Address) -> Option<Address> {
    let Value::Array(server) = server else { return None };
    let [host, Value::Int(port), ..] = &server[..] else { return None };
    let host = match host {
        Value::BulkString(host) if host == b"?" => return None,
        Value::BulkString(host) if !host.is_empty() => String::from_utf8_lossy(host).into(),
        _ => by.host.clone(),
    };
    Some(Address { host, port: u16::try_from(*port).ok()? })
}
