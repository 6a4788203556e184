"""The files of every released version are read for ever: payloads, snapshots, append-only files (tests/samples).

harness/written.py makes the samples of a release. The files of 0.2.0 are not read, and the log says so.
"""

import json
import shutil
import tomllib

import pytest

from harness.kinds import take
from harness.replies import module_info
from harness.server import ROOT, StartFailed
from harness.wire import ServerError
from harness.written import AOF, SAMPLES, shown

VERSIONS = sorted(path.name for path in SAMPLES.iterdir() if path.name != "0.2.0")
NOT_READ = SAMPLES / "0.2.0"
REASON = "redislock 0.1 or 0.2 has written it, and this version does not read that"


def expected_of(version):
    """The expected locks in the samples of a version."""
    return json.loads((SAMPLES / version / "expected.json").read_text())


def start_from(yard, directory, source, *options):
    """A server that starts with these files."""
    server = yard(*options)
    server.stop()
    for name in ("dump.rdb", "appendonlydir"):
        there = server.directory / name
        shutil.rmtree(there) if there.is_dir() else there.unlink(missing_ok=True)
    if source.is_dir():
        shutil.copytree(source, server.directory / "appendonlydir")
    else:
        shutil.copy(source, server.directory / "dump.rdb")
    return server.start()


def assert_locks(server, expected):
    """All of them are there, nothing else, and newer tokens are higher."""
    cli = server.connect()
    others = {name for name in cli("KEYS *") if name not in expected}
    assert others <= {"together:other"}
    assert {key: shown(cli, key) for key in expected} == expected
    newest = max(hold[1] for lock in expected.values() for hold in lock["holders"])
    assert int(module_info(cli)["last_token"]) >= newest
    assert take(cli, "fresh", "zoe") > newest


@pytest.mark.once
def test_this_version_has_samples():
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
    assert version in VERSIONS, "make them, as harness/written.py says"


@pytest.mark.parametrize("version", VERSIONS)
def test_payloads_are_restored(start_server, version):
    server = start_server()
    cli = server.connect()
    expected = expected_of(version)["payloads"]
    assert len(expected) >= 12
    for key in expected:
        cli("RESTORE", key, 0, (SAMPLES / version / f"{key}.dump").read_bytes())
    assert_locks(server, expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_snapshot_is_loaded(start_server, version, tmp_path):
    server = start_from(start_server, tmp_path, SAMPLES / version / "snapshot")
    assert_locks(server, expected_of(version)["payloads"])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("way", ["grown", "rewritten"])
def test_an_append_only_file_is_loaded(start_server, version, way, tmp_path):
    server = start_from(start_server, tmp_path, SAMPLES / version / way, *AOF)
    assert_locks(server, expected_of(version)["files"][way])
    assert "malformed" not in server.log_text() and "does not know" not in server.log_text()


# Files that are not read


def test_a_snapshot_of_0_2_is_refused_with_its_reason(start_server, tmp_path):
    with pytest.raises(StartFailed) as failure:
        start_from(start_server, tmp_path, NOT_READ / "snapshot")
    assert f"the head of a file was refused: {REASON}" in str(failure.value)


def test_payloads_of_0_2_are_refused_with_their_reason(start_server):
    server = start_server()
    cli = server.connect()
    token = take(cli, "plain", "zoe")
    samples = sorted(NOT_READ.glob("*.dump"))
    assert len(samples) >= 12
    for sample in samples:
        (reply,) = cli.pipeline(("RESTORE", sample.stem, 0, sample.read_bytes(), "REPLACE"))
        assert isinstance(reply, ServerError), sample
    assert server.log_text().count(f"a lock was refused: {REASON}") == len(samples)
    assert cli("KEYS *") == ["plain"] and cli("LOCK.FENCE plain") == token


@pytest.mark.parametrize("way", ["grown", "rewritten"])
def test_records_of_0_2_are_refused_with_their_reason(start_server, way, tmp_path):
    server = start_from(start_server, tmp_path, NOT_READ / way, *AOF)
    assert "redislock record of a version that this module does not know" in server.log_text()
