"""A pickled state dict on standard input, safetensors on standard output: run as a process of its own that can do nothing else.

torch's `weights_only` loader builds tensors and runs no code of the file. Should it have a hole, the kernel (seccomp) refuses this process
everything but some memory and its three open files: no file, no network, no other process. It imports nothing of electrakit.
"""

import codecs
import ctypes
import io
import os
import pickle
import platform
import resource
import struct
import sys
import zipfile
from pathlib import Path

MAX_SECONDS = 600  # of CPU time
MARGIN = 2**20  # bytes of names and shapes that may come besides the tensors
COPIES, WORKSPACE = 5, 2**27  # what reading and writing take of memory: four times the tensors, and a little
NO_SANDBOX = 3  # the exit code where the system gives no protection
BEFORE_REASON = "\0"  # on standard error, where others may have written, too

# What Python and torch need to unpickle and to write: numbers of Linux.
#        read write close fstat lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn pread64 sched_yield mremap madvise
#        getpid exit futex sched_getaffinity clock_gettime exit_group restart_syscall gettid getrandom
ALLOWED = {
    "x86_64": (0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 17, 24, 25, 28, 39, 60, 202, 204, 228, 231, 219, 186, 318),
    "aarch64": (
        *(63, 64, 57, 80, 62, 222, 226, 215, 214, 134, 135, 139, 67, 124, 216, 233),
        *(172, 93, 98, 123, 113, 94, 128, 178, 278),
    ),
}
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # of the kernel's filter language
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050001, 0x80000000  # REFUSE: the call fails with EPERM


class NoSandboxError(OSError):
    """It is not the file that is at fault."""


def lock(memory: int) -> None:
    """Give up everything but the files that are open, and so many bytes of memory besides those in use. It cannot be taken back."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ALLOWED:
        raise NoSandboxError(f"there is no seccomp for {sys.platform} on {machine}")
    memory += int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
    limits = {
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: MAX_SECONDS,
        resource.RLIMIT_DATA: memory,
    }
    for limit, value in limits.items():
        allowed = resource.getrlimit(limit)[1]
        value = value if allowed == resource.RLIM_INFINITY else min(value, allowed)
        resource.setrlimit(limit, (value, value))
    calls = ALLOWED[machine]
    # The architecture first, because numbers differ; then one comparison for each number.
    steps = [(LOAD, 0, 0, 4), (JUMP_IF_EQUAL, 1, 0, ARCHITECTURES[machine]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    steps += [(JUMP_IF_EQUAL, len(calls) - place, 0, number) for place, number in enumerate(calls)]
    steps += [(RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    install_filter(steps)


def install_filter(steps: list[tuple[int, int, int, int]]) -> None:
    """Have the kernel look at every system call of this process from now on."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, first, second in ((PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)):
        if libc.prctl(option, ctypes.c_ulong(first), second, 0, 0):
            raise NoSandboxError(f"the kernel refuses seccomp (prctl {option}: {os.strerror(ctypes.get_errno())})")


def main() -> None:
    import torch
    from safetensors.torch import save

    torch.set_num_threads(1)
    size = os.fstat(0).st_size
    with os.fdopen(0, "rb", closefd=False) as file:
        rehearse(torch, save)  # what is imported late must be there before the lock
        lock(COPIES * size + WORKSPACE)
        # torch stores and never compresses; and members may overlap.
        if zipfile.is_zipfile(file) and sum(member.file_size for member in zipfile.ZipFile(file).infolist()) > size:
            raise ValueError("unpacked it is larger than the file")
        file.seek(0)
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(loaded, dict):
        raise ValueError(f"it holds a {type(loaded).__name__}, not tensors by name")
    for name, tensor in loaded.items():
        if not isinstance(name, str) or type(tensor) is not torch.Tensor or tensor.is_sparse:
            raise ValueError(f"{name!r} is a {type(tensor).__name__}, not a tensor with a name")
    # A view can repeat a small storage any number of times.
    if sum(tensor.numel() * tensor.element_size() for tensor in loaded.values()) > size + MARGIN:
        raise ValueError("its tensors are larger than the file")
    data = save({name: tensor.detach().clone().contiguous() for name, tensor in loaded.items()})
    with os.fdopen(1, "wb", closefd=False) as out:
        out.write(data)


def rehearse(torch, save) -> None:  # type: ignore[no-untyped-def]
    """Load and save something small, in both of torch's formats."""
    for is_zip in (True, False):
        stream = io.BytesIO()
        torch.save({"x": torch.zeros(2).half()}, stream, _use_new_zipfile_serialization=is_zip)
        stream.seek(0)
        loaded = torch.load(stream, map_location="cpu", weights_only=True)
    save({"x": loaded["x"].detach().clone().contiguous()})
    codecs.lookup("cp437")  # of the names in a zip


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:  # whatever it is: the parent shows one line
        # What torch says around it is advice to load the file unsafely.
        found = error.__context__ if isinstance(error, pickle.UnpicklingError) and error.__context__ else error
        sys.stderr.write(f"{BEFORE_REASON}{str(found).strip() or type(found).__name__}")
        sys.stderr.flush()
        os._exit(NO_SANDBOX if isinstance(error, NoSandboxError) else 1)
    os._exit(0)  # without the cleaning up, which would open files
