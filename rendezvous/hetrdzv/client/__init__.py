"""The typed HTTP client of a hetserver."""

from hetrdzv.client.client import Client
from hetrdzv.client.urls import normal_url, parse_server_urls

__all__ = ["Client", "normal_url", "parse_server_urls"]
