r"""Forms in which a secret may appear in a program's output.

Covered, each for the whole value: the value itself, also stripped; base64 (also url-safe, without padding, inside a
longer text, in lines of 64 and 76, and escaped for JSON or a URL); URL quoting, once and twice; JSON, once and twice,
as Python, Go, PHP, JavaScript, Java, .NET, Ruby and Django write it; YAML; `repr`; shell quoting; HTML escapes; hex.
For values of at most 512 bytes, also URL quoting of every byte, hex with spaces or colons, and every byte as `\x..` or
octal. For values of several lines, also each line as text.

Not covered, since no list can be complete: a part of the value, compression, encryption, other ciphers (rot13, base32),
the value reversed or with separators between its characters, JSON with `\u` for plain letters, hex dumps with offsets.
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
# Escapers of paths, or of user and password, in Go and other languages keep more; encodeURI keeps most.
_URL_SAFE = ("", "/", "!'()*", "*", "$&+=:@", "$&+,/;=", "!$&'()*+,;=:@", "!$&'()*+,;=:@/", ";/?:@&=+$,#!'()*")
# Characters that JSON encoders write as `\\u`, besides controls: none (most); Go, Rails, simplejson, Django's json_script; Flask;
# Gson; PHP with all JSON_HEX flags; .NET; Django's escapejs.
_JSON_ESCAPED = ("", "<>&", "<>&'", "<>&'=", "<>&'\"", "<>&'\"+`", "<>&'\"=-;`\\")
_LINE_ENDS = "\u2028\u2029"
_PERCENT = re.compile(rb"%[0-9A-F]{2}")
_YAML_NAMED = {0x85: "N", 0xA0: "_", 0x2028: "L", 0x2029: "P"}
_NOT_ASCII = re.compile(r"[^\x00-\x7e]")
_DIGITS = (("%04x", "%04x"), ("%04X", "%04X"), ("%04X", "%04x"))
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HTML_QUOTES = (
    (b'"', b"'"),
    (b"&quot;", b"'"),
    (b"&quot;", b"&#x27;"),
    (b"&quot;", b"&#39;"),
    (b"&quot;", b"&#039;"),
    (b"&quot;", b"&apos;"),
    (b"&#34;", b"&#39;"),
)
_SHELL_SPECIAL = re.compile(rb"([^A-Za-z0-9_@%+=:,./-])")


def secret_forms(value: bytes) -> frozenset[bytes]:
    """Return all forms of `value` to redact, each of at least `MIN_FORM_BYTES` bytes."""
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
    """Yield the encoding of `value` alone, and the characters that it determines at each of the three alignments."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(value)
        for shift in range(3):
            first = (shift * 8 + 5) // 6
            end = (shift + len(value)) * 8 // 6
            yield encode(bytes(shift) + value)[first:end]
        yield from _escaped_base64(encode(value))
        yield from _escaped_base64(encode(value).rstrip(b"="))
    for width in (64, 76):  # line lengths of PEM and MIME, and of the `base64` program
        encoded = base64.b64encode(value)
        if len(encoded) > width:
            for start in range(0, len(encoded), width):
                line = encoded[start : start + width]
                if len(line) >= _MIN_LINE_BYTES:
                    yield line


def _escaped_base64(encoded: bytes) -> Iterator[bytes]:
    """Yield the encoding with `+`, `/` and `=` escaped for JSON and URLs."""
    yield encoded
    yield encoded.replace(b"/", b"\\/")
    for plus, slash, equals in ((b"\\u002B", b"/", b"="), (b"+", b"/", b"\\u003d"), (b"%2B", b"%2F", b"%3D")):
        form = encoded.replace(b"+", plus).replace(b"/", slash).replace(b"=", equals)
        yield form
        if b"%" in form:
            yield _PERCENT.sub(lambda match: match.group().lower(), form)


