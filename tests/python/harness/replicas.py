"""Replicas and their links."""

from .limits import eventually

#: A primary that sends its data set without waiting for more replicas.
AT_ONCE = ("--repl-diskless-sync-delay", "0")


def is_linked(replica):
    """Waits until the replica has its primary's data set."""
    eventually(lambda: replica.info("replication")["master_link_status"] == "up", "the link is up")
