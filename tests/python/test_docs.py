"""The documentation is true: transcripts, links, names of tests, settings, the example configuration, and each
command's page.

harness/transcript.py compares a transcript with the real output.
"""

import re
import shutil
import subprocess
import time

import pytest

from harness.combinations import TOGETHER
from harness.limits import SLOW_FACTOR, SOON_SECONDS
from harness.server import (
    BINARY,
    IS_VALKEY,
    MODULE,
    RELEASE,
    ROOT,
    VALGRIND,
    Port,
    answers,
    at_least,
)
from harness.transcript import Names, Session, same_reply, steps_of
from harness.wire import Connection

PAGES = sorted(
    [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    + list((ROOT / "docs").rglob("*.md"))
    + list((ROOT / "examples").rglob("*.md"))
    + list((ROOT / "clients" / "conformance").rglob("*.md"))
)
COMMAND_PAGES = sorted((ROOT / "docs" / "reference" / "commands").glob("*.md"))
WITH_TRANSCRIPTS = [page for page in PAGES if steps_of(page.read_text())]


def named(pages):
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.name)


# Transcripts


@named(WITH_TRANSCRIPTS)
def test_every_transcript_is_what_happens(start_server, page):
    session = Session(start_server())
    try:
        for step in steps_of(page.read_text()):
            session.check(step)
        assert not session.waiting, f"the page leaves {session.waiting} waiting"
    finally:
        session.close()


@pytest.mark.once
def test_the_pages_that_should_have_transcripts_have_some():
    assert {ROOT / "README.md", *COMMAND_PAGES} <= set(WITH_TRANSCRIPTS)
    assert len(COMMAND_PAGES) == 8


@pytest.mark.once
def test_the_comparison_sees_what_it_should():
    def same(told, real, names=None):
        return same_reply(told.split("|"), real.split("|"), names or Names())

    low, high = "(integer) 1795243208114201", "(integer) 1795243208114202"
    assert same("(integer) 1", "(integer) 1")
    assert not same("(integer) 1", "(integer) 0")
    assert not same("(integer) 1", low)
    assert not same("(nil)", low)
    assert same(low, high)
    assert same(
        f"{low}|{high}", "(integer) 1795000000000001|(integer) 1795000000000009"
    )
    assert not same(f"{low}|{low}", f"{low}|{high}")
    assert not same(f"{low}|{high}", f"{low}|{low}")
    assert not same(f"{low}|{high}", f"{high}|{low}")
    names = Names()
    assert same(low, "(integer) 1795000000000001", names)
    assert (
        names.typed("LOCK.FENCE a 1795243208114201") == "LOCK.FENCE a 1795000000000001"
    )
    one, other = (
        "0b0e5f5c-6a07-4d5f-93a3-1f6b5a4b7d11",
        "aaaaaaaa-0000-4000-8000-000000000000",
    )
    assert same(f'1) "{one}"', f'1) "{other}"')
    assert not same(f'1) "{one}"|2) "{one}"', f'1) "{one}"|2) "{other}"')
    assert same('5) "held-ms"|6) (integer) 7', '5) "held-ms"|6) (integer) 1234')
    assert not same('5) "held-ms"|6) (integer) 7', '5) "held-ms"|6) (nil)')
    assert not same('5) "count"|6) (integer) 1', '5) "count"|6) (integer) 2')
    assert same('2# "held-ms" => (integer) 7', '2# "held-ms" => (integer) 8')
    assert not same('2# "count" => (integer) 7', '2# "count" => (integer) 8')
    assert same(
        "redislock_commit:abc|redislock_locks:1", "redislock_commit:d|redislock_locks:1"
    )
    assert not same("redislock_locks:1", "redislock_locks:2")
    assert same("a|...|z", "a|b|c|z")
    assert not same("a|...|z", "a|b|c")
    assert same("(nil)|(0.50s)", "(nil)")


# Links and names


@pytest.mark.once
@named(PAGES)
def test_every_link_leads_somewhere(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    for target in targets:
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file.read_text()), target


