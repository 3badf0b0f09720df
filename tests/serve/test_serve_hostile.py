# SPDX-License-Identifier: MIT
"""`detops serve`: bombs, endless bodies, other hosts, too many requests, detectors that fail."""

import queue
import re
import socket
import struct
import threading
import time
import zlib
from contextlib import suppress

import numpy as np
import pytest
from page_server import (
    DETECT,
    SMALL,
    ThreeObjects,
    encoded,
    error_message,
    make_detector,
    send,
    send_raw,
    server_with_limits,  # noqa: F401
    serving,
)
from PIL import Image, ImageFile
from torch import nn

from detops.export.load import Exported
from detops.serve import Limits
from detops.serve.connection import Connection


def png(width, height, *chunks):
    """Returns a PNG of the given sides that contains only the given chunks."""

    def chunk(kind, data):
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    all_chunks = [(b"IHDR", header), *chunks, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*item) for item in all_chunks)


@pytest.mark.parametrize(
    "body",
    [
        png(101, 100),
        png(20_000, 20_000, (b"IDAT", zlib.compress(b"\0" * 10_000_000))),
        png(2**31 - 1, 2**31 - 1),
        # A GIF with an oversized screen, and an oversized bitmap.
        b"GIF89a" + struct.pack("<HH", 65535, 65535) + encoded("GIF")[10:],
        encoded("BMP")[:18] + struct.pack("<ii", 100_000, 100_000) + encoded("BMP")[26:],
        encoded("PNG", Image.new("1", (4000, 4000))),
    ],
    ids=["just above", "bomb", "largest", "gif", "bmp", "bits"],
)
def test_images_with_too_many_pixels_are_rejected_undecoded(port, body, monkeypatch):
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *_: pytest.fail("decoded"))
    assert "more than the limit of 10,000 pixels" in error_message(port, 413, "POST", DETECT, body)


def test_image_at_the_pixel_limit_is_accepted(port):
    assert send(port, "POST", DETECT, encoded("PNG", Image.new("L", (100, 100))))[0] == 200


def test_bomb_in_a_png_text_chunk_is_rejected(port):
    text = b"Comment\0\0" + zlib.compress(b"\0" * 100_000_000)
    assert len(text) < SMALL.bytes
    message = error_message(port, 415, "POST", DETECT, png(10, 10, (b"zTXt", text)))
    assert "not a readable image" in message


