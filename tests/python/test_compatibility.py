"""Pages made of facts that are elsewhere too: tested servers, and measured figures."""

import re
import subprocess

import pytest

from harness.server import ROOT

PAGE = (ROOT / "docs" / "reference" / "compatibility.md").read_text()
SIZING = ROOT / "docs" / "operations" / "sizing.md"


@pytest.mark.once
def test_the_page_lists_the_servers_that_are_tested_and_no_others():
    listed = re.findall(r"^\| (Redis|Valkey) (\d+\.\d+) \| yes \|", PAGE, re.MULTILINE)
    ran = subprocess.run([ROOT / "scripts" / "servers", "names"], capture_output=True, text=True, check=True)
    assert {f"{kind.lower()}-{release}" for kind, release in listed} == set(ran.stdout.split())
    assert len(listed) == len(ran.stdout.split())


@pytest.mark.once
def test_the_page_lists_the_servers_that_the_module_refuses():
    (row,) = re.findall(r"^\| (.*?) \| the module does not load, and the log says why", PAGE, re.MULTILINE)
    source = (ROOT / "src" / "redis" / "onload.rs").read_text()
    (told,) = re.findall(r'"(.*?) are excluded', source)
    assert row.split(", ") == re.split(", | and ", told)


@pytest.mark.once
def test_the_doctor_knows_the_same_servers():
    source = (ROOT / "tool" / "src" / "doctor" / "versions.rs").read_text()
    table = re.search(r"const TESTED.*?;", source, re.DOTALL)[0]
    known = set()
    for kind, releases in re.findall(r'\("(\w+)", &\[(.*?)\]\)', table):
        known |= {f"{kind} {major}.{minor}" for major, minor in re.findall(r"\((\d+), (\d+)\)", releases)}
    assert known == set(re.findall(r"^\| ((?:Redis|Valkey) \d+\.\d+) \| yes \|", PAGE, re.MULTILINE))


@pytest.mark.once
def test_the_page_names_the_oldest_version_of_each_language():
    wanted = {
        "Python": re.search(r'requires-python = ">=([\d.]+)"', text_of("clients/python/pyproject.toml"))[1],
        "Node": re.search(r'"node": ">=(\d+)"', text_of("clients/node/package.json"))[1],
        "Rust": re.search(r'rust-version = "([\d.]+)"', text_of("clients/rust/Cargo.toml"))[1],
        "Go": re.search(r"^go (\d+\.\d+)", text_of("clients/go/go.mod"), re.MULTILINE)[1],
        "Java": re.search(r"<maven\.compiler\.release>(\d+)<", text_of("clients/java/pom.xml"))[1],
    }
    shown = dict(re.findall(r"^\| \[(\w+)\]\(.*?README\.md\) \| \w+ ([\d.]+) \|", PAGE, re.MULTILINE))
    assert shown == wanted


def text_of(name):
    return (ROOT / name).read_text()


@pytest.mark.once
def test_every_figure_of_the_tables_of_sizing_stands_in_the_page_that_its_row_names():
    rows = re.findall(r"^\| (.*?) \| \[[\w ]+\]\(([^)#]+)(?:#[^)]*)?\) \|$", SIZING.read_text(), re.MULTILINE)
    assert len(rows) >= 12
    for cells, source in rows:
        text = (SIZING.parent / source).resolve().read_text()
        _, *figures = cells.split(" | ")
        assert any(figures)
        for figure in filter(None, map(str.strip, figures)):
            assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d,]|\.\d)", text), f"{figure} does not stand in {source}"
