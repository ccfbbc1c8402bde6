"""Lookup, renaming and upload of Beaker images with the official client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.compat.mason.build import UploadedImage

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService

__all__ = ["BeakerImages"]

_UPLOAD_S = 6 * 3600.0


class BeakerImages:
    """Images of a Beaker account; implements `windlass.compat.mason.build.ImageStore`.

    Uploads are done by the client, which uses Docker's socket (DOCKER_HOST).
    """

    def __init__(self, service: BeakerService) -> None:
        self._service = service

    def user(self) -> str:
        """Return the user's name."""
        return self._service.user()

    def find(self, name: str) -> UploadedImage | None:
        """Return the image with this full name, or None if there is none."""
        from beaker.exceptions import BeakerImageNotFound  # lazy: the client costs half a second

        with self._service.asking(f"looking up the image {name}") as client:
            try:
                image = client.image.get(name)
            except BeakerImageNotFound:
                return None
        return UploadedImage(id=image.id, description=image.description)

    def unname(self, image: UploadedImage) -> None:
        """Remove an image's name; it remains available by its id."""
        with self._service.asking(f"removing the name of image {image.id}") as client:
            client.image.update(client.image.get(image.id), name="")

    def upload(self, name: str, tag: str, *, workspace: str, description: str) -> None:
        """Upload an image from Docker; blocks for minutes."""
        with self._service.asking(f"uploading the image {name}", _UPLOAD_S) as client:
            place = client.workspace.get(workspace) if workspace else None
            client.image.create(name, tag, workspace=place, description=description, commit=True)
