"""Writes requirements.lock and requirements-test.lock from the versions installed in this environment.

A lock holds pyproject's dependencies and everything they pull in. torch stays a range of patch
releases: its builds for one version carry local names (+cpu, +cu...) and dependencies of their own,
which pip takes from the build it installs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Written by `make lock`; the ranges it is chosen from are in pyproject.toml.\n"


def of_one_build(name: str) -> bool:
    """Whether only some builds of torch ask for this package (canonical name)."""
    return name.startswith(("nvidia-", "cuda-", "pytorch-triton", "triton"))


def closure(wanted: Iterable[str]) -> set[str]:
    """Canonical names of these requirements and of all they need here, extras included."""
    found: set[str] = set()
    queue = [(Requirement(text), "") for text in wanted]
    seen: set[tuple[str, str]] = set()
    while queue:
        requirement, extra = queue.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if of_one_build(name):
            continue
        found.add(name)
        for wanted_extra in ("", *requirement.extras):
            if (name, wanted_extra) not in seen:
                seen.add((name, wanted_extra))
                queue += [(Requirement(text), wanted_extra) for text in metadata.requires(name) or ()]
    return found


def pin(name: str) -> str:
    version = Version(metadata.version(name))
    if name == "torch":
        return f"torch=={version.major}.{version.minor}.*"
    return f"{name}=={version.public}"


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    build = project["build-system"]["requires"]
    runtime = closure([*project["project"]["dependencies"], *build])
    test = closure(project["project"]["optional-dependencies"]["test"]) - runtime
    for file, names in (("requirements.lock", runtime), ("requirements-test.lock", test)):
        (ROOT / file).write_text(HEADER + "".join(f"{pin(n)}\n" for n in sorted(names)), encoding="utf-8")


if __name__ == "__main__":
    main()
