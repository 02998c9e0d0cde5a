"""What the classes behind the configuration share: how pydantic checks them, and the types that several of them use.

A class of settings is a frozen dataclass of pydantic with STRICT, whose annotations hold types and ranges. A callable,
as a callback's constructor, is checked by pydantic.validate_call with STRICT. A value that does not fit is a
pydantic.ValidationError, which a command tells in one line with the value's key.
"""

from typing import Annotated

from pydantic import ConfigDict, Field

# No text for a number, no 1 for true, no infinity, and no key that the class does not have.
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

LARGEST_FLOAT32 = 3.4028234663852886e38  # weights are kept in float32, which holds no larger number

# A learning rate, or a factor on one.
Rate = Annotated[float, Field(ge=0, le=LARGEST_FLOAT32)]
# A share of a whole, both ends included.
Fraction = Annotated[float, Field(ge=0, le=1)]
# A decay rate, or a probability that is never certain.
BelowOne = Annotated[float, Field(ge=0, lt=1)]
# Two decay rates. YAML has lists and no tuples.
Pair = Annotated[list[BelowOne], Field(min_length=2, max_length=2)]
# The plain name of a file or folder, without a path.
FileName = Annotated[str, Field(pattern=r"^(?!\.{1,2}$)[^/\\\x00]+$")]
