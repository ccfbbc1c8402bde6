"""Any command line is read or refused with a reason, and what is read holds together."""

from __future__ import annotations

import json
import shlex

from hypothesis import given
from hypothesis import strategies as st

from windlass.compat.mason.account import KnownAccount
from windlass.compat.mason.flags import FLAGS, OWN, RETIRED
from windlass.compat.mason.reading import MasonLaunch, read_command_line
from windlass.core.errors import AccessError, UsageError, WindlassError

_FLAGS = [flag.name for flag in (*FLAGS, *RETIRED, *OWN)]
_VALUES = [
    "ai2/jupiter",
    "ai2/prior",
    "ai2/augusta",
    "8",
    "0",
    "-1",
    "1h",
    "A=1",
    "A=2",
    "=",
    "/a:b",
    "high",
    "",
    "x y",
    "mine",
]
_COMMANDS = [
    "python",
    "open_instruct/grpo_fast.py",
    "open_instruct/finetune.py",
    "accelerate",
    "--num_processes",
    "9" * 5000,
    "--output_dir",
    "--checkpoint_state_dir",
    "--model_name_or_path",
    "gs://b/m",
    "/weka/x",
    "{'a': 1}",
    "'",
    '"',
    "</a>",
    "&&",
]
_ANY = st.text(max_size=12)
_CUT = st.sampled_from(_FLAGS).flatmap(lambda name: st.integers(2, len(name)).map(lambda size: name[:size]))
_WORDS = st.lists(
    st.one_of(
        st.sampled_from(_FLAGS),
        st.sampled_from(_VALUES),
        st.sampled_from(_COMMANDS),
        st.just("--"),
        _CUT,
        st.builds("{}={}".format, st.sampled_from(_FLAGS), st.one_of(st.sampled_from(_VALUES), _ANY)),
        _ANY,
    ),
    max_size=14,
)
_PLAIN = st.text(st.sampled_from("ab /.:{}_1<"), min_size=1, max_size=8).filter(
    lambda word: word.split() and "<" not in word.split()
)


def _read(words: list[str], **environ: str) -> MasonLaunch:
    account = KnownAccount(name="me", secret_names=("HF_TOKEN", "mine"))
    return read_command_line(words, environ=environ, account=account, folder="/here", random=lambda count: "a" * count)


def _tried(words: list[str]) -> tuple[MasonLaunch | None, WindlassError | None]:
    try:
        return _read(words, PATH="/bin"), None
    except (UsageError, AccessError) as error:
        return None, error


@given(_WORDS)
def test_a_command_line_is_read_or_refused_naming_a_word(words: list[str]) -> None:
    launch, refusal = _tried(words)
    if refusal is not None:
        named = (*(word.partition("=")[0] for word in words), *words, "``", "`--`", "`--cluster`", "`--auto_output")
        assert refusal.hint
        assert any(word and word in refusal.message for word in named)
    if launch is not None:
        assert len(launch.spec["tasks"]) == len(launch.commands) >= 1
        assert json.loads(json.dumps(launch.spec)) == launch.spec
        assert launch.spec == _read(words, PATH="/bin").spec


@given(_WORDS.map(lambda words: ["--cluster", "ai2/jupiter", *words, "--", "python", "x.py"]))
def test_no_task_has_a_variable_twice(words: list[str]) -> None:
    launch, _ = _tried(words)
    for task in launch.spec["tasks"] if launch is not None else ():
        names = [variable["name"] for variable in task["envVars"]]
        assert len(names) == len(set(names))


@given(st.lists(_PLAIN, min_size=2, max_size=6))
def test_the_shell_of_the_job_sees_the_words_that_were_typed(words: list[str]) -> None:
    text = _read(["--cluster", "ai2/prior", "--pure_docker_mode", "--", "run", *words]).commands[0].text
    marked = [word for word in words if "<" in word and "</" not in word and "{" not in word]
    if not marked:  # a lone `<` is the job's own shell's
        assert shlex.split(text) == ["run", *words]


_OPTIONS = ("--gpus 8", "--env A=1", "--preemptible", "--timeout 1h", "--cluster ai2/titan", "--beaker_datasets /a:b")
_CHANGED = ("--cluster=ai2/titan", "--gpus=8", "--env=A=1", "--preem", "--timeout=60m", "--beaker_datasets=/a:b")


@given(st.permutations(_OPTIONS))
def test_the_order_of_the_options_changes_nothing(groups: list[str]) -> None:
    words = [word for group in groups for word in group.split()]
    assert _read([*words, "--", "x"]).spec == _read([*_CHANGED, "--", "x"]).spec
