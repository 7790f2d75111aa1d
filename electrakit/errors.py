"""The one exception that means: the user can mend this."""


class UserError(ValueError):
    """Bad input or settings. The message names the thing, its value and the way out.

    The command line prints it as one line and exits with code 2; any other exception is a bug and keeps its traceback.
    """
