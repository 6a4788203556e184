"""What `make package` has made: each package is installed in a clean place, and a server there takes a lock.

REDISLOCK_PACKAGES says where the packages are; without it there is nothing to test here.
"""

import hashlib
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from harness.server import MODULE

PACKAGES = Path(os.environ.get("REDISLOCK_PACKAGES") or "/nonexistent")
pytestmark = pytest.mark.skipif(not PACKAGES.is_dir(), reason="`make package` builds what is tested here")

#: What Debian 12 has: no newer one may be asked for.
GLIBC_MAX = (2, 36)
INSTALLED_MODULE = "usr/lib/redis/modules/libredislock.so"


def only(pattern):
    """The one package of this kind."""
    (found,) = PACKAGES.glob(pattern)
    return found


def run(*command):
    """What a program prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder in which the Debian package is installed, as dpkg does it: with a database of its own if it may."""
    root = tmp_path_factory.mktemp("debian")
    package = only("*.deb")
    if os.geteuid() == 0:
        (root / "var/lib/dpkg/updates").mkdir(parents=True)
        (root / "var/lib/dpkg/info").mkdir()
        (root / "var/lib/dpkg/status").touch()
        run("dpkg", f"--root={root}", "--force-depends", "--install", package)
        status = run("dpkg-query", f"--root={root}", "--show", "--showformat=${Status}", "redis-redislock")
        assert status == "install ok installed"
    else:
        run("dpkg-deb", "--extract", package, root)
    return root


def takes_a_lock(server):
    """A lock can be taken, is held, and is given up."""
    cli = server.connect()
    token = cli("LOCK.ACQUIRE invoice:42 worker PX 30000")
    assert isinstance(token, int) and token > 0
    assert cli("LOCK.ACQUIRE invoice:42 other PX 30000") is None
    assert cli("LOCK.FENCE invoice:42") == token
    assert cli("LOCK.RELEASE invoice:42 worker") == 1
    assert cli("LOCK.FENCE invoice:42") is None


def test_the_debian_package_needs_two_steps_and_then_takes_a_lock(installed, start_server):
    named = "/" + INSTALLED_MODULE
    lines = (installed / "etc/redis/redislock.conf").read_text()
    assert lines.endswith(f"\n# loadmodule {named}\n")
    server = start_server(config=f"loadmodule {installed}{named}\n")
    takes_a_lock(server)
    assert server.admin("CONFIG REWRITE") == "OK"
    server.stop()
    takes_a_lock(server.start())


def test_as_installed_the_configuration_loads_nothing(installed, start_server, tmp_path):
    run("dpkg-deb", "--extract", only("*.deb"), tmp_path)
    server = start_server(config=f"include {tmp_path}/etc/redis/redislock.conf\n")
    assert server.admin("MODULE LIST") == []


@pytest.mark.once
def test_the_debian_package_says_what_it_is_and_needs():
    fields = run("dpkg-deb", "--field", only("*.deb"))
    assert re.search(r"^Package: redis-redislock$", fields, re.MULTILINE)
    assert re.search(r"^Architecture: (?!all)", fields, re.MULTILINE)
    (libc,) = re.findall(r"^Depends:.*\blibc6 \(>= ([0-9.]+)\)", fields, re.MULTILINE)
    assert tuple(int(part) for part in libc.split(".")) <= GLIBC_MAX
    assert re.search(r"^Recommends: redis-server \| valkey-server$", fields, re.MULTILINE)


@pytest.mark.once
def test_what_is_installed_belongs_to_root_and_is_no_ones_to_write():
    for line in run("dpkg-deb", "--contents", only("*.deb")).splitlines():
        mode, owner = line.split()[:2]
        executable = line.endswith(INSTALLED_MODULE) or line.endswith("/")
        assert owner in {"root/root", "0/0"}, line
        assert mode[1:] == ("rwxr-xr-x" if executable else "rw-r--r--"), line


@pytest.mark.once
def test_the_module_needs_no_newer_library_than_debian_12_has(installed):
    symbols = run("objdump", "-T", installed / INSTALLED_MODULE)
    versions = {tuple(int(part) for part in found.split(".")) for found in re.findall(r"GLIBC_([0-9.]+)", symbols)}
    assert versions and max(versions) <= GLIBC_MAX, max(versions)


def test_the_tarball_holds_the_same_module_and_takes_a_lock(installed, start_server, tmp_path):
    package = only("*.tar.gz")
    with tarfile.open(package) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    assert folder.name == package.name.removesuffix(".tar.gz")
    module = folder / "libredislock.so"
    assert module.read_bytes() == (installed / INSTALLED_MODULE).read_bytes()
    takes_a_lock(start_server("--loadmodule", module, with_module=False))
    for name in ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "redis.conf.example", "docs/GUARANTEES.md"]:
        assert (folder / name).stat().st_size > 0, name


def test_the_packaged_module_is_of_the_commit_that_was_built(installed, start_server):
    def about(path):
        info = start_server("--loadmodule", path, with_module=False).info("redislock")
        return info["redislock_version"], info["redislock_commit"]

    assert about(installed / INSTALLED_MODULE) == about(MODULE)


@pytest.mark.once
def test_the_checksums_are_those_of_the_packages():
    lines = (PACKAGES / "SHA256SUMS").read_text().splitlines()
    told = {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in PACKAGES.iterdir()}
    there.pop("SHA256SUMS")
    assert told == there and len(told) == 2
