"""What is installed is checked against what is declared, before anything heavy is imported (case 37)."""

from importlib import metadata

import pytest

from whispertune import versions
from whispertune.errors import MachineError, MissingExtra

DECLARED = ["numpy>=1.26", "torch>=2.9; extra == 'local'", "transformers<6,>=5.24; extra == 'local'"]


def installed(monkeypatch, **found):
    def version(name: str) -> str:
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(versions.metadata, "requires", lambda name: DECLARED)
    monkeypatch.setattr(versions.metadata, "version", version)


@pytest.mark.parametrize("found", ["5.23.1", "6.0.0", "4.57.0"])
def test_a_version_outside_the_range_is_named_with_the_range(monkeypatch, found):
    installed(monkeypatch, torch="2.13.0+cpu", transformers=found)
    with pytest.raises(MachineError) as error:
        versions.require_extra("local", "training here")
    assert error.value.what == f"transformers {found} is installed, and whispertune needs transformers <6,>=5.24"
    assert error.value.hint == "pip install 'transformers<6,>=5.24'"


def test_a_missing_package_names_the_extra(monkeypatch):
    installed(monkeypatch, transformers="5.24.0")
    with pytest.raises(MissingExtra) as error:
        versions.require_extra("local", "training here")
    assert error.value.what == "training here needs the extra 'local', which is not installed here"
    assert error.value.hint == "pip install 'whispertune[local]'"


def test_the_lowest_and_a_later_version_are_fine(monkeypatch):
    installed(monkeypatch, torch="2.9.0+rocm7.2", transformers="5.24.0")
    versions.require_extra("local", "training here")
    installed(monkeypatch, torch="2.14.1+cu130", transformers="5.99.0")
    versions.require_extra("local", "training here")


def test_what_is_installed_here_is_declared():
    versions.require_extra("local", "training here")
