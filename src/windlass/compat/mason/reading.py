"""Conversion of a mason command line to options, ids, commands and Beaker's spec.

Random ids come from one injected source. A run's id is drawn once per launch and written to the specification, so every
retry and every start after a preemption has the same id. The folder of its checkpoints is derived from it, so a later
launch with `--run-id` finds both.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windlass.compat.mason.account import MasonAccount
from windlass.compat.mason.arguments import Arguments, read_arguments
from windlass.compat.mason.clusters import Clusters, known_clusters
from windlass.compat.mason.emit import experiment_spec, task_mounts, task_spec, task_variables
from windlass.compat.mason.options import MasonOptions, OwnOptions
from windlass.compat.mason.quoting import join_words, kept_whole
from windlass.compat.mason.rewriting import RESUMABLE, Situation, for_nodes, rewrite, training_of
from windlass.core.dataclass import dataclass
from windlass.core.errors import AccessError, NotFoundError
from windlass.core.names import nearest

__all__ = ["Identity", "MasonCommand", "MasonLaunch", "Random", "new_identity", "random_letters", "read_command_line"]

Random = Callable[[int], str]
"""Source of a number of random letters and digits."""

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_NUM_LETTERS = 8
_MAX_NAME = 63
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


def random_letters(count: int) -> str:
    """Return unguessable letters and digits."""
    return "".join(_ALPHABET[int.from_bytes(os.urandom(8), "big") % len(_ALPHABET)] for _ in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Ids of one launch."""

    run_id: str
    launch: str
    """Random letters of this launch, so that each launch of a run creates its own experiment."""

    def of_task(self, index: int) -> str:
        """Return a task's run id: the launch's id for the first task, an id derived from it for others."""
        return _letters(f"{self.run_id}/{index}") if index else self.run_id

    def checkpoint_folder(self, index: int) -> str:
        """Return the name of a task's checkpoint folder: two numbers as in mason, but derived from the run id."""
        digest = hashlib.sha256(f"checkpoints of {self.of_task(index)}".encode()).digest()
        first, second = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big")
        return f"{10**9 + first % 10**9}_{second % 10**6}"

    def experiment_name(self, task_name: str) -> str:
        """Return the experiment's name, which is the same for every submission of this launch."""
        tail = f"-{self.run_id[:24]}-{self.launch}"
        head = _NOT_IN_NAMES.sub("-", task_name).strip("-_") or "mason"
        return head[: _MAX_NAME - len(tail)] + tail


def new_identity(asked: str, *, line: Sequence[str], random: Random) -> Identity:
    """Return the ids for a launch.

    Args:
        asked: value of `--run-id`: an id, `auto`, or empty for a new id.
        line: basis of the `auto` id: user, workspace, names, commands.
        random: the source of random letters.
    """
    run_id = _letters("\0".join(line)) if asked == "auto" else asked or random(_NUM_LETTERS)
    return Identity(run_id=run_id, launch=random(_NUM_LETTERS))


def _letters(text: str) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:16], "big")
    letters = []
    for _ in range(_NUM_LETTERS):
        number, letter = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[letter])
    return "".join(letters)


@dataclass(frozen=True, slots=True, kw_only=True)
class MasonCommand:
    """Command of a launch, as typed and after each conversion."""

    given: tuple[str, ...]
    """Words as typed."""
    words: tuple[str, ...]
    """Words after mason's changes: defaults, directories, tracker variables."""
    text: str
    """Command for bash on Beaker: joined, quoted, with flags for several nodes."""
    training: str
    """Training script that mason knows, such as `open_instruct/grpo_fast.py`; empty for other commands."""
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MasonLaunch:
    """Converted mason command line, with the request that Beaker would receive."""

    options: MasonOptions
    own: OwnOptions
    commands: tuple[MasonCommand, ...]
    spec: dict[str, Any]
    """Body of Beaker's request to create an experiment."""
    name: str
    """Return the experiment's name, equal for every submission of this launch."""
    identity: Identity
    user: str
    is_external: bool
    """True if there is no Beaker account, so that nothing can be submitted."""
    is_resumable: bool
    is_without_interconnect: bool
    """True if several nodes are requested on clusters without a known fast network."""
    folder: str
    """Folder of the launch, where commands run unless `--pure_docker_mode` is given."""
    notes: tuple[str, ...]
    """Notes for the user, one sentence each."""


def read_command_line(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    account: MasonAccount,
    folder: str = "",
    random: Random = random_letters,
    clusters: Clusters | None = None,
) -> MasonLaunch:
    """Convert the words after `windlass mason` (or `python mason.py`).

    Does not run, write or submit anything.

    Args:
        argv: the words after the program's name.
        environ: variables of the launch: WANDB_*, RUN_NAME, PATH.
        account: account of the launch; queried for the user and the secrets, in this order, once each.
        folder: folder of the launch; by default the current folder.
        random: source of random ids.
        clusters: table of known clusters; by default the shipped table.

    Raises:
        UsageError: the command line is invalid; the message names the word.
        NotFoundError: the current folder no longer exists.
        AccessError: the workspace lacks a secret of `--secret`.
    """
    arguments = read_arguments(argv, environ=environ)
    return _Reader(arguments, environ, account, folder or _here(), clusters or known_clusters()).launch(random)


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        message = "the current folder no longer exists"
        raise NotFoundError(message, hint="change to another: cd", code="file-not-found") from error


