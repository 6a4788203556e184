"""The check of plain sentences: it finds each kind of fault, in every kind of file, and nothing else."""

import importlib.machinery
import importlib.util
import subprocess
import textwrap

import pytest

from harness.server import ROOT

pytestmark = pytest.mark.once

LONG = "Word " + "word " * 29 + "end."
SHORT = "Word " + "word " * 28 + "end."


def found(tmp_path, name, text):
    """The findings of the check in a file: a line of it and a kind for each."""
    path = tmp_path / name
    path.write_text(textwrap.dedent(text))
    told = subprocess.run([ROOT / "scripts" / "plain", path], capture_output=True, text=True)
    assert told.stderr == ""
    lines = [line.removeprefix(f"{path}:").split(": ", 2) for line in told.stdout.splitlines()]
    assert told.returncode == (1 if lines else 0)
    return [(int(number), kind) for number, kind, _ in lines]


def test_a_sentence_of_31_words_is_found_and_one_of_30_is_not(tmp_path):
    assert found(tmp_path, "a.md", f"Short.\n{LONG}\n") == [(2, "31 words")]
    assert found(tmp_path, "a.md", f"{SHORT}\n{SHORT} {SHORT}\n") == []


def test_a_sentence_is_counted_over_lines_to_its_end(tmp_path):
    half = "word " * 16
    assert found(tmp_path, "a.md", f"Yes.\nA {half}\n{half}end.\n") == [(2, "34 words")]
    assert found(tmp_path, "a.md", f"Word e.g. {half}\n{half}end.\n") == [(1, "35 words")]
    for beginning in ("A ", "`a` ", "[a](https://example.org/) ", "**A** ", "(A "):
        assert found(tmp_path, "a.md", f"{half}end.\n{beginning}{half}end.\n") == []


def test_a_code_span_and_a_link_count_as_the_words_they_are_read_as(tmp_path):
    words = "word " * 28
    assert found(tmp_path, "a.md", f"{words}`LOCK.ACQUIRE k o. PX 30000` end.\n") == []
    assert found(tmp_path, "a.md", f"{words}[one](https://example.org/a) end.\n") == []
    assert found(tmp_path, "a.md", f"{words}[one two three](https://example.org/a) end.\n") == [(1, "32 words")]


def test_code_tables_and_headings_are_left_out_and_items_count_alone(tmp_path):
    for text in (f"```\n{LONG}\n```\n", f"| {LONG} |\n", f"# {LONG}\n", f"Run:\n\n    {LONG}\n"):
        assert found(tmp_path, "a.md", text) == []
    half = "word " * 20
    assert found(tmp_path, "a.md", f"- {half}\n- {half}\n1. {half}\n") == []
    assert found(tmp_path, "a.md", f"- {half}\n  {half}\n") == [(1, "40 words")]
    assert found(tmp_path, "a.md", f"Two:\n  one    {half}\n  two    {half}\nAfter {half}\n") == []
    assert found(tmp_path, "a.md", f"Two:\n  one    {half}\n         {half}\n") == [(2, "41 words")]


@pytest.mark.parametrize("beginning", ["Who", "Whoever", "Such", "So many", "Of which", "The same, but"])
def test_each_beginning_is_found(tmp_path, beginning):
    assert found(tmp_path, "a.md", f"Yes. {beginning} it is.\n") == [(1, "beginning")]
    assert found(tmp_path, "a.md", f"Yes.\n\n- **{beginning} it** is.\n") == [(3, "beginning")]
    assert found(tmp_path, "a.md", f"It is not {beginning} here as there. {beginning}er.\n") == []


def test_a_question_may_begin_with_who(tmp_path):
    assert found(tmp_path, "a.md", 'Who is it? **Who is it?** "Who is it?"\n') == []
    assert found(tmp_path, "a.md", "Is it so? Who is it. Why?\n") == [(1, "beginning")]


@pytest.mark.parametrize("before", ["by", "for", "from", "than", "to", "with"])
def test_a_clause_with_who_and_no_noun_is_found(tmp_path, before):
    for who in ("who", "whoever"):
        assert found(tmp_path, "a.md", f"Yes.\nIt is {before}\n{who} it is.\n") == [(2, "who")]
        assert found(tmp_path, "a.md", f"It is {before} `{who}`, {before} us {who} are, {before}{who}, {who}.\n") == []


