"""`detops serve`: whatever happens, it gives the detections of before, or says why not."""

import http.client
import json
import os
import random
import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch

from detops import cli
from detops.cli.options import SHAPES_WEIGHTS
from detops.data.shapes import export

from .process import Command, keep_no_memory, made_once, require, wait_for

REQUESTS = 12
PATH = f"/api/detect?model={SHAPES_WEIGHTS.parent.name}"
CUT = 0  # for the status of an answer that does not come
# What a client meets where the server has gone; a reset may come amid an answer.
GONE = (ConnectionError, http.client.RemoteDisconnected, http.client.IncompleteRead)


@cache
def pictures() -> list[bytes]:
    """Some, with something to find."""
    folder = export(Path(mkdtemp(prefix="faults-")), "test", length=3, size=96).parent
    return [file.read_bytes() for file in sorted(folder.rglob("*.png"))]


class Server(Command):
    """A server that has loaded a detector, and requests to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "server.log")
        self.port, self.finished = 0, 0

    def work(self) -> int:
        torch.set_num_threads(1)
        command = ["serve", "--port", self.port, "--weights", SHAPES_WEIGHTS, "--device", "cpu"]
        return cli.main([str(argument) for argument in command])

    def done(self) -> int:
        return self.finished

    def open(self, before: Callable[[], None] = lambda: None) -> "Server":
        """Starts, and waits until it answers."""
        told = len(self.text())
        self.start(before)
        address = re.compile(r"http://127\.0\.0\.1:(\d+)/")
        wait_for(lambda: address.search(self.text()[told:]) or not self.alive())
        require(self.alive(), f"ends: {self.text()}")
        self.port = int(address.search(self.text()[told:])[1])
        return self

    def ask(self, picture: bytes) -> tuple[int, dict]:
        """The status of an answer, and what it says."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", PATH, picture)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def found(self, picture: bytes) -> list:
        """The detections of a picture."""
        status, answer = self.ask(picture)
        require(status == 200, f"{status}: {answer}")
        return answer["results"][0]["detections"]

    def close(self) -> None:
        """Ends."""
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
            self.end()


@made_once
def expected() -> list[list]:
    """The detections in each picture."""
    server = Server(Path(mkdtemp(prefix="faults-"))).open()
    found = [server.found(picture) for picture in pictures()]
    server.close()
    require(any(found), "nothing was found")
    return found


def require_served(server: Server) -> None:
    """That the server does what it did."""
    for picture, detections in zip(pictures(), expected(), strict=True):
        require(server.found(picture) == detections, "other detections")


def require_another(server: Server) -> None:
    """That another one takes the port of a server that has ended, and does what it did."""
    try:
        require_served(server.open())
    finally:
        server.close()


def ask_on(server: Server, rng: random.Random, fails: Callable[[int, dict], bool]) -> list[str]:
    """Requests one after the other; what was wrong with them.

    A client is told what it was told before, or `fails` takes an answer of its own or that the
    connection was cut, or the server has gone.
    """
    wrong = []
    for _ in range(REQUESTS):
        which = rng.randrange(len(pictures()))
        try:
            status, answer = server.ask(pictures()[which])
        except GONE:
            if server.alive():
                time.sleep(0.05)
            if not server.alive():
                return wrong
            status, answer = CUT, {"error": "the connection was cut"}
        if status == 200:
            if answer["results"][0]["detections"] != expected()[which]:
                wrong.append("other detections")
        elif not fails(status, answer):
            wrong.append(f"{status}: {answer}")
        server.finished += 1
    return wrong


def _signalled(how: int, rng: random.Random, at: Path) -> tuple[Server, int]:
    expected()
    server, wrong = Server(at).open(), []
    of_client = random.Random(rng.random())
    signalled = threading.Event()

    def fails(status: int, _: dict) -> bool:
        return status == 503 or (status == CUT and signalled.is_set())

    client = threading.Thread(target=lambda: wrong.extend(ask_on(server, of_client, fails)))
    client.start()
    until = rng.randrange(REQUESTS)
    wait_for(lambda: server.done() >= until or not client.is_alive())
    time.sleep(rng.random() * 0.1)
    signalled.set()
    os.kill(server.pid, how)
    status = server.end()
    client.join()
    require(not wrong, wrong)
    return server, status


def killed(rng: random.Random, at: Path) -> bool:
    """``kill -9``; another one takes its port at once."""
    server, status = _signalled(signal.SIGKILL, rng, at)
    require_another(server)
    return status == -signal.SIGKILL


def terminated(rng: random.Random, at: Path) -> bool:
    """SIGTERM: it is told; another one takes the port."""
    server, status = _signalled(signal.SIGTERM, rng, at)
    require(status == 143, f"ends with {status}: {server.text()}")
    server.told("stopped by SIGTERM")
    require_another(server)
    return True


def out_of_memory(rng: random.Random, at: Path) -> bool:
    """No byte more of address space for a while."""
    expected()
    server = Server(at).open(keep_no_memory)
    try:
        require_served(server)  # by then all modules are loaded
        server.limit_memory(rng.randrange(1 << 20))
        refused = []

        def fails(status: int, told: dict) -> bool:
            refused.append(status)
            # A thread's stack is memory, too, and so is an answer.
            said = re.search("memory|start new thread", str(told))
            return status == CUT or (status == 500 and said is not None)

        wrong = ask_on(server, rng, fails)
        require(server.alive(), f"ends with {server.process.exitcode}: {server.text()[-600:]}")
        require(not wrong, wrong)
        server.limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
        require_served(server)
        return bool(refused)
    finally:
        server.close()


def clients_leave(rng: random.Random, at: Path) -> bool:
    """Clients that are cut off anywhere, some of them by a reset."""
    expected()
    server = Server(at).open()
    try:
        for _ in range(REQUESTS):
            body = rng.choice(pictures())
            head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            request = head.encode() + body
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
                if rng.random() < 0.5:
                    at_once = b"\1\0\0\0\0\0\0\0"  # l_onoff, l_linger: a reset
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                client.sendall(request[: rng.randrange(len(request) + 1)])
                time.sleep(rng.random() * 0.05)
        wait_for(lambda: server.ask(pictures()[0])[0] != 503)
        require_served(server)
        require("Traceback" not in server.text(), "a traceback")
        return True
    finally:
        server.close()


FAULTS: dict[str, Callable[[random.Random, Path], bool]] = {
    "kill -9": killed,
    "SIGTERM": terminated,
    "no memory is left": out_of_memory,
    "clients leave": clients_leave,
}
