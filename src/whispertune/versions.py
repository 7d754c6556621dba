"""The versions of what we stand on: named in one line at the start, not as a crash hours later."""

from importlib import metadata

from packaging.requirements import Requirement

from whispertune.errors import MachineError, MissingExtra


def require_extra(extra: str, purpose: str) -> None:
    """See that an extra is installed, in versions that we declare to work with.

    Raises:
        MissingExtra: one of its packages is not installed.
        MachineError: one has another version than declared: both are named.
    """
    for line in metadata.requires("whispertune") or []:
        needed = Requirement(line)
        if (
            needed.marker is None
            or not needed.marker.evaluate({"extra": extra})
            or needed.marker.evaluate({"extra": ""})
        ):
            continue
        try:
            found = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            raise MissingExtra(purpose, extra) from None
        if not needed.specifier.contains(found.partition("+")[0], prereleases=True):
            raise MachineError(
                f"{needed.name} {found} is installed, and whispertune needs {needed.name} {needed.specifier}",
                f"pip install '{needed.name}{needed.specifier}'",
            )
