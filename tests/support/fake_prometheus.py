"""A Prometheus that answers what a test wants, over real HTTP."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl


class FakePrometheus(ThreadingHTTPServer):
    """Answers every POST with ``status`` and ``body``, and remembers what it was asked."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.pause = threading.Event()
        self.pause.set()
        self.runs("cluster")

    def says(self, body, status=200, **headers):
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.status, self.headers = status, headers

    def vector(self, *samples, **more):
        result = [{"metric": labels, "value": [0, value]} for labels, value in samples]
        self.says({"status": "success", "data": {"resultType": "vector", "result": result}, **more})

    def runs(self, *names):
        self.vector(*(({"run": name}, "32") for name in names))


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        self.server.asked.append((self.path, form, self.headers.get("Authorization")))
        self.server.pause.wait(5)
        with contextlib.suppress(ConnectionError):
            self.send_response(self.server.status)
            for name, value in self.server.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(self.server.body)

    def log_message(self, format, *args):
        """Quiet."""


@contextlib.contextmanager
def fake_prometheus():
    """One that serves."""
    made = FakePrometheus()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.pause.set()
        made.shutdown()
        made.server_close()
        thread.join()
