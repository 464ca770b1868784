"""Fingerprint64 (FarmHash's `farmhashna`): the hash of text that TensorFlow's hash buckets come from.

Source: https://github.com/google/farmhash (the algorithm; its fingerprints never change)
"""

from __future__ import annotations

_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_CAT = 0xC6A4A7935BD1E995
_MASK = (1 << 64) - 1
_Pair = tuple[int, int]


def fingerprint64(text: bytes) -> int:
    """Return the fingerprint of some bytes, from 0 to 2^64 - 1."""
    size = len(text)
    if size <= 16:
        return _up_to_16(text, size)
    if size <= 32:
        return _up_to_32(text, size)
    if size <= 64:
        return _up_to_64(text, size)
    return _longer(text, size)


def fingerprint_of_both(first: int, second: int) -> int:
    """Return a fingerprint of two, in this order, as `FingerprintCat64` does."""
    result = first ^ _CAT
    result ^= _mixed(second * _CAT & _MASK) * _CAT & _MASK
    result = result * _CAT & _MASK
    return _mixed(_mixed(result) * _CAT & _MASK)


def _at(text: bytes, place: int, size: int = 8) -> int:
    return int.from_bytes(text[place : place + size], "little")


def _turned(value: int, by: int) -> int:
    value &= _MASK
    return (value >> by | value << (64 - by)) & _MASK


def _mixed(value: int) -> int:
    value &= _MASK
    return value ^ value >> 47


def _joined(first: int, second: int, factor: int) -> int:
    a = _mixed((first ^ second) * factor)
    return _mixed((second ^ a) * factor) * factor & _MASK


def _up_to_16(text: bytes, size: int) -> int:
    factor = _K2 + size * 2
    if size >= 8:
        a, b = _at(text, 0) + _K2, _at(text, size - 8)
        return _joined((_turned(b, 37) * factor + a) & _MASK, (_turned(a, 25) + b) * factor & _MASK, factor)
    if size >= 4:
        return _joined(size + (_at(text, 0, 4) << 3), _at(text, size - 4, 4), factor)
    if size:
        y, z = text[0] + (text[size >> 1] << 8), size + (text[-1] << 2)
        return _mixed(y * _K2 ^ z * _K0) * _K2 & _MASK
    return _K2


def _ends(text: bytes, size: int, first: int) -> tuple[int, int, int, int]:
    """(a, the sum, the second sum, the factor) of the first 16 bytes and the last."""
    factor = _K2 + size * 2
    a, b = _at(text, 0) * first, _at(text, 8)
    c, d = _at(text, size - 8) * factor, _at(text, size - 16) * _K2
    total = _turned(a + b, 43) + _turned(c, 30) + d
    return a & _MASK, total & _MASK, (a + _turned(b + _K2, 18) + c) & _MASK, factor


def _up_to_32(text: bytes, size: int) -> int:
    _, total, other, factor = _ends(text, size, _K1)
    return _joined(total, other, factor)


def _up_to_64(text: bytes, size: int) -> int:
    a, y, other, factor = _ends(text, size, _K2)
    z = _joined(y, other, factor)
    e, f = _at(text, 16) * factor, _at(text, 24)
    g, h = (y + _at(text, size - 32)) * factor, (z + _at(text, size - 24)) * factor
    total = _turned(e + f, 43) + _turned(g, 30) + h
    return _joined(total & _MASK, (e + _turned(f + a, 18) + g) & _MASK, factor)


def _weak(text: bytes, place: int, a: int, b: int) -> _Pair:
    w, x, y, z = (_at(text, place + 8 * i) for i in range(4))
    a += w
    b = _turned(b + a + z, 21)
    c = a
    a += x + y
    b += _turned(a, 44)
    return (a + z) & _MASK, (b + c) & _MASK


def _longer(text: bytes, size: int) -> int:
    x, y = 81, 81 * _K1 + 113
    z = _mixed(y * _K2 + 113) * _K2
    v = w = (0, 0)
    x = x * _K2 + _at(text, 0)
    whole = (size - 1) // 64 * 64
    for place in range(0, whole, 64):
        x, y, z, v, w = _round(text, place, (x, y, z, v, w), _K1, 1)
    factor = _K1 + ((z & 0xFF) << 1)
    rest = (size - 1) & 63
    w = (w[0] + rest, w[1])
    v = (v[0] + w[0], v[1])
    w = (w[0] + v[0], w[1])
    x, y, z, v, w = _round(text, whole + rest - 63, (x, y, z, v, w), factor, 9)
    return _joined(
        (_joined(v[0], w[0], factor) + _mixed(y) * _K0 + z) & _MASK, (_joined(v[1], w[1], factor) + x) & _MASK, factor
    )


_State = tuple[int, int, int, _Pair, _Pair]


def _round(text: bytes, place: int, state: _State, factor: int, times: int) -> _State:
    """Take in 64 bytes; the first and the third number change places."""
    x, y, z, v, w = state
    x = _turned(x + y + v[0] + _at(text, place + 8), 37) * factor & _MASK
    y = _turned(y + v[1] + _at(text, place + 48), 42) * factor & _MASK
    x ^= w[1] * times & _MASK
    y += v[0] * times + _at(text, place + 40)
    z = _turned(z + w[0], 33) * factor & _MASK
    v = _weak(text, place, v[1] * factor & _MASK, (x + w[0]) & _MASK)
    w = _weak(text, place + 32, (z + w[1]) & _MASK, (y + _at(text, place + 16)) & _MASK)
    return z, y & _MASK, x, v, w
