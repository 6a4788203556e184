"""Runs the recipes of docs/how-to/frameworks-python.md as they stand, each with its framework in its own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "frameworks-python.md"
RECIPES = dict(re.findall(r"^<!-- (\S+) -->\n```python\n(.*?)^```$", PAGE.read_text(), re.S | re.M))

#: For each recipe: a program that uses it, with another process's locks in `others`.
BEGIN = """
import redis, redislock
others = redislock.Locks(redis.Redis())
"""
DJANGO = """
import django
from django.conf import settings
settings.configure(
    ROOT_URLCONF="urls", INSTALLED_APPS=["django_app"], ALLOWED_HOSTS=["*"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://localhost:6379"}},
)
django.setup()
"""
USES = {
    "django/management/commands/send_invoices.py": DJANGO
    + """
import io
from django.core.management import call_command
def run():
    out = io.StringIO()
    call_command("send_invoices", stdout=out)
    return out.getvalue().strip()
assert [run(), run()] == ["sent", "another machine sends them"]
assert others.info("send-invoices").holders[0].left > 30
print("done")
""",
    "django/views.py": DJANGO
    + """
import sys, types
from django.test import Client
from django.urls import path
import django_app.views as views
sys.modules["urls"] = urls = types.ModuleType("urls")
urls.urlpatterns = [path("pay/<int:number>", views.pay), path("report", views.report)]
client = Client()
assert b"paid with token" in client.get("/pay/42").content
assert client.get("/report").content == b"reported"
with others.lock("invoice:42"):
    assert client.get("/pay/42").status_code == 423 and client.get("/pay/43").status_code == 200
assert others.info("invoice:42") is None and others.info("report") is None
print("done")
""",
    "fastapi/app.py": """
from fastapi.testclient import TestClient
from app import app
with TestClient(app) as client:
    assert client.post("/invoices/42/pay").json()["token"] > 0 and client.post("/print").json()["token"] > 0
    with others.lock("invoice:42"):
        assert client.post("/invoices/42/pay").status_code == 423
    permits = [others.semaphore("printers", 3).acquire() for _ in range(3)]
    assert client.post("/print").status_code == 423
    permits.pop().release()
    for _ in range(30):
        assert client.post("/print").status_code == 200
    permits.pop().release()
    permits.pop().release()
    assert others.info("invoice:42") is None and others.info("printers") is None
print("done")
""",
    "celery/tasks.py": """
from celery.contrib.testing.worker import start_worker
from tasks import app, import_orders, rebuild
app.conf.update(broker_url="memory://", result_backend="cache+memory://")
with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False, shutdown_timeout=90):
    assert import_orders.delay("ann").get(timeout=90) == "imported ann"
    with others.lock("import:ann"), others.lock("index:7"):
        later = rebuild.delay(7)
        assert import_orders.delay("ann").get(timeout=90) is None
        assert not later.ready()
    assert later.get(timeout=90) == "rebuilt 7"
print("done")
""",
    "apscheduler/jobs.py": """
import importlib, time
import jobs
first, ran = jobs.scheduler, []
import apscheduler.events
second = importlib.reload(jobs).scheduler
for scheduler in (first, second):
    scheduler.add_listener(lambda _: ran.append(1), apscheduler.events.EVENT_JOB_EXECUTED)
    scheduler.start()
until = time.monotonic() + 90
while len(ran) < 4 and time.monotonic() < until:
    time.sleep(0.05)
first.shutdown()
second.shutdown()
assert len(ran) >= 4
""",
    "gunicorn/app.py": """
import os, signal, socket, subprocess, sys, time, urllib.request
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
words = ["--preload", "--workers", "2", "--bind", address, "app:app"]
server = subprocess.Popen([sys.executable, "-m", "gunicorn", *words])
try:
    until, told = time.monotonic() + 90, []
    while len(told) < 20 and time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"http://{address}/", timeout=20) as reply:
                told.append(reply.read().split())
        except OSError:
            time.sleep(0.05)
    assert len(told) == 20 and str(server.pid).encode() not in {pid for pid, _ in told}
    tokens = [int(token) for _, token in told]
    assert tokens == sorted(set(tokens))
finally:
    server.send_signal(signal.SIGTERM)
    assert server.wait(90) == 0
print("done")
""",
    "gevent/program.py": "import program",
    "anyio/program.py": "import program",
}
#: The output of each program.
OUTPUTS = {
    "apscheduler/jobs.py": "the report of this minute\n",
    "gevent/program.py": "190\n",
    "anyio/program.py": "worked\n" * 3 + "gave up\n",
}


def test_each_recipe_is_used() -> None:
    assert list(RECIPES) == list(USES)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("recipe", USES)
def test_recipe(recipe: str, start_server: Any, tmp_path: Path) -> None:
    server = start_server()
    folder, _, file = recipe.partition("/")
    path = tmp_path / "django_app" / file if folder == "django" else tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    for package in path.relative_to(tmp_path).parents:
        if package != Path():
            (tmp_path / package / "__init__.py").touch()
    path.write_text(placed(RECIPES[recipe], server.port).replace("seconds=60", "seconds=0.2"))
    begin = "" if folder == "gevent" else BEGIN  # it patches before anything else is imported
    (tmp_path / "use.py").write_text(placed(begin + USES[recipe], server.port))
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    ran = subprocess.run(
        [sys.executable, "use.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, OUTPUTS.get(recipe, "done\n")), ran.stderr
    parked = str(int("min_hold" in RECIPES[recipe]))
    assert server.info("redislock")["redislock_holds"] == parked, "nothing else is held at the end"


def placed(source: str, port: int) -> str:
    """A program that uses the server at this port."""
    return re.sub(r"Redis\(\)", f"Redis(port={port})", source).replace("localhost:6379", f"localhost:{port}")
