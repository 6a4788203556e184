//! Finds the servers of locks, and keeps a connection to each.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::{Cmd, ConnectionAddr, ConnectionInfo, Value};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::address::{Address, address_of, at};
use crate::clock::{Moment, at_random};
use crate::info::{module_version, shown_version};
use crate::link::{Failure, Link, OnChange, lock};
use crate::rules::{ATTEMPT, LONGEST_RECONNECT, MODULE_VERSION_MIN, RECONNECT, slot};

/// The kind of deployment.
#[derive(Clone, Debug)]
pub(crate) enum Topology {
    /// One server.
    Single(ConnectionInfo),
    /// The primary that sentinels know by this name, and the login there.
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

/// The door to one server: tasks connect one at a time, in order of arrival.
#[derive(Default)]
pub(crate) struct Door {
    gate: tokio::sync::Mutex<()>,
    link: Mutex<Option<Arc<Link>>>,
    /// The number of connections tried since the server last did what only a primary does, and whether it
    /// ever did.
    pub(crate) tries: AtomicU32,
    pub(crate) has_served: AtomicBool,
    /// True if the server was asked for the version of its module.
    has_told_version: AtomicBool,
    /// The error of the last attempt to connect, if none has succeeded since.
    failure: Mutex<Option<Failure>>,
}

impl Door {
    fn link(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        lock(&self.link)
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }

    /// Waits longer before each connection that follows a failed one.
    async fn back_off(&self) {
        let tries = self.tries.fetch_add(1, Ordering::Relaxed);
        sleep(back_off(tries)).await;
    }

    fn ready(&self) -> Option<Arc<Link>> {
        self.link().as_ref().filter(|link| !link.is_closed()).cloned()
    }
}

/// Returns the pause before another attempt to connect, which grows with each failure.
pub(crate) fn back_off(tries: u32) -> Duration {
    match tries {
        0 => Duration::ZERO,
        _ => at_random(LONGEST_RECONNECT.min(RECONNECT * (1 << (tries - 1).min(8)))),
    }
}

#[derive(Default)]
struct Known {
    primary: Option<Address>,
    /// The previous primary, if the sentinels name another one.
    last: Option<Address>,
    slots: HashMap<u16, Address>,
    nodes: Vec<ConnectionInfo>,
    doors: BTreeMap<Address, Arc<Door>>,
}

/// The servers of one client.
pub(crate) struct Servers {
    topology: Topology,
    known: Mutex<Known>,
    finding: tokio::sync::Mutex<()>,
    pub(crate) closed: AtomicBool,
    /// The time of a server's last reply.
    heard: Mutex<Moment>,
    /// True if a temporary refusal was logged.
    pub(crate) refuses: AtomicBool,
    on_change: OnChange,
    pub(crate) on_reconnect: OnReconnect,
    /// The time for which no server may answer during an unlimited wait.
    pub(crate) timeout: Duration,
}

/// Called when a server serves again over a new connection.
pub(crate) type OnReconnect = Box<dyn Fn(&Address) + Send + Sync>;

impl Servers {
    pub(crate) fn new(
        topology: Topology,
        on_change: OnChange,
        on_reconnect: OnReconnect,
        timeout: Duration,
    ) -> Self {
        let mut known = Known::default();
        match &topology {
            Topology::Single(info) => known.primary = Some(address_of(info)),
            Topology::Sentinel { sentinels, .. } => known.nodes.clone_from(sentinels),
            Topology::Cluster(nodes) => known.nodes.clone_from(nodes),
        }
        Self {
            topology,
            known: Mutex::new(known),
            finding: tokio::sync::Mutex::new(()),
            closed: AtomicBool::default(),
            heard: Mutex::new(Moment::now()),
            refuses: AtomicBool::default(),
            on_change,
            on_reconnect,
            timeout,
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    /// Returns true if there is only one server, so that there is no other to find.
    pub(crate) fn is_single(&self) -> bool {
        matches!(self.topology, Topology::Single(_))
    }

    // Addresses.

    /// Returns the server of this lock, if known.
    pub(crate) fn address(&self, name: &[u8]) -> Option<Address> {
        self.address_in(&self.known(), name).cloned()
    }

    fn address_in<'a>(&self, known: &'a Known, name: &[u8]) -> Option<&'a Address> {
        match self.topology {
            Topology::Cluster(_) => known.slots.get(&slot(name)),
            _ => known.primary.as_ref(),
        }
    }

