"""The view of operators: docs/operations/monitoring with the real exporter and the real Prometheus (`make monitoring`).

Without REDISLOCK_MONITORING=1 only what needs neither is tested.
"""

import json
import os
import re
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from harness.limits import eventually
from harness.server import ROOT, Port

FILES = ROOT / "docs" / "operations" / "monitoring"
SCRIPT = (FILES / "redislock.lua").read_text()
with_tools = pytest.mark.skipif(
    os.environ.get("REDISLOCK_MONITORING", "") in ("", "0"), reason="`make monitoring` installs what this needs"
)


def use_locks(server):
    """Some of everything that is counted: a wait, a broken hold, a deadlock, a late writer."""
    cli = server.connect()
    cli("LOCK.ACQUIRE a ann PX 60000")
    cli("LOCK.ACQUIRE b bob PX 60000")
    waiting = server.ask("LOCK.ACQUIRE", "a", "bob", "PX", "60000", "BLOCK", "0")
    with pytest.raises(Exception, match="DEADLOCK"):
        cli("LOCK.ACQUIRE b ann PX 60000 BLOCK 0")
    with pytest.raises(Exception, match="FENCED"):
        cli("LOCK.EXEC a 1 SET x y")
    time.sleep(0.07)  # so that not all waits are of the shortest kind
    assert cli("LOCK.RELEASE a ann") == 1
    waiting.answer()
    cli("DEL b")


def scripted(server):
    """The result of the exporter's script, as a dictionary."""
    flat = server.admin("EVAL", SCRIPT, "0")
    assert all(isinstance(each, str) for each in flat), "the exporter wants strings"
    return dict(zip(flat[::2], flat[1::2]))


def histogram(text):
    """A field of INFO like le_1=3,le_2=3,le_inf=9,sum=1204."""
    return {name: int(number) for name, number in (part.split("=") for part in text.split(","))}


def test_info_shows_histograms_that_can_be_added_up(server):
    before = server.info("redislock")
    use_locks(server)
    after = server.info("redislock")
    for name, counted in [("wait", 1), ("hold", 1)]:
        first, last = (histogram(info[f"redislock_{name}_ms_histogram"]) for info in (before, after))
        bounds = [part for part in last if part.startswith("le_")]
        assert bounds[0] == "le_1" and bounds[-1] == "le_inf" and list(last)[-1] == "sum"
        counts = [last[bound] for bound in bounds]
        assert counts == sorted(counts), "each bucket counts those below it, too"
        more = {part: last[part] - first[part] for part in last}
        assert more["le_inf"] >= counted
        assert more["sum"] >= 70 and more["le_50"] < more["le_inf"], more


def test_the_script_gives_the_exporter_every_number(server):
    use_locks(server)
    info, told = server.info("redislock"), scripted(server)
    numbers = {name: value for name, value in info.items() if re.fullmatch(r"\d+", value)}
    passing = {"redislock_token_lead_us"}
    assert len(numbers) > 20
    assert {name: told[name] for name in numbers if name not in passing} == {
        name: value for name, value in numbers.items() if name not in passing
    }
    assert told["redislock_is_loaded"] == told["redislock_is_primary"] == "1"
    assert told["redislock_is_confirmed"] == "0"
    for name in ["wait", "hold"]:
        fields = histogram(info[f"redislock_{name}_ms_histogram"])
        assert told[f"redislock_{name}_ms_count"] == str(fields.pop("le_inf"))
        assert told[f"redislock_{name}_ms_sum"] == str(fields.pop("sum"))
        for bound, count in fields.items():
            assert told[f"redislock_{name}_ms_{bound}"] == str(count)


def contend(server, name, times):
    """Asks this often for a lock that is taken."""
    cli = server.connect()
    cli("LOCK.ACQUIRE", name, "ann", "PX", 60000)
    for _ in range(times):
        assert cli("LOCK.ACQUIRE", name, "bob", "PX", 60000) is None


def told_as_contended(server):
    """The script's counts of the most contended locks: by database and name."""
    told = scripted(server).items()
    return {name.partition(":")[2]: int(n) for name, n in told if name.startswith("redislock_top_contended")}


