"""Connections by TLS, with the certificates that the driver's client was given."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock

from .servers import Port, StartFailed


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, *words],
        check=True,
        capture_output=True,
    )
    return cert, key


def test_locks_by_tls(certificate: tuple[Path, Path], start_server: Any) -> None:
    cert, key = certificate
    port = Port()
    files = ("--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no")
    try:
        try:
            server = start_server("--tls-port", port.number, *files)
        except StartFailed as failure:
            pytest.skip(f"this server was built without TLS: {str(failure)[-200:]}")
        options: dict[str, Any] = {"port": port.number, "host": "127.0.0.1", "ssl": True}
        use_threads(redis.Redis(**options, ssl_ca_certs=str(cert)), server)
        asyncio.run(use_tasks(redis.asyncio.Redis(**options, ssl_ca_certs=str(cert))))
        with redislock.Locks(redis.Redis(**options)) as locks:  # a client that trusts nobody it does not know
            with pytest.raises(redislock.ConnectionFailedError, match="CERTIFICATE"), locks.lock("k", wait=0):
                pass
        with redislock.Locks(redis.Redis(port=port.number, host="127.0.0.1")) as locks:
            with pytest.raises(redislock.RedislockError, match=r"wants? TLS"):
                locks.ping()
        # A sentinel's port for TLS treats a plain client likewise.
        sentinels = redis.Sentinel([("127.0.0.1", port.number)])
        with redislock.Locks(sentinels.master_for("group")) as locks:
            with pytest.raises(redislock.ConnectionFailedError, match=r"which server is the primary.* wants? TLS"):
                locks.ping()
        with redislock.Locks(redis.Redis(**options | {"port": server.port})) as locks:
            with pytest.raises(
                redislock.ConnectionFailedError, match=r"WRONG_VERSION_NUMBER|TLS, which it may not speak"
            ):
                locks.ping()
    finally:
        port.give_back()


def use_threads(client: redis.Redis, server: Any) -> None:
    with redislock.Locks(client, lease=3) as locks:
        hold = locks.lock("k", wait=5).acquire()
        with pytest.raises(redislock.LockTimeoutError), locks.lock("k", wait=0.2):
            pass
        server.admin("DEL", "k")
        assert hold.wait_until_lost(10) == "push"


async def use_tasks(client: redis.asyncio.Redis) -> None:
    async with client, redislock.AsyncLocks(client) as locks, locks.lock("k", wait=5) as hold:
        assert hold.check() > 0