def _url_forms(value: bytes) -> Iterator[bytes]:
    quoted = {quote_from_bytes(value, safe=safe).encode() for safe in _URL_SAFE}
    quoted |= {form.replace(b"~", b"%7E") for form in quoted}  # Java and PHP
    quoted |= {form.replace(b"%20", b"+") for form in quoted}
    if len(value) <= _MAX_WIDE_BYTES:
        quoted.add(b"".join(b"%%%02X" % byte for byte in value))
    quoted |= {_PERCENT.sub(lambda match: match.group().lower(), form) for form in quoted}
    yield from quoted
    yield from (form.replace(b"%", b"%25") for form in quoted)


def _wide_forms(value: bytes) -> Iterator[bytes]:
    """Yield the forms that write every byte as three or four characters."""
    for separator in (" ", ":"):
        yield value.hex(separator).encode()
        yield value.hex(separator).upper().encode()
    yield b"".join(b"\\x%02x" % byte for byte in value)
    yield b"".join(b"\\%03o" % byte for byte in value)


def _html_forms(value: bytes) -> Iterator[bytes]:
    """Yield the HTML escapes that Python, Django, Go, PHP, XML and Mustache write, also with quotes unescaped."""
    text = value.replace(b"&", b"&amp;").replace(b"<", b"&lt;").replace(b">", b"&gt;")
    for double, single in _HTML_QUOTES:
        form = text.replace(b'"', double).replace(b"'", single)
        yield form
        yield form.replace(b"+", b"&#43;")
        yield form.replace(b"/", b"&#x2F;").replace(b"`", b"&#x60;").replace(b"=", b"&#x3D;")
        yield form.replace(b"\r", b"&#13;").replace(b"\n", b"&#10;").replace(b"\t", b"&#9;")
        try:
            yield form.decode().encode("ascii", "xmlcharrefreplace")
        except UnicodeDecodeError:
            continue


def _text_forms(value: bytes) -> Iterator[bytes]:
    """Yield the forms in JSON, YAML, `repr`, doubled quotes and shell quoting, without the surrounding quotes."""
    yield repr(value)[2:-1].encode()
    yield value.replace(b"'", b"'\"'\"'")
    yield value.replace(b"'", b"'\\''")
    yield value.replace(b"'", b"''")
    yield value.replace(b'"', b'""')
    yield _SHELL_SPECIAL.sub(rb"\\\1", value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return
    yield repr(text)[1:-1].encode()
    yield _yaml_form(text).encode()
    for escaped in _JSON_ESCAPED:
        for is_ascii in (True, False):
            for digits in _DIGITS:
                once = _json_form(text, escaped, digits, is_ascii=is_ascii)
                twice = _json_form(once, escaped, digits, is_ascii=is_ascii)
                for form in (once, once.replace("/", "\\/"), twice, twice.replace("/", "\\\\\\/")):
                    yield form.encode()


def _json_form(text: str, escaped: str, digits: tuple[str, str], *, is_ascii: bool) -> str:
    r"""Return a JSON string as written by an encoder that also writes these characters as `\u`.

    Args:
        digits: format of the codes of these characters, and of all others: lower or upper case hex.
        is_ascii: whether all non-ASCII characters are escaped; otherwise only the line ends of JavaScript, or none.
    """

    def shown(character: str) -> str:
        is_code = character in escaped or (is_ascii and character > "~") or (escaped and character in _LINE_ENDS)
        if is_code or (character < " " and character not in _SHORT):
            units = character.encode("utf-16-be", "surrogatepass")
            style = digits[0] if character in escaped else digits[1]
            return "".join("\\u" + style % (units[at] << 8 | units[at + 1]) for at in range(0, len(units), 2))
        return _SHORT.get(character, character)

    return text.translate({ord(character): shown(character) for character in set(text)})


def _yaml_form(text: str) -> str:
    """Return a double-quoted scalar as PyYAML writes it without unicode; escapes have two, four or eight digits."""
    return _NOT_ASCII.sub(lambda match: _yaml_code(ord(match.group())), json.dumps(text, ensure_ascii=False)[1:-1])


def _yaml_code(code: int) -> str:
    if code in _YAML_NAMED:
        return "\\" + _YAML_NAMED[code]
    return f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
