"""The library's own HTTP server."""

import gzip
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from stepscope.peers import fetch
from stepscope.server import MAX_CLIENTS, Answer, BadQuery, MetricsServer, PortInUse


def echo(query):
    if "since" not in query:
        raise BadQuery("say since=STEP")
    return Answer(query["since"], "application/json")


@pytest.fixture
def server():
    """One page of some size."""
    pages = {
        "/metrics": lambda query: Answer("up 1\n" * 1000),
        "/broken": lambda query: Answer(str(1 / 0)),
        "/echo": echo,
    }
    made = MetricsServer(pages, port=0)
    yield made
    made.close()


def get(server, path="/metrics", **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", headers=headers)
    return urllib.request.urlopen(request, timeout=5)


def test_serves_a_page_with_its_content_type(server):
    """Prometheus 3 rejects an answer without one."""
    with get(server, "/metrics?x=1") as answer:
        assert answer.read() == b"up 1\n" * 1000
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")


def test_compresses_when_asked(server):
    """Prometheus asks for gzip."""
    with get(server, **{"Accept-Encoding": "gzip"}) as answer:
        body = answer.read()
        assert answer.headers["Content-Encoding"] == "gzip"
    assert len(body) < 200
    assert gzip.decompress(body) == b"up 1\n" * 1000


def test_an_unknown_page_is_named_with_those_that_exist(server):
    """404 says what there is."""
    with pytest.raises(urllib.error.HTTPError) as error:
        get(server, "/nothing")
    assert error.value.code == 404
    assert b"/metrics" in error.value.read()
    error.value.close()


def test_a_page_that_fails_is_answered_and_logged(server, caplog):
    """500, and the server goes on."""
    with pytest.raises(urllib.error.HTTPError) as error:
        get(server, "/broken")
    assert error.value.code == 500
    error.value.close()
    assert "/broken" in caplog.text
    with get(server) as answer:
        assert answer.status == 200


def test_a_page_gets_its_query_and_says_its_content_type(server):
    """What follows the question mark, decoded."""
    with get(server, "/echo?since=4%32") as answer:
        assert answer.read() == b"42"
        assert answer.headers["Content-Type"] == "application/json"


def test_a_bad_query_is_the_clients_fault(server, caplog):
    """400 with the reason, and nothing in the log."""
    with pytest.raises(urllib.error.HTTPError) as error:
        get(server, "/echo")
    assert error.value.code == 400
    assert error.value.read() == b"say since=STEP\n"
    error.value.close()
    assert caplog.text == ""


def test_silent_connections_do_not_pile_up(server):
    """Beyond the limit they are closed at once; when they are gone, scrapers are served again."""
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(MAX_CLIENTS + 10)]
    silent[-1].settimeout(5)
    assert silent[-1].recv(1) == b""
    for connection in silent:
        connection.close()
    for _ in range(50):
        try:
            with get(server) as answer:
                assert answer.status == 200
            break
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    else:
        pytest.fail("no scraper is served any more")


def test_a_port_in_use_is_named_with_the_way_out(server):
    """Two servers cannot share a port."""
    with pytest.raises(PortInUse, match=f"127.0.0.1:{server.port}.*STEPSCOPE_METRICS_PORT"):
        MetricsServer({}, port=server.port)


@pytest.mark.parametrize(("address", "reached"), [("::1", ["[::1]"]), ("::", ["[::1]", "127.0.0.1"])])
def test_ipv6_is_served_and_all_interfaces_are_those_of_ipv4_as_well(address, reached):
    """A literal has brackets, as in a URL."""
    server = MetricsServer({"/metrics": lambda query: Answer("up 1\n")}, port=0, address=address)
    try:
        for host in reached:
            assert fetch(f"{host}:{server.port}", "/metrics") == b"up 1\n"
    finally:
        server.close()


def test_a_forked_child_does_not_keep_the_port():
    """A loader worker may outlive the rank that started it."""
    server = MetricsServer({}, port=0)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        server.close()
        MetricsServer({}, port=server.port).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_scraper_that_hangs_does_not_hold_up_others(server):
    """Connected, half a request sent, and then silence."""
    with socket.create_connection(("127.0.0.1", server.port)) as hanging:
        hanging.sendall(b"GET /metrics HT")
        with get(server) as answer:
            assert answer.status == 200


def test_fifty_scrapers_at_once_are_all_served(server):
    """More than any sensible number of Prometheus servers."""
    statuses = []

    def scrape():
        with get(server) as answer:
            statuses.append((answer.status, len(answer.read())))

    threads = [threading.Thread(target=scrape) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert statuses == [(200, 5000)] * 50
