"""Compiles and loads the torch bridge (native/bridge/), once per torch build.

The bridge is a small C++ library on torch's headers. c10's ABI changes between versions, so the
library is compiled on the user's machine, on first use or by ``dtr-alloc build``, and kept in a
folder (bridge_cache.py) under a name that identifies the build of torch. This takes seconds, and a
line reports it. A wheel contains the bridges to some builds of torch (``make wheel``), under the
same names.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from enum import IntEnum
from importlib.resources import files
from pathlib import Path
from typing import Any

from dtr_alloc import compiler, torch_versions
from dtr_alloc.torch.bridge_cache import Cache, candidates
from dtr_alloc.torch_versions import BridgeError

PACKAGED = Path(__file__).absolute().parents[1] / "bridges"
"""The folder of bridges in this package."""
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
# A symbol that this torch does not have is an error now, not when it is first called.
LINK_FLAGS = ("-Wl,--no-undefined",)


def _source_folder() -> Path:
    return Path(str(files("dtr_alloc.native"))).absolute()


def _sources(device: str) -> list[Path]:
    names = ["torch_bridge.cpp", "capture.cpp"] + (["cuda_bridge.cpp"] if device == "cuda" else [])
    return [_source_folder() / "bridge" / name for name in names]


def command(cxx: str, device: str, sources: list[Path], output: Path) -> list[str]:
    """The compiler's command line for a library against the installed torch.

    Raises BridgeError if device is "cuda" and the headers or the library of CUDA's runtime are not
    found.
    """
    import torch

    home = Path(torch.__file__).parent
    include = [_source_folder() / "include", home / "include"]
    include += [home / "include/torch/csrc/api/include"]
    libraries = [f"-L{home / 'lib'}", "-lc10", "-ltorch_cpu"]
    if device == "cuda":
        include += _cuda_headers()
        # Virtual functions of allocators are inherited from the libraries that define them.
        libraries += ["-lc10_cuda", "-ltorch_cuda", "-ltorch_cpu", "-ltorch", _cuda_runtime()]
    abi = int(torch.compiled_with_cxx11_abi())
    return [
        *(cxx, *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={abi}"),
        *(f"-I{path.absolute()}" for path in include),
        *(*map(str, sources), "-o", str(output), *LINK_FLAGS, *libraries),
    ]


def _cuda_headers() -> list[Path]:
    """Folders that together hold cuda_runtime.h and its includes.

    torch's wheels for CUDA 13 lack the folder crt/, which comes with the compiler (nvcc); a CUDA
    toolkit has it, and so has triton, a dependency of torch.
    """
    import torch

    site = Path(torch.__file__).parent.parent
    toolkit = Path(os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda")
    looked = [
        *sorted(site.glob("nvidia/cu[0-9]*/include")),
        *(site / "nvidia/cuda_runtime/include", site / "nvidia/cuda_nvcc/include"),
        *(toolkit / "include", site / "triton/backends/nvidia/include"),
    ]
    found = [path for path in looked if path.is_dir()]
    for header in ("cuda_runtime.h", "crt/host_config.h"):
        if not any((path / header).exists() for path in found):
            raise BridgeError(
                f"the bridge to PyTorch needs {header} of CUDA {torch.version.cuda}, and none of "
                f"these folders has it: {', '.join(map(str, looked))}. Install a CUDA toolkit "
                "and set CUDA_HOME"
            )
    return found


def _cuda_runtime() -> str:
    """The CUDA runtime library that torch has loaded into this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        if Path(path).name.startswith("libcudart"):
            return path
    raise BridgeError("the bridge to PyTorch needs the CUDA runtime, which torch has not loaded")


def library_name(device: str) -> str:
    """The name of the bridge for this torch and these sources, independent of the compiler."""
    import torch

    key = hashlib.sha256()
    build = (torch.__version__, torch.version.git_version, torch.version.cuda)
    abi = (torch.compiled_with_cxx11_abi(), os.uname().machine)
    key.update(repr((*build, *abi, FLAGS, LINK_FLAGS)).encode())
    headers = [*_source_folder().glob("include/**/*.h"), *_source_folder().glob("bridge/*.h")]
    for path in [*_sources(device), *sorted(headers)]:
        key.update(path.read_bytes())
    return f"bridge-{device}-{torch.__version__}-{key.hexdigest()[:16]}.so"


