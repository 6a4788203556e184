"""The figures of the documentation are the output of scripts/figures, and every reader can see them."""

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

from harness.server import ROOT

pytestmark = pytest.mark.once

FIGURES = sorted((ROOT / "docs" / "figures").glob("*.svg"))


def check(folder):
    return subprocess.run([folder / "scripts" / "figures", "--check"], capture_output=True, text=True)


def test_figures_are_what_the_script_draws():
    assert check(ROOT).returncode == 0


def test_a_figure_that_is_changed_missing_or_too_many_is_found(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "figures", tmp_path / "scripts")
    subprocess.run([tmp_path / "scripts" / "figures"], check=True)
    assert check(tmp_path).returncode == 0
    layers = tmp_path / "docs" / "figures" / "layers.svg"
    drawn = layers.read_text()
    layers.write_text(drawn.replace("src/lock", "src/locks"))
    assert "docs/figures/layers.svg is not" in check(tmp_path).stderr
    layers.unlink()
    assert "docs/figures/layers.svg is not" in check(tmp_path).stderr
    layers.write_text(drawn)
    (layers.parent / "older.svg").write_text(drawn)
    told = check(tmp_path)
    assert told.returncode == 1 and "docs/figures/older.svg is not" in told.stderr and "layers" not in told.stderr


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_figures_can_be_read_in_the_dark_and_by_ear(path):
    text = path.read_text()
    assert "prefers-color-scheme: dark" in text
    tree = ElementTree.fromstring(text)
    title, told = (tree.find(f"{{http://www.w3.org/2000/svg}}{name}").text for name in ("title", "desc"))
    assert len(told) > len(title) > 20
    pages = [page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]]
    shown = [alt for page in pages for alt in re.findall(rf"!\[(.*?)\]\([\w./-]*figures/{path.name}\)", page)]
    assert shown and set(shown) == {title}


def test_there_are_four_figures():
    assert len(FIGURES) == 4
