"""Runs Python programs in forks of itself, which has imported what takes longer to import than most of them to run.

`fork_server.py SOCKET` listens there for as long as its standard input is open. A request is a line of JSON, with
arguments, folder, environment and sys.executable of the program, and its standard input, output and error as
descriptors beside it. The answer is a line with the process id and, when that process has ended, one with its exit
status, negative for a signal. A fork whose caller goes away is killed.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from contextlib import suppress

# None of this project's own modules: a program may be of another copy of it. The first optimizer of a process imports
# torch._dynamo, which takes as long as torch.
PRELOADED = ["torch", "torch._dynamo", "numpy", "pandas", "matplotlib.pyplot", "jinja2", "jsonschema", "yaml", "tqdm"]
PRELOADED += ["snakemake.cli"]


def main():
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    request, streams = serve(sys.argv[1])
    status = None
    try:
        run(request, streams)
    except SystemExit as ended:
        status = ended.code
    end(status)


def serve(path):
    """Answer requests until standard input ends. Returns in the forks alone, with the request and its streams."""
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        woken, waking = socket.socketpair()
        waking.setblocking(False)
        signal.set_wakeup_fd(waking.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        listener.bind(f"{path}.new")
        listener.listen(100)
        os.rename(f"{path}.new", path)
        for file in (sys.stdin, woken, listener):
            selector.register(file, selectors.EVENT_READ)
        callers = {}
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    for pid in callers:
                        os.kill(pid, signal.SIGKILL)
                    sys.exit()
                elif key.fileobj is woken:
                    woken.recv(4096)
                elif key.fileobj is listener:
                    caller, _ = listener.accept()
                    request, streams = received(caller)
                    pid = os.fork()
                    if pid == 0:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        for file in (caller, woken, waking, *callers.values()):
                            file.close()
                        return request, streams
                    for stream in streams:
                        os.close(stream)
                    callers[pid] = caller
                    caller.sendall(b"%d\n" % pid)
                    selector.register(caller, selectors.EVENT_READ, pid)
                elif key.data in callers:
                    os.kill(key.data, signal.SIGKILL)
                    selector.unregister(key.fileobj)
            reap(callers, selector)


def received(caller):
    """Return the request of a new caller and the descriptors that came with it."""
    text, streams, _, _ = socket.recv_fds(caller, 65536, 3)
    while not text.endswith(b"\n"):
        text += caller.recv(65536)
    return json.loads(text), streams


def reap(callers, selector):
    """Tell the callers of forks that have ended, and forget them."""
    while callers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            break
        # A caller that is gone is not registered any more.
        with callers.pop(pid) as caller, suppress(KeyError, BrokenPipeError):
            selector.unregister(caller)
            caller.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def run(request, streams):
    """Become the program of a request."""
    for descriptor, stream in enumerate(streams):
        os.dup2(stream, descriptor)
        os.close(stream)
    # The server's were made for other files, a terminal or none.
    sys.stdin = sys.__stdin__ = os.fdopen(0)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w")
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.executable = request["executable"]
    first, *others = request["arguments"]
    own = os.getcwd() if first == "-m" else os.path.dirname(os.path.abspath(first))
    # In place of this file's folder.
    sys.path[:1] = [own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if first == "-m":
        sys.argv = others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *others]
        runpy.run_path(first, run_name="__main__")


def end(status):
    """End as the interpreter does, but without taking the server's modules down, which takes longer than all else."""
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit((status or 0) & 0xFF)


if __name__ == "__main__":
    main()
