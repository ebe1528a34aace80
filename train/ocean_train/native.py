"""The native version of Ocean BPTT's two serial loops: builds relay.cpp at first use and calls it.

The library is kept in the user's cache folder under a name that holds a digest of the source, the flags, the
processor and torch's version. Where it cannot be built (no compiler), the PyTorch version of the loops runs,
and a warning says so once.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import sys
import sysconfig
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor

from ocean_train.tape import Gradients, Leak, Matrices, Tape

SOURCE = Path(__file__).with_name("relay.cpp")
# No -ffast-math: a NaN must come out as a NaN, and the same input must give the same bits.
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp")
SUFFIXES = {torch.float32: "f32", torch.float64: "f64"}

# The fields of relay.cpp's Args, in its order.
SIZES = ("B", "T", "D", "L", "H", "threads", "blocks", "keep")
POINTERS = (
    *("wq", "wkv", "wo", "w1", "w2", "w2t", "w1t", "wot", "wqkvt", "bqkv", "b1", "b2"),
    *("x0", "qkv0", "ocean0", "reset", "valid", "hat1", "inv1", "qkv", "kvo", "a", "y", "hat2", "inv2"),
    *("g", "slope", "ohat", "oinv", "oceans", "d_oceans", "dqkv0", "dmid", "dout", "dx0", "d_ocean0", "sums"),
    *("decay", "rest", "change"),
)


class _Args(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in SIZES] + [(n, ctypes.c_void_p) for n in POINTERS]


class Loops:
    """The two loops for one set of matrices, which are packed when they are first needed."""

    def __init__(self, library: ctypes.CDLL, matrices: Matrices, leak: Leak | None) -> None:
        self._matrices = matrices
        self._leak = leak
        suffix = SUFFIXES[matrices.wqkv.dtype]
        self._forward = library[f"ocean_forward_{suffix}"]
        self._backward = library[f"ocean_backward_{suffix}"]
        self._pack = library[f"ocean_pack_{suffix}"]
        self._packed = library[f"ocean_packed_{suffix}"]
        self._pack.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 4
        self._packed.argtypes = [ctypes.c_int64] * 2
        self._packed.restype = ctypes.c_int64
        self._block = int(library.ocean_block())

    @functools.cached_property
    def _forward_panels(self) -> dict[str, Tensor]:
        m, D = self._matrices, self._matrices.wo.shape[-1]
        parts = {"wq": m.wqkv[:, :D], "wkv": m.wqkv[:, D:], "wo": m.wo, "w1": m.w1, "w2": m.w2}
        return {name: self.pack(part, transposed=True) for name, part in parts.items()}

    @functools.cached_property
    def _backward_panels(self) -> dict[str, Tensor]:
        m = self._matrices
        parts = {"w2t": m.w2, "w1t": m.w1, "wot": m.wo, "wqkvt": m.wqkv}
        return {name: self.pack(part, transposed=False) for name, part in parts.items()}

    def forward(self, tape: Tape, ocean: Tensor, reset: Tensor | None, valid: Tensor | None) -> Tensor:
        """See `bptt.torch_forward`."""
        T, B, D = tape.x0.shape
        oceans = ocean.new_empty(B, T, D)
        m = self._matrices
        own = {"bqkv": m.bqkv, "b1": m.b1, "b2": m.b2, "ocean0": ocean, "oceans": oceans}
        self._call(self._forward, tape, {**self._forward_panels, **own, "reset": reset, "valid": valid})
        return oceans

    def backward(self, tape: Tape, d_oceans: Tensor, stop: Tensor | None, valid: Tensor | None) -> Gradients:
        """See `bptt.torch_backward`."""
        _, B, D = tape.x0.shape
        L = len(self._matrices.wo)
        dx0 = torch.empty_like(tape.x0)
        d_ocean0 = d_oceans.new_empty(B, D)
        sums = d_oceans.new_zeros(self._blocks(B), L * 8 * D + D)
        own = {
            **{"reset": stop, "valid": valid, "d_oceans": d_oceans, "dqkv0": tape.qkv0, "dmid": tape.dmid},
            **{"dout": tape.dout, "dx0": dx0, "d_ocean0": d_ocean0, "sums": sums},
        }
        self._call(self._backward, tape, {**self._backward_panels, **own})
        of_layers, d_decay = torch.split(sums.sum(0), [L * 8 * D, D])
        dbqkv, db1, db2 = torch.split(of_layers.view(L, 8 * D), [3 * D, 4 * D, D], 1)
        return Gradients(dx0, d_ocean0, dbqkv, db1, db2, d_decay if len(tape.change) else None)

    def pack(self, matrices: Tensor, transposed: bool) -> Tensor:
        """(L, out, in) -> panels of a few columns, for x Wᵀ where `transposed`, else for x W."""
        L, n, m = matrices.shape
        k, columns = (m, n) if transposed else (n, m)
        row, column = matrices.stride()[1:]
        size = int(self._packed(k, columns))
        out = matrices.new_empty(L, size)
        step = matrices.element_size()
        strides = (column, row) if transposed else (row, column)
        for layer in range(L):
            source = matrices.data_ptr() + layer * matrices.stride(0) * step
            self._pack(out.data_ptr() + layer * size * step, source, k, columns, *strides)
        return out

    def _blocks(self, B: int) -> int:
        """Blocks of rows: at least one a thread, each at most as long as the library likes them."""
        threads = max(1, min(torch.get_num_threads(), B))
        return threads * -(-B // (threads * self._block))

    def _call(
        self, function: ctypes._NamedFuncPointer, tape: Tape, tensors: dict[str, Tensor | None]
    ) -> None:
        T, B, D = tape.x0.shape
        args = _Args(
            B=B, T=T, D=D, L=len(self._matrices.wo), H=tape.a.shape[-1], threads=torch.get_num_threads(),
            blocks=self._blocks(B), keep=tape.keep,
        )  # fmt: skip
        for name in ("x0", "qkv0", "kvo", "a", "y", "hat2", "inv2", "g", "slope", "ohat", "oinv"):
            tensors[name] = getattr(tape, name)
        for name in ("hat1", "inv1", "qkv"):
            tensors[name] = getattr(tape, name)[1:]
        if self._leak is not None:
            tensors |= {"decay": self._leak.decay, "rest": self._leak.rest}
        if len(tape.change):
            tensors["change"] = tape.change
        for name, tensor in tensors.items():
            if tensor is not None:
                assert tensor.is_contiguous(), name
                setattr(args, name, tensor.data_ptr())
        function(ctypes.byref(args))


def loops(matrices: Matrices, leak: Leak | None) -> Loops | None:
    """The native loops for these matrices and this leak; None on a GPU, in another dtype, or without a compiler."""
    if matrices.wqkv.device.type != "cpu" or matrices.wqkv.dtype not in SUFFIXES:
        return None
    library = _library()
    return None if library is None else Loops(library, matrices, leak)


def available() -> bool:
    """Whether the native loops are there, or can be built now."""
    return _library() is not None


@functools.cache
def _library() -> ctypes.CDLL | None:
    path = cache_folder() / f"relay-{_digest()}.so"
    try:
        if not path.exists():
            _build(path)
        return ctypes.CDLL(str(path))
    except Exception as error:  # torch's build tools raise almost anything
        warnings.warn(
            f"the native loops could not be built ({_reason(error)}), so training runs PyTorch's, which take "
            "several times as long on a CPU; a C++ compiler (such as g++) and ninja would help",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _reason(error: Exception) -> str:
    """The line of a build's output that names the trouble."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    telling = [line for line in lines[1:] if "not found" in line or "error:" in line]
    return (telling or lines)[0][:200]


