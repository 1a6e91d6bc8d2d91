"""What a server counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    """The numbers of one server."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "prism_requests_total", "Requests by route and status; 499: the client hung up.", ["route", "status"],
            registry=registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "prism_request_seconds", "Seconds from a request's head to its answer.", ["route"], registry=registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
        )  # fmt: skip
        self.waiting_requests = Gauge(
            "prism_waiting_requests", "Requests that wait or are being scored.", registry=registry
        )
        self.waiting_tokens = Gauge("prism_waiting_tokens", "Tokens of these requests.", registry=registry)
        self.tokens = Counter("prism_tokens_total", "Tokens of scored items.", registry=registry)
        self.cached_tokens = Counter("prism_cached_tokens_total", "Those found in the cache.", registry=registry)
        self.batch_items = Histogram(
            "prism_batch_items", "Solutions and trees scored together.", registry=registry,
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
        )  # fmt: skip
        self.model_seconds = Counter("prism_model_seconds_total", "Seconds that models worked.", registry=registry)
        self.cache_bytes = Gauge("prism_cache_bytes", "Bytes of kept states.", ["model"], registry=registry)

    def batches(self, items: int, tokens: int, cached: int, seconds: float) -> None:
        """Count one batch."""
        self.batch_items.observe(items)
        self.tokens.inc(tokens)
        self.cached_tokens.inc(cached)
        self.model_seconds.inc(seconds)

    def page(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self.registry)
