"""The server: scores over HTTP, and a page to look at results."""
