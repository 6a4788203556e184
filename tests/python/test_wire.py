"""The connection that the tests use: whatever way a server has of going away, a test learns it as one thing."""

import socket
import struct

import pytest

from harness.server import answers
from harness.wire import Closed, Connection

RESET_AT_ONCE = struct.pack("ii", 1, 0)


@pytest.fixture
def listener():
    """Listens in the place of a server, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one


def connect_and_be_reset(listener):
    """A connection whose server died after it had accepted it."""
    client = Connection(listener.getsockname()[1])
    accepted, _ = listener.accept()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_ONCE)
    accepted.close()
    assert client.has_input(seconds=10), "the reset has come"
    return client


def test_a_server_that_dies_before_it_is_asked_has_closed_the_connection(listener):
    # It was a ConnectionResetError then, which no caller expects who asks whether a server has started.
    client = connect_and_be_reset(listener)
    with pytest.raises(Closed):
        client("PING")
    with pytest.raises(Closed):
        client("PING")


def test_a_server_that_dies_before_it_answers_has_closed_the_connection(listener):
    with pytest.raises(Closed):
        connect_and_be_reset(listener).read()


def test_a_server_that_died_while_it_loaded_does_not_answer(listener, monkeypatch):
    monkeypatch.setattr("harness.server.Connection", lambda port: connect_and_be_reset(listener))
    assert not answers(listener.getsockname()[1])