def test_the_script_lists_contended_locks_on_request_and_at_most_twenty(server):
    contend(server, "busy", 3)
    assert told_as_contended(server) == {}, "it is off at first"
    server.admin("CONFIG SET redislock.top-contended 100")
    odd = b"a b:c;d=\r\n,\"\xff"
    contend(server, odd, 2)
    contend(server, "busy", 3)
    assert told_as_contended(server) == {"0:busy": 3, "0:a%20b:c%3Bd%3D%0D%0A%2C%22%FF": 2}
    for number in range(25):
        contend(server, f"lock:{number}", 1)
    told = told_as_contended(server)
    assert len(told) == 20 and told["0:busy"] == 3, "those with the highest counts"
    assert len(server.info("redislock")["redislock_top_contended"].split(";")) == 27


def test_a_commit_that_looks_like_a_number_is_none(server):
    info = "redis.call('INFO', 'redislock')"
    assert SCRIPT.count(info) == 1
    shown = r"'redislock_version:0.2.0\r\nredislock_commit:9e5166734002\r\nredislock_locks:7\r\n'"
    flat = server.admin("EVAL", SCRIPT.replace(info, shown), "0")
    assert dict(zip(flat[::2], flat[1::2])) == {"redislock_locks": "7", "redislock_is_loaded": "1"}


def test_the_script_says_when_there_is_no_module(start_server):
    assert scripted(start_server(with_module=False)) == {"redislock_is_loaded": "0"}


def test_the_user_of_the_page_may_run_the_script_and_nothing_else(server):
    page = (ROOT / "docs" / "operations" / "monitoring.md").read_text()
    (rule,) = re.findall(r"ACL SETUSER monitor .*", page)
    server.admin(*rule.replace(">a-long-password", ">secret").split())
    cli = server.connect()
    assert cli("AUTH monitor secret") == "OK"
    assert "redislock_locks" in cli("EVAL", SCRIPT, "0")
    for refused in ["LOCK.ACQUIRE k o PX 100", "GET k", "LOCK.INFO k", "FLUSHALL"]:
        with pytest.raises(Exception, match="NOPERM"):
            cli(refused)


class Tool:
    """A program of the monitoring, with a port of its own on this machine."""

    def __init__(self, directory, name, *arguments):
        self.reserved = Port()
        self.address = f"127.0.0.1:{self.reserved.number}"
        self.log = (directory / f"{name}.log").open("w+")
        line = [name, *(str(argument).replace("ADDRESS", self.address) for argument in arguments)]
        self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def get(self, path):
        """The text at that path; nothing if it is not ready."""
        assert self.process.poll() is None, Path(self.log.name).read_text()
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as reply:
                return reply.read().decode()
        except OSError:
            return None

    def end(self):
        """Ends it."""
        self.process.terminate()
        self.process.wait(30)
        self.log.close()
        self.reserved.give_back()


@pytest.fixture
def monitored(start_server, tmp_path):
    """A server that is used, the exporter that reads it, and a Prometheus that reads the exporter each second."""
    server = start_server()
    script = FILES / "redislock.lua"
    exporter = Tool(
        tmp_path,
        "prometheus-redis-exporter",
        *("--web.listen-address", "ADDRESS", "--script", script),
        *("--redis.addr", f"redis://127.0.0.1:{server.port}"),
    )
    settings = (FILES / "prometheus.yml").read_text()
    assert "scrape_interval: 15s" in settings and "127.0.0.1:9121" in settings
    settings = settings.replace("scrape_interval: 15s", "scrape_interval: 1s\n  evaluation_interval: 1s")
    (tmp_path / "prometheus.yml").write_text(settings.replace("127.0.0.1:9121", exporter.address))
    (tmp_path / "alerts.yml").write_text((FILES / "alerts.yml").read_text())
    prometheus = Tool(
        tmp_path,
        "prometheus",
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
        "--web.listen-address=ADDRESS",
    )
    yield server, exporter, prometheus
    prometheus.end()
    exporter.end()


