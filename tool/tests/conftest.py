"""Fixtures: a server that the tests of a worker share, servers of a test's own, and the tool.

REDISLOCK_TOOL names the binary, REDISLOCK_SERVER and REDISLOCK_MODULE the server, as in the module's own tests.
"""

import itertools

import pytest
from harness.server import Server, Yard

from tool import Tool


@pytest.fixture(scope="session")
def shared():
    """A server for tests that leave it as it was."""
    server = Server().start()
    yield server
    server.stop()
    server.finish()


@pytest.fixture
def start_server():
    """Starts servers for this test alone."""
    yard = Yard()
    yield yard
    yard.close()


NUMBERS = itertools.count()


@pytest.fixture
def name(request):
    """The name of a lock that no other test uses."""
    return f"{request.node.name}:{next(NUMBERS)}"


@pytest.fixture
def tool(shared, tmp_path):
    """The tool, for the shared server."""
    tool = Tool(shared.port, tmp_path)
    yield tool
    tool.close()


@pytest.fixture
def tool_for(tmp_path):
    """Makes tools for other servers."""
    tools = []

    def make(port):
        tools.append(Tool(port, tmp_path))
        return tools[-1]

    yield make
    for tool in tools:
        tool.close()
