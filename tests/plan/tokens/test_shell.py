from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.tokens.shell import Quote, ShellScanner, plain_argv, quote_value, simple_commands

_VALUES = st.text(alphabet="a $`'\"\\{}()#*~\n;&|<>=", max_size=12)


def scanned(text: str) -> ShellScanner:
    scanner = ShellScanner()
    scanner.feed(text)
    return scanner


@pytest.mark.parametrize(
    ("before", "quote"),
    [
        ("echo ", Quote.BARE),
        ("echo '", Quote.SINGLE),
        ('echo "', Quote.DOUBLE),
        ("echo \"it's ", Quote.DOUBLE),
        ("echo 'a' \\'", Quote.BARE),
        ('echo "$(cat ', Quote.BARE),
        ('echo "$(cat "', Quote.DOUBLE),
        ('echo "$(cat ")" x) ', Quote.DOUBLE),
        ("echo $((1 + (2))) ", Quote.BARE),
        ("# it's a comment\necho ", Quote.BARE),
        ("echo a#'", Quote.SINGLE),
        ("echo ${x:-'", Quote.SINGLE),
        ("echo \"${x:-it's} ", Quote.DOUBLE),
        ("echo \\$('", Quote.SINGLE),
    ],
)
def test_quoting_at_a_place(before: str, quote: Quote) -> None:
    assert scanned(before).quote is quote


@given(_VALUES)
def test_a_value_is_one_word_at_every_place(value: str) -> None:
    for line, quote in (("{}", Quote.BARE), ("'{}'", Quote.SINGLE), ("x'{}'y", Quote.SINGLE)):
        words = shlex.split(line.replace("{}", quote_value(value, quote)))
        assert words == [line.replace("'", "").replace("{}", value)]


def test_a_real_shell_agrees() -> None:
    values = ["", "a b", "it's", '"q"', "$HOME", "`id`", "$(id)", "\\", "a\\", "*", "~", "#x", "a\nb", "!", "-n", "é"]
    script = "".join(
        f"printf '%s\\0' {quote_value(value, Quote.BARE)} \"<{quote_value(value, Quote.DOUBLE)}>\" "
        f"'<{quote_value(value, Quote.SINGLE)}>' \"$(printf '%s.' {quote_value(value, Quote.BARE)})\"\n"
        for value in values
    )
    output = subprocess.run(["/bin/sh", "-c", script], check=True, capture_output=True).stdout.decode().split("\0")
    assert output[:-1] == [text for value in values for text in (value, f"<{value}>", f"<{value}>", f"{value}.")]


@pytest.mark.parametrize(
    ("line", "commands"),
    [
        ("python a.py --x 'a b' $HOME", [["python", "a.py", "--x", "'a b'", "$HOME"]]),
        ("cd x && torchrun t.py 2>&1 | tee log", [["cd", "x"], ["torchrun", "t.py", "2>&1"], ["tee", "log"]]),
        ("# it's\npython x # y z\n\nls", [["python", "x"], ["ls"]]),
        ("a \\\n  b \\\n\tc", [["a", "b", "c"]]),
        ('x "$(echo \')\' "q")" y;z', [["x", '"$(echo \')\' "q")"', "y"], ["z"]]),
        ("(a b) &> f & c", [["a", "b"], ["&>", "f"], ["c"]]),
        ("A=1 python $${X:-a b} ${out}", [["A=1", "python", "$${X:-a b}", "${out}"]]),
        ("", []),
    ],
)
def test_commands_of_a_line(line: str, commands: list[list[str]]) -> None:
    assert [[word.text for word in command] for command in simple_commands(line)] == commands


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("echo 'a", "is not closed"),
        ('x "$(y"', "is not closed"),
        ("a `b c`", "backquote"),
        ("cat <<EOF\nx\nEOF", "here-document"),
    ],
)
def test_what_is_not_understood_is_said(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simple_commands(line)


@given(st.lists(st.text(alphabet="a $'\"\\#;|&\n(", min_size=1, max_size=6), min_size=1, max_size=5))
def test_quoted_words_are_found_where_they_are(values: list[str]) -> None:
    line = shlex.join(["x", *values])
    (command,) = simple_commands(line)
    assert [word.value for word in command] == ["x", *values]
    assert [line[word.start : word.end] for word in command] == [word.text for word in command]


@pytest.mark.parametrize(
    "line", ["a $HOME", "a *", "a > b", 'a "$X"', "a ~", "a {b,c}", "a \\$b", "a # b", "a 'b", "a;b"]
)
def test_a_line_that_needs_a_shell_is_no_argv(line: str) -> None:
    try:
        assert plain_argv(line, [line]) is None
    except ValueError:
        assert "'" in line


def test_a_plain_line_is_an_argv() -> None:
    assert plain_argv("a 'b $c' ${out}/x \"d e\"", ["a 'b $c' ", '/x "d e"']) == ("a", "b $c", "${out}/x", "d e")
