"""What is asked of the system: no network, and no file is written but those that are named."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_training as tiny
from PIL import Image

import detops

ROOT = Path(detops.__file__).parents[1]
# Files that are opened to be written, made, renamed or removed; and sockets.
CALLS = "open,openat,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,symlinkat"
CALLS += ",unlink,unlinkat,rmdir,truncate,ftruncate,chmod,fchmodat,socket,connect,bind,listen"
WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND")
OPENED = re.compile(r"\b(open|openat|creat)\(")
# The folder that a name is in, where it is another than the current one, and the name.
NAMED = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"([^"]*)"')
LOCAL = re.compile(
    r"socket\(AF_(UNIX|NETLINK)|(connect|bind)\(\d+<[^>]*>, {sa_family=AF_UNIX|listen\("
)
# Memory and the terminal, in the guise of files.
NO_FILES = ("/dev/", "/proc/self/")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("strace"), reason="needs strace"),
    pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="sanitizers do as they like"),
]


def calls_of(folder, *command):
    """What of CALLS succeeded in a process and its children, as strace writes it."""
    log = folder / "calls"
    trace = ["strace", "-f", "-qq", "-y", "-s", "300", "-e", f"trace={CALLS}", "-e", "signal=none"]
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'demo'}:{Path(__file__).parent}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "temporary"),
        "XDG_CACHE_HOME": "",
    }
    for name in ("home", "temporary"):
        (folder / name).mkdir()
    result = subprocess.run(
        [*trace, "-o", log, sys.executable, *map(str, command)],
        env=environment,
        cwd=folder / "home",
        capture_output=True,
        text=True,
    )
    if "ptrace" in result.stderr and result.returncode:
        pytest.skip(f"strace may not watch: {result.stderr.splitlines()[0]}")
    assert result.returncode == 0, result.stderr
    lines = [line.partition(" ")[2].strip() for line in log.read_text().splitlines()]
    return [line for line in lines if not re.search(r"= -1 |= \?|^\+\+\+", line)]


def check(calls, *places):
    """No socket but between processes of this machine, no file but in these places."""
    for line in calls:
        if line.startswith(("socket(", "connect(", "bind(", "listen(")):
            assert LOCAL.match(line), line
            continue
        if OPENED.match(line) and not WRITES.search(line):
            continue
        named = [os.path.join(*found) for found in NAMED.findall(line)]
        for path in named[-1:] if line.startswith("symlink") else named:
            allowed = path.startswith((*NO_FILES, *map(str, places)))
            assert allowed, f"{line} writes outside of {places}"


@pytest.fixture
def temporary(tmp_path):
    """Of temporary files; nothing of ours must be left in it."""
    folder = tmp_path / "temporary"
    yield folder
    # torchvision imports a part of PyTorch that makes a folder as it is imported.
    assert all("torchinductor" in p.name and not list(p.iterdir()) for p in folder.iterdir())


def test_import_and_ops(tmp_path):
    program = "import torch, detops; detops.nms(torch.rand(9, 4), torch.rand(9), 0.5)"
    check(calls_of(tmp_path, "-c", program))


def test_detection(tmp_path, temporary):
    Image.new("RGB", (300, 200), (90, 120, 60)).save(tmp_path / "a.png")
    output = tmp_path / "out"
    options = ["--output", output, "--json", output / "found.json", "--device", "cpu"]
    calls = calls_of(tmp_path, "-m", "detops", "detect", tmp_path / "a.png", *options)
    check(calls, output, temporary)
    assert {p.name for p in output.iterdir()} >= {"a.png", "found.json"}


def test_training(tmp_path, temporary):
    arguments = tiny.arguments(tmp_path / "run", "DATALOADER.NUM_WORKERS", 1)
    # matplotlib, which draws results.png, keeps a list of fonts.
    fonts = [tmp_path / "home" / name for name in (".cache", ".config")]
    check(calls_of(tmp_path, "-m", "detops", *arguments), tmp_path / "run", temporary, *fonts)
    assert (tmp_path / "run" / "weights.pt").exists()
    kept = {p.relative_to(tmp_path / "home").parts[1:2] for p in (tmp_path / "home").rglob("*")}
    assert kept == {(), ("matplotlib",)}
