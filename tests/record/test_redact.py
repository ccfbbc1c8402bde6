"""The redactor: no form of a secret survives, nothing else changes, and cuts in the stream do not matter."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from urllib.parse import quote, quote_plus

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.record.redact import Redactor
from windlass.record.secret_forms import secret_forms

TOKEN = b"hf_AbC/d+e=fGh 123~\"'\\z\xc3\xa9"
MARK = re.compile(rb"\[secret \w+\]")


def in_pieces(redactor: Redactor, pieces: list[bytes]) -> bytes:
    output, waiting = [], b""
    for number, piece in enumerate(pieces):
        waiting += piece
        text, taken = redactor.feed(waiting, number == len(pieces) - 1)
        output.append(text)
        waiting = waiting[taken:]
        assert len(waiting) <= redactor.max_held_bytes
    return b"".join(output)


def test_value_becomes_its_name() -> None:
    assert Redactor({"KEY": b"s3cr3t-value"}).redact(b"key=s3cr3t-value;\n") == b"key=[secret KEY];\n"


def test_without_secrets_everything_passes_at_once() -> None:
    assert Redactor({}).feed(b"abc", False) == (b"abc", 3)


TEXT = TOKEN.decode()
ENCODED = {
    "raw": TOKEN,
    "base64": base64.b64encode(TOKEN),
    "base64 without padding": base64.b64encode(TOKEN).rstrip(b"="),
    "url-safe base64": base64.urlsafe_b64encode(TOKEN),
    "hex": TOKEN.hex().encode(),
    "upper hex": TOKEN.hex().upper().encode(),
    "quote": quote(TEXT).encode(),
    "quote all": quote(TEXT, safe="").encode(),
    "quote_plus": quote_plus(TEXT).encode(),
    "lower quote": re.sub(r"%..", lambda match: match.group().lower(), quote(TEXT)).encode(),
    "encodeURIComponent": quote(TEXT, safe="!'()*").encode(),
    "json": json.dumps(TEXT)[1:-1].encode(),
    "json utf-8": json.dumps(TEXT, ensure_ascii=False)[1:-1].encode(),
    "json with escaped slash": json.dumps(TEXT)[1:-1].replace("/", "\\/").encode(),
    "json in json": json.dumps(json.dumps(TEXT)[1:-1])[1:-1].encode(),
    "repr": repr(TEXT)[1:-1].encode(),
    "repr of bytes": repr(TOKEN)[2:-1].encode(),
    "quote everything": "".join(f"%{byte:02X}" for byte in TOKEN).encode(),
    "quote everything, lower": "".join(f"%{byte:02x}" for byte in TOKEN).encode(),
    "quote twice": quote(quote(TEXT)).encode(),
    "hex with spaces": TOKEN.hex(" ").encode(),
    "hex with colons": TOKEN.hex(":").upper().encode(),
    "octal": "".join(f"\\{byte:03o}" for byte in TOKEN).encode(),
    "escaped hex": "".join(f"\\x{byte:02x}" for byte in TOKEN).encode(),
    "html": html.escape(TEXT).encode(),
    "shell": shlex.quote(TEXT)[1:-1].encode(),
    "shell, bash style": TOKEN.replace(b"'", b"'\\''"),
}


@pytest.mark.parametrize("form", ENCODED)
@pytest.mark.parametrize("shift", range(4))
def test_form_is_hidden_at_every_alignment(form: str, shift: int) -> None:
    line = b"x" * shift + b"<" + ENCODED[form] + b">\n"
    assert Redactor({"KEY": TOKEN}).redact(line) == b"x" * shift + b"<[secret KEY]>\n"


@pytest.mark.parametrize("shift", range(3))
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_inside_a_longer_text(shift: int, encode: object) -> None:
    assert callable(encode)
    whole = encode(b"u:p"[:shift] + TOKEN + b" and more")
    redacted = Redactor({"KEY": TOKEN}).redact(whole)
    assert b"[secret KEY]" in redacted
    assert len(MARK.sub(b"", redacted)) <= len(b" and more") * 4 // 3 + 8


@pytest.mark.parametrize(
    "form", ["&lt;a&#34;b&#39;c&amp;d", "&lt;a&quot;b&#x27;c&amp;d", "&lt;a&quot;b&#39;c&amp;d", "&lt;a\"b'c&amp;d"]
)
def test_html_of_several_kinds(form: str) -> None:
    assert Redactor({"KEY": b"<a\"b'c&d"}).redact(b"<p>" + form.encode()) == b"<p>[secret KEY]"


def test_text_with_and_without_lone_surrogates() -> None:
    redactor = Redactor({"KEY": b"s3cr3t\xff"})
    assert redactor.redact_text("\xe9 s3cr3t\udcff \udcfe") == "\xe9 [secret KEY] \udcfe"
    assert Redactor({"KEY": b"s3cr3t"}).redact_text("\ud800 s3cr3t") == "\ud800 [secret KEY]"


def test_base64_program_breaks_lines() -> None:
    value = bytes(range(33, 123)) * 2
    redacted = Redactor({"KEY": value}).redact(base64.encodebytes(value))
    assert MARK.sub(b"", redacted).strip() == b""


def test_each_line_of_a_multi_line_secret() -> None:
    key = b"-----BEGIN KEY-----\nMIIEvQIBADAN\nshort\nBgkqhkiG9w0B\n-----END KEY-----\n"
    output = Redactor({"KEY": key}).redact(b"> MIIEvQIBADAN\n> BgkqhkiG9w0B\n> short\n")
    assert output == b"> [secret KEY]\n> [secret KEY]\n> short\n"


def test_value_with_its_final_newline_cut() -> None:
    assert Redactor({"KEY": b"s3cr3t\n"}).redact(b"s3cr3t;") == b"[secret KEY];"


def test_longest_secret_names_the_region() -> None:
    redactor = Redactor({"A": b"password", "B": b"password-and-more", "C": b"more-yet"})
    assert redactor.redact(b"password password-and-more-yet") == b"[secret A] [secret B]"


def test_short_secret_is_found() -> None:
    assert Redactor({"PIN": b"1x9z"}).redact(b"a1x9zb 0031x9z") == b"a[secret PIN]b 003[secret PIN]"


def test_possible_beginning_is_held_back() -> None:
    redactor = Redactor({"KEY": b"s3cr3t-value"})
    assert redactor.feed(b"key=s3cr3t-v", False) == (b"key=", 4)
    assert redactor.feed(b"s3cr3t-v\n", False) == (b"s3cr3t-v\n", 9)


def test_nothing_is_held_back_behind_a_whole_secret() -> None:
    assert Redactor({"KEY": b"s3cr3t-value"}).feed(b"s3cr3t-value", False) == (b"[secret KEY]", 12)


def test_periodic_secret_never_holds_back_without_bound() -> None:
    redactor = Redactor({"KEY": b"abababababab"})
    assert in_pieces(redactor, [b"ab" * 50] * 40) == redactor.redact(b"ab" * 2000)


def test_values_of_all_bytes_have_forms() -> None:
    assert secret_forms(bytes(range(256)))


def few_letters(min_size: int, max_size: int) -> st.SearchStrategy[bytes]:
    """Texts in which partial and overlapping matches are the rule."""
    return st.lists(st.sampled_from(b"ab/ 6"), min_size=min_size, max_size=max_size).map(bytes)


VALUES = st.one_of(few_letters(4, 12), st.binary(min_size=4, max_size=40))


@st.composite
def streams(draw: st.DrawFn) -> tuple[dict[str, bytes], list[bytes]]:
    """Secrets, and pieces of a text made of their forms, cut forms and noise."""
    values = draw(st.lists(VALUES, min_size=1, max_size=4))
    forms = sorted(form for value in values for form in secret_forms(value))
    parts = []
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.integers(0, 3))
        form = draw(st.sampled_from(forms)) if forms else b""
        if kind == 0:
            parts.append(draw(few_letters(0, 20)))
        elif kind == 1:
            parts.append(form)
        elif kind == 2:
            parts.append(form[: draw(st.integers(0, len(form)))])
        else:
            parts.append(form[draw(st.integers(0, len(form))) :])
    text = b"".join(parts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return {f"S{number}": value for number, value in enumerate(values)}, pieces


@settings(max_examples=120, deadline=None)
@given(streams())
def test_cuts_do_not_matter(stream: tuple[dict[str, bytes], list[bytes]]) -> None:
    secrets, pieces = stream
    redactor = Redactor(secrets)
    assert in_pieces(redactor, pieces) == redactor.redact(b"".join(pieces))


@settings(max_examples=120, deadline=None)
@given(streams())
def test_no_form_survives(stream: tuple[dict[str, bytes], list[bytes]]) -> None:
    secrets, pieces = stream
    rest = re.split(rb"\[secret S\d\]", in_pieces(Redactor(secrets), pieces))
    for value in secrets.values():
        for form in secret_forms(value):
            assert not any(form in part for part in rest)


@settings(max_examples=120, deadline=None)
@given(streams())
def test_text_of_no_secret_is_unchanged(stream: tuple[dict[str, bytes], list[bytes]]) -> None:
    secrets, pieces = stream
    text = b"".join(pieces)
    redacted = Redactor(secrets).redact(text)
    if not any(form in text for value in secrets.values() for form in secret_forms(value)):
        assert redacted == text
    kept = re.split(rb"\[secret S\d\]", redacted)
    position = 0
    for part in kept:
        position = text.index(part, position) + len(part)


STRANGE = "p&ss<w>o'r\"d=/+`\u2028\u00e9\U0001f600\\u0041-;~ "


def go(text: str) -> str:
    """As encoding/json writes a string."""
    form = json.dumps(text, ensure_ascii=False)[1:-1]
    for character in "&<>\u2028\u2029":
        form = form.replace(character, f"\\u{ord(character):04x}")
    return form


@pytest.mark.parametrize(
    "form",
    [
        go(STRANGE),
        go(go(STRANGE)),
        go(STRANGE).replace("=", "\\u003d").replace("'", "\\u0027"),  # Gson
        json.dumps(STRANGE)[1:-1].replace("/", "\\/"),  # PHP
        json.dumps(STRANGE)[1:-1].translate({60: "\\u003C", 62: "\\u003E", 38: "\\u0026"}),  # Django's json_script
        re.sub(r"\\u([0-9a-f]{4})", lambda found: "\\u" + found[1].upper(), json.dumps(STRANGE)[1:-1]),  # Jackson
        yaml.safe_dump(STRANGE, default_style='"', width=1000).strip()[1:-1],
        STRANGE.replace("'", "''"),  # YAML, SQL
        html.escape(STRANGE),
        html.escape(STRANGE).encode("ascii", "xmlcharrefreplace").decode(),
        quote(STRANGE, safe="!$&'()*+,;=:@"),
        quote_plus(STRANGE).replace("~", "%7E"),
        quote_plus(STRANGE).lower(),
        shlex.quote(STRANGE)[1:-1],
        base64.b64encode(b"\xff\xfe" + STRANGE.encode() + b"?>").decode().replace("/", "\\/"),
        quote(base64.b64encode(STRANGE.encode()).decode(), safe=""),
    ],
)
def test_what_encoders_make_of_a_strange_value_is_hidden(form: str) -> None:
    shown = Redactor({"A": STRANGE.encode()}).redact(f"<{form}>".encode()).decode()
    assert "[secret A]" in shown
    assert len(shown) <= len("<[secret A]>") + 10  # a value within base64 shares characters with its neighbours
