"""Environment of a task's processes: image or lock file, variables, and names of secrets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, ClassVar, Literal

from windlass.config.annotations import Diagnostic, Doc, Key, OneOrMany, Pattern
from windlass.core.dataclass import dataclass
from windlass.spec.image import Image
from windlass.spec.variables import VariableName, Variables

__all__ = ["Env", "SecretUse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretUse:
    """Secret for the processes, by name; its value comes from the vault."""

    name: Annotated[VariableName, Doc("Name of the variable, and of the secret in the vault unless `from` is set.")]
    from_: Annotated[
        str,
        Pattern("(?:[A-Za-z_][A-Za-z0-9_]*)?", "a secret's name consists of letters, digits and '_'", "invalid-name"),
        Key("from"),
        Doc("Name of the secret in the vault, if it differs from the variable's."),
    ] = ""
    as_: Annotated[
        Literal["env", "file"],
        Key("as"),
        Doc("`env`: the variable holds the value; `file`: it holds the path of a file with the value."),
    ] = "env"

    @classmethod
    def from_shorthand(cls, value: str) -> SecretUse:
        """Read the short form, such as `HF_TOKEN`."""
        return cls(name=value)

    def to_shorthand(self) -> str | None:
        """Return the short form, or None if there is none."""
        return self.name if self.as_ == "env" and not self.from_ else None

    @property
    def source(self) -> str:
        """Return the name of the secret in the vault."""
        return self.from_ or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """Environment of all tasks: `image`, `uv`, `python`, or by default the machine's.

    At most one of them is set. An override of one replaces another that the file sets.
    """

    ALTERNATIVES: ClassVar[tuple[str, ...]] = ("image", "uv", "python")

    image: Annotated[Image, Doc("A container image: a tag, a digest, or a Dockerfile to build.")] = Image()
    uv: Annotated[str, Doc("Folder of a project with `uv.lock`, `pylock.toml` or hashed requirements.")] = ""
    python: Annotated[str, Doc("A Python interpreter or virtual environment, used unchanged and recorded.")] = ""
    groups: Annotated[tuple[str, ...], OneOrMany(), Doc("Dependency groups of the uv project.")] = ()
    extras: Annotated[tuple[str, ...], OneOrMany(), Doc("Extras of the uv project.")] = ()
    vars: Annotated[Variables, Doc("Environment variables for every task.")] = field(default_factory=dict)
    secrets: Annotated[tuple[SecretUse, ...], OneOrMany(), Doc("Names of secrets that every task gets.")] = ()

    def check(self) -> Iterator[Diagnostic]:
        """Yield problems that the types of the fields do not catch."""
        kinds = [kind for kind in self.ALTERNATIVES if getattr(self, kind)]
        if len(kinds) > 1:
            listed = " and ".join(f"`{kind}`" for kind in kinds)
            yield kinds[-1], f"env has {listed}", "conflicting-options", "keep one of `image`, `uv` and `python`"
        if (self.groups or self.extras) and not self.uv:
            key = "groups" if self.groups else "extras"
            yield key, f"env.{key} has no effect without `uv`", "setting-unused", f"add `uv: .` or remove `{key}`"
        names = [secret.name for secret in self.secrets]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield f"secrets.{index}", f"duplicate secret `{name}`", "conflicting-options", "remove one"
            if name in self.vars:
                message = f"`{name}` is both a secret and a variable"
                yield (
                    f"vars.{name}",
                    message,
                    "conflicting-options",
                    f"remove `{name}` from `vars`; its value comes from the vault",
                )
