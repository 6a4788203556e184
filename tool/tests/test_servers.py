"""Ways to a server: TLS, a socket, a password file; and a server that another one replaces while a command runs."""

import json
import subprocess

import pytest
from harness.cluster import Cluster
from harness.group import is_primary
from harness.limits import ELECTED_SECONDS, eventually
from harness.proxy import Proxy
from harness.replicas import AT_ONCE, is_linked
from harness.sentinel import GROUP, Sentinel, watched
from harness.server import Port, Server

from tool import ended, holder, is_alive, is_held

#: Debian's server, which is built with TLS, as those of scripts/servers are not.
DEBIAN = "/usr/bin/redis-server"


class WithTls(Server):
    """Debian's server, with a port for TLS beside the one of the tests."""

    def _command_line(self):
        return [DEBIAN, *super()._command_line()[1:]]


class SentinelWithTls(Sentinel):
    """Debian's sentinel, which talks to its servers by TLS."""

    def _command_line(self):
        _, *rest = super()._command_line()
        return [DEBIAN, *rest, *self.options]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", cert, *name]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key


@pytest.fixture
def secure(start_server, certificate):
    """Starts a server with TLS: the server, and its port for TLS."""
    ports = []

    def start(*options, kind=WithTls, **more):
        ports.append(Port())
        cert, key = certificate
        files = ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert]
        server = start_server("--tls-port", ports[-1].number, *files, *options, kind=kind, **more)
        return server, ports[-1].number

    yield start
    for port in ports:
        port.give_back()


@pytest.fixture
def password(tmp_path):
    """A file with the password of the tests."""
    path = tmp_path / "password"
    path.write_text("secret\n")
    path.chmod(0o600)
    return ["--password-file", str(path)]


def ends_with(tool, code, *words):
    """Runs it until it ends with this code: a busy machine may take longer to connect than one attempt may."""
    done = []

    def attempt():
        done.append(tool(*words))
        return done[-1].returncode == code

    eventually(attempt, f"{words} ends with {code}", limit=60)
    return done[-1]


def every_command_works(tool, name, *options):
    """Each command of the tool reaches the server with these options."""
    process = tool.start("run", "--wait", "60s", *options, name, "sleep", "600")
    eventually(lambda: name in tool("ls", "--json", *options).stdout, "it is held", limit=60)
    (held,) = json.loads(ends_with(tool, 0, "info", "--json", *options, name).stdout)["holders"]
    assert name in ends_with(tool, 0, "held-by", "--json", *options, held["owner"]).stdout
    eventually(lambda: "ok       active" in tool("doctor", "--active", *options).stdout, "doctor takes a lock", limit=60)
    ends_with(tool, 75, "run", *options, name, "true")
    assert "ended" in ends_with(tool, 0, "break", "--yes", *options, name).stdout
    assert ended(process, 60)[0] == 79


def test_every_command_works_by_tls_with_a_password_from_a_file(secure, certificate, tool_for, password, name):
    cert, key = map(str, certificate)
    server, port = secure("--tls-auth-clients", "yes")
    server.admin("CONFIG", "SET", "requirepass", "secret")
    tool = tool_for(server.port)
    tool.environment["REDISLOCK_URL"] = f"rediss://127.0.0.1:{port}"
    own = ["--cert", cert, "--key", key]
    every_command_works(tool, name, "--cacert", cert, *own, *password)
    for options, code in (
        ([*own, *password], 69),  # it trusts no authority that it does not know
        (["--cacert", cert, *password], 69),  # the server asks for a certificate
        (["--cacert", cert, *own], 77),
    ):
        done = ends_with(tool, code, "run", *options, name, "true")
        assert done.stderr.count("\n") == 1 and "secret" not in done.stderr, (options, done.stderr)


def test_sentinels_and_the_primary_are_reached_by_tls(secure, certificate, tool_for, name):
    cert, _ = map(str, certificate)
    server, port = secure("--tls-auth-clients", "no", "--tls-replication", "yes")
    sentinel, sentinel_port = secure("--tls-auth-clients", "no", "--tls-replication", "yes", kind=SentinelWithTls)
    sentinel.watch(port)
    eventually(lambda: sentinel.flags("MASTERS") == ["master"], "it talks to the primary by TLS")
    tool = tool_for(server.port)
    tool.environment["REDISLOCK_URL"] = f"rediss+sentinel://127.0.0.1:{sentinel_port}/{GROUP}"
    every_command_works(tool, name, "--cacert", cert)


def test_every_command_works_by_a_socket(start_server, tool_for, password, tmp_path, name):
    path = tmp_path / "redis.sock"
    server = start_server("--unixsocket", path)
    server.admin("ACL", "SETUSER", "default", ">secret")
    tool = tool_for(server.port)
    tool.environment["REDISLOCK_URL"] = f"unix://{path}"
    every_command_works(tool, name, *password)


# A server that another one replaces.

LONG = "echo $$ > $DIR/pid; while [ ! -e $DIR/go ]; do sleep 0.05; done; exit 4"