def anchors(text):
    """The anchors that a page's headings make."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading).strip().lower() for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.once
def test_links_lead_from_readme_to_every_page():
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in seen:
            seen.add(page)
            targets = re.findall(r"\]\(([^)\s#]+\.md)", page.read_text())
            ahead += [(page.parent / target).resolve() for target in targets if "://" not in target]
    assert not [page for page in (ROOT / "docs").rglob("*.md") if page not in seen]


@pytest.mark.once
def test_every_test_that_a_page_names_exists():
    text = "".join(page.read_text() for page in PAGES)
    names = re.findall(r"`((?:tests|src)/[\w/.]+)::(\w+)`", text)
    assert len(names) > 40
    for file, name in names:
        definition = rf"^\s*(?:fn|(?:async )?def) {name}\("
        assert re.search(definition, (ROOT / file).read_text(), re.MULTILINE), (
            file,
            name,
        )


@pytest.mark.once
def test_every_source_file_that_a_page_names_exists():
    text = "".join(page.read_text() for page in PAGES)
    for name in re.findall(r"`((?:src|tests|docs|examples|scripts|clients)/[\w/.-]+)`", text):
        assert (ROOT / name).exists(), name


@pytest.mark.once
def test_every_guarantee_has_its_tests():
    promises = (ROOT / "docs" / "reference" / "guarantees.md").read_text()
    numbers = re.findall(r"^## (G\d+) ", promises, re.MULTILINE)
    assert numbers == [f"G{number}" for number in range(1, 17)]
    table = (ROOT / "docs" / "internals" / "guarantees-tests.md").read_text()
    rows = re.findall(r"^\| \[(.*?)\]\(\S+\) \| `(?:tests|src)/[\w/.]+::\w+` \|$", table, re.MULTILINE)
    for number in numbers:
        assert len([heading for heading in rows if heading.split()[0] == number]) >= 2, number
    promises += (ROOT / "docs" / "reference" / "failover-guarantees.md").read_text()
    assert set(rows) <= set(re.findall(r"^#{2,3} (.*)$", promises, re.MULTILINE))


# Code


@pytest.mark.once
def test_the_code_for_tests_is_what_the_libraries_run():
    """Each library's own tests run the code of its README."""
    def code(page, language):
        return set(re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))

    for library, language in (("python", "python"), ("node", "ts"), ("rust", "rust"), ("go", "go")):
        shown = code(ROOT / "docs" / "how-to" / "test-your-code.md", language)
        assert shown and shown <= code(ROOT / "clients" / library / "README.md", language), library


# Commands


def fact_of(page, name):
    """A row of the first table of a command's page."""
    found = re.search(rf"^\| {name} \| (.*?) \|$", page.read_text(), re.MULTILINE)
    assert found, f"{page.name} says nothing about: {name}"
    return found[1].replace("`", "").replace("\\", "")


@named(COMMAND_PAGES)
def test_a_page_says_what_the_server_says_of_the_command(cli, page):
    name = f"lock.{page.stem}"
    (info,) = cli("COMMAND", "INFO", name)
    docs = cli("COMMAND", "DOCS", name)[1]
    docs = dict(zip(docs[::2], docs[1::2]))
    assert fact_of(page, "Available since") == docs["since"]
    assert fact_of(page, "Complexity").replace("*", "") == docs["complexity"]
    assert fact_of(page, "Flags").split(", ") == sorted(set(info[2]) - {"module"})
    if at_least(redis=(8, 0), valkey=(8, 1)):
        told = set(fact_of(page, "ACL categories").split(", "))
        assert told == set(info[6])


