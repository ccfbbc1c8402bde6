"""The forms in which a secret may turn up in a program's output.

A token is printed as it is, but also inside a base64 header, a URL, a JSON body, a hex dump, a `repr` or a shell
trace. `secret_forms` lists all of them for one value; the redactor looks for exactly these bytes.
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
    for safe in _URL_SAFE:
        quoted = quote_from_bytes(value, safe=safe).encode()
        for form in (quoted, quoted.replace(b"%20", b"+")):
            yield form
            yield _PERCENT.sub(lambda match: match.group().lower(), form)


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
