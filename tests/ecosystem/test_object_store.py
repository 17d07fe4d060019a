"""`--snapshot-to s3://...`: through s3fs to moto's server, which speaks S3's protocol."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.ecosystem import VENV, needs_frameworks
from tests.support.cluster import wait_for
from tests.support.servers import ROOT, Hetserver, free_port

pytestmark = needs_frameworks


@pytest.fixture
def store() -> Iterator[str]:
    """The URL of an S3 with the bucket `checkpoints`."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [str(VENV / "bin" / "moto_server"), "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(lambda: _has_bucket(url), "an S3 with a bucket")
            yield url
        finally:
            server.terminate()


def _has_bucket(url: str) -> bool:
    try:
        return httpx.put(f"{url}/checkpoints", trust_env=False).is_success
    except httpx.TransportError:
        return False


def test_the_next_job_goes_on_from_what_is_in_a_bucket(store: str, tmp_path: Path) -> None:
    access = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "sesame", "AWS_ENDPOINT_URL": store}

    def job(server: str, epochs: int) -> str:
        command = [str(VENV / "bin" / "hetagent"), "--server", server, "--group", "g", "--nnodes", "1"]
        command += ["--device", "cpu", "--gpus", "2", "--snapshot-dir", str(tmp_path)]
        command += ["--snapshot-to", "s3://checkpoints/jobs"]
        command += [str(ROOT / "examples/first/train.py"), "--epochs", str(epochs)]
        done = subprocess.run(
            command, env={**os.environ, **access}, capture_output=True, text=True, check=False, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    with Hetserver() as server:
        assert "snapshot step 20 is on disk: s3://checkpoints/jobs/g/step-20-round-1-job-" in job(
            server.url, 1
        )
        said = job(server.url, 2)
    assert "begins from the snapshot of step 20 on disk" in said
    assert "snapshot step 40 is on disk: s3://checkpoints/jobs/g/step-40-round-2-job-" in said
    listed = httpx.get(f"{store}/checkpoints", trust_env=False).text
    assert re.search(r"jobs/g/step-40-round-2-job-\w+/\.metadata", listed)
    assert "sesame" not in said
