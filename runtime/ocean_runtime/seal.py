"""The digest that a model file says of itself, so that a bit that falls on disk is not taken for a weight.

An entry `ocean_sha256` of the file's metadata holds the SHA-256, in hexadecimal, of the whole file with zeros
in the digest's own place. It finds damage, not malice: whoever changes a file can seal it again.
"""

from __future__ import annotations

import hashlib

from ocean_runtime.errors import ContractError

KEY = "ocean_sha256"
UNSEALED = "0" * 64
"""The entry's value in a file that is to be sealed."""
# How protobuf writes the entry: its key as field 1, its value, of 64 characters, as field 2.
_MARK = bytes([0x0A, len(KEY)]) + KEY.encode() + bytes([0x12, len(UNSEALED)])


def seal(content: bytes) -> bytes:
    """A file that holds the entry, with its digest filled in."""
    at = _place(content)
    if at is None:
        raise ValueError(f"the file has no metadata entry {KEY!r} of {len(UNSEALED)} characters to fill in")
    return content[:at] + _digest(content, at) + content[at + len(UNSEALED) :]


def check_seal(content: bytes) -> None:
    """Raises ContractError, its message a predicate, where a sealed file is not what it was.

    One without a seal (a version before seals wrote it, or the entry was removed) passes.
    """
    at = _place(content)
    if at is not None and content[at : at + len(UNSEALED)] != _digest(content, at):
        raise ContractError(
            "is damaged, or was changed after it was exported, as its content does not match the SHA-256 in it; "
            "copy it again, or export it again"
        )


def _place(content: bytes) -> int | None:
    at = content.rfind(_MARK)
    return None if at < 0 else at + len(_MARK)


def _digest(content: bytes, at: int) -> bytes:
    whole = memoryview(content)
    sha = hashlib.sha256(whole[:at])
    sha.update(UNSEALED.encode())
    sha.update(whole[at + len(UNSEALED) :])
    return sha.hexdigest().encode()