@pytest.mark.parametrize("number", ["so many", "so much"])
def test_a_number_that_is_not_said_is_found(tmp_path, number):
    assert found(tmp_path, "a.md", f"Yes.\nIt waits for {number}\nlocks.\n") == [(2, "number")]
    assert found(tmp_path, "a.md", "Yes. So much is done.\n") == [(1, "number")]
    assert found(tmp_path, "a.md", f"That is as it was: {number} locks.\n") == [(1, "number")]
    assert found(tmp_path, "a.md", f"It has {number} locks. As many that are free.\n") == [(1, "number")]
    assert found(tmp_path, "a.md", f"It has {number} locks\nthat none is free, and {number} time as it takes.\n") == []
    assert found(tmp_path, "a.md", f"It is `{number}` here, also{number}, {number}er.\n") == []


@pytest.mark.parametrize(
    "text, target",
    [
        ("See [there](no-such-page.md#part).", "no-such-page.md"),
        ("See NOTHING.md.", "NOTHING.md"),
        ("See `docs/NOTHING.md`.", "docs/NOTHING.md"),
        ("See src/lock/nothing.rs.", "src/lock/nothing.rs"),
        ("So says SPEC 5.", "SPEC 5"),
        ("See ../shared.", "../shared"),
        ("So says CLIENTS 3.", "CLIENTS 3"),
    ],
)
def test_what_the_repository_does_not_have_is_found(tmp_path, text, target):
    kind = f"reference to {target}, which is not there"
    assert kind in {kind for _, kind in found(tmp_path, "a.md", f"Yes.\n\n{text}\n")}


def test_what_the_repository_has_is_not_found(tmp_path):
    (tmp_path / "b.md").write_text("")
    text = "See [b](b.md#part), [it](https://example.org/NO.md), docs/reference/guarantees.md, SECURITY.md, src/lib.rs.\n"
    assert found(tmp_path, "a.md", text) == []


@pytest.mark.parametrize(
    "name, text, line",
    [
        ("a.rs", f"/// Yes.\n///\n/// {LONG}\nfn a() {{}}\n", 3),
        ("a.rs", f"//! {LONG}\n", 1),
        ("a.rs", f"fn a() {{\n    // {LONG}\n}}\n", 2),
        ("a.rs", f'// "\nconst A: &str = "{LONG[:60]}\\\n    {LONG[60:]}";\n', 2),
        ("a.py", f'"""Yes.\n\n{LONG}\n"""\n', 3),
        ("a.py", f'def a():\n    """{LONG}"""\n', 2),
        ("a.py", f"a = 1\n# {LONG}\n", 2),
        ("a.ts", f"/**\n * {LONG}\n */\n", 2),
        ("a.mjs", f"// {LONG}\n", 1),
        ("a.go", f"package a\n\n// {LONG}\nfunc a() {{}}\n", 3),
        ("a.java", f"/**\n * Yes.\n *\n * @return {LONG}\n */\n", 4),
        ("a.sh.example", f"a 1\n# {LONG}\n", 2),
        ("a", f"#!/usr/bin/env bash\n# {LONG}\n", 2),
        ("a", f'#!/usr/bin/env python3\n"""{LONG}"""\n', 2),
        ("a.toml", f"# {LONG}\n", 1),
    ],
)
def test_comments_docstrings_and_messages_are_read(tmp_path, name, text, line):
    path = tmp_path / name
    path.write_text(text)
    told = subprocess.run([ROOT / "scripts" / "plain", path], capture_output=True, text=True)
    assert told.returncode == 1 and told.stdout.startswith(f"{path}:{line}: 31 words: "), told.stdout


def test_each_tag_of_a_comment_counts_alone_and_a_code_tag_is_one_word(tmp_path):
    half = "word " * 16
    assert found(tmp_path, "a.java", f"/**\n * @param a {half}\n * @return {half}\n */\n") == []
    assert found(tmp_path, "a.java", f"/** {'word ' * 28}{{@code a b c d}} end. */\n") == []
    assert found(tmp_path, "a.java", f"/** {'word ' * 30}{{@link #a}} end. */\n") == [(1, "32 words")]


