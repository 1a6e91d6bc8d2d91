"""Policies, critics, and local or remote PRMs."""
