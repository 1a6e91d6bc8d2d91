"""Traffic for locust, which runs in a virtual environment of its own: every answer is compared with the right one."""

import json
import os

from locust import HttpUser, constant_throughput, task  # type: ignore[import-not-found,unused-ignore]

BODY = json.loads(os.environ["PRISM_LOAD_BODY"])
RIGHT = json.loads(os.environ["PRISM_LOAD_RIGHT"])
RATE = float(os.environ["PRISM_LOAD_RATE"])


class Client(HttpUser):  # type: ignore[misc,unused-ignore]
    """Sends requests at its rate; a refusal is as good an answer as a right one, anything else is a failure."""

    wait_time = constant_throughput(RATE)

    @task
    def ask(self) -> None:
        """One request."""
        with self.client.post("/v1/steps", json=BODY, catch_response=True) as answer:
            if answer.status_code == 429 and int(answer.headers["Retry-After"]) > 0:
                answer.request_meta["name"] = "refused"
                answer.success()
                return
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}")
                return
            answer.request_meta["name"] = "accepted"
            for item in answer.json()["items"]:
                found = item["probabilities"]
                if len(found) != len(RIGHT) or any(abs(a - b) > 1e-5 for a, b in zip(found, RIGHT, strict=True)):
                    answer.failure(f"wrong: {found}")
                    return
            answer.success()
