"""The one class of errors that a user can mend."""


class UserError(ValueError):
    """A mistake that the user can mend.

    Its text is one sentence: the requirement, every value involved, and the remedy where that is not obvious. A command
    shows it as one line; every other exception is a bug, and keeps its traceback.
    """
