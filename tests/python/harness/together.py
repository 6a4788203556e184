"""Clients that run at the same time, each in a thread."""

import threading


def run_together(seed, clients, run, seconds_max):
    """Runs run(number, name) for each client; returns the failures. All have to end within `seconds_max` seconds."""
    failures = []

    def one(number):
        try:
            run(number, f"{seed}.{number}")
        except Exception as failure:  # a thread's failure would else be lost
            failures.append(f"client {seed}.{number}: {failure!r}")

    workers = [threading.Thread(target=one, args=[n]) for n in range(clients)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(seconds_max)
    if any(worker.is_alive() for worker in workers):
        failures.append("a request was never answered")
    return failures