def pair_of(start_server):
    """A primary, and a replica that has its data set and takes writes, which are lost to the primary."""
    primary = start_server(*AT_ONCE)
    replica = start_server(*AT_ONCE, "--replica-read-only", "no", "--replicaof", "127.0.0.1", primary.port)
    is_linked(replica)
    return primary, replica


@pytest.fixture
def group(start_server, tool_for):
    """A primary, a replica, three sentinels, and the tool for these."""
    primary, replica = pair_of(start_server)
    sentinels = watched(start_server, primary.port, replicas=1)
    tool = tool_for(primary.port)
    hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
    tool.environment["REDISLOCK_URL"] = f"redis+sentinel://{hosts}/{GROUP}"
    return primary, replica, tool


def promoted(primary, replica):
    """Kills the primary; returns when the replica has its place."""
    primary.kill()
    eventually(lambda: is_primary(replica), "it is promoted", limit=ELECTED_SECONDS)


def await_renewal(server, name):
    """Waits until the lease on this server becomes longer."""
    last = [float("inf")]

    def rises():
        was, last[0] = last[0], holder(server, name)["lease-left-ms"]
        return last[0] > was

    eventually(rises, "it is renewed there", limit=ELECTED_SECONDS, pause=0.05)


def test_command_survives_a_failover_that_keeps_the_lock(group, name):
    primary, replica, tool = group
    process = tool.shell("--lease", "30s", name, script=LONG)
    pid = tool.number("pid")
    first = eventually(lambda: holder(replica, name), "the replica has it")
    promoted(primary, replica)
    await_renewal(replica, name)
    assert is_alive(pid) and holder(replica, name)["token"] == first["token"]
    (tool.directory / "go").touch()
    code, said = ended(process)
    assert code == 4, said
    assert not is_held(replica, name)


def test_command_ends_after_a_failover_that_loses_the_lock(group, name):
    primary, replica, tool = group
    process = tool.shell("--lease", "30s", "--kill-after", "1s", name, script=LONG)
    pid = tool.number("pid")
    eventually(lambda: is_held(replica, name), "the replica has it")
    replica.admin("DEL", name)
    promoted(primary, replica)
    code, said = ended(process, ELECTED_SECONDS)
    assert code == 79 and "lost" in said, said
    assert not is_alive(pid)


@pytest.mark.parametrize("keeps", [True, False], ids=["keeps the lock", "loses the lock"])
def test_address_leads_to_another_server(start_server, tool_for, name, keeps):
    """As behind a load balancer, or a name whose address moves."""
    primary, replica = pair_of(start_server)
    door = Proxy(primary.port)
    tool = tool_for(door.port)
    process = tool.shell("--lease", "30s", "--kill-after", "1s", name, script=LONG)
    tool.number("pid")
    first = eventually(lambda: holder(replica, name), "the replica has it")
    if not keeps:
        replica.admin("DEL", name)
    replica.admin("REPLICAOF", "NO", "ONE")
    door.target = replica.port
    door.cut()
    door.mend()
    if keeps:
        primary.admin("DEL", name)
        await_renewal(replica, name)
        assert holder(replica, name)["token"] == first["token"]
        (tool.directory / "go").touch()
    code, said = ended(process, 60)
    assert code == (4 if keeps else 79), said
    assert not is_held(replica, name)
    door.close()


def test_sentinel_that_wants_a_password_is_a_refused_login(start_server, tool_for, name):
    """Sentinels are asked without one: no wait makes that better."""
    server = start_server()
    (sentinel,) = watched(start_server, server.port, replicas=0, sentinels=1)
    tool = tool_for(server.port)
    tool.environment["REDISLOCK_URL"] = f"redis+sentinel://127.0.0.1:{sentinel.port}/{GROUP}"
    assert tool("run", "--wait", "60s", name, "true").returncode == 0
    sentinel.admin("ACL", "SETUSER", "default", "resetpass", ">secret")
    for words in (["run", "--wait", "forever", name, "true"], ["ls"]):
        done = ends_with(tool, 77, *words)
        assert done.stderr.count("\n") == 1, done.stderr
        assert "NOAUTH" in done.stderr and "secret" not in done.stderr


def test_command_survives_when_its_slot_moves_to_another_node(start_server, tool_for, name):
    cluster = Cluster(start_server)
    source = next(number for number, node in enumerate(cluster.nodes) if cluster.owner_seen_by(node, cluster.slot(name)) == cluster.ids[number])
    tool = tool_for(cluster.nodes[0].port)
    tool.environment["REDISLOCK_URL"] = f"redis+cluster://127.0.0.1:{cluster.nodes[1].port}"
    process = tool.shell("--lease", "12s", name, script=LONG)
    pid = tool.number("pid")
    first = eventually(lambda: holder(cluster.nodes[source], name), "its node has it")
    cluster.move("by hand", name, source)
    target = cluster.nodes[1 - source]
    await_renewal(target, name)
    assert is_alive(pid) and holder(target, name)["token"] == first["token"]
    (tool.directory / "go").touch()
    code, said = ended(process)
    assert code == 4, said
    assert not is_held(target, name)
