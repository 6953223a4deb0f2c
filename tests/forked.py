"""A `python` for tests that starts at once: its processes are forked from one that has imported torch and Snakemake.

`forked.python()` is its path. Called with a script, or with -m and a module, it runs that in a fork of
tests/fork_server.py, with arguments, folder, environment and standard streams of its own; signals go on to the fork,
and it ends as that does. Called in any other way, or with -m and a PYTHONPATH, it becomes the real interpreter, and
what a script starts as `python` is that too. What differs from a real start: libraries have been imported before,
limits and process group are the server's, and the launcher is not the fork's parent. Tests in which any of that counts
take sys.executable.
"""

import functools
import json
import os
import signal
import socket
import sys
import time

LAUNCHER = """\
#!{python} -IS
import sys

sys.path.append({tests!r})
import forked

forked.launch({python!r}, {socket!r})
"""


@functools.cache
def python():
    """Return the launcher's path. The first call starts the server, which ends when this process does."""
    # Not at the top, since the launcher needs none of them.
    import atexit
    import shutil
    import subprocess
    import tempfile

    folder = tempfile.mkdtemp(prefix="forked-")
    atexit.register(shutil.rmtree, folder)
    listening, launcher = os.path.join(folder, "socket"), os.path.join(folder, "bin", "python")
    here = os.path.dirname(os.path.abspath(__file__))
    os.mkdir(os.path.dirname(launcher))
    with open(launcher, "w") as file:
        file.write(LAUNCHER.format(python=sys.executable, tests=here, socket=listening))
    os.chmod(launcher, 0o700)
    # It ends when the pipe does. In a session of its own no Ctrl-C reaches it before.
    command = [sys.executable, os.path.join(here, "fork_server.py"), listening]
    _servers.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True))
    return launcher


_servers = []


def launch(interpreter, listening):
    """What the launcher does. `interpreter` is the real one, `listening` the server's socket."""
    arguments = sys.argv[1:]
    module = arguments[:1] == ["-m"]
    # Snakemake looks for plugins when it is imported, as it is in the server.
    if not arguments or (os.environ.get("PYTHONPATH") if module else arguments[0].startswith("-")):
        os.execv(interpreter, [interpreter, *arguments])
    launcher = os.path.abspath(sys.argv[0])
    request = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ), "executable": launcher}
    if not module:
        # Snakemake, a module, finds its jobs' python beside its own; what a script starts is to be started really.
        paths = os.environ.get("PATH", "").split(os.pathsep)
        request["environment"]["PATH"] = os.pathsep.join(path for path in paths if path != os.path.dirname(launcher))
        request["executable"] = interpreter
    with socket.socket(socket.AF_UNIX) as server:
        _connect(server, listening)
        text = json.dumps(request).encode() + b"\n"
        server.sendall(text[socket.send_fds(server, [text], [0, 1, 2]) :])
        answers = server.makefile("r")
        pid = int(answers.readline())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, frame: os.kill(pid, number))
        status = int(answers.readline())
    if status < 0:
        if status != -signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _connect(server, listening):
    """Connect to the server, which may still be starting."""
    while True:
        try:
            return server.connect(listening)
        except FileNotFoundError:
            time.sleep(0.05)
