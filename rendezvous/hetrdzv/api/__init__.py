"""The HTTP API: FastAPI routers over the service, problem details for every error."""
