"""The hashes that TensorFlow puts text into buckets with: FarmHash's fingerprint, and an older one."""

from __future__ import annotations

from collections.abc import Sequence

_MASK = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_OLD = 0xC6A4A7935BD1E995


def _word(data: bytes, place: int, size: int = 8) -> int:
    return int.from_bytes(data[place : place + size], "little")


def _turned(value: int, by: int) -> int:
    return (value >> by | value << (64 - by)) & _MASK


def _mixed(value: int) -> int:
    return value ^ value >> 47


def _of_16(first: int, second: int, factor: int) -> int:
    one = _mixed((first ^ second) * factor & _MASK)
    return _mixed((second ^ one) * factor & _MASK) * factor & _MASK


def fingerprint(data: bytes) -> int:
    """FarmHash's 64-bit fingerprint."""
    size = len(data)
    if size <= 16:
        return _short(data, size)
    if size <= 32:
        factor = _K2 + size * 2
        a, b = _word(data, 0) * _K1 & _MASK, _word(data, 8)
        c, d = _word(data, size - 8) * factor & _MASK, _word(data, size - 16) * _K2 & _MASK
        return _of_16(
            (_turned(a + b & _MASK, 43) + _turned(c, 30) + d) & _MASK,
            (a + _turned(b + _K2 & _MASK, 18) + c) & _MASK,
            factor,
        )
    return _medium(data, size) if size <= 64 else _long(data, size)


def _short(data: bytes, size: int) -> int:
    factor = _K2 + size * 2
    if size >= 8:
        a, b = _word(data, 0) + _K2 & _MASK, _word(data, size - 8)
        c = _turned(b, 37) * factor + a & _MASK
        d = (_turned(a, 25) + b) * factor & _MASK
        return _of_16(c, d, factor)
    if size >= 4:
        return _of_16(size + (_word(data, 0, 4) << 3), _word(data, size - 4, 4), factor)
    if size:
        y = data[0] + (data[size >> 1] << 8)
        z = size + (data[-1] << 2)
        return _mixed((y * _K2 ^ z * _K0) & _MASK) * _K2 & _MASK
    return _K2


def _medium(data: bytes, size: int) -> int:
    factor = _K2 + size * 2
    a, b = _word(data, 0) * _K2 & _MASK, _word(data, 8)
    c, d = _word(data, size - 8) * factor & _MASK, _word(data, size - 16) * _K2 & _MASK
    y = (_turned(a + b & _MASK, 43) + _turned(c, 30) + d) & _MASK
    z = _of_16(y, (a + _turned(b + _K2 & _MASK, 18) + c) & _MASK, factor)
    e, f = _word(data, 16) * factor & _MASK, _word(data, 24)
    g = (y + _word(data, size - 32)) * factor & _MASK
    h = (z + _word(data, size - 24)) * factor & _MASK
    return _of_16(
        (_turned(e + f & _MASK, 43) + _turned(g, 30) + h) & _MASK, (e + _turned(f + a & _MASK, 18) + g) & _MASK, factor
    )


def _weak(data: bytes, place: int, a: int, b: int) -> tuple[int, int]:
    w, x, y, z = (_word(data, place + 8 * i) for i in range(4))
    a = a + w & _MASK
    b = _turned(b + a + z & _MASK, 21)
    c = a
    a = a + x + y & _MASK
    b = b + _turned(a, 44) & _MASK
    return a + z & _MASK, b + c & _MASK


