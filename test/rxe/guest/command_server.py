#!/usr/bin/env python3
"""Runs shell commands for the host, one TCP connection each.

Request:  "run SECONDS COMMAND_BYTES STDIN_BYTES\\n", the command, its standard input.
Answer:   "out N\\n" or "err N\\n" and N bytes, as often as needed; last "exit STATUS\\n".

STATUS is that of the command as a shell gives it (128 + signal when killed), or 124
when it ran longer than SECONDS. A command whose time is over, or whose client has
gone, is killed with its process group. The lengths let a client that is only a
shell copy binary output without looking into it.
"""

import os
import selectors
import signal
import socketserver
import subprocess
import tempfile
import time

ADDRESS = ("198.18.1.2", 2222)
CHUNK = 65536
FINAL_READS = 16
TIMED_OUT = 124
GRACE_SECONDS = 2


class ClientGone(Exception):
    """The client closed its connection before the command ended."""


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        try:
            verb, seconds, command_len, stdin_len = self.rfile.readline().split()
            if verb != b"run":
                raise ValueError("unknown verb")
            command = self.rfile.read(int(command_len))
            with self.spool(int(stdin_len)) as stdin:
                Run(self.connection, command, stdin, float(seconds)).serve()
        except (ClientGone, ConnectionError):
            pass
        except (ValueError, OSError) as error:
            self.refuse(error)

    def spool(self, length):
        """Standard input as a file: a command may read it late, or not at all."""
        spooled = tempfile.TemporaryFile()
        left = length
        while left:
            data = self.rfile.read(min(left, CHUNK))
            if not data:
                raise ClientGone
            spooled.write(data)
            left -= len(data)
        spooled.seek(0)
        return spooled

    def refuse(self, error):
        text = f"command server: {error}\n".encode()
        try:
            self.wfile.write(b"err %d\n%sexit 125\n" % (len(text), text))
        except OSError:
            pass


class Run:
    """One command from its start to its exit status."""

    def __init__(self, connection, command, stdin, seconds):
        self.connection = connection
        self.command = command
        self.stdin = stdin
        self.seconds = seconds
        self.deadline = time.monotonic() + seconds

    def serve(self):
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", self.command],
            stdin=self.stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/root",
            start_new_session=True,
        )
        self.exited = os.pidfd_open(self.process.pid)
        try:
            in_time = self.relay_until_exit()
            if not in_time:
                self.kill()
            self.relay_rest()
            self.connection.settimeout(GRACE_SECONDS)
            self.finish(in_time)
        except OSError as error:  # also a client that no longer reads
            raise ClientGone from error
        finally:
            self.kill()
            os.close(self.exited)
            self.process.stdout.close()
            self.process.stderr.close()

    def relay_until_exit(self):
        """Copies output until the command exits; False when its time is over first."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ, b"out")
            selector.register(self.process.stderr, selectors.EVENT_READ, b"err")
            selector.register(self.connection, selectors.EVENT_READ, b"client")
            selector.register(self.exited, selectors.EVENT_READ, b"exit")
            while True:
                left = self.deadline - time.monotonic()
                if left <= 0:
                    return False
                ready = {key.data: key.fileobj for key, _ in selector.select(left)}
                for kind in (b"out", b"err"):
                    if kind in ready and not self.copy(kind, ready[kind]):
                        selector.unregister(ready[kind])
                if b"client" in ready and not self.connection.recv(CHUNK):
                    raise ClientGone
                if b"exit" in ready:
                    return True

    def copy(self, kind, pipe):
        """Sends what one read of the pipe yields; False at its end."""
        data = os.read(pipe.fileno(), CHUNK)
        if data:
            # A client that does not read must not make the command immortal.
            self.connection.settimeout(max(GRACE_SECONDS, self.deadline - time.monotonic()))
            self.connection.sendall(b"%s %d\n%s" % (kind, len(data), data))
        return bool(data)

    def relay_rest(self):
        """Copies what the pipes still hold. It waits neither for their end nor for
        silence: a child left in the background may keep them open and busy."""
        for kind, pipe in ((b"out", self.process.stdout), (b"err", self.process.stderr)):
            os.set_blocking(pipe.fileno(), False)
            try:
                for _ in range(FINAL_READS):
                    if not self.copy(kind, pipe):
                        break
            except BlockingIOError:
                pass

    def kill(self):
        """Ends the command, if it still runs, with its whole process group."""
        if self.process.poll() is not None:
            return
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def finish(self, in_time):
        if not in_time:
            text = f"command server: killed, it ran longer than {self.seconds:g} s\n".encode()
            self.connection.sendall(b"err %d\n%sexit %d\n" % (len(text), text, TIMED_OUT))
            return
        status = self.process.wait()
        self.connection.sendall(b"exit %d\n" % (status if status >= 0 else 128 - status))


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64


if __name__ == "__main__":
    with Server(ADDRESS, Handler) as server:
        server.serve_forever()