@dataclass(frozen=True, slots=True)
class _Reader:
    arguments: Arguments
    environ: Mapping[str, str]
    account: MasonAccount
    folder: str
    clusters: Clusters

    def launch(self, random: Random) -> MasonLaunch:
        options = self.arguments.options
        user = self.account.user()
        held = self.account.secrets(options.workspace)
        notes = [*self.arguments.notes, *_check_secrets(options, held)]
        identity = new_identity(self.arguments.own.run_id, line=self._line(user), random=random)
        is_resumable = not options.non_resumable and any(
            script in words for words in self.arguments.commands for script in RESUMABLE
        )
        situation = Situation(
            options=options,
            clusters=self.clusters,
            environ=self.environ,
            user=user,
            is_external=self.account.is_external,
        )
        commands = tuple(
            self._command(index, words, situation, identity) for index, words in enumerate(self.arguments.commands)
        )
        slow = self.clusters.without_interconnect(options.cluster) if options.num_nodes > 1 else ()
        return MasonLaunch(
            options=options,
            own=self.arguments.own,
            commands=commands,
            spec=experiment_spec(
                options,
                [
                    self._task(i, each, situation, held, identity.run_id, is_resumable)
                    for i, each in enumerate(commands)
                ],
            ),
            name=identity.experiment_name(options.task_name),
            identity=identity,
            user=user,
            is_external=self.account.is_external,
            is_resumable=is_resumable,
            is_without_interconnect=bool(slow),
            folder=self.folder,
            notes=(
                *notes,
                *_whole_notes(commands),
                *_cluster_notes(options, self.clusters),
                *_unmounted_notes(commands, options, self.clusters),
                *_bucket_note(options, self.clusters),
                *_slow_note(slow),
            ),
        )

    def _line(self, user: str) -> list[str]:
        """Return the values from which `--run-id auto` derives the run id."""
        options = self.arguments.options
        names = [user, options.workspace or "", options.description, options.task_name]
        return names + [word for words in self.arguments.commands for word in ("--", *words)]

    def _command(self, index: int, given: Sequence[str], situation: Situation, identity: Identity) -> MasonCommand:
        words = rewrite(given, situation, checkpoint_folder=identity.checkpoint_folder(index))
        options = self.arguments.options
        text = for_nodes(join_words(words), options.num_nodes)
        return MasonCommand(
            given=tuple(given),
            words=words,
            text=text if options.pure_docker_mode else f"cd {shlex.quote(self.folder)} && {text}",
            training=training_of(words),
            run_id=identity.of_task(index),
        )

    def _task(
        self,
        index: int,
        command: MasonCommand,
        situation: Situation,
        held: Sequence[str] | None,
        run_id: str,
        is_resumable: bool,
    ) -> dict[str, Any]:
        options = situation.options
        variables = task_variables(
            options,
            self.clusters,
            environ=self.environ,
            user=situation.user,
            secrets=held or (),
            run_id=run_id,
            tracker_id=command.run_id,
            is_resumable=is_resumable,
        )
        mounts = task_mounts(options, self.clusters)
        return task_spec(options, index=index, text=command.text, variables=variables, mounts=mounts)


def _check_secrets(options: MasonOptions, held: Sequence[str] | None) -> list[str]:
    """Raise for secrets that do not exist; add a note if they could not be listed."""
    if held is None:
        return ["the workspace's secrets were not listed: secrets that mason adds automatically are missing"]
    for name, secret in options.secret:
        if secret not in held:
            place = f"the workspace {options.workspace}" if options.workspace else "the default workspace"
            close = nearest(secret, held)
            known = f"did you mean `{name}={close}`?" if close else f"add it: `windlass beaker secret push {secret}`"
            raise AccessError(
                f"`--secret {name}={secret}`: {place} has no secret `{secret}`",
                hint=known,
                code="beaker-secret-missing",
            )
    return []


def _cluster_notes(options: MasonOptions, clusters: Clusters) -> list[str]:
    """Return a note for each name close to a known cluster's, which is probably a typo.

    Other unknown names are taken for new clusters.
    """
    unknown = [each for each in options.cluster if each not in clusters.names]
    guesses = [(each, nearest(each, clusters.names)) for each in unknown]
    return [f"unknown cluster `{each}`: did you mean `{guess}`?" for each, guess in guesses if guess]


def _unmounted_notes(commands: Sequence[MasonCommand], options: MasonOptions, clusters: Clusters) -> list[str]:
    """Return notes on output that would be lost.

    mason writes it to Weka if one cluster has Weka, but mounts Weka only if all have it.
    """
    root = clusters.weka.root
    if clusters.has_weka(options.cluster) or not clusters.may_have_weka(options.cluster):
        return []
    without = ", ".join(each for each in options.cluster if not clusters.has_weka([each]))
    paths = dict.fromkeys(
        word for command in commands for word in command.words if word.startswith(root) and word not in command.given
    )
    return [
        f"{path} is not mounted, because {without} has no Weka: results are lost when the job ends"
        f" (choose clusters that all have Weka, or pass --auto_output_dir_path '')"
        for path in paths
    ]


def _slow_note(slow: Sequence[str]) -> list[str]:
    if not slow:
        return []
    return [f"several nodes on {', '.join(slow)}: the network between nodes may be slow"]


def _bucket_note(options: MasonOptions, clusters: Clusters) -> list[str]:
    if not options.extra_weka_buckets or clusters.has_weka(options.cluster):
        return []
    buckets = " ".join(options.extra_weka_buckets)
    return [f"--extra_weka_buckets {buckets}: not all of the clusters have Weka, so it is not mounted"]


def _whole_notes(commands: Sequence[MasonCommand]) -> list[str]:
    words = dict.fromkeys(word for command in commands for word in kept_whole(command.words))
    return [f"`{word}` stays one word in the job; mason would split it" for word in words]
