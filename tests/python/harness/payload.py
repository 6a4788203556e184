"""The output of DUMP: a type, a value, two bytes of version, eight of checksum.

To see a server's reaction to a hostile payload, the checksum must be right: it guards against accidents, not against
people. It is the CRC-64 of the Jones polynomial, reflected, least significant byte first.
"""

import struct

POLYNOMIAL = 0x95AC9329AC4BC9B5  # 0xad93d23594c935a9, its bits reversed
FOOTER = 10


def _table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


TABLE = _table()


def crc64(data):
    """The checksum that Redis puts under a dumped value."""
    crc = 0
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc


def body(payload):
    """The type and the value, without version and checksum."""
    return payload[:-FOOTER]


def seal(changed_body, payload):
    """The changed value with the version of the payload and a right checksum."""
    data = changed_body + payload[-FOOTER:-8]
    return data + struct.pack("<Q", crc64(data))


def dump(cli, key):
    """DUMP as bytes."""
    dumped = cli("DUMP", key)
    return dumped.encode("utf-8", "surrogateescape")


# A lock: a byte that announces a module's value, the module's number, its strings, each after an opcode, the end. The
# strings are the blocks of src/lock/codec/blocks.rs, as they are where `rdbcompression` is off.
MODULE_TYPE, STRING, END = 7, 5, 0


def encode_length(number):
    """A length as RDB files write it."""
    if number < 1 << 6:
        return bytes([number])
    if number < 1 << 14:
        return bytes([0x40 | number >> 8, number & 0xFF])
    return b"\x80" + struct.pack(">I", number) if number < 1 << 32 else b"\x81" + struct.pack(">Q", number)


def decode_length(data, at):
    """The length that begins here, and where it ends."""
    first = data[at]
    if first < 0x40:
        return first, at + 1
    if first < 0x80:
        return (first & 0x3F) << 8 | data[at + 1], at + 2
    assert first in (0x80, 0x81), f"{first:#x} is no length"
    size = 4 if first == 0x80 else 8
    return int.from_bytes(data[at + 1 : at + 1 + size], "big"), at + 1 + size


def blocks_of(value):
    """The module's number and the blocks of a lock, of the body of a payload."""
    assert value[0] == MODULE_TYPE, value[:4]
    module, at = decode_length(value, 1)
    blocks = []
    while value[at] != END:
        assert value[at] == STRING, value[at:].hex()
        size, at = decode_length(value, at + 1)
        blocks.append(value[at : at + size])
        at += size
    assert at == len(value) - 1, value.hex()
    return module, blocks


def body_of(module, blocks):
    """The body of a payload with these blocks."""
    strings = b"".join(bytes([STRING]) + encode_length(len(block)) + block for block in blocks)
    return bytes([MODULE_TYPE]) + encode_length(module) + strings + bytes([END])
