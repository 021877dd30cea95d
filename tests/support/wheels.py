"""Tiny wheels that stand for torch and its companions, and an index that serves them as PEP 503 says."""

from __future__ import annotations

import base64
import hashlib
import html
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote


def wheel(folder: Path, name: str, version: str, files: dict[str, str], said: str = "", requires: str = "") -> None:
    """A tiny wheel. ``said`` is the version in its file's name."""
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    info = f"{name}-{version}.dist-info"
    content = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{said or version}-py3-none-any.whl", "w") as archive:
        for path, text in content.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(text.encode())}")
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]) + "\n")


def torch_wheel(folder: Path, version: str, cuda: str | None, says: str = "", requires: str = "") -> None:
    init = f"from torch import version\n__version__ = {says or version!r}\n"
    wheel(
        folder,
        "torch",
        version,
        {"torch/__init__.py": init, "torch/version.py": f"cuda = {cuda!r}\n"},
        requires=requires,
    )


@contextmanager
def index(folder: Path, let_in: str = "") -> Iterator[str]:
    """A package index of the wheels in a folder; its address. ``let_in`` is the user and password (``user:password``)
    that it asks for with every file and page; all other files of the folder are there too."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]  # as the server calls it

        def do_GET(self) -> None:
            told = self.headers.get("Authorization", "").removeprefix("Basic ")
            if let_in and base64.b64decode(told).decode() != let_in:
                self.send_error(401)
                return
            if not self.path.startswith("/simple/"):
                super().do_GET()
                return
            name = self.path.strip("/").rpartition("/")[2].replace("-", "_")
            files = [path.name for path in sorted(folder.glob("*.whl")) if path.name.partition("-")[0] == name]
            links = "".join(f'<a href="/{quote(file)}">{html.escape(file)}</a>' for file in files)
            self.send_response(200 if files else 404)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(links.encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