def series(prometheus, expression):
    """The answer of Prometheus: labels and number of each series."""
    text = prometheus.get("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
    if text is None:
        return []
    reply = json.loads(text)
    assert reply["status"] == "success", (expression, reply)
    return [(each["metric"], float(each["value"][1])) for each in reply["data"]["result"]]


def number(prometheus, expression):
    """The one number that this is; None while there is none."""
    found = series(prometheus, expression)
    return found[0][1] if len(found) == 1 else None


@with_tools
@pytest.mark.timeout(240)
def test_the_exporter_and_prometheus_show_what_happens(monitored):
    server, exporter, prometheus = monitored
    eventually(lambda: "redis_up 1" in (exporter.get("/metrics") or ""), "the exporter reads the server")
    eventually(lambda: number(prometheus, "redislock_is_loaded") == 1, "Prometheus reads the exporter")
    eventually(lambda: number(prometheus, "redislock_grants") == 0, "nothing has happened yet")
    server.admin("CONFIG SET redislock.top-contended 10")
    use_locks(server)
    contend(server, "busy lock", 3)
    info = server.info("redislock")
    for name in ["grants", "contended_grants", "releases", "broken", "deadlocks", "fenced", "holds", "waiters"]:
        wanted = int(info[f"redislock_{name}"])
        eventually(lambda: number(prometheus, f"redislock_{name}") == wanted, f"redislock_{name} is {wanted}")
    fields = histogram(info["redislock_wait_ms_histogram"])
    buckets = dict(
        (metric["le"], count) for metric, count in series(prometheus, "redislock_wait_ms_bucket")
    )
    assert buckets.pop("+Inf") == fields["le_inf"] == number(prometheus, "redislock_wait_ms_count")
    assert buckets == {name.removeprefix("le_"): n for name, n in fields.items() if name not in {"le_inf", "sum"}}
    busy = 'redislock_top_contended{db="0", lock="busy%20lock"}'
    eventually(lambda: number(prometheus, busy) == 3, "the lock that is contended is named")
    for metric, _ in series(prometheus, '{__name__=~"redislock_.*"}'):
        if metric["__name__"] == "redislock_top_contended":
            assert metric.pop("db") == "0" and metric.pop("lock") in {"a", "b", "busy%20lock"}, metric
        assert set(metric) <= {"__name__", "instance", "job", "le"}, metric
    slow = "histogram_quantile(1, rate(redislock_wait_ms_bucket[1m])) > 50"
    eventually(lambda: series(prometheus, slow), "the longest wait is found in its bucket")
    fires = 'ALERTS{alertname="RedislockHoldsBroken", alertstate="firing"}'
    eventually(lambda: series(prometheus, fires), "the alert of broken holds fires")
    for panel in json.loads((FILES / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")
            assert series(prometheus, expression), (panel["title"], expression)


@pytest.mark.once
@with_tools
def test_prometheus_accepts_the_files():
    checked = subprocess.run(
        ["promtool", "check", "config", FILES / "prometheus.yml"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    assert re.search(r"SUCCESS: \d+ rules found", checked.stdout), checked.stdout


@pytest.mark.once
def test_the_page_says_when_each_alert_fires():
    page = (ROOT / "docs" / "operations" / "monitoring.md").read_text()
    rule = re.compile(r"- alert: (\w+)\n\s+expr: (.*)\n(?:\s+for: (\w+)\n)?")
    rules = [(name, f"`{expr}`" + (f", for {wait}" if wait else "")) for name, expr, wait in
             rule.findall((FILES / "alerts.yml").read_text())]
    assert re.findall(r"^\| `(Redislock\w+)` \| (.*?) \|", page, re.MULTILINE) == rules


def test_every_alert_is_explained_and_every_metric_exists(server):
    page = (ROOT / "docs" / "operations" / "monitoring.md").read_text()
    rules = (FILES / "alerts.yml").read_text()
    alerts = re.findall(r"alert: (\w+)", rules)
    assert len(alerts) > 8
    for alert in alerts:
        assert f"`{alert}`" in page, alert
    server.admin("CONFIG SET redislock.top-contended 1")
    contend(server, "busy", 1)
    known = {name.partition(":")[0] for name in scripted(server)} | {"redislock_wait_ms_bucket", "redislock_hold_ms_bucket"}
    board = (FILES / "dashboard.json").read_text()
    used = set(re.findall(r"\bredislock_\w+", rules + board))
    assert len(used) > 10 and used <= known, used - known
