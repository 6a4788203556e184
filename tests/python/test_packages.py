"""The output of `make package`: each package is installed in a clean place, a server there takes a lock, and the
command-line tool runs a command under one.

REDISLOCK_PACKAGES says where the packages are; without it there is nothing to test here.
"""

import gzip
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from harness.server import MODULE

PACKAGES = Path(os.environ.get("REDISLOCK_PACKAGES") or "/nonexistent")
pytestmark = pytest.mark.skipif(not PACKAGES.is_dir(), reason="`make package` builds what is tested here")

#: Where the Debian package puts README.md, and what it links to.
PAGES = "usr/share/doc/redis-redislock"
#: A link to a file, in a page without its blocks of code.
LINK = re.compile(r"\]\(([^)#\s:]+)[)#]")
#: The version of Debian 12: no newer one may be required.
GLIBC_MAX = (2, 36)
INSTALLED_MODULE = "usr/lib/redis/modules/libredislock.so"
INSTALLED_TOOL = "usr/bin/redislock"
MANUAL = "usr/share/man/man1/redislock.1.gz"
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/redislock",
    "zsh": "usr/share/zsh/vendor-completions/_redislock",
    "fish": "usr/share/fish/vendor_completions.d/redislock.fish",
}


def only(pattern):
    """The one package of this kind."""
    (found,) = PACKAGES.glob(pattern)
    return found


def run(*command):
    """The output of a program."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def install(root):
    """Installs the Debian package in this folder, as dpkg does it, with a database of its own."""
    (root / "var/lib/dpkg/updates").mkdir(parents=True)
    (root / "var/lib/dpkg/info").mkdir()
    (root / "var/lib/dpkg/status").touch()
    dpkg(root, "--force-depends", "--install", only("*.deb"))
    status = run("dpkg-query", f"--root={root}", "--show", "--showformat=${Status}", "redis-redislock")
    assert status == "install ok installed"


def dpkg(root, *words):
    # A user who is not root gets a name space in which it is.
    as_root = [] if os.geteuid() == 0 else ["unshare", "--map-root-user"]
    path = f"PATH={os.environ['PATH']}:/usr/sbin:/sbin"
    run("env", path, *as_root, "dpkg", f"--root={root}", f"--log={root}/log", *words)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder in which the Debian package is installed."""
    root = tmp_path_factory.mktemp("debian")
    install(root)
    return root


def runs_a_command(tool, server, name):
    """The tool runs a command while it holds a lock, and is refused meanwhile."""
    words = [tool, "run", name, "--", "sh", "-c", 'echo "$REDISLOCK_TOKEN"; exec "$@"', "sh", tool]
    environment = {**os.environ, "REDISLOCK_URL": f"redis://127.0.0.1:{server.port}"}

    def done(*command):
        return subprocess.run([*words, *command], env=environment, capture_output=True, text=True, timeout=60)

    once = done("info", name)
    assert once.returncode == 0, once.stderr
    token, *shown = once.stdout.splitlines()
    assert int(token) > 0 and token in "".join(shown)
    assert done("run", name, "true").returncode == 75
    assert server.connect()("LOCK.FENCE", name) is None


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


def test_the_installed_tool_runs_a_command_under_a_lock(installed, start_server):
    server = start_server("--loadmodule", installed / INSTALLED_MODULE, with_module=False)
    runs_a_command(installed / INSTALLED_TOOL, server, "nightly")


@pytest.mark.once
def test_manual_and_completions_are_those_of_the_installed_tool(installed):
    tool = installed / INSTALLED_TOOL
    manual = gzip.decompress((installed / MANUAL).read_bytes()).decode()
    assert manual == run(tool, "manual") and ".TH redislock 1" in manual
    for shell, path in COMPLETIONS.items():
        script = (installed / path).read_text()
        assert script == run(tool, "completions", shell) and "min-hold" in script, shell


@pytest.mark.once
def test_bash_completes_the_installed_tool(installed):
    # As the shell does it: the words of the line, and the number of the one that is completed.
    script = (
        'source "$1"; complete -p redislock >/dev/null; COMP_WORDS=(redislock run --min); COMP_CWORD=2; '
        '_redislock redislock --min run; echo "${COMPREPLY[@]}"'
    )
    assert run("bash", "-ec", script, "bash", installed / COMPLETIONS["bash"]) == "--min-hold\n"


