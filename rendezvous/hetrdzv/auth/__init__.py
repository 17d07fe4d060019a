"""Who may do what: tokens and their files, the roles of routes, TLS."""
