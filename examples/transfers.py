"""Clerks transfer money between accounts in all directions, and none of it is lost.

A transfer locks both accounts in one step (LOCK.MACQUIRE). If it took them one after the other, two transfers in
opposite directions could wait for each other.

    python transfers.py                  every account is right
    python transfers.py --without-lock   some are not
"""

import itertools
import multiprocessing
import random
import sqlite3
import sys
import tempfile
import time
import uuid

import redis
from playground import REDIS_URL, may_write

ACCOUNTS, BALANCE, PROCESSES, TRANSFERS = 4, 100, 6, 15
LEASE_MS, WAIT_MS = 10_000, 60_000


def transfers(number):
    """Returns the transfers of a clerk: the source, the target and the amount of each."""
    chance = random.Random(number)
    return [(*chance.sample(range(ACCOUNTS), 2), chance.randint(1, 9)) for _ in range(TRANSFERS)]


def transfer(database, source, target, amount):
    """Moves money between two accounts, which only one clerk at a time may do."""
    query = "SELECT balance FROM account WHERE id = ?"
    balances = [database.execute(query, (n,)).fetchone()[0] for n in (source, target)]
    time.sleep(0.002)  # two banks, a network
    update = "UPDATE account SET balance = ? WHERE id = ?"
    database.execute(update, (balances[0] - amount, source))
    database.execute(update, (balances[1] + amount, target))


def be_a_clerk(path, name, number, start):
    """Makes transfers. Without locks, the name is None."""
    database = sqlite3.connect(path, timeout=60, isolation_level=None)
    server = redis.from_url(REDIS_URL, socket_timeout=WAIT_MS / 1000 + 5)
    start.wait()
    for turn, (source, target, amount) in enumerate(transfers(number)):
        if name is None:
            transfer(database, source, target, amount)
            continue
        owner = f"clerk-{number}-{turn}"
        locks = [f"{name}:{account}" for account in (source, target)]
        command = ["LOCK.MACQUIRE", 2, *locks, owner, "PX", LEASE_MS, "BLOCK", WAIT_MS]
        token = server.execute_command(*command)
        if token is None:
            raise TimeoutError(f"no turn within {WAIT_MS} ms")
        transfer(database, source, target, amount)
        for lock in locks:
            server.execute_command("LOCK.RELEASE", lock, owner, "TOKEN", token)


def main(with_lock):
    # One hash tag: in a cluster, one slot.
    name = f"account:{{{uuid.uuid4()}}}" if with_lock else None
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/bank.db"
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("CREATE TABLE account (id INTEGER, balance INTEGER)")
        for account in range(ACCOUNTS):
            database.execute("INSERT INTO account VALUES (?, ?)", (account, BALANCE))
        start = multiprocessing.Barrier(PROCESSES)
        clerks = [
            multiprocessing.Process(target=be_a_clerk, args=(path, name, number, start))
            for number in range(PROCESSES)
        ]
        for clerk in clerks:
            clerk.start()
        for clerk in clerks:
            clerk.join()
        found = [balance for (balance,) in database.execute("SELECT balance FROM account ORDER BY id")]
    is_well = all(clerk.exitcode == 0 for clerk in clerks)
    how = "with" if with_lock else "without"
    right = sum(have == due for have, due in zip(found, balances_due(), strict=True))
    print(f"{PROCESSES * TRANSFERS} transfers, {how} locks: {right} of {ACCOUNTS} accounts are right")
    return is_well and (right == ACCOUNTS) == with_lock


def balances_due():
    """Returns the balances after all transfers, in whatever order."""
    balances = [BALANCE] * ACCOUNTS
    for source, target, amount in itertools.chain(*map(transfers, range(PROCESSES))):
        balances[source] -= amount
        balances[target] += amount
    return balances


if __name__ == "__main__":
    may_write()
    sys.exit(0 if main(with_lock="--without-lock" not in sys.argv[1:]) else 1)