def _long(data: bytes, size: int) -> int:
    seed = 81
    x, y = seed, seed * _K1 + 113 & _MASK
    z = _mixed(y * _K2 + 113 & _MASK) * _K2 & _MASK
    v, w = (0, 0), (0, 0)
    x = x * _K2 + _word(data, 0) & _MASK
    end = (size - 1) // 64 * 64
    for place in range(0, end, 64):
        x = _turned(x + y + v[0] + _word(data, place + 8) & _MASK, 37) * _K1 & _MASK
        y = _turned(y + v[1] + _word(data, place + 48) & _MASK, 42) * _K1 & _MASK
        x ^= w[1]
        y = y + v[0] + _word(data, place + 40) & _MASK
        z = _turned(z + w[0] & _MASK, 33) * _K1 & _MASK
        v = _weak(data, place, v[1] * _K1 & _MASK, x + w[0] & _MASK)
        w = _weak(data, place + 32, z + w[1] & _MASK, y + _word(data, place + 16) & _MASK)
        z, x = x, z
    factor = _K1 + ((z & 0xFF) << 1)
    place = size - 64
    w = (w[0] + ((size - 1) & 63) & _MASK, w[1])
    v = (v[0] + w[0] & _MASK, v[1])
    w = (w[0] + v[0] & _MASK, w[1])
    x = _turned(x + y + v[0] + _word(data, place + 8) & _MASK, 37) * factor & _MASK
    y = _turned(y + v[1] + _word(data, place + 48) & _MASK, 42) * factor & _MASK
    x ^= w[1] * 9 & _MASK
    y = y + v[0] * 9 + _word(data, place + 40) & _MASK
    z = _turned(z + w[0] & _MASK, 33) * factor & _MASK
    v = _weak(data, place, v[1] * factor & _MASK, x + w[0] & _MASK)
    w = _weak(data, place + 32, z + w[1] & _MASK, y + _word(data, place + 16) & _MASK)
    z, x = x, z
    return _of_16(
        (_of_16(v[0], w[0], factor) + _mixed(y) * _K0 + z) & _MASK, (_of_16(v[1], w[1], factor) + x) & _MASK, factor
    )


def old_hash(data: bytes, seed: int = 0xDECAFCAFFE) -> int:
    """The hash of `string_to_hash_bucket`."""
    size = len(data)
    found = seed ^ size * _OLD & _MASK
    whole = size // 8 * 8
    for place in range(0, whole, 8):
        part = _word(data, place) * _OLD & _MASK
        part = (part ^ part >> 47) * _OLD & _MASK
        found = (found ^ part) * _OLD & _MASK
    if size > whole:
        found = (found ^ _word(data, whole)) * _OLD & _MASK
    found = (found ^ found >> 47) * _OLD & _MASK
    return found ^ found >> 47


CROSSING_KEY = 0xDECAFCAFFE
"""Start of a combination's fingerprint."""


def fingerprint_of_both(first: int, second: int) -> int:
    """One fingerprint of two, in this order, as TensorFlow's `FingerprintCat64` makes it."""
    mixed = second * _OLD & _MASK
    mixed = (mixed ^ mixed >> 47) * _OLD & _MASK
    result = (first ^ _OLD ^ mixed) * _OLD & _MASK
    result = (result ^ result >> 47) * _OLD & _MASK
    return result ^ result >> 47


def strong_hash(data: bytes, key: Sequence[int]) -> int:
    """SipHash-2-4 of some bytes by a key of two numbers of 64 bits."""
    state = [word ^ key[i % 2] for i, word in enumerate(_SIP_WORDS)]
    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) % 256])
    for place in range(0, len(padded), 8):
        word = _word(padded, place)
        state[3] ^= word
        _sip_rounds(state, 2)
        state[0] ^= word
    state[2] ^= 0xFF
    _sip_rounds(state, 4)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


_SIP_WORDS = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def _sip_rounds(v: list[int], count: int) -> None:
    def step(a: int, b: int, by: int) -> None:
        v[a] = (v[a] + v[b]) & _MASK
        v[b] = _left(v[b], by) ^ v[a]

    for _ in range(count):
        step(0, 1, 13)
        v[0] = _left(v[0], 32)
        step(2, 3, 16)
        step(0, 3, 21)
        step(2, 1, 17)
        v[2] = _left(v[2], 32)


def _left(value: int, by: int) -> int:
    return _turned(value, 64 - by)
