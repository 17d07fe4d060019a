"""The HTTP API: FastAPI over the service, problem details for every error."""
