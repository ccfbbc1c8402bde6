"""Resolution of the names in a recipe: to ids and full names through Beaker, or unchanged with a note."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path

from windlass.compat.gantry.account import GantryAccount
from windlass.compat.gantry.checkout import Checkout
from windlass.compat.gantry.mounts import GantryMount, Inputs, SecretVariable
from windlass.compat.gantry.placement import place, wishes_of
from windlass.compat.gantry.settings import RecipeSettings
from windlass.core.dataclass import dataclass
from windlass.core.errors import AccessError, NotFoundError, PreconditionError, UsageError
from windlass.core.names import nearest

__all__ = ["DEFAULT_IMAGE", "GANTRY_VERSION", "ResolvedLaunch", "Write", "resolve"]

GANTRY_VERSION = "3.7.0"
"""Version of gantry whose behaviour is implemented."""
DEFAULT_IMAGE = "beaker-py/gantry"
_CREDENTIALS = (
    ("GANTRY_AWS_CONFIG", "aws_config_secret"),
    ("GANTRY_AWS_CREDENTIALS", "aws_credentials_secret"),
    ("GANTRY_GOOGLE_CREDENTIALS", "google_credentials_secret"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Object that a launch creates at Beaker before submission: a secret, a group or a dataset."""

    kind: str
    name: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def __repr__(self) -> str:
        return f"Write({self})"  # never the value of a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedLaunch:
    """Resolved names for a spec, objects to create before submission, and notes on names that were not looked up."""

    image: Mapping[str, str]
    clusters: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    datasets: tuple[GantryMount, ...] = ()
    uploads: tuple[GantryMount, ...] = ()
    secret_variables: tuple[tuple[str, str], ...] = ()
    token_secret: str | None = None
    writes: tuple[Write, ...] = ()
    notes: tuple[str, ...] = ()


def resolve(
    recipe: RecipeSettings,
    inputs: Inputs,
    checkout: Checkout,
    *,
    account: GantryAccount | None,
    environ: Mapping[str, str],
) -> ResolvedLaunch:
    """Resolve the names in a recipe. Reads from `account` and writes nothing.

    Raises:
        NotFoundError: an image, dataset, cluster, or group of another user does not exist.
        AccessError: a secret that is neither in the workspace nor yours.
        PreconditionError: there is no budget.
    """
    found = _Resolution(recipe, account, environ)
    return ResolvedLaunch(
        image=found.image(),
        clusters=found.clusters(),
        groups=tuple(found.group(name) for name in recipe.group_names or ()),
        datasets=tuple(found.dataset(mount) for mount in inputs.datasets),
        uploads=tuple(found.upload(mount) for mount in inputs.uploads),
        token_secret=found.token(checkout, inputs),
        secret_variables=found.secret_variables(inputs),
        writes=tuple(found.writes),
        notes=tuple(found.notes),
    )