def cache_folder() -> Path:
    """Where built libraries are kept: $XDG_CACHE_HOME/oceanstate, by default ~/.cache/oceanstate."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "oceanstate"


def _digest() -> str:
    """Of all that the library depends on; -march=native makes the processor one of them."""
    cpu = platform.processor() + platform.machine()
    if sys.platform == "linux":
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        cpu += "".join(
            sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
        )
    parts = (SOURCE.read_text(encoding="utf-8"), " ".join(FLAGS), cpu, torch.__version__)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _build(path: Path) -> None:
    """Compile with torch's own tools in a fresh folder, then move into place: safe with several processes."""
    from torch.utils import cpp_extension

    logging.getLogger(cpp_extension.__name__).setLevel(logging.ERROR)  # what goes wrong is said below
    path.parent.mkdir(parents=True, exist_ok=True)
    search = os.environ.get("PATH", "")
    # ninja is installed beside python, which need not be an activated environment's.
    os.environ["PATH"] = os.pathsep.join([search, sysconfig.get_path("scripts")])
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            cpp_extension.load(
                "relay",
                [str(SOURCE)],
                extra_cflags=list(FLAGS),
                extra_ldflags=["-fopenmp"],
                build_directory=folder,
                is_python_module=False,
            )
            next(Path(folder).glob("relay*.so")).replace(path)
    finally:
        os.environ["PATH"] = search
