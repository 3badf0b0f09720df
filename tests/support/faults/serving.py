"""`detops serve`: after any fault, it gives the same detections or reports the reason."""

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
CUT = 0  # the status of a missing response
# Errors of a client if the server has ended; a reset may interrupt a response.
GONE = (ConnectionError, http.client.RemoteDisconnected, http.client.IncompleteRead)


@cache
def pictures() -> list[bytes]:
    """Returns some images with objects to detect."""
    folder = export(Path(mkdtemp(prefix="faults-")), "test", length=3, size=96).parent
    return [file.read_bytes() for file in sorted(folder.rglob("*.png"))]


class Server(Command):
    """A server with a loaded detector, and requests to it."""

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
        """Starts the server and waits until it responds."""
        told = len(self.text())
        self.start(before)
        address = re.compile(r"http://127\.0\.0\.1:(\d+)/")
        wait_for(lambda: address.search(self.text()[told:]) or not self.alive())
        require(self.alive(), f"ends: {self.text()}")
        self.port = int(address.search(self.text()[told:])[1])
        return self

    def ask(self, picture: bytes) -> tuple[int, dict]:
        """Returns the status and the content of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", PATH, picture)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def found(self, picture: bytes) -> list:
        """Returns the detections in an image."""
        status, answer = self.ask(picture)
        require(status == 200, f"{status}: {answer}")
        return answer["results"][0]["detections"]

    def close(self) -> None:
        """Kills the server, if it is running."""
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
            self.end()


@made_once
def expected() -> list[list]:
    """Returns the detections in each image."""
    server = Server(Path(mkdtemp(prefix="faults-"))).open()
    found = [server.found(picture) for picture in pictures()]
    server.close()
    require(any(found), "nothing was found")
    return found


def require_served(server: Server) -> None:
    """Requires the expected detections."""
    for picture, detections in zip(pictures(), expected(), strict=True):
        require(server.found(picture) == detections, "other detections")


def require_another(server: Server) -> None:
    """Requires that a new server takes the port of the ended one and detects the same."""
    try:
        require_served(server.open())
    finally:
        server.close()


def ask_on(server: Server, rng: random.Random, fails: Callable[[int, dict], bool]) -> list[str]:
    """Sends requests one after the other; returns what was wrong with the responses.

    A response must contain the expected detections, or `fails` must accept it or the cut
    connection. Requests stop once the server has ended.
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
    """Sends ``kill -9``; a new server takes the port at once."""
    server, status = _signalled(signal.SIGKILL, rng, at)
    require_another(server)
    return status == -signal.SIGKILL


def terminated(rng: random.Random, at: Path) -> bool:
    """Sends SIGTERM, which the server must report; a new server takes the port."""
    server, status = _signalled(signal.SIGTERM, rng, at)
    require(status == 143, f"ends with {status}: {server.text()}")
    server.told("stopped by SIGTERM")
    require_another(server)
    return True


def out_of_memory(rng: random.Random, at: Path) -> bool:
    """Denies further address space for a while."""
    expected()
    server = Server(at).open(keep_no_memory)
    try:
        require_served(server)  # after this, all modules are loaded
        server.limit_memory(rng.randrange(1 << 20))
        refused = []

        def fails(status: int, told: dict) -> bool:
            refused.append(status)
            # The stack of a thread needs memory, too, and so does a response.
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
    """Cuts clients off anywhere, some of them by a reset."""
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
