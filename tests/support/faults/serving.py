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

from .process import Command, cached_across_threads, disable_malloc_cache, require, wait_for

REQUESTS = 12
PATH = f"/api/detect?model={SHAPES_WEIGHTS.parent.name}"
NO_RESPONSE = 0  # the status of a missing response
# Errors of a client if the server has ended; a reset may interrupt a response.
CONNECTION_ERRORS = (ConnectionError, http.client.RemoteDisconnected, http.client.IncompleteRead)


@cache
def images() -> list[bytes]:
    """Returns some images with objects to detect."""
    folder = export(Path(mkdtemp()), "test", length=3, size=96).parent
    return [file.read_bytes() for file in sorted(folder.rglob("*.png"))]


class Server(Command):
    """A server with a loaded detector, and requests to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "server.log")
        self.port, self.finished = 0, 0

    def execute(self) -> int:
        torch.set_num_threads(1)
        command = ["serve", "--port", self.port, "--weights", SHAPES_WEIGHTS, "--device", "cpu"]
        return cli.main([str(argument) for argument in command])

    def progress(self) -> int:
        return self.finished

    def open(self, before: Callable[[], None] = lambda: None) -> "Server":
        """Starts the server and waits until it responds."""
        log_size = len(self.log_text())
        self.start(before)
        address = re.compile(r"http://127\.0\.0\.1:(\d+)/")
        wait_for(lambda: address.search(self.log_text()[log_size:]) or not self.alive())
        require(self.alive(), f"exited: {self.log_text()}")
        self.port = int(address.search(self.log_text()[log_size:])[1])
        return self

    def post(self, image: bytes) -> tuple[int, dict]:
        """Returns the status and the content of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", PATH, image)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def detections(self, image: bytes) -> list:
        """Returns the detections in an image."""
        status, response = self.post(image)
        require(status == 200, f"{status}: {response}")
        return response["results"][0]["detections"]

    def close(self) -> None:
        """Kills the server, if it is running."""
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


@cached_across_threads
def expected() -> list[list]:
    """Returns the detections in each image."""
    server = Server(Path(mkdtemp())).open()
    found = [server.detections(image) for image in images()]
    server.close()
    require(any(found), "no detections")
    return found


def require_served(server: Server) -> None:
    """Requires the expected detections."""
    for image, detections in zip(images(), expected(), strict=True):
        require(server.detections(image) == detections, "different detections")


def require_restart(server: Server) -> None:
    """Requires that a new server takes the port of the ended one and detects the same."""
    try:
        require_served(server.open())
    finally:
        server.close()


def send_requests(
    server: Server, rng: random.Random, is_expected_failure: Callable[[int, dict], bool]
) -> list[str]:
    """Sends requests one after the other; returns the errors in the responses.

    A response must contain the expected detections, or `is_expected_failure` must
    accept it or the cut connection. Requests stop once the server has ended.
    """
    errors = []
    for _ in range(REQUESTS):
        index = rng.randrange(len(images()))
        try:
            status, content = server.post(images()[index])
        except CONNECTION_ERRORS:
            if server.alive():
                time.sleep(0.05)
            if not server.alive():
                return errors
            status, content = NO_RESPONSE, {"error": "the connection was cut"}
        if status == 200:
            if content["results"][0]["detections"] != expected()[index]:
                errors.append("different detections")
        elif not is_expected_failure(status, content):
            errors.append(f"{status}: {content}")
        server.finished += 1
    return errors


def _signal_under_load(signal_number: int, rng: random.Random, folder: Path) -> tuple[Server, int]:
    expected()
    server, errors = Server(folder).open(), []
    client_rng = random.Random(rng.random())
    signalled = threading.Event()

    def is_expected_failure(status: int, _: dict) -> bool:
        return status == 503 or (status == NO_RESPONSE and signalled.is_set())

    client = threading.Thread(
        target=lambda: errors.extend(send_requests(server, client_rng, is_expected_failure))
    )
    client.start()
    until = rng.randrange(REQUESTS)
    wait_for(lambda: server.progress() >= until or not client.is_alive())
    time.sleep(rng.random() * 0.1)
    signalled.set()
    os.kill(server.pid, signal_number)
    status = server.wait()
    client.join()
    require(not errors, errors)
    return server, status


def killed(rng: random.Random, folder: Path) -> bool:
    """Sends ``kill -9``; a new server takes the port at once."""
    server, status = _signal_under_load(signal.SIGKILL, rng, folder)
    require_restart(server)
    return status == -signal.SIGKILL


def terminated(rng: random.Random, folder: Path) -> bool:
    """Sends SIGTERM, which the server must report; a new server takes the port."""
    server, status = _signal_under_load(signal.SIGTERM, rng, folder)
    require(status == 143, f"exited with status {status}: {server.log_text()}")
    server.require_reported("stopped by SIGTERM")
    require_restart(server)
    return True


def out_of_memory(rng: random.Random, folder: Path) -> bool:
    """Denies further address space for a while."""
    expected()
    server = Server(folder).open(disable_malloc_cache)
    try:
        require_served(server)  # after this, all modules are loaded
        server.limit_memory(rng.randrange(1 << 20))
        failures = []

        def is_expected_failure(status: int, content: dict) -> bool:
            failures.append(status)
            # The stack of a thread needs memory, too, and so does a response.
            mentions_memory = re.search("memory|start new thread", str(content))
            return status == NO_RESPONSE or (status == 500 and mentions_memory is not None)

        errors = send_requests(server, rng, is_expected_failure)
        require(
            server.alive(),
            f"exited with status {server.process.exitcode}: {server.log_text()[-600:]}",
        )
        require(not errors, errors)
        server.limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
        require_served(server)
        return bool(failures)
    finally:
        server.close()


def clients_leave(rng: random.Random, folder: Path) -> bool:
    """Cuts clients off anywhere, some of them by a reset."""
    expected()
    server = Server(folder).open()
    try:
        for _ in range(REQUESTS):
            body = rng.choice(images())
            head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            request = head.encode() + body
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
                if rng.random() < 0.5:
                    linger = b"\1\0\0\0\0\0\0\0"  # l_onoff, l_linger: a reset
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                client.sendall(request[: rng.randrange(len(request) + 1)])
                time.sleep(rng.random() * 0.05)
        wait_for(lambda: server.post(images()[0])[0] != 503)
        require_served(server)
        require("Traceback" not in server.log_text(), "the log contains a traceback")
        return True
    finally:
        server.close()


FAULTS: dict[str, Callable[[random.Random, Path], bool]] = {
    "kill -9": killed,
    "SIGTERM": terminated,
    "no memory is left": out_of_memory,
    "clients leave": clients_leave,
}
