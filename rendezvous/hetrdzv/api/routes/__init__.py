"""The routes of the API: one module per subject, included in app.py; auth/policy.py says who may use each."""