class _Resolution:
    """Resolution of one recipe's names, which collects notes and writes."""

    def __init__(self, recipe: RecipeSettings, account: GantryAccount | None, environ: Mapping[str, str]) -> None:
        self.recipe = recipe
        self.account = account
        self.environ = environ
        self.notes: list[str] = []
        self.writes: list[Write] = []
        self._secrets: Collection[str] = ()
        if account is None:
            return
        if recipe.budget is None and not account.has_budget():
            message = f"the workspace {account.workspace} has no budget"
            raise PreconditionError(message, hint="add `--budget ORG/NAME`", code="beaker-workspace")
        self._secrets = frozenset(account.secrets())

    def image(self) -> dict[str, str]:
        recipe, account = self.recipe, self.account
        if recipe.docker_image is not None:
            return {"docker": recipe.docker_image}
        if recipe.beaker_image is None:
            versioned = f"{DEFAULT_IMAGE}-v{GANTRY_VERSION}"
            is_there = account is not None and account.image_id(versioned) is not None
            return {"beaker": versioned if is_there else DEFAULT_IMAGE}
        if account is None or recipe.beaker_image == DEFAULT_IMAGE:
            if account is None:
                self.notes.append(f"the image {recipe.beaker_image} is looked up only at submission")
            return {"beaker": recipe.beaker_image}
        found = account.image_id(recipe.beaker_image)
        if found is None:
            hint = "`--docker-image` is for public images"
            raise NotFoundError(f"Beaker has no image `{recipe.beaker_image}`", hint=hint, code="beaker-not-found")
        return {"beaker": found}

    def clusters(self) -> tuple[str, ...]:
        wishes = wishes_of(self.recipe)
        if not wishes:
            return ()
        if self.account is not None:
            return place(wishes, self.account)
        if wishes.needs_beaker:
            self.notes.append(f"clusters are chosen only at submission: {wishes}")
        return wishes.patterns

    def group(self, name: str) -> str:
        if self.account is None:
            self.notes.append(f"the group {name} is looked up only at submission")
            return name
        found = self.account.group(name)
        if found is not None:
            return found
        owner, has_owner, own = name.partition("/")
        if has_owner and owner != self.account.user:
            raise NotFoundError(
                f"Beaker has no group `{name}`", hint="ask its owner to create it", code="beaker-not-found"
            )
        own = own if has_owner else name
        self.writes.append(Write(kind="group", name=own))
        return f"{self.account.user}/{own}"

    def dataset(self, mount: GantryMount) -> GantryMount:
        if self.account is None:
            self.notes.append(f"the dataset {mount.source} is looked up only at submission")
            return mount
        found = self.account.dataset_id(mount.source)
        if found is None:
            raise NotFoundError(
                f"Beaker has no dataset `{mount.source}`", hint="check its name", code="beaker-not-found"
            )
        return GantryMount(source=found, path=mount.path, sub_path=mount.sub_path)

    def upload(self, mount: GantryMount) -> GantryMount:
        name = _name_of_upload(Path(mount.source))
        self.writes.append(Write(kind="dataset", name=name, value=mount.source))
        return GantryMount(source=name, path=mount.path)

    def token(self, checkout: Checkout, inputs: Inputs) -> str | None:
        names = {variable.name for variable in inputs.secret_variables} | {name for name, _ in inputs.variables}
        if checkout.is_public or "GITHUB_TOKEN" in names:
            return None
        secret = self.recipe.gh_token_secret
        if self.account is None:
            self.notes.append(
                f"it is checked only at submission whether {checkout.repo} needs a token; {secret} is assumed"
            )
        elif secret not in self._secrets:
            message = f"{checkout.repo} is private, and {self.account.workspace} has no secret `{secret}`"
            hint = f"windlass secret set {secret}; windlass beaker secret push {secret}"
            raise AccessError(message, hint=hint, code="beaker-secret-missing")
        return secret

    def secret_variables(self, inputs: Inputs) -> tuple[tuple[str, str], ...]:
        found = [(variable.name, self._secret(variable)) for variable in inputs.secret_variables]
        for mount in inputs.secrets:
            self._check(mount.source)
        for name, field in _CREDENTIALS:
            secret = getattr(self.recipe, field)
            if secret is not None:
                self._check(secret)
                found.append((name, secret))
        return tuple(found)

    def _secret(self, variable: SecretVariable) -> str:
        if variable.secret is not None:
            self._check(variable.secret)
            return variable.secret
        name = variable.name
        if self.account is None or name in self._secrets:
            return name
        value = self.environ.get(name)
        if not value:
            self._check(name)
        assert value
        secret = f"{name}_{hashlib.sha256(value.encode(errors='ignore')).hexdigest()[:8]}"
        if secret not in self._secrets:
            self.writes.append(Write(kind="secret", name=secret, value=value))
        self.notes.append(f"{name}: the workspace has no such secret; your local secret is uploaded as {secret}")
        return secret

    def _check(self, secret: str) -> None:
        if self.account is None or secret in self._secrets:
            return
        close = nearest(secret, self._secrets)
        hint = f"did you mean `{close}`?" if close else f"windlass beaker secret push {secret}"
        message = f"the workspace {self.account.workspace} has no secret `{secret}`"
        raise AccessError(message, hint=hint, code="beaker-secret-missing")


def _name_of_upload(source: Path) -> str:
    """Return a dataset name derived from the contents, so that equal files are uploaded once."""
    if not source.exists():
        raise UsageError(f"`--upload {source}`: no such file", hint="check the path", code="invalid-value")
    digest = hashlib.sha256()
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    for path in files:
        digest.update(str(path.relative_to(source.parent)).encode() + b"\0")
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return f"windlass-source-{digest.hexdigest()[:32]}"
