"""Parses frames of RESP2 and RESP3."""

_AGGREGATES = {b"*": 1, b"~": 1, b">": 1, b"%": 2, b"|": 2}
_BULKS = (b"$", b"=", b"!")


def frame_end(data, start=0):
    """Returns the end of the frame that begins here; -1 if it is not complete."""
    line = data.find(b"\r\n", start)
    if line < 0:
        return -1
    kind = bytes(data[start : start + 1])
    if kind in _BULKS:
        size = int(data[start + 1 : line])
        end = line + 2 + (size + 2 if size >= 0 else 0)
        return end if end <= len(data) else -1
    if kind not in _AGGREGATES:
        return line + 2
    # An attribute is followed by the value that it is about.
    parts = max(0, int(data[start + 1 : line])) * _AGGREGATES[kind] + (kind == b"|")
    end = line + 2
    for _ in range(parts):
        end = frame_end(data, end)
        if end < 0:
            return -1
    return end


def words_of(frame):
    """Returns the words of a command, as text."""
    parts = bytes(frame).split(b"\r\n")
    if not parts[0].startswith(b"*"):
        return parts[0].decode("utf-8", "replace").split()
    return [parts[2 * number + 2].decode("utf-8", "replace") for number in range(int(parts[0][1:]))]
