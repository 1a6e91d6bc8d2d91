"""What writes or judges steps behind one interface: policies, critics, PRMs here or behind a server."""