def kinds() -> list[str]:
    """The devices that the installed torch is built for: "cpu", and "cuda" if it is."""
    import torch

    return ["cpu", "cuda"] if torch.version.cuda else ["cpu"]


def status() -> dict[str, Any]:
    """The state of the bridge for the device that jobs use first, without building it: compiler,
    cached, path, reason."""

    def found(path: Path | None, reason: str | None = None) -> dict[str, Any]:
        place = None if path is None else str(path)
        is_cached = reason is None
        return {"compiler": compiler.find(), "cached": is_cached, "path": place, "reason": reason}

    try:
        import torch  # noqa: F401
    except ImportError as error:
        return found(None, str(error))
    name = library_name(kinds()[-1])
    cache, faults = _find(name)
    if cache is not None:
        with cache:
            return found(cache.path / name)
    faults.append("compiled on first use" if compiler.find() else _no_compiler())
    return found(candidates()[0].absolute() / name, "; ".join(faults))


def _no_compiler() -> str:
    return (
        f"no C++ compiler: looked for {compiler.looked_for()}. The bridge to PyTorch is compiled "
        "on first use; install one (Debian: apt install g++) or name it in CXX"
    )


def _find(name: str) -> tuple[Cache | None, list[str]]:
    """The first folder that has the bridge, the package's own before the others, and the faults of
    those before it."""
    faults = []
    for folder in (PACKAGED, *candidates()):
        try:
            cache = Cache(folder, create=False, packaged=folder == PACKAGED)
        except BridgeError as error:
            if folder.exists():
                faults.append(str(error))
            continue
        fault = cache.fault(name)
        if fault is None and folder == PACKAGED:
            try:
                _load(cache.address(name))
            except BridgeError as error:  # a C or C++ library that is older than the wheel's
                fault = f"is not used: {error}"
        if fault is None:
            return cache, faults
        cache.close()
        if fault:
            faults.append(f"{cache.path / name} {fault}")
    return None, faults


def build(device: str) -> Path:
    """Compiles the bridge if neither package nor cache has it; returns its path. Raises
    BridgeError."""
    import torch

    name = library_name(device)
    with torch_versions.newer_is_named(torch.__version__), _cache_with(name, device) as cache:
        return cache.path / name


def _cache_with(name: str, device: str) -> Cache:
    """A folder that has the bridge, which is compiled now if necessary."""
    import torch

    if (reason := torch_versions.newer(torch.__version__)) is not None:
        print(f"dtr_alloc: {reason}", file=sys.stderr)
    found, faults = _find(name)
    if found is not None:
        return found
    cache = _cache_to_build_in(faults)
    for fault in faults:
        print(f"dtr_alloc: {fault}", file=sys.stderr)
    try:
        if (cxx := compiler.find()) is None:
            raise BridgeError(_no_compiler())
        print(
            f"dtr_alloc: compiling the bridge to PyTorch for {device}, once: it is kept in "
            f"{cache.path}",
            file=sys.stderr,
        )
        line = command(cxx, device, _sources(device), Path(name))
        try:
            cache.build(name, lambda folder: _compile(line, folder), _load)
        except BridgeError as error:
            raise BridgeError(f"the bridge to PyTorch was not built by {cxx}: {error}") from None
    except BaseException:
        cache.close()
        raise
    return cache


def _cache_to_build_in(faults: list[str]) -> Cache:
    """The first usable folder. Adds the faults of those before it, unless they are known."""
    for folder in candidates():
        try:
            return Cache(folder, create=True)
        except BridgeError as error:
            if str(error) not in faults:
                faults.append(str(error))
    raise BridgeError("; ".join(faults))


