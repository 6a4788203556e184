"""The package of `make package` is complete, of one version, and each artifact works.

REDISLOCK_PACKAGES says where the packages are; without it there is nothing to test here.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from xml.etree import ElementTree

import pytest

PACKAGES = Path(os.environ.get("REDISLOCK_PACKAGES") or "/nonexistent")
pytestmark = [
    pytest.mark.skipif(not PACKAGES.is_dir(), reason="`make package` builds what is tested here"),
    pytest.mark.once,
]

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
MACHINE = os.uname().machine
#: The client for Java needs tools that a machine may lack. In CI they must be there.
HAS_JAVA = "CI" in os.environ or all(map(shutil.which, ("mvn", "javac")))
WHEEL = f"redislock-{VERSION}-py3-none-any.whl"
SDIST = f"redislock-{VERSION}.tar.gz"
NPM = f"redislock-{VERSION}.tgz"
CRATES = {part: f"redislock-{part}-{VERSION}.crate" for part in ("client", "tool")}
GO_TOOL = os.environ.get("GO", "go")
GO = {part: f"redislock-go{part.replace('/', '-')}-{VERSION}.zip" for part in ("", "/goredis", "/opentelemetry", "/rueidis")}
JAVA = f"redislock-java-{VERSION}.zip"
BILLS = {part: f"redislock-{part}-{VERSION}.cdx.json" for part in ("module", "tool")}
MAVEN = "{http://maven.apache.org/POM/4.0.0}"


def packed(name):
    """The files in a tar archive, by their paths below its one folder."""
    with tarfile.open(PACKAGES / name) as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}
    (folder,) = {path.split("/")[0] for path in files}
    return folder, {path.removeprefix(f"{folder}/"): body for path, body in files.items()}


def zipped(name):
    """The files in a zip archive."""
    with zipfile.ZipFile(PACKAGES / name) as archive:
        return {path: archive.read(path) for path in archive.namelist() if not path.endswith("/")}


def test_all_artifacts_are_there_and_have_their_sums():
    lines = (PACKAGES / "SHA256SUMS").read_text().splitlines()
    told = {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in PACKAGES.iterdir()}
    there.pop("SHA256SUMS")
    assert told == there
    architecture = subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout
    of_machine = {
        f"redis-redislock_{VERSION}-1_{architecture.strip()}.deb",
        f"redislock-{VERSION}-linux-{MACHINE}.tar.gz",
    }
    of_all = {WHEEL, SDIST, NPM, *CRATES.values(), *GO.values(), *BILLS.values(), *([JAVA] if HAS_JAVA else [])}
    assert there.keys() == of_machine | of_all


def test_the_package_for_python_has_its_code_and_version():
    wheel = zipped(WHEEL)
    folder, source = packed(SDIST)
    assert folder == f"redislock-{VERSION}"
    for about in wheel[f"redislock-{VERSION}.dist-info/METADATA"], source["PKG-INFO"]:
        fields = Parser().parsestr(about.decode())
        assert (fields["Name"], fields["Version"]) == ("redislock", VERSION)
    for module in (ROOT / "clients/python/src/redislock").glob("*.py"):
        assert wheel[f"redislock/{module.name}"] == source[f"src/redislock/{module.name}"] == module.read_bytes()


def test_the_package_for_node_has_its_code_and_version():
    folder, files = packed(NPM)
    about = json.loads(files["package.json"])
    assert (folder, about["name"], about["version"]) == ("package", "redislock", VERSION)
    entries = [about["main"], about["types"], *about["exports"]["."]["import"].values()]
    assert all(files[entry.removeprefix("./")] for entry in entries) and "README.md" in files


def test_the_crates_have_one_version_and_the_tool_is_locked_to_the_client():
    for part, name in CRATES.items():
        folder, files = packed(name)
        package = tomllib.loads(files["Cargo.toml"].decode())["package"]
        assert (package["name"], package["version"]) == (f"redislock-{part}", VERSION)
        assert folder == name.removesuffix(".crate") and package.get("publish", True)
    lock = tomllib.loads(packed(CRATES["tool"])[1]["Cargo.lock"].decode())
    (client,) = (package for package in lock["package"] if package["name"] == "redislock-client")
    digest = hashlib.sha256((PACKAGES / CRATES["client"]).read_bytes()).hexdigest()
    assert (client["version"], client["checksum"]) == (VERSION, digest)


def test_the_modules_for_go_need_each_other_in_this_version():
    for part, name in GO.items():
        files = zipped(name)
        prefix = f"redislock.example/go{part}@v{VERSION}/"
        assert all(path.startswith(prefix) for path in files)
        manifest = files[prefix + "go.mod"].decode()
        assert manifest.startswith(f"module redislock.example/go{part}\n")
        assert set(re.findall(r"redislock\.example/\S+ v(\S+)", manifest)) == ({VERSION} if part else set())
        assert sum(path.endswith("/go.mod") for path in files) == 1


@pytest.mark.skipif("CI" not in os.environ and not shutil.which(GO_TOOL), reason="Go itself opens the modules")
def test_go_takes_the_modules(tmp_path):
    # A folder that answers like a proxy of modules.
    proxy, cache = tmp_path / "proxy", tmp_path / "cache"
    for part, name in GO.items():
        answers = proxy / f"redislock.example/go{part}/@v"
        answers.mkdir(parents=True)
        shutil.copy(PACKAGES / name, answers / f"v{VERSION}.zip")
        manifest = zipped(name)[f"redislock.example/go{part}@v{VERSION}/go.mod"]
        (answers / f"v{VERSION}.mod").write_bytes(manifest)
        (answers / f"v{VERSION}.info").write_text(json.dumps({"Version": f"v{VERSION}"}))
    settings = {"GOPROXY": f"file://{proxy}", "GOMODCACHE": str(cache), "GOFLAGS": "-modcacherw", "GONOSUMDB": "*"}
    names = [f"redislock.example/go{part}@v{VERSION}" for part in GO]
    command = [GO_TOOL, "mod", "download", "-json", *names]
    environment = {**os.environ, **settings}
    done = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for part in GO:
        kept = cache / f"redislock.example/go{part}@v{VERSION}"
        assert (kept / "go.mod").is_file() and list(kept.glob("*.go")), part


@pytest.mark.skipif(not HAS_JAVA, reason="`make package` leaves it out here, and says so")
def test_the_artifacts_for_java_are_what_a_repository_asks_for():
    files = zipped(JAVA)
    for path, body in files.items():
        if not path.endswith((".md5", ".sha1")):
            for kind in ("md5", "sha1"):
                assert files[f"{path}.{kind}"].decode() == hashlib.new(kind, body).hexdigest(), path
    names = set()
    for path in (path for path in files if path.endswith(".pom")):
        pom = ElementTree.fromstring(files[path])
        name, version = (pom.findtext(f"{MAVEN}{field}") for field in ("artifactId", "version"))
        version = version or pom.findtext(f"{MAVEN}parent/{MAVEN}version")
        assert version == VERSION and path == f"example/redislock/{name}/{VERSION}/{name}-{VERSION}.pom"
        names.add(name)
        if pom.findtext(f"{MAVEN}packaging", "jar") == "jar":
            for suffix in ("", "-sources", "-javadoc"):
                assert files[path.replace(".pom", f"{suffix}.jar")], (name, suffix)
    assert names >= {"redislock", "redislock-jedis", "redislock-lettuce"}


def test_the_bills_of_materials_name_what_each_is_made_from():
    for part, folder in (("module", ROOT), ("tool", ROOT / "tool")):
        bill = json.loads((PACKAGES / BILLS[part]).read_text())
        assert bill["bomFormat"] == "CycloneDX"
        (subject,) = bill["metadata"]["component"]["components"]
        manifest = tomllib.loads((folder / "Cargo.toml").read_text())
        assert (subject["name"], subject["version"]) == (manifest["package"]["name"], VERSION)
        named = {(component["name"], component["version"]) for component in bill["components"]}
        locked = tomllib.loads((folder / "Cargo.lock").read_text())["package"]
        assert named <= {(package["name"], package["version"]) for package in locked}
        assert {name for name, _ in named} >= set(manifest["dependencies"])
