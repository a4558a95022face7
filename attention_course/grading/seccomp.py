"""Which calls of the system a notebook may not make: those that would get around the sandbox's limits.

Namespaces and an unprivileged user keep a notebook from files and processes. What they leave open is
memory that belongs to no process (memfd, System V, anonymous memory that is shared: a process can let go
of it and keep it all the same), new namespaces with rights of their own, keys of whoever started the
grader, and rarely used parts of the kernel in which holes were found before.
"""

import ctypes
import errno
import platform
import struct

#: machine -> its number in the kernel's audit, its calls that are refused, and special ones
_MACHINES = {
    "x86_64": (
        0xC000003E,
        {
            "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "msgget": 68, "semget": 64,
            "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "ptrace": 101,
            "add_key": 248, "request_key": 249, "keyctl": 250, "userfaultfd": 323, "bpf": 321,
            "perf_event_open": 298,
        },
        {"clone": 56, "clone3": 435, "prctl": 157, "mmap": 9},
    ),
    "aarch64": (
        0xC00000B7,
        {
            "memfd_create": 279, "memfd_secret": 447, "shmget": 194, "msgget": 186, "semget": 190,
            "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "ptrace": 117,
            "add_key": 217, "request_key": 218, "keyctl": 219, "userfaultfd": 282, "bpf": 280,
            "perf_event_open": 241,
        },
        {"clone": 220, "clone3": 435, "prctl": 167, "mmap": 222},
    ),
}  # fmt: skip
#: io_uring_setup and the newer calls for mounting have one number everywhere
_EVERYWHERE = (425, 428, 429, 430, 431, 432, 433, 442)
#: CLONE_NEW*: cgroup, time, mounts, names, interprocess communication, users, processes, network
_NEW_NAMESPACES = 0x7E020080
_SET_DUMPABLE = 4  # a process that is not dumpable could not be counted
_SHARED, _ANONYMOUS = 0x01, 0x20

_LOAD, _EQUAL, _AT_LEAST, _ANY_OF, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_CALL, _MACHINE, _ARGUMENTS = 0, 4, 16


def known(machine: str = "") -> bool:
    """Whether there is a filter for this machine."""
    return (machine or platform.machine()) in _MACHINES


def machines() -> tuple[str, ...]:
    """The processors for which there is one."""
    return tuple(_MACHINES)


def refuse() -> None:
    """Refuse those calls to this process and to all it starts, for good.

    The process must have given up gaining privileges. On a machine that is not :func:`known`, nothing is
    done: ``doctor`` and ``grade`` say so.

    Raises:
        OSError: the kernel takes no filter.
    """
    if not known():
        return
    program = filter_for(platform.machine())
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    set_seccomp, mode_filter = 22, 2
    if libc.prctl(set_seccomp, mode_filter, ctypes.create_string_buffer(header, len(header)), 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter for system calls")


def filter_for(machine: str) -> bytes:
    """The filter as the kernel reads it: one instruction after the other, of eight bytes each."""
    number, refused, special = _MACHINES[machine]
    no = _ERROR | errno.EPERM
    lines = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, number), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _CALL)]
    if machine == "x86_64":  # the same calls under other numbers
        lines += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for call in (*refused.values(), *_EVERYWHERE):
        lines += [(_EQUAL, 0, 1, call), (_RETURN, 0, 0, no)]
    # its flags lie in memory, where a filter cannot look; the C library then takes clone
    lines += [(_EQUAL, 0, 1, special["clone3"]), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    # refused where the low half of an argument passes all tests
    for call, argument, *tests in (
        ("clone", 0, (_ANY_OF, _NEW_NAMESPACES)),
        ("prctl", 0, (_EQUAL, _SET_DUMPABLE)),
        ("mmap", 3, (_ANY_OF, _SHARED), (_ANY_OF, _ANONYMOUS)),
    ):
        left = len(tests)
        lines += [(_EQUAL, 0, left + 3, special[call]), (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)]
        lines += [(test, 0, left - place, value) for place, (test, value) in enumerate(tests)]
        lines += [(_RETURN, 0, 0, no), (_RETURN, 0, 0, _ALLOW)]
    lines += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("@HBBI", *line) for line in lines)


def new_keyring() -> None:
    """Leave the keys of whoever started the grader behind: an empty session keyring."""
    if known():
        join_session = 1
        ctypes.CDLL(None).syscall(_MACHINES[platform.machine()][1]["keyctl"], join_session, None)
