"""System calls: detops uses no network, and writes only the files that are named."""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import urlopen

import pytest
import tiny_training as tiny
from faults.process import children
from paths import PACKAGE, SUPPORT
from PIL import Image

from detops.cli.options import SHAPES_WEIGHTS
from detops.data.shapes import export

# Calls that write, create, rename or remove files, and socket calls.
CALLS = "open,openat,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,symlinkat"
CALLS += ",unlink,unlinkat,rmdir,truncate,ftruncate,chmod,fchmodat,socket,connect,bind,listen"
WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND")
OPENS = re.compile(r"\b(open|openat|creat)\(")
# A file name, after its folder if that is not the current one.
FILE_NAME = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"([^"]*)"')
LOCAL_SOCKET = re.compile(
    r"socket\(AF_(UNIX|NETLINK)|(connect|bind)\(\d+<[^>]*>, {sa_family=AF_UNIX|listen\("
)
# Memory and terminals, which appear as files.
SPECIAL_FILES = ("/dev/", "/proc/self/")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("strace"), reason="needs strace"),
    pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="sanitizers do as they like"),
]


def start(folder, *command):
    """Starts Python with a command under strace."""
    log = folder / "calls"
    trace = f"strace -f --seccomp-bpf -qq -y -s 300 -e trace={CALLS} -e signal=none -o".split()
    environment = os.environ | {
        "PYTHONPATH": f"{PACKAGE.parent}:{PACKAGE.parent / 'demo'}:{SUPPORT}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(folder / "home"),
        "XDG_CACHE_HOME": "",
    }
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    (folder / "home").mkdir()
    return subprocess.Popen(
        [*trace, log, sys.executable, *map(str, command)],
        env=environment,
        cwd=folder / "home",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(folder, process, status=0):
    """Returns the CALLS that succeeded in a process and its children, as strace prints them."""
    _, errors = process.communicate(timeout=600)
    if "ptrace" in errors and process.returncode:
        pytest.skip(f"strace may not watch: {errors.splitlines()[0]}")
    assert process.returncode == status, errors
    calls = (folder / "calls").read_text().splitlines()
    lines = [line.partition(" ")[2].strip() for line in calls]
    return [line for line in lines if not re.search(r"= -1 |= \?|^\+\+\+", line)]


def trace_calls(folder, *command):
    """Runs a command under strace to its end; returns the CALLS that succeeded."""
    return end(folder, start(folder, *command))


def check_calls(calls, *folders):
    """Checks that sockets stay on this machine and files are written only in these places."""
    for line in calls:
        if line.startswith(("socket(", "connect(", "bind(", "listen(")):
            assert LOCAL_SOCKET.match(line), line
            continue
        if OPENS.match(line) and not WRITES.search(line):
            continue
        paths = [os.path.join(*found) for found in FILE_NAME.findall(line)]
        for path in paths[-1:] if line.startswith("symlink") else paths:
            allowed = path.startswith((*SPECIAL_FILES, *map(str, folders)))
            assert allowed, f"{line} writes outside of {folders}"


@pytest.fixture
def temporary_folder(monkeypatch):
    """Makes the folder of temporary files, in which detops must leave nothing.

    Its name is short: data workers open sockets in it, whose names have at most 107 bytes.
    """
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)
        # torchvision imports a part of PyTorch that creates a folder on import.
        leftovers = list(Path(name).iterdir())
        assert all("torchinductor" in p.name and not list(p.iterdir()) for p in leftovers)


EVERY_OP = """
import torch, detops
from raw_calls import calls, schema_ops
assert set(calls()) == set(schema_ops())
for op, given in calls().items():
    getattr(torch.ops.detops, op)(**given)
"""


def test_import_and_ops_write_only_temporary_files(tmp_path, temporary_folder):
    check_calls(trace_calls(tmp_path, "-c", EVERY_OP), temporary_folder)


@pytest.mark.exhaustive
def test_detect_writes_only_its_output(tmp_path, temporary_folder):
    Image.new("RGB", (300, 200), (90, 120, 60)).save(tmp_path / "a.png")
    output = tmp_path / "out"
    options = ["--output", output, "--json", output / "found.json", "--device", "cpu"]
    calls = trace_calls(tmp_path, "-m", "detops", "detect", tmp_path / "a.png", *options)
    check_calls(calls, output, temporary_folder)
    assert {p.name for p in output.iterdir()} >= {"a.png", "found.json"}


@pytest.mark.exhaustive
def test_eval_writes_only_its_output(tmp_path, temporary_folder):
    output = tmp_path / "out"
    options = ["--weights", SHAPES_WEIGHTS, "--data", "shapes:test?length=2&size=64"]
    options += ["--output", output / "results.json", "--device", "cpu"]
    check_calls(trace_calls(tmp_path, "-m", "detops", "eval", *options), output, temporary_folder)
    assert [p.name for p in output.iterdir()] == ["results.json"]


@pytest.mark.exhaustive
def test_export_writes_only_its_file(tmp_path, temporary_folder):
    file = tmp_path / "out" / "a.onnx"
    image = next(export(tmp_path / "data", "test", length=1, size=96).parent.rglob("*.png"))
    options = ["--weights", SHAPES_WEIGHTS, "--image", image, "--without-resizing"]
    options += ["--format", "onnx", "--output", file]
    check_calls(
        trace_calls(tmp_path, "-m", "detops", "export", *options), file.parent, temporary_folder
    )
    assert [p.name for p in file.parent.iterdir()] == [file.name]


@pytest.mark.exhaustive
def test_serve_opens_only_its_listening_socket(tmp_path, temporary_folder):
    """It listens at the given address; the server accepts connections and opens none."""
    pytest.importorskip("uvicorn")
    options = ["--port", 0, "--weights", SHAPES_WEIGHTS, "--device", "cpu"]
    process = start(tmp_path, "-m", "detops", "serve", *options)
    try:
        address = process.stdout.readline().strip()
        if address:
            content = io.BytesIO()
            Image.new("RGB", (64, 48), (90, 120, 60)).save(content, "PNG")
            name = SHAPES_WEIGHTS.parent.name
            with urlopen(f"{address}api/detect?model={name}", content.getvalue(), 60) as response:
                assert response.status == 200
            (server,) = children(process.pid)
            os.kill(server, signal.SIGTERM)
        calls = end(tmp_path, process, 128 + signal.SIGTERM)
    finally:
        process.kill()
    socket_calls = [line for line in calls if line.startswith(("socket(AF_INET", "bind("))]
    created, bound = socket_calls
    assert "AF_INET, SOCK_STREAM" in created
    assert 'sin_port=htons(0), sin_addr=inet_addr("127.0.0.1")' in bound
    check_calls([line for line in calls if line not in socket_calls], temporary_folder)


def test_train_writes_only_its_output_and_a_font_list(tmp_path, temporary_folder):
    arguments = tiny.arguments(tmp_path / "run", "DATALOADER.NUM_WORKERS", 1)
    # matplotlib draws results.png, and writes a list of fonts.
    fonts = [tmp_path / "home" / name for name in (".cache", ".config")]
    check_calls(
        trace_calls(tmp_path, "-m", "detops", *arguments),
        tmp_path / "run",
        temporary_folder,
        *fonts,
    )
    assert (tmp_path / "run" / "weights.pt").exists()
    kept = {p.relative_to(tmp_path / "home").parts[1:2] for p in (tmp_path / "home").rglob("*")}
    assert kept == {(), ("matplotlib",)}
