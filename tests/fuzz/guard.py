"""A tripwire around a reader: what reading a file must never do, seen through audit events.

The hook is there for the rest of the process, so it belongs into a process of its own; it acts only
while a reader is at work.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path

_NEVER = frozenset(
    (
        *("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"),
        *("os.startfile", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link"),
        *("os.symlink", "os.truncate", "os.chmod", "os.chown", "os.putenv", "os.kill"),
        *("os.utime", "os.setxattr", "subprocess.Popen", "pty.spawn", "socket.connect"),
        *("socket.bind", "socket.getaddrinfo", "ctypes.dlopen", "shutil.rmtree", "shutil.move"),
        *("shutil.copyfile", "tempfile.mkstemp", "webbrowser.open", "urllib.Request"),
        *("pickle.find_class", "code.__new__", "tempfile.mkdtemp"),
    )
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    """Notes what a reader does besides reading its own file."""

    def __init__(self, folder, allowed=()):
        self._may = frozenset(allowed)
        roots = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, str(folder)}
        self._readable = tuple(
            str(Path(root).resolve()) for root in roots if root and Path(root).is_dir()
        )
        self._folder = str(folder)
        self._modules = {name.partition(".")[0] for name in sys.modules}
        self._modules |= sys.stdlib_module_names
        self._active = False
        self.noticed = []
        sys.addaudithook(self._hook)

    @contextmanager
    def watching(self):
        """Watch what is done inside."""
        self.noticed.clear()
        self._active = True
        try:
            yield
        finally:
            self._active = False

    def _hook(self, event, arguments):
        if not self._active or event in self._may:
            return
        if event == "open":
            self._opened(*arguments)
        elif event == "import":
            if str(arguments[0]).partition(".")[0] not in self._modules:
                self._note(f"imports {arguments[0]!r}")
        elif event == "exec":
            if not _importing():
                self._note(f"runs code: {arguments[0]!r}")
        elif event in _NEVER and not _importing():
            self._note(f"{event}{arguments!r}"[:300])

    def _opened(self, path, mode, flags):
        if not isinstance(path, (str, bytes)):
            return
        place = os.path.abspath(os.fsdecode(path))
        by_flags = mode is None and isinstance(flags, int) and flags & _WRITES
        if by_flags or (isinstance(mode, str) and set(mode) & set("wax+")):
            self._note(f"opens {place!r} for writing")
        elif not place.startswith((*self._readable, "/proc/", "/sys/", "/dev/null", "/usr/share")):
            self._note(f"reads {place!r}")

    def _note(self, text):
        self._active = False  # what follows from making the text is not the reader's doing
        self.noticed.append(text)
        self._active = True


def _importing():
    """Whether a module is being imported, which runs its code."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
