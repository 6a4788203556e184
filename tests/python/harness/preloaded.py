"""Libraries that are preloaded into a server, compiled where they are needed."""

import subprocess


def built(source, directory):
    """Compiles this file of C; the library's path."""
    library = directory / f"{source.stem}.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", library, source], check=True)
    return library
