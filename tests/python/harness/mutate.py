"""Payloads and command streams that are nearly right, from a random generator.

A payload of a module's value is a byte for its type, the module's number, and the
module's own numbers, each behind an opcode; then the end. What is changed here are
the numbers, which a checksum and a parser let through, and now and then the bytes.
"""

import struct

MODULE_TYPE = 7
UNSIGNED, END = 2, 0

#: Where parsers and tables have their ends.
EXTREMES = [
    *range(10), 63, 64, 65, 127, 128, 255, 256, 257, 999_999, 1_000_000, 1_000_001,
    86_399_999, 86_400_000, 86_400_001, 2**31, 2**32 - 1, 2**32, 2**53 - 1, 2**53,
    2**63 - 1, 2**63, 2**64 - 1,
]  # fmt: skip


def encode_number(number):
    """A number as RDB files write lengths."""
    if number < 64:
        return bytes([number])
    if number < 1 << 14:
        return bytes([0x40 | number >> 8, number & 0xFF])
    if number < 1 << 32:
        return b"\x80" + struct.pack(">I", number)
    return b"\x81" + struct.pack(">Q", number)


def decode_number(data, at):
    """The number that begins here, and where it ends."""
    first = data[at]
    if first < 0x40:
        return first, at + 1
    if first < 0x80:
        return (first & 0x3F) << 8 | data[at + 1], at + 2
    if first == 0x80:
        return struct.unpack_from(">I", data, at + 1)[0], at + 5
    return struct.unpack_from(">Q", data, at + 1)[0], at + 9


def numbers_of(body):
    """The module's number and its value's numbers, of a dumped body."""
    assert body[0] == MODULE_TYPE, body[:4]
    module, at = decode_number(body, 1)
    numbers = []
    while (opcode_at := decode_number(body, at))[0] != END:
        assert opcode_at[0] == UNSIGNED, body.hex()
        number, at = decode_number(body, opcode_at[1])
        numbers.append(number)
    return module, numbers


def body_of(module, numbers):
    """The dumped body of these numbers."""
    written = b"".join(bytes([UNSIGNED]) + encode_number(number) for number in numbers)
    return bytes([MODULE_TYPE]) + encode_number(module) + written + bytes([END])


def _near(chance, number):
    """A number that is close, one bit away, or at some end."""
    kind = chance.randrange(3)
    if kind == 0:
        return max(0, number + chance.choice((-8, -1, 1, 8))) % 2**64
    if kind == 1:
        return number ^ 1 << chance.randrange(64)
    return chance.choice(EXTREMES)


def changed_numbers(chance, numbers, others):
    """The numbers with a few changes; others are those of another lock."""
    numbers = list(numbers)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
        # The first two are the version and the hash of the name: mostly left alone.
        least = 0 if chance.random() < 0.05 else min(2, len(numbers) - 1)
        at = chance.randrange(least, len(numbers))
        kind = chance.randrange(6)
        if kind <= 2:
            numbers[at] = _near(chance, numbers[at])
        elif kind == 3:
            size = chance.randrange(1, 8)
            numbers[at:at] = numbers[at : at + size]  # a hold twice, perhaps
        elif kind == 4:
            del numbers[at : at + chance.randrange(1, 8)]
        else:
            numbers[at:] = others[at:]
        if not numbers:
            break
    return numbers


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
            # What a protocol looks for.
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
