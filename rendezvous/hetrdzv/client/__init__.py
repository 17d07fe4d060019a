"""The typed HTTP client of a hetserver."""

from hetrdzv.client.client import Client
from hetrdzv.client.urls import normalize_url, parse_server_urls

__all__ = ["Client", "normalize_url", "parse_server_urls"]
