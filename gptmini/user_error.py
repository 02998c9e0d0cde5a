"""The one class of errors that a user can mend."""


class UserError(ValueError):
    """A mistake that the user can mend.

    Its text is one sentence: the requirement, every value involved, and the remedy where that is not obvious. A command
    shows it as one line; every other exception is a bug, and keeps its traceback.

    Args:
        message: the requirement and the values.
        for_training: a remedy that names a key of the configuration, which follows the message. A command without a
            configuration shows the attribute `message` alone.
    """

    def __init__(self, message: str, *, for_training: str = "") -> None:
        super().__init__(f"{message}; {for_training}" if for_training else message)
        self.message = message
