"""The files of examples/container and examples/kubernetes: their syntax, and that real servers run with what they say.

No container engine and no cluster runs here, so images are not built. docker-entrypoint.sh, which the official images
have, is replaced by a script that only starts the server.
"""

import json
import re
import subprocess
import tomllib

import pytest

from harness.limits import eventually
from harness.server import BINARY, CLI, MODULE, ROOT, Server
from harness.wire import ServerError

CONTAINER = ROOT / "examples" / "container"
KUBERNETES = ROOT / "examples" / "kubernetes" / "redislock.yaml"
READ = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)"


def documents(path):
    """The documents of a YAML file."""
    with path.open() as file:
        # Debian's own Python: it is the one that has its package python3-yaml.
        return json.loads(subprocess.run(["/usr/bin/python3", "-c", READ], stdin=file, stdout=subprocess.PIPE, check=True).stdout)


(COMPOSE,) = documents(CONTAINER / "compose.yaml")
SERVICES = COMPOSE["services"]
PARTS = {each["kind"]: each for each in documents(KUBERNETES)}
POD = PARTS["StatefulSet"]["spec"]["template"]["spec"]
(SERVED,) = POD["containers"]


# The container


class Container(Server):
    """A service of compose.yaml, which `start` starts here."""

    def __init__(self, place, service, primary=None):
        super().__init__()
        self.place = place / service
        self.primary = primary or self
        self.command = SERVICES[service]["command"]

    def _command_line(self):
        conf, data, path = (self.place / name for name in ("conf", "data", "path"))
        if not conf.exists():
            for folder in (conf, data, path):
                folder.mkdir(parents=True)
            for name in ("redis.conf", "sentinel.conf"):
                (conf / name).write_text(self.adapted((CONTAINER / name).read_text()))
            entrypoint = path / "docker-entrypoint.sh"
            entrypoint.write_text(f'#!/bin/sh\nexec {BINARY} "$@"\n')
            entrypoint.chmod(0o755)
        self.environment = {
            "REDISLOCK_CONF": str(conf), "REDISLOCK_DATA": str(data), "PATH": f"{path}:/usr/bin:/bin",
        }  # fmt: skip
        start, *arguments = self.command
        assert start == "start"
        words = self.adapted(" ".join(arguments)).split()
        return ["sh", str(CONTAINER / "start"), *words]

    def adapted(self, text):
        """A text with the addresses, the files and the times of this machine."""
        text = text.replace("172.28.0.11 6379", f"127.0.0.1 {self.primary.port}")
        text = re.sub(r"^port \d+$", f"port {self.port}", text, flags=re.MULTILINE)
        text = re.sub(r"^dir /data$", f"dir {self.place}/data\nlogfile {self.log}", text, flags=re.MULTILINE)
        text = text.replace("bind * -::*", "bind 127.0.0.1").replace("/usr/lib/redis/modules/libredislock.so", str(MODULE))
        return text.replace("redislock.quarantine 30000", "redislock.quarantine 1000")


def test_the_services_of_the_compose_file_make_a_group_that_grants(start_server, tmp_path):
    primary = start_server(tmp_path, "primary", kind=Container)
    replicas = [start_server(tmp_path, f"replica-{number}", primary, kind=Container) for number in (1, 2)]
    sentinels = [start_server(tmp_path, f"sentinel-{number}", primary, kind=Container) for number in (1, 2, 3)]
    cli = primary.connect()
    eventually(lambda: granted(cli), "the lock is granted")
    assert all(each.admin("ROLE")[0] == "slave" for each in replicas)
    for sentinel in sentinels:
        assert sentinel.admin("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster") == ["127.0.0.1", str(primary.port)]
        eventually(lambda sentinel=sentinel: len(sentinel.admin("SENTINEL", "REPLICAS", "mymaster")) == 2, "it knows both")


def granted(cli):
    try:
        return cli("LOCK.ACQUIRE door alice PX 1000") is not None
    except ServerError as error:
        assert str(error).startswith(("QUARANTINE", "NOREPLICAS")), error
        return False


def test_a_service_that_starts_again_keeps_what_sentinel_has_written(start_server, tmp_path):
    primary = start_server(tmp_path, "primary", kind=Container)
    other = start_server(tmp_path, "replica-1", primary, kind=Container)
    primary.admin("REPLICAOF", "127.0.0.1", other.port)
    primary.admin("CONFIG", "REWRITE")
    primary.kill()
    primary.start()
    assert primary.admin("ROLE")[0] == "slave"


