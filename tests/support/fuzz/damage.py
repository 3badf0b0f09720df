"""Damages valid files: random changes of bits, bytes, numbers and parts."""

import io
import random
import re
import zipfile

# Bytes that readers are known to mishandle, to insert where they do not belong.
SNIPPETS = (
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"NaN",
    b"-1",
    b"1e400",
    b"99999999999999999999",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"../../outside",
    b"/etc/passwd",
    b"file:///etc/passwd",
    b"http://127.0.0.1:9/x.png",
    b"%00%2e%2e%2f",
    b"[" * 3000,
    b'{"a":' * 3000,
    b"<a>" * 3000,
    b"&a [*a]",
    b"[&a [x, x], &b [*a, *a], &c [*b, *b], &d [*c, *c], *d]",
    b"!!bool foo",
    b"!!int ''",
    b"!!timestamp x",
    b"{[]: 1}",
    b"'" + b"-" * 9000 + b"1'",
    b"'" + b"1+" * 9000 + b"1'",
    b"!!python/object/apply:os.system [touch hit]",
    b"${oc.env:HOME}",
    b'<!DOCTYPE a [<!ENTITY b "cccc"><!ENTITY d SYSTEM "file:///etc/passwd">]>&d;',
    b"cos\nsystem\n(S'touch hit'\ntR.",
    b"\x80\x02cbuiltins\neval\n(X\x01\x00\x00\x001tR.",
)
NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"255",
    b"65536",
    b"2147483647",
    b"2147483648",
    b"-9223372036854775808",
    b"18446744073709551616",
    b"0.5",
    b"1e308",
    b"1e-320",
    b"9" * 400,
    b"9" * 5000,
)
EXTREMES = (b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80")


def _change(data: bytes, rng: random.Random) -> bytes:
    """Makes one change."""
    size = len(data)
    at = rng.randrange(size + 1)
    end = min(size, at + rng.choice((1, 2, 4, 16, 256)))
    kind = rng.randrange(9)
    if kind == 0 and at < size:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        extreme = rng.choice(EXTREMES)
        return data[:at] + extreme + data[at + len(extreme) :]
    if kind == 2:
        return data[:at]
    if kind == 3:
        return data[:at] + data[end:]
    if kind == 4:
        return data[:end] + data[at:end] * rng.choice((1, 3, 100)) + data[end:]
    if kind == 5:
        return data[:at] + rng.randbytes(end - at) + data[end:]
    if kind == 6:
        return data[:at] + rng.choice(SNIPPETS) + data[rng.choice((at, end)) :]
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    if kind == 7 and found:
        number = rng.choice(found)
        return data[: number.start()] + rng.choice(NUMBERS) + data[number.end() :]
    found = list(re.finditer(rb'"[^"\n]*"|>[^<\n]*<|: [^\n]*', data))
    if kind == 8 and found:  # a value in place of another
        one, other = rng.choice(found), rng.choice(found)
        return data[: one.start()] + other.group() + data[one.end() :]
    return data


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Returns the file with one to four changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        data = _change(data, rng)
    return data


def damaged_inside(archive: bytes, rng: random.Random) -> bytes:
    """Returns an archive with correct checksums and one damaged file."""
    with zipfile.ZipFile(io.BytesIO(archive)) as source:
        parts = [(name, source.read(name)) for name in source.namelist()]
    k = rng.randrange(len(parts))
    name, content = parts[k]
    if rng.random() < 0.1:
        parts[k] = (rng.choice(("../../outside", "/tmp/outside", name * 2, "x")), content)
    else:
        parts[k] = (name, damaged(content, rng))
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as target:
        for part in parts:
            target.writestr(*part)
    return written.getvalue()
