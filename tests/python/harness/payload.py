"""What DUMP gives: a type, a value, two bytes of version, eight of checksum.

To see what a server does with a hostile payload, the checksum must be right: it
guards against accidents, not against people. It is the CRC-64 of the Jones
polynomial, reflected, least significant byte first.
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
