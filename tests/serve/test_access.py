"""Who may use a server, and what its log says of requests."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest

from gated_scorer import GatedScorer
from prism_prm.errors import ConfigError
from prism_prm.serve.serve_prms import serve_prms
from prism_prm.serve.settings import KeyRing, ServeSettings, read_keys
from serving_prms import running

BODY = {"items": [{"problem": "a secret problem", "steps": ["s"]}]}
PATHS = [
    "/ready",
    "/version",
    "/metrics",
    "/v1/models",
    "/v1/models/m",
    "/docs",
    "/docs/files/swagger-ui.css",
    "/openapi.json",
    "/v1/documents",
    "/v1/documents/0",
    "/page/nosuch.js",
    "/x",
]


def test_a_key_guards_every_route_but_health_and_the_page() -> None:
    with running({"m": GatedScorer()}, ("first", "second")) as server:
        for path in ("/health", "/", "/page/app.js", "/page/page.css"):
            assert server.client.get(path).status_code == 200, path
        for path in PATHS:
            assert server.client.get(path).status_code == 401, path
        for path in ("/pooling", "/v1/steps", "/get_reward", "/health"):
            assert server.post(path, BODY).status_code in (401, 405), path
        for header in ("first", "Bearer", "Bearer firs", "Bearer firstt", "Basic first", "Bearer ké"):
            refused = server.post("/v1/steps", BODY, headers={"Authorization": header.encode()})
            assert refused.status_code == 401, header
            assert refused.headers["WWW-Authenticate"] == "Bearer"
        for key in ("first", "second"):
            assert server.post("/v1/steps", BODY, headers={"Authorization": f"Bearer {key}"}).status_code == 200


def test_a_body_without_a_key_is_not_read() -> None:
    with running({"m": GatedScorer()}, ("key",), max_body=100) as server:
        assert httpx.post(f"{server.url}/v1/steps", content=b"x" * 10**6).status_code == 401


def test_digests_of_all_keys_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever key it is, and whether it is one, the same work is done."""
    import hmac

    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest
    monkeypatch.setattr(
        "prism_prm.serve.settings.hmac.compare_digest", lambda a, b: compared.append((len(a), len(b))) or real(a, b)
    )
    ring = KeyRing(["a", "bb", "ccc"])
    found = [ring.owner(header) for header in ("Bearer a", "Bearer ccc", "Bearer no", "")]
    assert found == [0, 2, None, None]
    assert compared == [(32, 32)] * 12


def test_others_need_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRISM_API_KEY", raising=False)
    for host in ("127.0.0.1", "::1", "localhost", "127.3.2.1"):
        assert not read_keys(ServeSettings(host=host))
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"):
        with pytest.raises(ConfigError, match="without a key"):
            read_keys(ServeSettings(host=host))
        assert not read_keys(ServeSettings(host=host, allow_anyone=True))
    (tmp_path / "keys").write_text("# mine\n\nfirst\nsecond \n")
    ring = read_keys(ServeSettings(host="0.0.0.0", keys=tmp_path / "keys"))
    assert [ring.owner(f"Bearer {key}") for key in ("first", "second", "# mine")] == [0, 1, None]
    monkeypatch.setenv("PRISM_API_KEY", "third")
    assert read_keys(ServeSettings(host="0.0.0.0")).owner("Bearer third") == 0
    for text, message in (("# none\n", "no keys found"), ("two words\n", "keys:1: invalid key")):
        (tmp_path / "keys").write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_keys(ServeSettings(keys=tmp_path / "keys"))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(ServeSettings(keys=tmp_path / "nosuch"))


def test_the_key_of_another_server_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same variable would open this server, and tell that one how."""
    place = "prism:http://127.0.0.1:9#m"
    monkeypatch.setenv("PRISM_API_KEY", "theirs")
    with pytest.raises(ConfigError, match=r"--prm prism:http://127.0.0.1:9#m: \$PRISM_API_KEY is sent to that server"):
        serve_prms({"m": place}, ServeSettings(port=0))
    assert not read_keys(ServeSettings(allow_anyone=True), place)
    (tmp_path / "keys").write_text("ours\n")
    ring = read_keys(ServeSettings(keys=tmp_path / "keys"), place)
    assert [ring.owner(f"Bearer {key}") for key in ("ours", "theirs")] == [0, None]
    monkeypatch.delenv("PRISM_API_KEY")
    assert not read_keys(ServeSettings(), place)


def test_a_web_page_cannot_reach_a_local_server_by_a_name_of_its_own() -> None:
    with running({"m": GatedScorer()}) as server:
        for host, status in (
            ("127.0.0.1:8000", 200),
            ("0.0.0.0:8000", 200),
            ("[::1]:8000", 200),
            ("evil.example", 403),
        ):
            assert server.post("/v1/steps", BODY, headers={"Host": host}).status_code == status, host


@pytest.mark.parametrize("asked", [False, True])
def test_text_is_logged_only_if_asked(asked: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), running({"m": GatedScorer()}, log_text=asked) as server:
        server.post("/v1/steps", BODY)
        server.post("/v1/steps", {"items": [{"problem": "a secret problem", "steps": "not a list"}]})
    assert ("secret" in caplog.text) == asked
