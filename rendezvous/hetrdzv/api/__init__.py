"""The HTTP API: routes over the service, problem details for every error."""