    /// Records that this server may have ceased to be the primary.
    pub(crate) fn forget(&self, address: Option<&Address>) {
        let mut known = self.known();
        match self.topology {
            Topology::Cluster(_) => known.slots.retain(|_, at| Some(&*at) != address),
            Topology::Sentinel { .. } if known.primary.as_ref() == address => known.primary = None,
            _ => {}
        }
    }

    /// Records that a server says another one has this slot.
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
        self.address(name).ok_or_else(|| unknown(Failure::broken("no node has its slot")))
    }

    /// Looks up the primary, or the primaries of a cluster. Returns the reason if no server can tell.
    async fn find(&self) -> Result<(), Failure> {
        let (nodes, mut why) = (self.known().nodes.clone(), Failure::broken("no server is named"));
        for (number, node) in nodes.into_iter().enumerate() {
            let found = match &self.topology {
                Topology::Sentinel { service, .. } => self.ask_sentinel(&node, service).await,
                Topology::Cluster(_) => self.ask_cluster(&node).await,
                Topology::Single(_) => return Ok(()),
            };
            if let Err(its) = found {
                why = match its {
                    login @ Failure::Refused(_) if login.is_login() => login.at(&address_of(&node)),
                    Failure::Refused(text) | Failure::Broken(text, _) => {
                        Failure::broken(format!("{}: {text}", address_of(&node)))
                    }
                };
                continue;
            }
            // The sentinel or node that answers is asked first the next time.
            let mut known = self.known();
            if number < known.nodes.len() {
                known.nodes[..=number].rotate_right(1);
            }
            return Ok(());
        }
        Err(why)
    }

