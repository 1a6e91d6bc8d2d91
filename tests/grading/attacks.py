"""Programs that try to break out of the sandbox, to harm the machine, or to cheat.

An attack prints BREACH when it has succeeded. Each is small enough to do no harm if it does: bombs stop after a few
hundred processes or a gigabyte. Those that are harmless are also run without isolation, where they must succeed, so
that a mistake in an attack is not taken for a success of the sandbox.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import socket
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism_prm.grading.sandbox import RunResult, Sandbox
from prism_prm.grading.sandbox_policy import Limits

SMALL = Limits(cpu=2, wall=300, memory_mb=128, output_mb=1, threads=16)
SHORT = Limits(cpu=5, wall=0.3)
REFUSED = (
    r"PermissionError|FileNotFoundError|ProcessLookupError|Read-only file system|Function not implemented"
    r"|can't start new thread"
)
WORD = "a word that only the canary holds"

_START = f"""
import os, sys
scene = eval(input())
word = {WORD!r}

def breach(*words):
    print("BREACH", *words, flush=True)

def system(name, *arguments):
    import ctypes
    x86_64, aarch64 = dict(
        ptrace=(101, 117), process_vm_readv=(310, 270), pidfd_open=(434, 434), memfd_create=(319, 279),
        unshare=(272, 97), setns=(308, 268), mount=(165, 40), bpf=(321, 280), keyctl=(250, 219), personality=(135, 92),
        userfaultfd=(323, 282), io_uring_setup=(425, 425), perf_event_open=(298, 241), name_to_handle_at=(303, 264),
        clone3=(435, 435), clone=(56, 220), openat2=(437, 437), prctl=(157, 167), syslog=(103, 116), mq_open=(240, 180),
        shmget=(29, 194), inotify_init1=(294, 26), sendmsg=(46, 211), pivot_root=(155, 41),
    )[name]
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(x86_64 if os.uname().machine == "x86_64" else aarch64, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

"""


@dataclass(frozen=True)
class Attack:
    """A program, how it must end, what its traceback must say, and who may try it without isolation."""

    name: str
    body: str
    ends: str = "error"
    says: str = ""
    harmless: str = "for all"
    """Or `for root`: only root would succeed; or why it is not tried: `harmful`, `limited` without isolation too"""
    limits: Limits = SMALL

    @property
    def code(self) -> str:
        return _START + self.body


def _attacks(ends: str, harmless: str, says: str = "", limits: Limits = SMALL, **bodies: str) -> list[Attack]:
    return [Attack(name, body, ends, says, harmless, limits) for name, body in bodies.items()]


_PAIR = "import socket\na, b = socket.socketpair(1, 2)\n"
_NETWORK = {
    "tcp_to_loopback": "import socket\nsocket.create_connection(('127.0.0.1', scene['tcp']))\nbreach()",
    "udp_to_loopback": "import socket\ns = socket.socket(2, 2)\ns.sendto(b'x', ('127.0.0.1', scene['udp']))\nbreach()",
    "tcp_listen": "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen()\nbreach()",
    "netlink": "import socket\nsocket.socket(16, 3)\nbreach()",
    "unix_socket": "import socket\ns = socket.socket(1, 1)\ns.connect(scene['folder'] + '/socket')\nbreach()",
    "abstract_socket": "import socket\ns = socket.socket(1, 1)\ns.connect('\\0' + scene['abstract'])\nbreach()",
    "datagram_to_a_unix_socket": _PAIR + "a.sendto(b'x', scene['folder'] + '/log')\nbreach()",
    "datagram_to_an_abstract_socket": _PAIR + "a.sendto(b'x', '\\0' + scene['log'])\nbreach()",
    "datagram_by_sendmsg": _PAIR + "a.sendmsg([b'x'], [], 0, scene['folder'] + '/log')\nbreach()",
    "connect_one_end_of_a_pair": _PAIR + "a.connect(scene['folder'] + '/log')\na.send(b'x')\nbreach()",
}
_READING = {
    "read_a_file_of_the_user": "if word in open(scene['folder'] + '/canary').read(): breach()",
    "read_through_proc_self_root": "if word in open('/proc/self/root' + scene['folder'] + '/canary').read(): breach()",
    "read_through_dots": "if word in open('/usr/lib/../..' + scene['folder'] + '/canary').read(): breach()",
    "list_a_folder_of_the_user": "if 'canary' in os.listdir(scene['folder']): breach()",
    "list_the_root": "if 'etc' in os.listdir('/'): breach()\nelse: raise FileNotFoundError",
    "read_passwd": "if 'root' in open('/etc/passwd').read(): breach()",
    "read_mounts": "if '/' in open('/proc/self/mounts').read(): breach()",
    "read_own_memory_map": "if open('/proc/self/maps').read(): breach()",
    "list_processes": "if len([n for n in os.listdir('/proc') if n.isdigit()]) > 0: breach()",
    "environment_of_the_parent": "if open(f\"/proc/{scene['pid']}/environ\").read(): breach()",
    "symlink_to_a_file": "os.symlink(scene['folder'] + '/canary', scene['folder'] + '/s')\nbreach()",
    "hard_link_to_a_file": "os.link(scene['folder'] + '/canary', scene['folder'] + '/h')\nbreach()",
    "link_put_there_by_others": "if word in open(scene['folder'] + '/link').read(): breach()",
    "openat2": "import ctypes\nhow = ctypes.c_char_p(bytes(24))\n"
    "system('openat2', -100, scene['canary'].encode(), how, 24)\nbreach()",
    "file_handle": "import ctypes\nh = ctypes.create_string_buffer(bytes([128, 0, 0, 0]) + bytes(132))\n"
    "system('name_to_handle_at', -100, scene['canary'].encode(), h, ctypes.byref(ctypes.c_int()), 0)\nbreach()",
    "watch_files": "system('inotify_init1', 0)\nbreach()",
}
_WRITING = {
    "write_a_file": "open(scene['folder'] + '/new', 'w').write('x')\nbreach()",
    "overwrite_a_file": "open(scene['canary'], 'a').write('x')\nbreach()",
    "empty_a_file": "os.truncate(scene['canary'], 3)\nbreach()",
    "empty_a_file_by_opening_it": "os.open(scene['canary'], os.O_RDONLY | os.O_TRUNC)\nbreach()",
    "delete_a_file": "os.unlink(scene['folder'] + '/victim')\nbreach()",
    "rename_a_file": "os.rename(scene['folder'] + '/victim2', scene['folder'] + '/renamed')\nbreach()",
    "change_a_mode": "os.chmod(scene['canary'], 0o777)\nbreach()",
    "change_a_time": "os.utime(scene['canary'], (1, 1))\nbreach()",
    "make_a_folder": "os.mkdir(scene['folder'] + '/made')\nbreach()",
    "make_a_fifo": "os.mkfifo(scene['folder'] + '/fifo')\nbreach()",
    "write_a_temporary_file": "import tempfile\ntempfile.TemporaryFile(dir='/tmp').write(b'x')\nbreach()",
    "fill_dev_shm": "p = f'/dev/shm/attack-{os.getpid()}'\nf = open(p, 'wb')\nos.unlink(p)\n"
    "f.write(bytes(2**20))\nbreach()",
    "fill_a_memfd": "f = os.fdopen(system('memfd_create', b'x', 0), 'wb')\nf.write(bytes(2**20))\nbreach()",
    "shared_memory": "system('shmget', 0, 4096, 0o600)\nbreach()",
}
_PROCESSES = {
    "fork": "if os.fork() == 0: os._exit(0)\nbreach()",
    "vfork_and_exec": "os.posix_spawn('/bin/true', ['true'], {})\nbreach()",
    "subprocess": "import subprocess\nsubprocess.run(['/bin/true'])\nbreach()",
    "shell": "breach() if os.system('true') == 0 else os.fork()",
    "exec": "os.write(1, b'BREACH') if os.path.exists('/bin/true') and not os.access('/bin/true', os.X_OK) else 0\n"
    "os.execv('/bin/echo', ['echo', 'BREACH'])",
    "exec_the_interpreter": "os.execve(sys.executable, [sys.executable, '-c', 'print(\"BREACH\")'], {})",
    "raw_clone": "pid = system('clone', 17, 0, 0, 0, 0)\nos._exit(0) if pid == 0 else breach()",
    "thread_bomb": "import threading, time\nthreading.stack_size(65536)\n"
    "for _ in range(200): threading.Thread(target=time.sleep, args=(0.2,), daemon=True).start()\nbreach()",
    "daemon": "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: os._exit(0)\n    os._exit(0)\nbreach()",
}
_OTHERS = {
    "signal_to_the_parent": "import signal\nos.kill(scene['pid'], signal.SIGCONT)\nbreach()",
    "queued_signal": "import fcntl\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, scene['pid'])\nbreach()",
    "limits_of_the_parent": "import resource\nresource.prlimit(scene['pid'], resource.RLIMIT_NOFILE)\nbreach()",
    "pidfd": "system('pidfd_open', scene['pid'], 0)\nbreach()",
    "ptrace": "system('ptrace', 0, 0, 0, 0)\nbreach()",
    "priority_of_the_parent": "os.getpriority(os.PRIO_PROCESS, scene['pid'])\nbreach()",
    "change_personality": "system('personality', 0x0040000)\nbreach()",
    "pass_descriptors": "import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])\nbreach()",
    "new_session": "os.getpgid(0) != os.getpid() and os.setpgid(0, 0)\nos.nice(1)\nbreach()",
}
_KERNEL = {  # without isolation these depend on the machine's settings or need root
    "nested_user_namespace": "system('unshare', 0x10000000)\nbreach()",
    "nested_mount_namespace": "system('unshare', 0x00020000)\nbreach()",
    "nested_namespace_by_clone": "pid = system('clone', 0x10000011, 0, 0, 0, 0)\nos._exit(0) if pid == 0 else breach()",
    "clone3": "import ctypes\nsystem('clone3', ctypes.c_char_p(bytes(88)), 88)\nbreach()",
    "setns": "system('setns', 0, 0)\nbreach()",
    "mount": "system('mount', b'x', b'/', b'tmpfs', 0, 0)\nbreach()",
    "pivot_root": "system('pivot_root', b'/', b'/')\nbreach()",
    "bpf": "system('bpf', 0, 0, 0)\nbreach()",
    "keyring": "system('keyctl', 0, -3, 1)\nbreach()",
    "userfaultfd": "system('userfaultfd', 0)\nbreach()",
    "io_uring": "import ctypes\nsystem('io_uring_setup', 4, ctypes.c_char_p(bytes(120)))\nbreach()",
    "perf": "import ctypes\nsystem('perf_event_open', ctypes.c_char_p(bytes(128)), 0, -1, -1, 0)\nbreach()",
    "packet_socket": "import socket\nsocket.socket(17, 3, 3)\nbreach()",
    "vsock": "import socket\nsocket.socket(40, 1)\nbreach()",
    "ipv6": "import socket\nsocket.socket(10, 2)\nbreach()",
    "kernel_log": "system('syslog', 3, 0, 0)\nbreach()",
    "allow_core_dumps_again": "system('prctl', 4, 1, 0, 0, 0)\nbreach()",
    "outlive_the_parent": "system('prctl', 1, 0, 0, 0, 0)\nbreach()",
    "message_queue": "system('mq_open', b'attack', 0, 0, 0)\nbreach()",
    "memory_of_the_parent": "system('process_vm_readv', scene['pid'], 0, 0, 0, 0, 0)\nbreach()",
    "environment_of_init": "if open('/proc/1/environ', 'rb').read(1): breach()",
    "sysrq": "os.open('/proc/sysrq-trigger', os.O_WRONLY)\nbreach()",
    "become_root": "os.setuid(0)\nbreach()",
    "chroot": "os.chroot('/usr')\nbreach()",
}
_ROOT = {
    "write_to_the_working_folder": "open('by-an-attack', 'w')\nos.unlink('by-an-attack')\nbreach()",
    "read_shadow": "if ':' in open('/etc/shadow').read(): breach()",
    "core_pattern": "os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)\nbreach()",
    "change_the_library": "open(os.__file__, 'r+b')\nbreach()",
}
_BOMBS = [
    Attack("fork_bomb", "for _ in range(200):\n    if os.fork() == 0:\n        import time\n        time.sleep(3)\n"
           "        os._exit(0)\n    breach()", says=REFUSED, harmless="harmful"),
    Attack("memory", "kept = []\nfor _ in range(1024): kept.append(bytearray(2**20))\nbreach()", "memory",
           harmless="limited"),
    Attack("memory_again_and_again", "import time\nkept, until = [], time.time() + 0.3\nwhile time.time() < until:\n"
           "    try:\n        kept.append(bytearray(2**24))\n    except MemoryError:\n        pass\n"
           "if len(kept) > 8: breach()", "ok", harmless="limited"),
    Attack("shared_anonymous_memory", "import mmap\nkept = [mmap.mmap(-1, 2**26) for _ in range(16)]\nbreach()",
           says="Cannot allocate memory", harmless="limited"),
    Attack("endless_output", "while True: print('x' * 10000)", "output", harmless="limited"),
    Attack("endless_errors", "while True: print('x' * 10000, file=sys.stderr)", "output", harmless="limited"),
    Attack("endless_report", "opened = []\nfor d in range(3, 4096):\n"
           "    try: opened += [d] * (os.write(d, b'\\n') > 0)\n    except OSError: pass\n"
           "while True:\n    for d in opened: os.write(d, b'\\n' * 10000)", "output",
           harmless="limited"),
    Attack("sleep", "import time\ntime.sleep(100)", "timeout", harmless="limited",
           limits=SHORT),
    Attack("sleep_deaf_to_signals", "import signal, time\nfor s in range(1, 65):\n    try: signal.signal(s, 1)\n"
           "    except (OSError, ValueError): pass\ntime.sleep(100)", "timeout", harmless="limited",
           limits=SHORT),
    Attack("stop_itself", "import signal\nos.kill(os.getpid(), signal.SIGSTOP)", "timeout", harmless="limited",
           limits=SHORT),
    Attack("spin", "while True: pass", "timeout", harmless="limited", limits=Limits(cpu=1, wall=300)),
    Attack("spin_deaf_to_sigxcpu", "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
           "timeout", harmless="limited", limits=Limits(cpu=1, wall=300)),
    Attack("spin_in_c", "import re\nre.match('(a|a)*b', 'a' * 60)", "timeout", harmless="limited",
           limits=SHORT),
    Attack("never_finish", "import atexit, time\natexit.register(time.sleep, 100)", "timeout", harmless="limited",
           limits=SHORT),
    Attack("a_thread_that_stays", "import threading, time\nthreading.Thread(target=time.sleep, args=(100,)).start()",
           "timeout", harmless="limited", limits=SHORT),
    Attack("many_files", "kept = [open('/dev/null') for _ in range(200)]\nbreach()", says="Too many open files",
           harmless="limited"),
    Attack("raise_the_memory_limit", "import resource as r\nr.setrlimit(r.RLIMIT_AS, (2**33, 2**33))\nbreach()",
           says="ValueError|PermissionError", harmless="limited"),
    Attack("raise_the_cpu_limit", "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (60, 60))\nbreach()",
           says="ValueError|PermissionError", harmless="limited"),
    Attack("crash", "import ctypes\nctypes.string_at(0)", harmless="limited"),
    Attack("abort", "os.abort()", harmless="limited"),
    Attack("endless_recursion", "sys.setrecursionlimit(10**9)\nf = lambda: f()\nf()", r"error|memory|timeout",
           harmless="limited"),
    Attack("second_numbering_of_calls", "if os.uname().machine != 'x86_64': os.abort()\nimport ctypes\n"
           "ctypes.CDLL(None).syscall(0x40000000 + 39)\nbreach()", harmless="for all"),
    Attack("inherited_descriptors", "for d in range(3, 4096):\n    try: found = os.pread(d, 1000, 0)\n"
           "    except OSError: continue\n    if word.encode() in found: breach()", "ok", harmless="limited"),
    Attack("inherited_environment", "if 'PRISM_SECRET' in os.environ: breach()", "ok", harmless="limited"),
    Attack("close_everything", "os.closerange(0, 4096)\nos._exit(0)", "ok", harmless="limited"),
]  # fmt: skip

ATTACKS = [
    *_attacks("error", "for all", REFUSED, **_NETWORK, **_READING, **_WRITING, **_PROCESSES, **_OTHERS),
    *_attacks("error", "it depends", REFUSED, **_KERNEL),
    *_attacks("error", "for root", REFUSED, **_ROOT),
    *_BOMBS,
]


@contextlib.contextmanager
def scene() -> Iterator[dict[str, Any]]:
    """What attacks aim at: files that all may use, sockets that listen, and this process."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scene-")))
        for name in ("canary", "victim", "victim2"):
            (folder / name).write_text(WORD)
            (folder / name).chmod(0o666)
        (folder / "link").symlink_to(folder / "canary")
        folder.chmod(0o777)
        made = [socket.socket(kind, form) for kind, form in ((2, 1), (2, 2), (1, 1), (1, 1), (1, 2), (1, 2))]
        tcp, udp, unix, abstract, log, abstract_log = (stack.enter_context(one) for one in made)
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("127.0.0.1", 0))
        unix.bind(f"{folder}/socket")
        log.bind(f"{folder}/log")
        for name in ("socket", "log"):
            os.chmod(f"{folder}/{name}", 0o777)
        hidden = f"scene-{os.getpid()}"
        abstract.bind(f"\0{hidden}")
        abstract_log.bind(f"\0{hidden}-log")
        for listening in (tcp, unix, abstract):
            listening.listen(50)
        open_canary = stack.enter_context(open(folder / "canary", "rb"))
        os.set_inheritable(open_canary.fileno(), True)
        os.environ["PRISM_SECRET"] = "secret"
        stack.callback(os.environ.pop, "PRISM_SECRET")
        yield {
            "folder": str(folder), "canary": f"{folder}/canary", "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1], "abstract": hidden, "log": f"{hidden}-log", "pid": os.getpid(),
        }  # fmt: skip


