"""Bad input is refused by one line that names the option and the accepted form; help and pages."""

import os
import subprocess

import pytest

CASES = [
    (["--wait", "30"], "--wait", "30s"),
    (["--wait", "5M"], "--wait", "5m"),
    (["--wait", "never"], "--wait", "forever"),
    (["--lease", "2999ms"], "--lease", "at least 3s"),
    (["--lease", "30 parsecs"], "--lease", "30s"),
    (["--lease", "-5s"], "--lease", "30s"),
    (["--min-hold", "10000d"], "--min-hold", "366d"),
    (["--max-hold", "0"], "--max-hold", "more than 0"),
    (["--kill-after", "x"], "--kill-after", "30s"),
    (["--on-busy", "wait"], "--on-busy", "fail, skip"),
    (["--on-loss", "stop"], "--on-loss", "term, kill, warn"),
    (["--busy-code", "0"], "--busy-code", "1 to 255"),
    (["--busy-code", "256"], "--busy-code", "1 to 255"),
    (["--semaphore", "two"], "--semaphore", "1 to 1000000"),
    (["--semaphore", "0"], "--semaphore", "1 to 1000000"),
    (["--semaphore", "1000001"], "--semaphore", "1 to 1000000"),
    (["--semaphore", "2", "--shared"], "--semaphore", "--shared"),
    (["--quiet", "--verbose"], "--quiet", "--verbose"),
    (["--label", "two words"], "--label", "100"),
    (["--label", ""], "--label", "100"),
    (["--url", "redsi://host"], "--url", "redis://"),
    (["--url", "host:6379"], "--url", "redis://"),
    (["--url", "redis://host:port"], "--url", "redis://"),
    (["--url", "redis://:secret@host"], "--url", "--password-file"),
    (["--url", "redis+sentinel://host:26379"], "--url", "service"),
    (["--cacert", "/etc/hostname"], "--cacert", "rediss"),
    (["--cacert", "/nowhere"], "--cacert", "/nowhere"),
    (["--cert", "/etc/hostname"], "--cert", "--key"),
    (["--password-file", "/nowhere"], "--password-file", "/nowhere"),
    (["--password-file", "/"], "--password-file", "regular file"),
    (["--no-such-option"], "--no-such-option", "redislock run"),
]


@pytest.mark.parametrize(("words", "option", "form"), CASES, ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_bad_option_is_refused_by_one_line(tool, words, option, form):
    done = tool("run", *words, "name", "true")
    assert done.returncode == 64, done.stderr
    assert done.stderr.count("\n") == 1 and option in done.stderr and form in done.stderr, done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "NAME"),
        (["--prefix", "cron:", "", "true"], "NAME"),
        (["name"], "COMMAND"),
        (["name", "--"], "COMMAND"),
        (["", "true"], "NAME"),
        (["name", ""], "COMMAND"),
        (["name", "--wait", "5s", "true"], "--wait: options stand before NAME"),
    ],
)
def test_missing_words_are_refused_by_one_line(tool, words, part):
    done = tool("run", *words)
    assert done.returncode == 64 and done.stderr.count("\n") == 1 and part in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("words", "option", "form"),
    [
        ([], "COMMAND", "run, ls, info, held-by, break, doctor"),
        (["rum", "name", "true"], "rum", "'run'"),
        (["ls", "--budget", "0"], "--budget", "1 to 1000000000"),
        (["ls", "--watch", "3s"], "--watch", "--watch=3s"),
        (["ls", "--watch=3"], "--watch", "30s"),
        (["ls", "one", "two"], "two", "unexpected"),
        (["info", ""], "NAME", "not an empty word"),
        (["held-by", ""], "OWNER", "1 to 256 bytes"),
        (["break"], "NAME", "required"),
        (["break", ""], "NAME", "not an empty word"),
        (["doctor", "--lease", "1s"], "--lease", "at least 3s"),
        (["doctor", "--min-hold", "5"], "--min-hold", "30s"),
    ],
)
def test_bad_words_of_other_commands_are_refused_by_one_line(tool, words, option, form):
    done = tool(*words, timeout=10)
    assert done.returncode == 64 and done.stderr.count("\n") == 1, done.stderr
    assert option in done.stderr and form in done.stderr, done.stderr


