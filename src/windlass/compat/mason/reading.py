"""A mason command line, read to the end: options, commands after each stage, and Beaker's specification."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.compat.mason.account import MasonAccount
from windlass.compat.mason.arguments import Arguments, read_arguments
from windlass.compat.mason.clusters import Clusters, known_clusters
from windlass.compat.mason.emit import experiment_spec, task_mounts, task_spec, task_variables
from windlass.compat.mason.identity import Identity, Random, new_identity, random_letters
from windlass.compat.mason.options import MasonOptions, OwnOptions
from windlass.compat.mason.quoting import join_words, kept_whole
from windlass.compat.mason.rewriting import RESUMABLE, Situation, for_nodes, rewrite, training_of
from windlass.core.dataclass import dataclass
from windlass.core.errors import AccessError, NotFoundError
from windlass.core.names import nearest

__all__ = ["MasonCommand", "MasonLaunch", "read_command_line"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MasonCommand:
    """Command of a launch, after each stage."""

    given: tuple[str, ...]
    """The words as typed."""
    words: tuple[str, ...]
    """The words with what mason adds and moves: defaults, directories, the tracker's variables."""
    text: str
    """Command for bash on Beaker: joined, quoted, with the processes of all nodes."""
    training: str
    """The training script mason knows, such as `open_instruct/grpo_fast.py`; empty for any other command."""
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MasonLaunch:
    """A mason command line and what Beaker would get."""

    options: MasonOptions
    own: OwnOptions
    commands: tuple[MasonCommand, ...]
    spec: dict[str, Any]
    """The body of Beaker's request to make an experiment."""
    name: str
    """Return the experiment's name, equal for every submission of this launch."""
    identity: Identity
    user: str
    is_external: bool
    """Nobody with an account on Beaker: nothing can be submitted there."""
    is_resumable: bool
    is_without_interconnect: bool
    """Several nodes on clusters that are not known to join them by a fast network."""
    folder: str
    """Folder of the launch, in which commands run without `--pure_docker_mode`."""
    notes: tuple[str, ...]
    """Notes for the user, a sentence each."""


def read_command_line(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    account: MasonAccount,
    folder: str = "",
    random: Random = random_letters,
    clusters: Clusters | None = None,
) -> MasonLaunch:
    """Read the words after `windlass mason` (or `python mason.py`); nothing is run, written or sent.

    Args:
        argv: the words.
        environ: variables of the launch: WANDB_*, RUN_NAME, PATH.
        account: whose launch it is; asked for the user and the secrets, in this order, once each.
        folder: where it is started; the current folder.
        random: the one source of random ids.
        clusters: what is known of clusters; the shipped knowledge.

    Raises:
        UsageError: the line is wrong; the message names the word.
        NotFoundError: the current folder is gone.
        AccessError: a secret of `--secret` that the workspace does not hold.
    """
    arguments = read_arguments(argv, environ=environ)
    return _Reader(arguments, environ, account, folder or _here(), clusters or known_clusters()).launch(random)


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        message = "the current folder no longer exists"
        raise NotFoundError(message, hint="change to another: cd", code="file-missing") from error


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
        """Return what makes two command lines the same run."""
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
    """Refuse secrets that do not exist; a note where nobody was asked."""
    if held is None:
        return ["the workspace's secrets were not listed: those that mason adds by itself are missing"]
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
    """A name that is close to a known cluster's is probably a mistake; other unknown names are new clusters."""
    unknown = [each for each in options.cluster if each not in clusters.names]
    guesses = [(each, nearest(each, clusters.names)) for each in unknown]
    return [f"unknown cluster `{each}`: did you mean `{guess}`?" for each, guess in guesses if guess]


def _unmounted_notes(commands: Sequence[MasonCommand], options: MasonOptions, clusters: Clusters) -> list[str]:
    """Mason moves the output to Weka where one cluster has it, and mounts Weka only where all have it."""
    root = clusters.weka.root
    if clusters.has_weka(options.cluster) or not clusters.may_have_weka(options.cluster):
        return []
    without = ", ".join(each for each in options.cluster if not clusters.has_weka([each]))
    paths = dict.fromkeys(
        word for command in commands for word in command.words if word.startswith(root) and word not in command.given
    )
    return [
        f"{path} is not mounted, because {without} has no Weka: results are lost with the job"
        f" (choose clusters that all have Weka, or pass --auto_output_dir_path '')"
        for path in paths
    ]


def _slow_note(slow: Sequence[str]) -> list[str]:
    if not slow:
        return []
    return [f"several nodes on {', '.join(slow)}: not known to have a fast network between nodes"]


def _bucket_note(options: MasonOptions, clusters: Clusters) -> list[str]:
    if not options.extra_weka_buckets or clusters.has_weka(options.cluster):
        return []
    buckets = " ".join(options.extra_weka_buckets)
    return [f"--extra_weka_buckets {buckets}: not all of the clusters have Weka, so it is not mounted"]


def _whole_notes(commands: Sequence[MasonCommand]) -> list[str]:
    words = dict.fromkeys(word for command in commands for word in kept_whole(command.words))
    return [f"`{word}` stays one word in the job; mason would split it" for word in words]
