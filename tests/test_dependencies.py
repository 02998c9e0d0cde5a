"""The lower bounds in pyproject.toml leave out versions that are not safe with files and clients of other people."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
EXTRAS = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
REQUIRED = [Requirement(line) for line in [*PROJECT["dependencies"], *EXTRAS]]

# The last unsafe version of a library, and what it allows.
UNSAFE = {
    "filelock": "3.20.2",  # CVE-2026-22701: a link in place of a lock file
    "h11": "0.15.0",  # CVE-2025-43859: a second request hidden in a chunked body
    "hydra-core": "1.3.5",  # _target_ of a --config-dir calls os.system by another name
    "jinja2": "3.1.5",  # CVE-2025-27516: a chat template leaves the sandbox
    "lightning": "2.6.3",  # published by a stranger
    "pyarrow": "14.0.0",  # CVE-2023-47248: a Parquet file runs code
    "starlette": "1.6.0",  # does not read [::1] as the name of a host
    "torch": "2.5.1",  # CVE-2025-32434: weights_only=True runs code
}


@pytest.mark.parametrize(("name", "version"), UNSAFE.items())
def test_an_unsafe_version_is_not_installed(name, version):
    of_library = [required.specifier for required in REQUIRED if required.name == name]
    assert of_library
    assert not any(specifier.contains(version) for specifier in of_library)