def run_attack(attack: Attack, level: str, aim: dict[str, Any]) -> RunResult:
    """Run an attack; the sandbox of each level is proved once."""
    return _sandbox(level).with_limits(attack.limits).run(attack.code, f"{aim!r}\n")


@functools.cache
def _sandbox(level: Any) -> Sandbox:
    return Sandbox(level)


def fault_of(attack: Attack, run: RunResult) -> str:
    """Why an attack was not contained; "" if it was."""
    found = f"{run.status}: {run.stdout[-200:]!r} {run.stderr[-300:].decode(errors='replace')}"
    if b"BREACH" in run.stdout:
        return f"broke out; {found}"
    if not re.fullmatch(attack.ends, run.status):
        return f"did not end by {attack.ends}; {found}"
    return "" if re.search(attack.says, run.stderr.decode(errors="replace")) else f"for another reason; {found}"


def harm_done(aim: dict[str, Any]) -> list[str]:
    """What has changed in the scene."""
    folder = Path(aim["folder"])
    there = {path.name for path in folder.iterdir()}
    changed = there ^ {"canary", "victim", "victim2", "link", "socket", "log"}
    if (folder / "canary").read_text() != WORD or (folder / "canary").stat().st_mode & 0o777 != 0o666:
        changed.add("canary")
    return sorted(changed)


def adopt_orphans(yes: bool = True) -> None:
    """Become the parent of processes whose own parents end, so that none is overlooked."""
    ctypes.CDLL(None).prctl(36, int(yes), 0, 0, 0)


def offspring() -> set[int]:
    """The processes that have this one as parent, also those that have ended and are not yet waited for."""
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):  # another thread that has just ended
            found |= {int(word) for word in Path(f"/proc/self/task/{thread}/children").read_text().split()}
    return found


def children(known: Collection[int] = ()) -> set[int]:
    """Those that live, but those known; the dead are buried."""
    found = offspring() - set(known)
    for pid in list(found):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0]:
                found.discard(pid)
    return found