@named(COMMAND_PAGES)
def test_a_page_shows_the_syntax_that_the_server_knows(cli, page):
    syntax = re.search(r"^```\n(LOCK\..*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)[1]
    words = set(re.findall(r"[A-Z]{2,}", syntax)) - {"LOCK", page.stem.upper()}
    assert words == set(tokens_of(cli("COMMAND", "DOCS", f"lock.{page.stem}")))


def tokens_of(value):
    """All words that COMMAND DOCS knows as tokens of arguments."""
    if not isinstance(value, list):
        return
    for key, inner in zip(value, value[1:]):
        if key == "token" and isinstance(inner, str) and inner.isupper():
            yield inner
    for inner in value:
        yield from tokens_of(inner)


# INFO


def test_the_fields_of_info_are_those_that_the_page_lists(cli):
    page = (ROOT / "docs" / "reference" / "info-fields.md").read_text()
    listed = re.findall(r"^\| `(redislock_\w+)` \|", page, re.MULTILINE)
    real = re.findall(r"^(redislock_\w+):", cli("INFO redislock"), re.MULTILINE)
    assert listed == real and len(real) > 30, "docs/reference/info-fields.md: a row for each field, in INFO's order"


# Telemetry


RECORDERS = {
    "python": "src/redislock/metrics.py",
    "node": "src/opentelemetry.ts",
    "rust": "src/otel.rs",
    "java": "opentelemetry/src/main/java/redislock/opentelemetry/Telemetry.java",
}


@pytest.mark.once
@pytest.mark.parametrize("library", RECORDERS)
def test_the_names_of_telemetry_are_those_of_the_libraries(library):
    page = (ROOT / "docs" / "reference" / "telemetry.md").read_text()
    folder = ROOT / "clients" / library
    metric = r"`(redislock\.client\.\w+\.\w+)`"
    metrics = set(re.findall(metric, page))
    assert metrics == set(re.findall(metric, (folder / "README.md").read_text())) and len(metrics) == 5
    attributes = set(re.findall(r"^\| `(redislock\.[\w.]+)` \| (?:a|all)\b", page, re.MULTILINE))
    source = (folder / RECORDERS[library]).read_text()
    assert attributes == set(re.findall(r'"(redislock\.(?!client)[\w.]+)"', source)) and len(attributes) == 3
    about = re.findall(r"^\| `redislock\.client\.\S+ \|.*\| ([\w ]+)", page, re.MULTILINE)[:5]
    assert [text for text in about if f'"{text.strip().capitalize()}"' not in source] == [] and len(about) == 5


# The example configuration


CONF = (ROOT / "redis.conf.example").read_text()


def test_the_example_configuration_shows_every_setting_with_its_default(cli):
    real = cli("CONFIG GET redislock.*")
    shown = dict(re.findall(r"^(redislock\.[a-z-]+) (\w+)$", CONF, re.MULTILINE))
    real = dict(zip(real[::2], real[1::2]))
    assert shown == real, "redis.conf.example: one line for each setting of src/engine/settings.rs"
    spans = re.findall(r"^# Range: ([\w, ]+?)(?: \(.*\))?$", CONF, re.MULTILINE)
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    listed = re.findall(r"^\| `[a-z-]+` \| \w+ \| (.*?) \|", page, re.MULTILINE)
    spans = [span.replace(" or ", ", ") for span in spans]
    assert spans == listed, "the ranges of redis.conf.example, in the order of docs/reference/settings.md"


@pytest.mark.once
def test_the_example_configuration_names_each_option_that_confirm_refuses():
    comment = CONF.split("\nredislock.confirm local")[0].split("\n\n")[-1]
    header, *rows = (line.split() for line in TOGETHER.strip().splitlines())
    refused_options = {feature for feature, *cells in rows if cells[header.index("confirm")] == "C"}
    assert len(refused_options) == 3 and [name for name in refused_options if name not in comment] == []


@pytest.mark.own_server
def test_a_server_starts_with_the_example_configuration_as_it_is(tmp_path):
    shutil.copy(ROOT / "redis.conf.example", tmp_path)
    place = tmp_path / "target" / "release"
    place.mkdir(parents=True)
    (place / "libredislock.so").symlink_to(MODULE)
    port = Port()
    line = ["valgrind", "-q"] if VALGRIND else []
    line += [BINARY, "redis.conf.example", "--port", str(port.number)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(line, cwd=tmp_path, stdout=log, stderr=log)
    try:
        cli = connect(port.number, process, tmp_path / "log")
        token = cli("LOCK.ACQUIRE door alice PX 60000")
        assert cli("LOCK.FENCE", "door", token) == 1
        assert cli("CONFIG GET appendonly") == ["appendonly", "yes"]
        assert cli("CONFIG GET bind") == ["bind", "127.0.0.1"]
    finally:
        process.terminate()
        assert process.wait(SOON_SECONDS) == 0
        port.give_back()


def connect(port, process, log):
    """A connection to a server that is about to start."""
    deadline = time.monotonic() + SOON_SECONDS
    while not answers(port):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.01 * SLOW_FACTOR)
    return Connection(port)


# The rest of the house


@pytest.mark.once
def test_the_readme_names_the_servers_that_are_tested():
    names = subprocess.run(
        [ROOT / "scripts" / "servers", "names"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    listed = (ROOT / "README.md").read_text()
    for name in names:
        kind, release = name.split("-")
        assert kind.capitalize() in listed and release in listed, name
    mine = f"{'valkey' if IS_VALKEY else 'redis'}-{'.'.join(map(str, RELEASE))}"
    assert mine in names


@pytest.mark.once
@named(PAGES)
def test_pages_are_plain_text(page):
    text = page.read_text()
    assert text.isascii(), [line for line in text.splitlines() if not line.isascii()]
    assert text.endswith("\n") and not re.search(r"[ \t]$", text, re.MULTILINE)
    # Output of a server or of the tool may be of any length.
    text = re.sub(r"^```console\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    ours = [line for line in text.splitlines() if "|" not in line and not line.startswith(("(error)", "redislock_"))]
    assert max(map(len, ours)) <= 120
