"""What a plan would say of a job at the fake Beaker, for jobs that a test makes by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from windlass.sites.beaker import BeakerMount, BeakerPlace
from windlass.sites.profile import Profile
from windlass.supervise.job import BeakerRequest, ChainConfig, Fencing, JobDocument, SiteSettings
from windlass.testing.beaker import FakeBeaker

__all__ = ["dressed", "fake_profile"]


def fake_profile(fake: FakeBeaker, bucket: str = "main") -> Profile:
    """The site; its jobs see a bucket of Weka where this machine has it."""
    folder = str(fake.weka(bucket))
    place = BeakerPlace(
        workspace=fake.workspace,
        clusters=("lab/alpha",),
        image="beaker:me/image",
        mounts=(BeakerMount(path=folder, weka=bucket),),
        config=str(fake.config_file),
    )
    return Profile(name="lab", kind="beaker", beaker=place)


def dressed(document: JobDocument, folder: Path, bucket: str = "main", **changes: Any) -> JobDocument:
    """The job as a plan for that site has it; `changes` are fields of what Beaker is asked for."""
    facts: dict[str, Any] = {
        "workspace": FakeBeaker.workspace,
        "image": "beaker:me/image",
        "clusters": ("lab/alpha",),
        "datasets": ({"mountPath": str(folder), "source": {"weka": bucket}},),
        **changes,
    }
    return dataclasses.replace(
        document,
        beaker=BeakerRequest(**facts),
        chain=ChainConfig(scheduler="beaker", mode="requeue", num_links=20),
        site=SiteSettings(
            host_address="",
            interface="lo",
            inherit=("BEAKER_*",),
            notice_s=5.0,
            fencing=Fencing(renew_s=0.5, stop_s=4.0, kill_s=20.0, quiet_s=5.0),
        ),
    )