def _compile(line: list[str], folder: int) -> None:
    """Runs the compiler in the folder with this descriptor, which also gets its temporary files."""
    try:
        done = subprocess.run(
            line,
            cwd=f"/proc/self/fd/{folder}",
            env={**os.environ, "TMPDIR": "."},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise BridgeError(f"it cannot be run ({error})") from None
    if done.returncode != 0:
        how = f"status {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        raise BridgeError(f"it ended with {how} ({' '.join(line)}):\n{done.stderr[-4000:]}")


def _load(path: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path)
        library.dtr_bridge_connect  # noqa: B018
    except (OSError, AttributeError) as error:
        raise BridgeError(f"the bridge to PyTorch does not load: {error}") from None
    return library


_PYTHON_API = (
    *("PyGILState_Check", "PyEval_SaveThread", "PyEval_RestoreThread"),
    *("PyGILState_Ensure", "PyGILState_Release", "PyType_IsSubtype", "PyObject_CallObject"),
    *("Py_DecRef", "PyBytes_AsStringAndSize", "PyErr_Fetch", "PyErr_Restore"),
    *("PyObject_GenericGetDict", "PyDict_SetItem", "PyType_Modified"),
    "Py_IsFinalizing" if sys.version_info >= (3, 13) else "_Py_IsFinalizing",
    "Py_IsInitialized",
)
"""Functions of Python for the bridge, in the order of native/bridge/capture.cpp."""

_C10_TYPES = {"cpu": 0, "cuda": 1}
_DROPPED_BATCH = 1024
_MOST_RUNNING = 64


def _as_c_names(operators: Sequence[tuple[str, str]]) -> tuple[Any, Any, ctypes.c_uint64]:
    """Arrays of names and overloads, and their length."""
    names, overloads = (
        (ctypes.c_char_p * len(operators))(*[text.encode() for text in texts])
        for texts in (zip(*operators, strict=True) if operators else ((), ()))
    )
    return names, overloads, ctypes.c_uint64(len(operators))


class Composite(IntEnum):
    """The treatment of an operator that runs above the capture and uses memory itself
    (capture.cpp)."""

    PINNED = 0
    """Its integer arguments stay resident while it runs."""
    WHOLE = 1
    """It is one operator, and the capture does not see its calls."""
    WHOLE_WITHOUT_GRADIENT = 2
    """The same if no gradient of its first argument is wanted."""


class Bridge:
    """The loaded library and its entry points."""

    def __init__(self, device: str) -> None:
        import torch

        self.device = device
        name = library_name(device)
        with _cache_with(name, device) as cache:
            self.path = cache.path / name
            self._library = library = _load(cache.address(name))
        library.dtr_bridge_connect.argtypes = [ctypes.c_void_p]
        library.dtr_bridge_connect.restype = ctypes.c_void_p
        library.dtr_bridge_hold_others.argtypes = [ctypes.c_int64]
        library.dtr_bridge_running.restype = ctypes.c_uint64
        library.dtr_bridge_running.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        library.dtr_bridge_limit_repeats.argtypes = [ctypes.c_int64]
        library.dtr_bridge_dropped_calls.restype = ctypes.c_uint64
        library.dtr_bridge_dropped_calls.argtypes = [
            *(ctypes.c_uint64, ctypes.POINTER(ctypes.c_int64), ctypes.c_uint64),
        ]
        if device == "cuda":
            library.dtr_bridge_install_cuda.restype = ctypes.c_char_p
            library.dtr_bridge_install_cuda.argtypes = [ctypes.c_bool]
        functions = [getattr(ctypes.pythonapi, name) for name in _PYTHON_API]
        table = (ctypes.c_void_p * len(functions))(
            *[ctypes.cast(function, ctypes.c_void_p) for function in functions]
        )
        # An object ends in its type in every build of CPython.
        type_offset = object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)
        library.dtr_bridge_meet_python(
            table, ctypes.c_void_p(id(torch.nn.Parameter)), ctypes.c_uint64(type_offset)
        )
        # With the GIL held, and raising what they set.
        holding = ctypes.PyDLL(str(self.path))
        self.raise_kept = holding.dtr_bridge_raise
        self.raise_kept.argtypes = [ctypes.c_int64]
        self.raise_kept.restype = None
        # Of a type that is built in, by name: puts a value in an attribute's place.
        self.set_member = holding.dtr_bridge_set_member
        self.set_member.argtypes = [ctypes.py_object] * 3
        self.set_member.restype = None
        self.exchange = holding.dtr_bridge_exchange
        self.exchange.argtypes = [ctypes.py_object, ctypes.c_void_p]
        self.exchange.restype = None
        self._dropped = (ctypes.c_int64 * _DROPPED_BATCH)()
        self._dropped_lock = threading.Lock()

    def connect(self, core_table: int) -> int:
        """Passes the address of the core's table; returns that of the framework's."""
        table = self._library.dtr_bridge_connect(core_table)
        if not table:
            raise BridgeError(f"{self.path} speaks another version of the table than this core")
        return int(table)

    def install_cpu(self, on: bool) -> None:
        """Begins or ends the core's allocation of CPU tensor memory."""
        self._library.dtr_bridge_install_cpu(on)

    def register_capture(self, device_type: str, by_mode: bool) -> bool:
        """Registers the capture at its dispatch key, or, by_mode, at that of the dispatch mode.
        False if PyTorch uses the key."""
        return bool(self._library.dtr_bridge_register_capture(_C10_TYPES[device_type], by_mode))

    def let_pass(self, operators: Sequence[tuple[str, str]]) -> None:
        """Lets exactly these operators, by name and overload, bypass the capture. Not while
        operators run."""
        self._library.dtr_bridge_let_pass(*_as_c_names(operators))

    def watch_composites(self, operators: Sequence[tuple[str, str]], kind: Composite) -> None:
        """Captures these operators, by name and overload, above their calls. Once, for good."""
        self._library.dtr_bridge_watch_composites(*_as_c_names(operators), kind)

    def capture(self, on: bool) -> None:
        """Begins or ends the recording of captured operators."""
        self._library.dtr_bridge_capture(on)

    def hold_others(self, seconds: float) -> None:
        """Makes operators that begin on other threads wait, for so long at most; 0: no longer."""
        self._library.dtr_bridge_hold_others(int(seconds * 1e9))

    def running_elsewhere(self) -> list[str]:
        """The operators that run on other threads, by name; "" if it is not known."""
        from dtr_alloc import costs  # needs the core, without which this module can be imported

        keys = (ctypes.c_uint64 * _MOST_RUNNING)()
        count = self._library.dtr_bridge_running(keys, _MOST_RUNNING)
        return [costs.operator_name(key) for key in keys[:count]]

    def include_thread(self, on: bool) -> None:
        """Includes or excludes operators of this thread, and of autograd's threads for it."""
        self._library.dtr_bridge_include_thread(on)

    def follow_call_sites(self, on: bool) -> None:
        """Gives operators the call site of set_call_site(), and those of a backward pass the call
        sites of their forward operators."""
        self._library.dtr_bridge_follow_places(on)

    def count_observers(self, more: int) -> None:
        """Adds to the number of observers that read addresses before an operator. 0: counts those
        that are on when a session begins."""
        self._library.dtr_bridge_observe(more)

    def set_call_site(self, number: int) -> None:
        """The call site of this thread from now on, by its number for dtr_place; 0: none."""
        self._library.dtr_bridge_place(number)

    def log_operators(self, on: bool) -> None:
        """Whether an op log is written."""
        self._library.dtr_bridge_op_log(on)

    def use_python_score(self, on: bool) -> None:
        """Whether a Python callable chooses evictions, so that its errors are explained."""
        self._library.dtr_bridge_score(on)

    def set_tiny_bytes(self, size_bytes: int) -> None:
        """The largest size of storages that are never evicted: dtr_engine_options.tiny_bytes."""
        self._library.dtr_bridge_tiny(ctypes.c_uint64(size_bytes))

    def limit_repeats(self, most: int | None) -> None:
        """The number of operators that may still run again; None: any number."""
        self._library.dtr_bridge_limit_repeats(-1 if most is None else most)

    def set_name(self, key: int, name: str) -> None:
        """Names an operator that Python implements, for messages."""
        self._library.dtr_bridge_name(ctypes.c_uint64(key), name.encode())

    def forget_rules(self) -> None:
        """Makes the capture ask for each operator's rule again."""
        self._library.dtr_bridge_forget_rules()

    def forget_dropped(self, calls: dict[int, Any]) -> None:
        """Removes Python's calls, by number, that are no longer needed."""
        with self._dropped_lock:
            forget = 0
            while taken := self._library.dtr_bridge_dropped_calls(
                forget, self._dropped, _DROPPED_BATCH
            ):
                for number in self._dropped[:taken]:
                    calls.pop(number, None)
                forget = taken

    def install_cuda(self, serves_beyond: bool) -> None:
        """Makes the core the source of CUDA tensor memory, for good. Raises BridgeError.

        Args:
            serves_beyond: whether workspaces of operators may be served beyond the budget.
        """
        reason = self._library.dtr_bridge_install_cuda(serves_beyond)
        if reason is not None:
            raise BridgeError(f"the CUDA allocator cannot be installed: {reason.decode()}")
