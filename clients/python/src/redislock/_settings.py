"""Reads from a redis-py or valkey-py client where its servers are and how to log in.

The library opens its own connections with these settings. So a lock never uses up the pool of the client, and the
client's retries never repeat a wait.
"""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ._resp import Command
from ._rules import ATTEMPT, PATIENCE, WAITING, Address

Mode = Literal["single", "sentinel", "cluster"]
_FILES = ("ssl_certfile", "ssl_keyfile", "ssl_password")


@dataclass(frozen=True)
class Login:
    """The login of a connection."""

    username: str | None = None
    password: str | None = None
    provider: Any = None
    db: int = 0
    tls: ssl.SSLContext | None = None
    timeout: float = ATTEMPT
    name: str = "redislock"
    #: True for an asyncio client, whose provider is called without blocking.
    is_async: bool | None = False
    #: The in-process server (redislock.testing); None for a network connection.
    door: Any = None
    #: The servers whose module was found too old, which is logged once each.
    outdated: set[str] = field(default_factory=set, compare=False)

    def handshake(self) -> list[Command]:
        """The commands that come first on a connection."""
        return self._commands(None if self.provider is None else self.provider.get_credentials())

    async def begin(self) -> list[Command]:
        """The commands that come first on a connection of an event loop."""
        if self.provider is None or not self.is_async:
            return self.handshake()
        return self._commands(await self.provider.get_credentials_async())

    def _commands(self, credentials: Sequence[str] | None) -> list[Command]:
        username, password = self.username, self.password
        if credentials is not None:
            username, password = (None, *credentials)[-2:]
        hello: Command = ("HELLO", 3)
        if username or password:  # some users need no password
            hello = (*hello, "AUTH", username or "default", password or "")
        select: list[Command] = [("SELECT", self.db)] if self.db else []
        return [(*hello, "SETNAME", self.name), *select]


@dataclass(frozen=True)
class Settings:
    """The addresses of the servers. One with port 0 is the path of a socket."""

    mode: Mode
    addresses: tuple[Address, ...]
    login: Login
    #: The most connections of the sync client for requests that do not wait.
    pool: int = 16
    #: Seconds for which no server may answer during an unlimited wait, and the most waiters in the queue of one lock.
    server_timeout: float = PATIENCE
    max_queued: int = WAITING
    service: str = ""
    sentinels: tuple[tuple[Address, Login], ...] = field(default=())


def settings_of(client: Any) -> Settings:
    """Returns the settings of a client: Redis, Valkey, RedisCluster, ValkeyCluster, or the result of
    Sentinel.master_for."""
    if isinstance(known := getattr(client, "redislock_settings", None), Settings):
        return known
    if hasattr(client, "nodes_manager"):
        return _of_cluster(client)
    pool = getattr(client, "connection_pool", None)
    kwargs: Mapping[str, Any] = getattr(pool, "connection_kwargs", {})
    if pool is None:
        raise TypeError(f"a client of redis-py or valkey-py is needed, not {type(client).__name__}")
    login = _login(kwargs, "SSL" in pool.connection_class.__name__, _is_async(client))
    most = min(int(getattr(pool, "max_connections", 16) or 16), 64)
    manager = getattr(pool, "sentinel_manager", None)
    if manager is None:
        return Settings("single", (_address(kwargs),), login, most)
    if not getattr(pool, "is_master", True):
        raise ValueError("locks need the primary: Sentinel.master_for, not slave_for")
    sentinels = []
    for each in manager.sentinels:
        its_pool = each.connection_pool
        its = its_pool.connection_kwargs
        its_login = _login(its, "SSL" in its_pool.connection_class.__name__, _is_async(each))
        sentinels.append((_address(its), its_login))
    return Settings("sentinel", (), login, most, service=str(pool.service_name), sentinels=tuple(sentinels))


def settings_of_all(clients: Sequence[Any]) -> list[Settings]:
    """Returns the settings of independent servers. A server that is named twice would be a majority of its own."""
    if len(clients) < 3 or len(clients) % 2 == 0:
        raise ValueError(f"an odd number of servers is needed, three or more, not {len(clients)}")
    found = [settings_of(client) for client in clients]
    seen: set[Address] = set()
    for address in (address for settings in found for address in settings.addresses):
        if address in seen:
            raise ValueError(f"independent servers must differ: {named(address)} is named twice")
        seen.add(address)
    return found


def named(address: Address | None) -> str:
    """Returns a server's name for errors."""
    host, port = address or ("an unknown server", 0)
    return f"{host}:{port}" if port else host


def _of_cluster(client: Any) -> Settings:
    manager = client.nodes_manager
    kwargs = getattr(client, "connection_kwargs", None) or manager.connection_kwargs
    nodes = manager.startup_nodes.values()
    addresses = tuple((str(node.host), int(node.port)) for node in nodes)
    has_tls = bool(kwargs.get("ssl")) or "SSL" in str(kwargs.get("connection_class", ""))
    login = _login(kwargs, has_tls, _is_async(client))
    return Settings("cluster", addresses, login, min(int(kwargs.get("max_connections") or 16), 64))


def _is_async(client: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(client, "execute_command", None))


def _address(kwargs: Mapping[str, Any]) -> Address:
    if kwargs.get("path"):
        return str(kwargs["path"]), 0
    return str(kwargs.get("host") or "localhost"), int(kwargs.get("port") or 6379)


def _login(kwargs: Mapping[str, Any], has_tls: bool, is_async: bool) -> Login:
    timeout = kwargs.get("socket_connect_timeout") or kwargs.get("socket_timeout") or ATTEMPT
    return Login(
        username=kwargs.get("username"),
        password=kwargs.get("password"),
        provider=kwargs.get("credential_provider"),
        db=int(kwargs.get("db") or 0),
        tls=_tls(kwargs) if has_tls else None,
        timeout=min(float(timeout), ATTEMPT),
        name=str(kwargs.get("client_name") or "redislock"),
        is_async=is_async,
    )


def _tls(kwargs: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(
        cafile=kwargs.get("ssl_ca_certs"), capath=kwargs.get("ssl_ca_path"), cadata=kwargs.get("ssl_ca_data")
    )
    needed = kwargs.get("ssl_cert_reqs", "required")
    is_looked_at = needed not in (None, "none", ssl.CERT_NONE)
    context.check_hostname = bool(kwargs.get("ssl_check_hostname", True)) and is_looked_at
    names = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED, None: ssl.CERT_NONE}
    context.verify_mode = names[needed] if isinstance(needed, str) or needed is None else needed
    certificate, key, password = (kwargs.get(name) for name in _FILES)
    if certificate:
        context.load_cert_chain(certificate, key, password)
    if kwargs.get("ssl_min_version"):
        context.minimum_version = kwargs["ssl_min_version"]
    if kwargs.get("ssl_ciphers"):
        context.set_ciphers(kwargs["ssl_ciphers"])
    return context