    async fn ask_sentinel(&self, sentinel: &ConnectionInfo, service: &str) -> Result<(), Failure> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
        let address = match ask_once(sentinel, &command).await? {
            Value::Array(found) => primary_address(&found),
            _ => return Err(Failure::broken(format!("this sentinel watches no primary named {service}"))),
        };
        let address = address.ok_or_else(|| Failure::broken("its reply is no address"))?;
        let last = {
            let mut known = self.known();
            known.primary = Some(address.clone());
            known.last.replace(address.clone())
        };
        if let Some(last) = last.filter(|last| *last != address) {
            info!("the primary of {service} changed to {address}, before {last}");
        }
        Ok(())
    }

    async fn ask_cluster(&self, node: &ConnectionInfo) -> Result<(), Failure> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let Value::Array(rows) = ask_once(node, &command).await? else {
            return Err(Failure::broken("its reply is no table of slots"));
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
            return Err(Failure::broken("no node that it knows has slots"));
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

    pub(crate) fn door(&self, address: &Address) -> Arc<Door> {
        self.known().doors.entry(address.clone()).or_default().clone()
    }

    fn known_door(&self, name: &[u8]) -> Option<Arc<Door>> {
        let known = self.known();
        known.doors.get(self.address_in(&known, name)?).cloned()
    }

    /// Returns the connection to the server of this lock, if there is one.
    pub(crate) fn ready(&self, name: &[u8]) -> Option<Arc<Link>> {
        self.known_door(name)?.ready()
    }

    /// Returns the connection to the server of this lock, if it is ready. Also `None` while others wait for
    /// it to be made.
    pub(crate) fn at_once(&self, name: &[u8]) -> Option<Arc<Link>> {
        let door = self.known_door(name)?;
        let _nobody_else = door.gate.try_lock().ok()?;
        door.ready()
    }

    /// Returns the connection to the server of this lock. The first caller here sends first.
    pub(crate) async fn link(&self, name: &[u8]) -> Result<Arc<Link>, Failure> {
        self.link_to(&self.find_for(name).await?).await
    }

    /// Returns the connection to this server.
    pub(crate) async fn link_to(&self, address: &Address) -> Result<Arc<Link>, Failure> {
        let door = self.door(address);
        let _in_order = door.gate.lock().await;
        if let Some(link) = door.ready() {
            return Ok(link);
        }
        door.back_off().await;
        let is_closed = || self.closed.load(Ordering::Acquire);
        let closed = || Failure::broken("these locks are closed");
        if is_closed() {
            return Err(closed());
        }
        let info = at(self.topology.login(), address);
        // A server that has served is still the same after its connection ends.
        let is_unknown =
            matches!(info.addr(), ConnectionAddr::Tcp(..)) && !door.has_served.load(Ordering::Relaxed);
        let made = Link::told(info, self.on_change.clone()).await.map_err(|failure| failure.at(address));
        let made = made.map_err(|failure| if is_unknown { failure.suspect_tls() } else { failure });
        *lock(&door.failure) = made.as_ref().err().cloned();
        let link = made?;
        if !door.has_told_version.swap(true, Ordering::Relaxed) {
            check_version(&link, address).await;
        }
        *door.link() = Some(link.clone());
        if is_closed() {
            link.close(); // while it was made
            return Err(closed());
        }
        self.hears();
        Ok(link)
    }

    /// Returns a connection to the server of this lock for one waiting request.
    pub(crate) async fn own_link(&self, name: &[u8]) -> Result<(Arc<Link>, Address), Failure> {
        let address = self.find_for(name).await?;
        let link = Link::plain(at(self.topology.login(), &address)).await;
        Ok((link.map_err(|failure| failure.at(&address))?, address))
    }

    /// Records that a server has replied.
    pub(crate) fn hears(&self) {
        *lock(&self.heard) = Moment::now();
    }

    /// Returns the time of a server's last reply.
    pub(crate) fn heard(&self) -> Moment {
        *lock(&self.heard)
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
}

/// Logs that the module of this server is too old. A missing module is reported by the first request for a
/// lock.
async fn check_version(link: &Link, address: &Address) {
    let Ok((hello, _)) = link.call(&redis::cmd("HELLO"), ATTEMPT).await else { return };
    if let Some(old) = module_version(&hello).filter(|version| *version < MODULE_VERSION_MIN) {
        let [old, least] = [old, MODULE_VERSION_MIN].map(shown_version);
        warn!(
            "the module redislock on {address} is version {old}, and this client needs {least} or later: \
             upgrade the module"
        );
    }
}

/// Returns the reply of a server over a separate connection.
async fn ask_once(server: &ConnectionInfo, command: &Cmd) -> Result<Value, Failure> {
    let is_plain = matches!(server.addr(), ConnectionAddr::Tcp(..));
    let made = Link::plain(server.clone()).await;
    let made = made.map_err(|failure| if is_plain { failure.suspect_tls() } else { failure });
    let (value, _) = made?.call(command, ATTEMPT).await?;
    Ok(value)
}

/// Returns the reason why no server is known. A server that refuses the login would refuse it again.
fn unknown(why: Failure) -> Failure {
    match why {
        Failure::Broken(text, _) => {
            Failure::broken(format!("nobody knows which server is the primary: {text}"))
        }
        refused @ Failure::Refused(_) => refused,
    }
}

/// Parses the address of a primary from a sentinel's reply.
fn primary_address(found: &[Value]) -> Option<Address> {
    let [Value::BulkString(host), Value::BulkString(port)] = found else { return None };
    Some(Address {
        host: String::from_utf8_lossy(host).into(),
        port: String::from_utf8_lossy(port).parse().ok()?,
    })
}

/// Parses a node from `CLUSTER SLOTS`; without a host, it is the node that answered.
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
