"""Machines of one host: each has a network, processes, a hostname, a wall clock and folders of its own.

They end when the test lets go of them, or is killed: the first process of each reads a pipe of the test's.
"""

import os
import subprocess

import pytest

from tool import children

UNSHARE = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
#: Hides what the host would run, and where it keeps it.
SETUP = """
set -e
hostname "$1"
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/spool/cron
mkdir -m 1730 /var/spool/cron/crontabs
chgrp crontab /var/spool/cron/crontabs
mount -t tmpfs tmpfs /etc/cron.d
mount --bind /dev/null /etc/crontab
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/bin" /usr/local/bin
ip link set lo up
echo ready
exec cat
"""


def require_namespaces():
    """Skips the test where this user may not make machines."""
    if os.geteuid() != 0:
        pytest.skip("this user is not root: cron and namespaces need root")
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"root may not make namespaces here: {done.stderr.strip()}")


class Machine:
    """A machine whose /etc/hosts and /usr/local/bin are `hosts` and `bin` of the folder."""

    def __init__(self, hostname, folder, environment):
        words = [*UNSHARE, "sh", "-c", SETUP, "sh", hostname, str(folder)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self.environment = environment
        assert self.process.stdout.readline() == "ready\n"
        (self.first,) = children(self.process.pid)

    def words(self, *words):
        """A command line that runs there."""
        return ["nsenter", f"--target={self.first}", "--net", "--mount", "--uts", "--pid", "--", *map(str, words)]

    def run(self, *words, **more):
        """Runs a command there by the machine's clock; returns what it printed."""
        more = {"check": True, "timeout": 60, "text": True, "stdout": subprocess.PIPE, **more}
        return subprocess.run(self.words(*words), env={**os.environ, **self.environment}, **more).stdout

    def start(self, *words):
        """Starts a command there. It ends with the machine."""
        return subprocess.Popen(self.words(*words), env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL)

    def close(self):
        """Ends all its processes."""
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


def connect(one, other, addresses):
    """Connects two machines by a link that no other sees. It vanishes with them."""
    link = f"ip link add eth0 type veth peer name eth0 netns {other.first}"
    subprocess.run(["nsenter", f"--target={one.first}", "--net", *link.split()], check=True)
    for machine, address in zip((one, other), addresses, strict=True):
        machine.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
        machine.run("ip", "link", "set", "eth0", "up")