def test_a_service_starts_again_after_a_rewrite_that_added_the_modules_of_the_image(start_server, tmp_path):
    primary = start_server(tmp_path, "primary", kind=Container)
    primary.admin("CONFIG", "REWRITE")
    rewritten = primary.place / "data" / "redis.conf"
    # As the image of Redis 8 names them. It passes them as arguments, too, and a module that is loaded twice aborts.
    bundled = "loadmodule /usr/local/lib/redis/modules//redisbloom.so\n"
    rewritten.write_text(rewritten.read_text() + bundled)
    primary.kill()
    primary.start()
    assert bundled not in rewritten.read_text()
    assert str(MODULE) in rewritten.read_text()


@pytest.mark.once
def test_the_settings_of_the_container_are_those_that_the_page_recommends_for_payments():
    shown = dict(re.findall(r"^redislock\.([a-z-]+) (\w+)$", (CONTAINER / "redis.conf").read_text(), re.MULTILINE))
    assert shown == {"quarantine": "30000", "group-size": "3", "confirm": "majority"}
    text = " ".join((ROOT / "docs" / "how-to" / "payments.md").read_text().split())
    assert all(f"`redislock.{name} {value}`" in text for name, value in shown.items())


@pytest.mark.once
def test_the_compose_file_is_whole():
    assert len(SERVICES) == 6
    addresses = set()
    for name, service in SERVICES.items():
        (volume,) = service["volumes"]
        assert volume == f"{name}:/data" and name in COMPOSE["volumes"]
        addresses.add(service["networks"]["locks"]["ipv4_address"])
        assert (service["image"], service["pull_policy"]) == ("redislock", "never")
    # Some implementations of compose build an image once for each service that says how.
    (built,) = [service["build"] for service in SERVICES.values() if "build" in service]
    assert (CONTAINER / built["context"]).resolve() == ROOT and (ROOT / built["dockerfile"]).exists()
    assert len(addresses) == 6 and SERVICES["primary"]["networks"]["locks"]["ipv4_address"] == "172.28.0.11"


@pytest.mark.once
def test_the_image_is_built_with_the_rust_that_the_module_needs_and_copies_files_that_there_are():
    lines = (CONTAINER / "Dockerfile").read_text()
    wanted = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["rust-version"]
    assert f"FROM rust:{wanted}-" in lines
    copied = [name for line in re.findall(r"^COPY (?!--from)(.*)$", lines, re.MULTILINE) for name in line.split()[:-1]]
    names = [name for name in copied if not name.startswith("--")]
    assert len(names) == 4 and all((ROOT / name).exists() for name in names)


# Kubernetes


@pytest.mark.once
def test_the_parts_for_kubernetes_fit_together():
    assert set(PARTS) == {"ConfigMap", "Service", "StatefulSet"}
    assert all(each["apiVersion"] and each["metadata"]["name"] == "redislock" for each in PARTS.values())
    stateful = PARTS["StatefulSet"]["spec"]
    labels = stateful["template"]["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"] == labels == PARTS["Service"]["spec"]["selector"]
    assert stateful["serviceName"] == PARTS["Service"]["metadata"]["name"]
    volumes = {each["name"] for each in POD["volumes"]} | {each["metadata"]["name"] for each in stateful["volumeClaimTemplates"]}
    mounted = [each for container in [*POD["initContainers"], SERVED] for each in container["volumeMounts"]]
    assert {each["name"] for each in mounted} == volumes
    (port,) = PARTS["Service"]["spec"]["ports"]
    assert port["targetPort"] in {each["name"] for each in SERVED["ports"]}


def test_the_probes_answer_as_they_should(start_server):
    config = PARTS["ConfigMap"]["data"]["redis.conf"]
    config = config.replace("/modules/libredislock.so", "MODULE").replace("dir /data\n", "")
    server = start_server(config=config)
    assert server.admin("CONFIG GET redislock.quarantine")[1] == "30000"
    # Valkey's package calls its client by another name; the image of the server has one by this name.
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        shell, flag, line = SERVED[name]["exec"]["command"]
        line = line.replace("redis-cli", f"{CLI} -p {server.port}")
        assert subprocess.run([shell, flag, line]).returncode == 0, name
        gone = line.replace(f"-p {server.port}", "-p 1")
        assert subprocess.run([shell, flag, gone], stderr=subprocess.DEVNULL).returncode != 0, name
