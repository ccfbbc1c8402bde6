r"""The forms in which a secret may turn up in a program's output.

Covered, each for the whole value: the value itself, stripped too; base64 (also url-safe, without padding, inside a
longer text, in lines of 64 and 76); URL quoting, once and twice; JSON, once and twice; `repr`; shell quoting; HTML
escapes; hex. Of values of at most 512 bytes also URL quoting of every byte, hex with spaces or colons, and every byte
as `\x..` or octal. Of a value of several lines, each line as text too.

Not covered, since no list can: a part of the value, compression, encryption, other ciphers (rot13, base32), the value
reversed or with something put between its characters, JSON with `\u` for plain letters, hex dumps with offsets.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from urllib.parse import quote_from_bytes

__all__ = ["MIN_FORM_BYTES", "secret_forms"]

MIN_FORM_BYTES = 4
_MIN_LINE_BYTES = 8
_MAX_WIDE_BYTES = 512
# RFC 3986 keeps `~`; `/` may stay or not; JavaScript's encodeURIComponent keeps the rest of RFC 2396's marks.
_URL_SAFE = ("", "/", "!'()*")
_PERCENT = re.compile(rb"%[0-9A-F]{2}")
_SHELL_SPECIAL = re.compile(rb"([^A-Za-z0-9_@%+=:,./-])")


def secret_forms(value: bytes) -> frozenset[bytes]:
    """Every form of `value` worth hiding, each of at least `MIN_FORM_BYTES` bytes."""
    forms = set()
    for whole in {value, value.strip()}:
        for form in _forms_of_whole(whole):
            forms.add(form)
    lines = value.splitlines()
    if len(lines) > 1:
        for line in {line.strip() for line in lines}:
            if len(line) >= _MIN_LINE_BYTES:
                forms.update((line, *_text_forms(line)))
    return frozenset(form for form in forms if len(form) >= MIN_FORM_BYTES)


def _forms_of_whole(value: bytes) -> Iterator[bytes]:
    yield value
    yield value.hex().encode()
    yield value.hex().upper().encode()
    yield from _html_forms(value)
    if len(value) <= _MAX_WIDE_BYTES:
        yield from _wide_forms(value)
    yield from _base64_forms(value)
    yield from _url_forms(value)
    yield from _text_forms(value)


def _base64_forms(value: bytes) -> Iterator[bytes]:
    """Encodings of `value` alone, and the characters it fixes at each of the three places in a longer text."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(value)
        yield encode(value).rstrip(b"=")
        for shift in range(3):
            first = (shift * 8 + 5) // 6
            end = (shift + len(value)) * 8 // 6
            yield encode(bytes(shift) + value)[first:end]
    for width in (64, 76):  # PEM and MIME break lines there; so does the `base64` program
        encoded = base64.b64encode(value)
        if len(encoded) > width:
            for start in range(0, len(encoded), width):
                line = encoded[start : start + width]
                if len(line) >= _MIN_LINE_BYTES:
                    yield line


def _url_forms(value: bytes) -> Iterator[bytes]:
    quoted = {quote_from_bytes(value, safe=safe).encode() for safe in _URL_SAFE}
    quoted |= {form.replace(b"%20", b"+") for form in quoted}
    if len(value) <= _MAX_WIDE_BYTES:
        quoted.add(b"".join(b"%%%02X" % byte for byte in value))
    quoted |= {_PERCENT.sub(lambda match: match.group().lower(), form) for form in quoted}
    yield from quoted
    yield from (form.replace(b"%", b"%25") for form in quoted)


def _wide_forms(value: bytes) -> Iterator[bytes]:
    """Every byte as three or four characters."""
    for separator in (" ", ":"):
        yield value.hex(separator).encode()
        yield value.hex(separator).upper().encode()
    yield b"".join(b"\\x%02x" % byte for byte in value)
    yield b"".join(b"\\%03o" % byte for byte in value)


def _html_forms(value: bytes) -> Iterator[bytes]:
    """As Python, Django and Go escape it, and as text between tags, where quotes may stay."""
    text = value.replace(b"&", b"&amp;").replace(b"<", b"&lt;").replace(b">", b"&gt;")
    for double, single in ((b'"', b"'"), (b"&quot;", b"&#x27;"), (b"&quot;", b"&#39;"), (b"&#34;", b"&#39;")):
        yield text.replace(b'"', double).replace(b"'", single)


def _text_forms(value: bytes) -> Iterator[bytes]:
    """JSON (once and twice escaped), `repr` and shell quoting, without the quotes around them."""
    yield repr(value)[2:-1].encode()
    yield value.replace(b"'", b"'\"'\"'")
    yield value.replace(b"'", b"'\\''")
    yield _SHELL_SPECIAL.sub(rb"\\\1", value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return
    yield repr(text)[1:-1].encode()
    for ensure_ascii in (True, False):
        once = json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]
        twice = json.dumps(once, ensure_ascii=ensure_ascii)[1:-1]
        for form in (once, once.replace("/", "\\/"), twice):
            yield form.encode()
