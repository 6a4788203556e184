"""Payloads and command streams that are nearly right, from a random generator.

The mutations of a payload change the numbers in its blocks, which a checksum and a parser let through, and now and then
the bytes.
"""

import struct

#: The boundary values of parsers and tables.
EXTREMES = [
    *range(10), 63, 64, 65, 127, 128, 255, 256, 257, 999_999, 1_000_000, 1_000_001,
    86_399_999, 86_400_000, 86_400_001, 2**31, 2**32 - 1, 2**32, 2**53 - 1, 2**53,
    2**63 - 1, 2**63, 2**64 - 1,
]  # fmt: skip
#: After the kind of a block's head: the limit, and the number of holds.
NUMBERS = {2: 1, 3: 2}
HEAD, ROW = struct.Struct("<BB8sB"), struct.Struct("<7sIB")


def _parts(block):
    """The parts of the first block of a lock: those of its head, and the rows, each a list too."""
    *head, kind = HEAD.unpack_from(block)
    at = HEAD.size + 4 * NUMBERS.get(kind, 0)
    numbers = list(struct.unpack_from(f"<{NUMBERS.get(kind, 0)}I", block, HEAD.size))
    rows = []
    while at < len(block):
        size = int.from_bytes(block[at : at + 2], "little")
        rows.append([*ROW.unpack_from(block, at + 2), block[at + 2 + ROW.size : at + 2 + size]])
        at += 2 + size
    return [*head, kind], numbers, rows


def _joined(head, numbers, rows):
    """The block of these parts."""
    block = HEAD.pack(*head) + b"".join(struct.pack("<I", number % 2**32) for number in numbers)
    for token, left, flags, rest in rows:
        row = ROW.pack(token, left % 2**32, flags % 256) + rest
        block += (len(row) % 2**16).to_bytes(2, "little") + row
    return block


def _near(chance, number):
    """A number that is close, one bit away, or at some end."""
    kind = chance.randrange(3)
    if kind == 0:
        return max(0, number + chance.choice((-8, -1, 1, 8)))
    if kind == 1:
        return number ^ 1 << chance.randrange(32)
    return chance.choice(EXTREMES)


def _changed_row(chance, row):
    """The row with a field of it changed."""
    row = list(row)
    at = chance.randrange(4)
    if at == 0:
        token = _near(chance, int.from_bytes(row[0], "little")) % 2**56
        row[0] = token.to_bytes(7, "little")
    elif at == 3:
        row[3] = changed_bytes(chance, row[3], changes=1)
    else:
        row[at] = _near(chance, row[at])
    return row


def changed_block(chance, block, other):
    """The first block of a lock with a few changes; the other is that of another lock."""
    head, numbers, rows = _parts(block)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
        kind = chance.randrange(8)
        at = chance.randrange(len(rows)) if rows else 0
        if kind == 0 and numbers:
            at = chance.randrange(len(numbers))
            numbers[at] = _near(chance, numbers[at])
        elif kind == 1:
            rows[at:at] = rows[at : at + 2]  # a hold twice, perhaps
        elif kind == 2:
            del rows[at : at + chance.randrange(1, 3)]
        elif kind == 3:
            rows[at:] = _parts(other)[2][at:]
        elif kind == 4 and chance.random() < 0.2:
            # Version and flags, which are mostly left alone.
            which = chance.randrange(2)
            head[which] = _near(chance, head[which]) % 256
        elif kind == 5 and chance.random() < 0.5:
            (*_, head[3]), numbers, _ = _parts(other)
        elif rows:
            rows[at % len(rows)] = _changed_row(chance, rows[at % len(rows)])
    return _joined(head, numbers, rows)


def changed_bytes(chance, data, changes=4):
    """The bytes with a few changes."""
    data = bytearray(data)
    for _ in range(chance.randint(1, changes)):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(6)
        if kind == 0:
            del data[at : at + chance.randrange(1, 9)]
        elif kind == 1:
            data[at:at] = bytes(chance.choices(range(256), k=chance.randrange(1, 5)))
        elif kind == 2:
            data[at:at] = data[at : at + chance.randrange(1, 40)]
        elif kind == 3:
            # The marks that a protocol looks for.
            data[at:at] = chance.choice((b"\r\n", b"*", b"$", b"\0", b"-1", b"\n", b'"', b"'"))
        elif kind == 4:
            data[at : at + 1] = b"%d" % chance.choice(EXTREMES)
        elif at < len(data):
            data[at] ^= 1 << chance.randrange(8)
    return bytes(data)


def changed_words(chance, words, others):
    """The words of a command with a few changes; others are words that commands know."""
    words = list(words)
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        at = chance.randrange(len(words))
        kind = chance.randrange(6)
        if kind == 0:
            words[at] = str(chance.choice(EXTREMES))
        elif kind == 1:
            words[at] = chance.choice(others)
        elif kind == 2:
            words[at] = changed_bytes(chance, str(words[at]).encode(), changes=2)
        elif kind == 3:
            words.insert(at, words[at])
        elif kind == 4 and len(words) > 1:
            del words[at]
        else:
            words.insert(at, chance.choice(others))
    return words
