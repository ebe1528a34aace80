"""What can go wrong, each with a message of one sentence: what was found, what was expected, what to do."""


class OceanError(Exception):
    """The base of every error that the runtime raises on purpose."""


class ContractError(OceanError, ValueError):
    """A model file that can't be run: no contract, a newer one, or one at odds with its graph."""


class InputError(OceanError, ValueError):
    """An input that the model can't take; the state is as it was before the call."""


class StateError(OceanError, ArithmeticError):
    """A step whose new state is not finite; the state is as it was before the call."""


class SnapshotError(OceanError, ValueError):
    """A snapshot that can't be written, read, or given to this model; the state is as it was."""