def request_head(*lines):
    return "\r\n".join([f"POST {DETECT} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def test_too_large_content_length_is_rejected_at_once(port):
    response = send_raw(port, request_head(f"Content-Length: {SMALL.bytes + 1}"))
    assert (
        response.startswith(b"HTTP/1.1 413 ") and b"exceeds the limit of 200,000 bytes" in response
    )


def test_endless_body_is_cut_off(port):
    """Without Content-Length, its size is known only by counting."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request_head("Transfer-Encoding: chunked"))
        data = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
        # The data in flight when the connection closes stays below this amount.
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for _ in range(2000):
                connection.sendall(data)
    assert send(port, "POST", DETECT, encoded())[0] == 200


def test_chunked_body_just_above_the_limit_gets_413(port):
    size = SMALL.bytes + 1
    body = f"{size:x}\r\n".encode() + b"x" * size + b"\r\n0\r\n\r\n"
    response = send_raw(port, request_head("Transfer-Encoding: chunked"), body)
    assert (
        response.startswith(b"HTTP/1.1 413 ") and b"exceeds the limit of 200,000 bytes" in response
    )


def test_chunked_image_is_accepted(port):
    # http.client sends bodies of unknown length in chunks.
    parts = (encoded()[start : start + 100] for start in range(0, len(encoded()), 100))
    assert send(port, "POST", DETECT, parts)[0] == 200


def test_slow_body_times_out(port):
    response = send_raw(port, request_head("Content-Length: 100"), b"x", pause=0.1)
    assert response.startswith(b"HTTP/1.1 408 ")
    assert b"the upload took longer than 0.5 seconds" in response
    # Its slot is free again.
    assert send(port, "POST", DETECT, encoded())[0] == 200


def test_disconnected_client_frees_its_slot(port):
    for _ in range(2 * SMALL.waiting + 3):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(request_head("Content-Length: 1000") + b"x")
    statuses = {send(port, "POST", DETECT, encoded())[0] for _ in range(20)}
    assert 200 in statuses and statuses <= {200, 503}
    assert send(port, "POST", DETECT, encoded())[0] == 200


PARTIAL_HEAD = b"GET / HTTP/1.1\r\nHost: loc"


@pytest.fixture
def connect():
    """Opens one connection to a port for each payload, and sends the payload."""
    opened = []

    def connect(port, *payloads):
        for payload in payloads:
            opened.append(socket.create_connection(("127.0.0.1", port), timeout=20))
            opened[-1].sendall(payload)
        return opened[-len(payloads) :]

    yield connect
    for each in opened:
        each.close()


def is_closed(connection):
    """Waits for the server; returns whether it closed the connection without a response."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_idle_connections_do_not_block_requests(connect):
    """This holds even if there are more of them than the limit of connections."""
    limit = Limits().connections
    with serving({"a": make_detector()}, limits=Limits(head_seconds=1000)) as port:
        idle = connect(port, *[b"", PARTIAL_HEAD] * limit)
        for _ in range(3):
            assert send(port, "GET", "/")[0] == 200
            assert send(port, "POST", DETECT, encoded())[0] == 200
        assert all(map(is_closed, idle[: limit + 1]))  # those that were idle for the longest


def test_active_request_survives_new_connections(connect):
    model = BlockingDetector()
    with serving(
        {"a": make_detector(model)}, limits=Limits(connections=3, head_seconds=1000)
    ) as port:
        body = encoded()
        head = request_head(f"Content-Length: {len(body)}")
        (active,) = connect(port, head + body)
        assert model.entered.acquire(timeout=20)
        connect(port, *[b""] * 10)
        model.may_respond.set()
        assert active.recv(100).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("payload", [b"", PARTIAL_HEAD], ids=["absent", "part"])
def test_missing_request_head_times_out(connect, payload):
    limits = Limits(head_seconds=0.5)
    with serving({"a": make_detector()}, limits=limits) as port:
        assert is_closed(connect(port, payload)[0])


def test_dripping_request_head_times_out(connect):
    with serving({"a": make_detector()}, limits=Limits(head_seconds=0.5)) as port:
        (slow,) = connect(port, PARTIAL_HEAD)
        # A closed connection raises only on a later write.
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for _ in range(400):
                slow.sendall(b"a")
                time.sleep(0.05)


def test_head_timeout_does_not_limit_the_body(connect):
    with serving({"a": make_detector()}, limits=Limits(head_seconds=1)) as port:
        body = encoded()
        (slow,) = connect(port, request_head(f"Content-Length: {len(body)}"))
        time.sleep(1.5)
        slow.sendall(body)
        assert slow.recv(100).startswith(b"HTTP/1.1 200 ")


def test_response_that_is_not_read_is_dropped(connect, monkeypatch):
    """Otherwise its bytes and the connection would stay in memory."""
    dropped, drop = threading.Event(), Connection._drop
    monkeypatch.setattr(Connection, "_drop", lambda self: (drop(self), dropped.set()))
    noise = np.random.default_rng(0).integers(0, 256, (3000, 3000, 3), np.uint8)
    body = encoded("JPEG", Image.fromarray(noise), quality=92)
    with serving({"a": make_detector()}, limits=Limits(seconds=2)) as port:
        (unread,) = connect(port, request_head(f"Content-Length: {len(body)}") + body)
        assert dropped.wait(60)
        received = b""
        with suppress(ConnectionResetError):
            while data := unread.recv(1 << 20):
                received += data
    # Only the contents of the socket buffers arrived.
    assert len(received) < int(re.search(rb"content-length: (\d+)", received)[1])


@pytest.mark.parametrize("keep", ["keep-alive", "close"])
def test_connection_closes_after_its_response(port, keep):
    head = f"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: {keep}\r\n\r\n"
    assert send_raw(port, head.encode()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "lines",
    [
        "GET / HTTP/1.1",  # no Host
        "GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example",
        "NONSENSE",
        "POST /api/detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1",
        "POST /api/detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2",
    ],
)
def test_invalid_http_is_rejected(port, lines):
    response = send_raw(port, f"{lines}\r\n\r\n".encode())
    assert response.startswith(b"HTTP/1.1 400 ")


# If a server reads only part of a head, the rest may arrive later and discard its response.
@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 4_000,
        b"GET /" + b"x" * 20_000,
    ],
    ids=["a field", "fields", "path"],
)
def test_oversized_request_head_is_rejected(port, head):
    response = send_raw(port, head)
    assert response.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "localhost.evil.example", "localhost@evil.example",
     "127.0.0.2", "2130706433", "[::2]", "", "localhost:", "localhost:80:80", "localhost/x"],
)  # fmt: skip
def test_other_hosts_are_rejected(port, host):
    for path in ("/", "/api/about"):
        assert error_message(port, 421, "GET", path, headers={"Host": host}).startswith(
            "Host: expected"
        )


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:65535", "[::1]", "[::1]:80"]
)
def test_own_hosts_are_accepted(port, host):
    assert send(port, "GET", "/", headers={"Host": host})[0] == 200