def test_code_is_not_read(tmp_path):
    code = "word " * 31
    assert found(tmp_path, "a.rs", f"fn a() {{}} // {code}\n/// ```text\n/// {code}\n/// ```\n") == []
    assert found(tmp_path, "a.py", f'a = """{code}"""\n') == []


def test_a_name_that_leads_nowhere_is_refused():
    told = subprocess.run([ROOT / "scripts" / "plain", "no/such/folder"], capture_output=True, text=True)
    assert told.returncode == 1 and "no/such/folder" in told.stderr


def run_on_a_repository(tmp_path, pending):
    """The check, in a repository of its own, with this list of pending files."""
    (tmp_path / "scripts").mkdir()
    script = (ROOT / "scripts" / "plain").read_text()
    lines = [f"PENDING = {pending!r}" if line.startswith("PENDING = ") else line for line in script.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith("PENDING = "))
    if script.splitlines()[start].endswith("("):
        end = lines.index(")", start)
        del lines[start + 1 : end + 1]
    (tmp_path / "scripts" / "plain").write_text("\n".join(lines) + "\n")
    (tmp_path / "bad.md").write_text(f"{LONG}\n")
    (tmp_path / "good.md").write_text(f"{SHORT}\n")
    (tmp_path / "parts.md").write_text(f"## One, two\n\n{LONG}\n\n## Three\n\n{SHORT}\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return subprocess.run(["python3", tmp_path / "scripts" / "plain"], capture_output=True, text=True)


@pytest.mark.parametrize(
    "pending, code, says",
    [
        (("parts.md",), 1, "bad.md:1: 31 words"),
        (("bad.md",), 1, "parts.md:3: 31 words"),
        (("bad.md", "parts.md"), 0, ""),
        (("bad.md", "parts.md#one-two"), 0, ""),
        (("bad.md", "parts.md#three"), 1, "scripts/plain: parts.md#three has no finding any more"),
        (("bad.md", "parts.md", "good.md"), 1, "scripts/plain: good.md has no finding any more"),
    ],
)
def test_what_is_pending_is_left_out_until_it_is_clean(tmp_path, pending, code, says):
    told = run_on_a_repository(tmp_path, pending)
    assert told.returncode == code and told.stdout.startswith(says) and told.stderr == "", told


@pytest.fixture(scope="module")
def plain():
    """The check as a module."""
    loader = importlib.machinery.SourceFileLoader("plain", str(ROOT / "scripts" / "plain"))
    spec = importlib.util.spec_from_loader("plain", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_each_mark_is_counted_once_in_the_file_that_has_it(plain, tmp_path):
    path = tmp_path / "a.rs"
    path.write_text(
        "// What has to be confirmed first.\n// Returns the newest live token. The lock is over by then.\n"
        '// How long is a lease?\nfn a() { refuse("Whether nothing is done for it") }\n'
    )
    found = list(plain.comments_of(path))
    assert [plain.FRAGMENT.match(each) is not None for each in found] == [True, False, False, False]
    assert [plain.IDIOM.search(each) is not None for each in found] == [False, False, True, False]


def test_each_file_belongs_to_the_area_of_its_folder(plain):
    for name, area in [
        ("src/lib.rs", "src"),
        ("clients/go/lock.go", "clients"),
        ("clients/node/README.md", "pages"),
        ("scripts/plain", "elsewhere"),
        ("tests/python/test_plain.py", "elsewhere"),
        ("docs/internals/history.md", None),
    ]:
        assert plain.area_of(ROOT / name) == area
    assert set(plain.MARKS_MAX) == {"src", "pages", "clients", "elsewhere", "names of tests"}


def test_an_area_with_more_marks_than_it_may_have_is_an_error(plain, monkeypatch, capsys):
    assert plain.report_marks(shows_all=False) == 0 and capsys.readouterr().out == ""
    monkeypatch.setattr(plain, "MARKS_MAX", plain.MARKS_MAX | {"src": (0.1, 99)})
    assert plain.report_marks(shows_all=False) == 1
    assert capsys.readouterr().out.startswith("src: ")