def dead_links(folder):
    """The links of the users' pages below this folder that lead to no file."""
    users = [folder / "README.md", *(page for page in folder.glob("docs/**/*.md") if "internals" not in page.parts)]
    assert len(users) > 50
    for page in users:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link in LINK.findall(prose):
            if not (page.parent / link).exists():
                yield str(page.relative_to(folder)), link


@pytest.mark.once
def test_links_of_the_installed_pages_lead_to_files(installed):
    assert not list(dead_links(installed / PAGES))


@pytest.mark.once
def test_removal_takes_all_files_away_and_purge_the_configuration(tmp_path):
    install(tmp_path)
    dpkg(tmp_path, "--remove", "redis-redislock")
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {path for path in left if not path.startswith(("var/lib/dpkg/", "log"))} == {"etc/redis/redislock.conf"}
    dpkg(tmp_path, "--purge", "redis-redislock")
    assert not any((tmp_path / folder).exists() for folder in ("etc", "usr"))


@pytest.mark.once
def test_the_debian_package_says_what_it_is_and_needs():
    fields = run("dpkg-deb", "--field", only("*.deb"))
    assert re.search(r"^Package: redis-redislock$", fields, re.MULTILINE)
    assert re.search(r"^Architecture: (?!all)", fields, re.MULTILINE)
    (libc,) = re.findall(r"^Depends:.*\blibc6 \(>= ([0-9.]+)\)", fields, re.MULTILINE)
    assert tuple(int(part) for part in libc.split(".")) <= GLIBC_MAX
    assert re.search(r"^Suggests: redis-server \| valkey-server$", fields, re.MULTILINE)
    assert "Recommends:" not in fields, "a machine that only runs the tool gets no server"


@pytest.mark.once
def test_what_is_installed_belongs_to_root_and_is_no_ones_to_write():
    for line in run("dpkg-deb", "--contents", only("*.deb")).splitlines():
        mode, owner = line.split()[:2]
        executable = line.endswith((INSTALLED_MODULE, INSTALLED_TOOL, "/"))
        assert owner in {"root/root", "0/0"}, line
        assert mode[1:] == ("rwxr-xr-x" if executable else "rw-r--r--"), line


@pytest.mark.once
@pytest.mark.parametrize("file", [INSTALLED_MODULE, INSTALLED_TOOL])
def test_nothing_needs_a_newer_library_than_debian_12_has(installed, file):
    symbols = run("objdump", "-T", installed / file)
    versions = {tuple(int(part) for part in found.split(".")) for found in re.findall(r"GLIBC_([0-9.]+)", symbols)}
    assert versions and max(versions) <= GLIBC_MAX, max(versions)


def test_the_tarball_holds_the_same_module_and_takes_a_lock(installed, start_server, tmp_path):
    package = only("*-linux-*.tar.gz")
    with tarfile.open(package) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    assert folder.name == package.name.removesuffix(".tar.gz")
    module = folder / "libredislock.so"
    assert module.read_bytes() == (installed / INSTALLED_MODULE).read_bytes()
    server = start_server("--loadmodule", module, with_module=False)
    takes_a_lock(server)
    assert (folder / "redislock").read_bytes() == (installed / INSTALLED_TOOL).read_bytes()
    runs_a_command(folder / "redislock", server, "nightly")
    assert (folder / "redislock.1").read_bytes() == gzip.decompress((installed / MANUAL).read_bytes())
    for path in COMPLETIONS.values():
        assert (folder / "completions" / Path(path).name).read_bytes() == (installed / path).read_bytes()
    for name in ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "redis.conf.example", "docs/reference/guarantees.md"]:
        assert (folder / name).stat().st_size > 0, name
    assert not list(dead_links(folder))


def test_the_packaged_module_is_of_the_commit_that_was_built(installed, start_server):
    def about(path):
        info = start_server("--loadmodule", path, with_module=False).info("redislock")
        return info["redislock_version"], info["redislock_commit"]

    assert about(installed / INSTALLED_MODULE) == about(MODULE)
