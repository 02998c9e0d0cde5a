"""What pydantic says of a value that a class or a function of gptmini does not take."""

import pytest
from pydantic import ValidationError


def refused_keys(make, **arguments):
    """The keys of the values that make(**arguments) refuses, dotted; an empty key is a rule between several values."""
    with pytest.raises(ValidationError) as caught:
        make(**arguments)
    return {".".join(map(str, error["loc"])) for error in caught.value.errors()}
