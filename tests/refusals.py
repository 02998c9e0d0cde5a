"""Read which values pydantic refuses."""

import pytest
from pydantic import ValidationError


def refused_keys(make, **arguments):
    """Return the dotted keys that make(**arguments) refuses. An empty key stands for a rule that combines values."""
    with pytest.raises(ValidationError) as caught:
        make(**arguments)
    return {".".join(map(str, error["loc"])) for error in caught.value.errors()}