def test_database_that_the_server_lacks_is_a_wrong_setting(shared, tool):
    done = tool("run", "--url", f"redis://127.0.0.1:{shared.port}/99", "name", "true")
    assert done.returncode == 78 and "DB index" in done.stderr, done.stderr


def test_credential_of_systemd_is_read_though_its_group_bit_is_set(tool, tmp_path):
    folder = tmp_path / "credentials"
    folder.mkdir()
    for path in (folder / "redis", tmp_path / "redis"):
        path.write_text("secret\n")
        path.chmod(0o440)
    tool.environment["CREDENTIALS_DIRECTORY"] = str(folder)
    assert tool("info", "--password-file", str(folder / "redis"), "name").returncode != 64
    assert tool("info", "--password-file", str(tmp_path / "redis"), "name").returncode == 64


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_password_file_that_others_may_read_is_refused(tool, tmp_path, mode):
    path = tmp_path / "password"
    path.write_text("secret\n")
    path.chmod(mode)
    done = tool("run", "--password-file", str(path), "name", "true")
    assert done.returncode == 64 and done.stderr.count("\n") == 1, done.stderr
    assert "--password-file" in done.stderr and f"{mode:03o}" in done.stderr and "chmod 600" in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize("text", ["", "\n", "one\ntwo\n", "x" * 5000])
def test_password_file_without_one_password_is_refused(tool, tmp_path, text):
    path = tmp_path / "password"
    path.write_text(text)
    path.chmod(0o600)
    done = tool("run", "--password-file", str(path), "name", "true")
    assert done.returncode == 64 and "--password-file" in done.stderr, done.stderr


def commands(tool):
    lines = tool("--help").stdout.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines]


def test_help_fits_a_screen(tool):
    tool.environment["COLUMNS"] = "100"
    assert "run" in commands(tool)
    for words in ([], *([command] for command in commands(tool))):
        done = tool(*words, "-h")
        lines = done.stdout.splitlines()
        assert done.returncode == 0 and len(lines) <= 48 and max(map(len, lines)) <= 100, done.stdout
    assert "--min-hold" in tool("run", "--help").stdout


def test_manual_is_formatted_without_a_warning(tool):
    page = tool("manual")
    assert page.returncode == 0 and page.stdout.startswith(".ie") or ".TH redislock 1" in page.stdout
    for word in ("\\-\\-min\\-hold", "REDISLOCK_URL", *(f"REDISLOCK {name.upper()}" for name in commands(tool))):
        assert word in page.stdout, word
    assert "run(1)" not in page.stdout, "a page that there is not"
    cron, *_ = (line for line in page.stdout.splitlines() if "* * * * *" in line)
    assert cron.replace("\\", "").endswith(" redislock run --on-busy skip --min-hold 30s nightly /usr/local/bin/job")
    assert ".nf" in page.stdout.split(cron)[0].splitlines()[-3:], "it stays one line"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_know_the_options(tool, tmp_path, shell):
    done = tool("completions", shell)
    assert done.returncode == 0 and "min-hold" in done.stdout and "password-file" in done.stdout
    if shell == "bash":
        path = tmp_path / "completions"
        path.write_text(done.stdout)
        subprocess.run(["bash", "-n", path], check=True)


def test_exit_code_is_kept_where_the_line_cannot_be_written(tool):
    with open("/dev/full", "w") as full:
        assert tool("run", "--wait", "30", "name", "true", capture_output=False, stderr=full).returncode == 64
        assert tool("info", "", capture_output=False, stderr=full).returncode == 64


def test_closed_output_is_no_error(tool):
    reader, writer = os.pipe()
    os.close(reader)
    process = tool.start("--help", stdout=writer)
    os.close(writer)
    assert process.wait(30) == 0
