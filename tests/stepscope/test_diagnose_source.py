"""The Prometheus that a diagnosis asks: a fake one, over real HTTP."""

import base64
import math
import re
import socket
import threading

import pytest

from fake_prometheus import fake_prometheus
from stepscope.diagnosis import Prometheus, SourceError, source

AT = 1_700_000_000.5


@pytest.fixture
def fake():
    with fake_prometheus() as made:
        yield made


def test_a_query_is_posted_with_its_time(fake):
    """To /api/v1/query; values come back as numbers, with their labels."""
    fake.vector(({"rank": "5"}, "0.25"), ({"rank": "6"}, "3"))
    assert Prometheus(fake.url).query('a{b="c"} + 1', AT) == [({"rank": "5"}, 0.25), ({"rank": "6"}, 3.0)]
    assert fake.asked == [("/api/v1/query", {"query": 'a{b="c"} + 1', "time": "1700000000.500"}, None)]


def test_numbers_that_are_not_finite_are_kept(fake):
    """As Prometheus writes them."""
    fake.vector(({}, "NaN"), ({}, "+Inf"), ({}, "-Inf"))
    (_, nan), (_, high), (_, low) = Prometheus(fake.url).query("x", AT)
    assert math.isnan(nan)
    assert (high, low) == (math.inf, -math.inf)


def test_a_scalar_is_a_value_without_labels(fake):
    """Such as the answer to ``scalar(x)``."""
    fake.says({"status": "success", "data": {"resultType": "scalar", "result": [AT, "4"]}})
    assert Prometheus(fake.url).query("4", AT) == [({}, 4.0)]


def test_warnings_beside_an_answer_are_ignored(fake):
    """A part of a federated store that is away, for example."""
    fake.vector(({}, "1"), warnings=["a store is away"], infos=["metric might not be a counter"])
    assert Prometheus(fake.url).query("x", AT) == [({}, 1.0)]


def test_the_runs_are_those_with_steps(fake):
    """By name; a series without that label is no run."""
    fake.vector(({"run": "b"}, "4"), ({"run": "a"}, "8"), ({}, "1"))
    assert Prometheus(fake.url).runs(AT) == ["a", "b"]
    assert "training_steps_total" in fake.asked[0][1]["query"]


@pytest.mark.parametrize("ending", ["/prom", "/prom/"])
def test_a_path_is_kept(fake, ending):
    """Prometheus behind a proxy, or with --web.external-url."""
    Prometheus(fake.url + ending).query("x", AT)
    assert fake.asked[0][0] == "/prom/api/v1/query"


def test_credentials_of_the_url_are_sent_and_never_shown(fake):
    """Basic authentication, with percent signs decoded; an error names the host alone."""
    fake.says({"status": "error", "errorType": "unavailable", "error": "later"}, 503)
    asked = Prometheus(fake.url.replace("://", "://me:s%40cret@"))
    with pytest.raises(SourceError) as error:
        asked.query("x", AT)
    assert base64.b64decode(fake.asked[0][2].removeprefix("Basic ")) == b"me:s@cret"
    assert "cret" not in str(error.value) + asked.url
    assert fake.url in str(error.value)


def test_a_host_without_a_scheme_is_taken_for_http(fake):
    """As people type it."""
    assert Prometheus(fake.url.removeprefix("http://")).runs(AT) == ["cluster"]


@pytest.mark.parametrize(
    "url", ["ftp://host", "http://", "", "http://host:port", "http://host:99999", "http://me:cret@host:port"]
)
def test_what_is_no_url_is_refused(url):
    """With an example, and without a password."""
    with pytest.raises(SourceError, match=r"no address of a Prometheus.*http://127.0.0.1:9090") as error:
        Prometheus(url)
    assert "cret" not in str(error.value)


def test_a_proxy_is_not_asked_for_the_loopback(fake, monkeypatch):
    """It would look for Prometheus on its own machine."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert Prometheus(fake.url).runs(AT) == ["cluster"]


REFUSED = {"status": "error", "errorType": "bad_data", "error": "1:2: parse error: unexpected end of input"}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (REFUSED, 400, "HTTP 400: bad_data: 1:2: parse error: unexpected end of input; the query was: sum("),
        ({**REFUSED, "errorType": "execution"}, 422, "HTTP 422: execution: 1:2"),
        (REFUSED, 200, "refuses: bad_data: 1:2: parse error"),
        ({"status": "error", "errorType": "unavailable", "error": "starting"}, 503, "HTTP 503: unavailable: starting"),
        (b"<html>Service Unavailable</html>", 503, "HTTP 503: Service Unavailable. It is starting"),
        (b"", 401, "user:password@host"),
        (b"no", 403, "refuses these credentials"),
        (b"404 page not found", 404, "Is it a Prometheus, and is the path right? Name the right one with --prometheus"),
        (b"[]", 500, "HTTP 500: Internal Server Error"),
        (b"<html>Grafana</html>", 200, "answers, but not as Prometheus does"),
        (b"[1]", 200, "answers, but not as Prometheus does"),
        (b"[" * 100_000, 200, "answers, but not as Prometheus does"),
        ({"data": {}}, 200, "answers, but not as Prometheus does"),
        ({"status": "success"}, 200, "answers, but not as Prometheus does"),
        ({"status": "success", "data": {"resultType": "matrix", "result": []}}, 200, "no vector of numbers"),
        ({"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}}]}}, 200, "no vector"),
        ({"status": "success", "data": {"resultType": "vector", "result": None}}, 200, "no vector"),
        ({"status": "success", "data": None}, 200, "no vector"),
    ],
)
def test_an_answer_that_is_of_no_use_says_why(fake, body, status, said):
    """In Prometheus's own words, where it has any; and what to do."""
    fake.says(body, status)
    with pytest.raises(SourceError, match=re.escape(said)):
        Prometheus(fake.url).query("sum(", AT)


def test_a_redirect_to_a_login_page_is_no_answer(fake):
    """A POST that is redirected arrives as a GET, which nothing here answers."""
    fake.says(b"", 302, Location=f"{fake.url}/login")
    with pytest.raises(SourceError, match="HTTP 501"):
        Prometheus(fake.url).query("x", AT)


def test_nobody_at_that_address_is_said_with_the_way_out():
    """What to give with --prometheus."""
    with pytest.raises(
        SourceError, match=r"no Prometheus answers at http://127.0.0.1:1: Connection refused.*--prometh"
    ):
        Prometheus("http://127.0.0.1:1").query("x", AT)


def test_an_answer_that_takes_too_long_is_given_up(fake):
    """After the timeout."""
    fake.pause.clear()
    with pytest.raises(SourceError, match="takes too long"):
        Prometheus(fake.url, timeout_seconds=0.1).query("x", AT)


def test_a_server_that_speaks_no_http_is_no_prometheus():
    """Such as a port of something else."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak():
            client, _ = listener.accept()
            with client:
                client.recv(65536)
                client.sendall(b"220 mail ready\r\n")

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(SourceError, match="no Prometheus answers"):
            Prometheus(f"http://127.0.0.1:{listener.getsockname()[1]}").query("x", AT)
        thread.join()


def test_an_answer_without_end_is_not_read(fake, monkeypatch):
    """Nor held in memory."""
    monkeypatch.setattr(source, "LARGEST_ANSWER_BYTES", 10)
    with pytest.raises(SourceError, match="answers with more than"):
        Prometheus(fake.url).query("x", AT)