def test_additional_hosts_can_be_allowed():
    with serving({"a": make_detector()}, hosts=["photos.example"]) as port:
        assert send(port, "GET", "/", headers={"Host": "Photos.example"})[0] == 200
        assert send(port, "GET", "/")[0] == 421


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:5", 200),
        ("https://localhost:5", 200),
        ("http://localhost:6", 403),
        ("http://localhost", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("", 403),
        ("file://", 403),
    ],
)
def test_requests_of_other_origins_are_rejected(port, origin, status):
    headers = {"Host": "localhost:5", "Origin": origin}
    assert send(port, "POST", DETECT, encoded(), headers)[0] == status


@pytest.mark.parametrize(
    "path",
    ["/app.py", "/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "/static/index.html",
     "//etc/passwd", "/etc/passwd", "/api/samples/..%2f..%2fapp.py", "/api/samples/", "/api",
     "/index.html%00", "/.git/config", "/docs", "/openapi.json"],
)  # fmt: skip
def test_paths_outside_the_page_are_not_found(port, path):
    status, _, content = send(port, "GET", path)
    assert status in (307, 404) and b"import" not in bytes(str(content), "utf-8")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "query: expected model"),
        ("?model=c", "model: expected one of a, b, got 'c'"),
        ("?model=../a", "model: expected one of a, b, got '../a'"),
        ("?model=a&model=a", "query: expected model, once for each model"),
        ("?model=a&x=1", "and nothing else"),
    ],
)
def test_invalid_queries_are_rejected(port, query, message):
    assert message in error_message(port, 400, "POST", f"/api/detect{query}", encoded())


class BlockingDetector(ThreeObjects):
    """Blocks until it may answer, and counts concurrent calls."""

    def __init__(self):
        super().__init__()
        self.entered, self.may_respond = threading.Semaphore(0), threading.Event()
        self.concurrent = self.max_concurrent = 0

    def detections(self, image):
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        self.entered.release()
        assert self.may_respond.wait(20)
        self.concurrent -= 1
        return super().detections(image)


def test_requests_run_one_at_a_time_and_excess_gets_503():
    model, responses = BlockingDetector(), queue.Queue()
    with serving({"a": make_detector(model)}, limits=Limits(waiting=2)) as port:

        def request():
            responses.put(send(port, "POST", DETECT, encoded()))

        threads = [threading.Thread(target=request) for _ in range(5)]
        threads[0].start()
        assert model.entered.acquire(timeout=20)
        for thread in threads[1:]:
            thread.start()
        # One runs and two wait; the others are rejected at once.
        for _ in range(2):
            status, headers, content = responses.get(timeout=20)
            assert status == 503 and headers["Retry-After"] == "1"
            assert content["error"].startswith("busy: 2 requests are waiting")
        assert send(port, "GET", "/api/ops/nms")[0] == 200  # other requests are still answered
        model.may_respond.set()
        assert [responses.get(timeout=20)[0] for _ in range(3)] == [200] * 3
        for thread in threads:
            thread.join()
        assert model.max_concurrent == 1
        assert send(port, "POST", DETECT, encoded())[0] == 200


class FailingDetector(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, images):
        raise self.error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("tried to allocate 9 bytes"), "the detector failed: tried to allocate 9"),
        (MemoryError(), "the detector failed: not enough memory"),
        (KeyError("secret"), "the server failed; see its console"),
    ],
)
def test_failing_detector_is_reported_and_the_server_continues(error, message):
    with serving(
        {"a": make_detector(FailingDetector(error)), "b": make_detector()}, limits=SMALL
    ) as port:
        assert error_message(port, 500, "POST", DETECT, encoded()).startswith(message)
        assert send(port, "POST", "/api/detect?model=b", encoded())[0] == 200


@pytest.mark.slow
def test_exported_detector_reports_an_unsupported_image():
    exported = Exported(FailingDetector(AssertionError("Guard failed: s0 > 2")), {})
    with serving({"a": make_detector(exported)}, limits=SMALL) as port:
        text = error_message(port, 500, "POST", DETECT, encoded())
        assert text.startswith("the detector failed: the exported detector rejects an image of sh")
        assert "Guard" not in text


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("bytes", 0, "Limits: expected bytes above 0, got 0"),
        ("pixels", -1, "Limits: expected pixels above 0, got -1"),
        ("head_seconds", 0, "Limits: expected head_seconds above 0, got 0"),
        ("seconds", float("nan"), "Limits: expected seconds above 0, got nan"),
        ("score_floor", 1.5, "Limits: expected score_floor in 0..1, got 1.5"),
    ],
)
def test_invalid_limits_raise(option, value, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Limits(**{option: value})
